"""Fits the gates that mixtures begin with, python/lattice_bpd/draft/default_gates.json.

    python benchmarks/fit_default_gates.py MODEL [--drafter examples/smollm2]

The texts are the model's greedy responses to the tuning prompts of benchmarks/prompts; LM and heads
are those of the folder, which saw other prompts. The store has the responses before each. Lists of
sources with "target" are fitted while the model decodes every second text again, since replay has
no predictions at rejected nodes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llm_prompts import make_prompt, read_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd import NGramLM, _core
from lattice_bpd.build.known_texts import decode_known
from lattice_bpd.draft import gates as gates_module
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import TextStore, make_mixture
from lattice_bpd.draft.replay import KnownText, replay_text
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.verify import use_cpu_kernels

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "python/lattice_bpd/draft/default_gates.json"
NODES, TOKENS, TOP_K, ROUNDS = 16, 96, 16, 3
SOURCES = ("text", "lm+text", "heads+text", "heads+lm+text", "heads+lm+text+store")
DECODED = 2  # of so many texts one is decoded again


def collect_texts(model: Any, tokenizer: Any, heads: VocabularyHeads) -> list[KnownText]:
    """Responses with the heads' candidates, one prompt of each kind after the other."""

    def answer(token_ids: list[int]) -> list[int]:
        return next(generate_responses(model, [token_ids], TOKENS)).token_ids

    prompts = [make_prompt(row, tokenizer, answer).token_ids for row in read_rows("tuning")]
    responses = generate_responses(model, prompts, TOKENS, keep_states=True)
    texts: dict[int, KnownText] = {}
    for one in responses:
        if one.states is None:
            raise RuntimeError("no hidden states; expected a model that decodes batches")
        with torch.inference_mode():
            exact = torch.tensor(one.token_ids)
            lattice = heads.lattice(one.states, exact, TOP_K)
        candidates = lattice.token_ids.int().numpy(), lattice.scores.float().numpy()
        prompt = prompts[one.prompt]
        texts[one.prompt] = KnownText([*prompt, *one.token_ids], len(prompt), candidates)
    return [texts[number] for number in sorted(texts)]


def fit(sources: list[str], texts: list[KnownText], lm: NGramLM) -> Gates:
    """Each round drafts with the gates of the last."""
    has_heads, lms = "heads" in sources, [lm] * ("lm" in sources)
    num_bins = _core.gate_bins(sources)[1]
    gates = Gates(tuple(sources), np.zeros((len(sources) + 1, num_bins)))
    for _ in range(ROUNDS):
        store = _core.TextStore(100_000) if "store" in sources else None
        core = make_mixture(
            lm.vocab_size, lms, heads=has_heads, text=True, store=store, gates=gates
        )
        parts = []
        for text in texts:
            known = text if has_heads else KnownText(text.token_ids, text.prompt_length)
            parts.append(replay_text(core, known, max_nodes=NODES))
            if store is not None:
                store.add(np.array(text.token_ids, np.int32))
        gates = gates.fit(parts, None)
    return gates


def fit_decoding(
    gates: Gates, texts: list[KnownText], lm: NGramLM, model: Any, heads: Any
) -> Gates:
    """The weights with "target", by decoding with those without."""
    names = (*gates.sources, "target")
    rows, bins = len(names) + 1, _core.gate_bins(list(names))[1]
    start = np.zeros((rows, bins))
    start[: rows - 2, : gates.weights.shape[1]] = gates.weights[:-1]
    start[-1, : gates.weights.shape[1]] = gates.weights[-1]
    gates, lms = Gates(names, start), [lm] * ("lm" in names)
    used, store = heads if "heads" in names else None, TextStore() if "store" in names else None
    results = []
    for text in texts[::DECODED]:
        results.append(decode_known(model, text, lms, used, gates, max_nodes=NODES, store=store))
    return gates.fit(results, None)


def to_table(gates: Gates) -> dict[str, dict[str, list[float]]]:
    """The weights of each source, and of "none", by the bins of each source and of the depth."""
    table: dict[str, dict[str, list[float]]] = {}
    for name, row in zip([*gates.sources, "none"], gates.weights, strict=True):
        groups, first = table.setdefault(name, {}), 0
        for _, kind, size in gates_module._groups(gates.sources):
            groups[kind] = [round(float(weight), 2) for weight in row[first : first + size]]
            first += size
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="directory or hub name")
    parser.add_argument("--drafter", type=Path, default=ROOT / "examples/smollm2")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
    use_cpu_kernels(model)
    heads = VocabularyHeads.from_pretrained(args.drafter).to(model.dtype)
    heads.attach(model)
    texts = collect_texts(model, AutoTokenizer.from_pretrained(args.model), heads)
    lm = NGramLM.load(args.drafter / "ngram.lm")
    fitted = [fit(name.split("+"), texts, lm) for name in SOURCES]
    for gates in fitted[: len(SOURCES)]:
        fitted.append(fit_decoding(gates, texts, lm, model, heads))
        print("fitted", ", ".join(fitted[-1].sources), flush=True)
    tables = {"+".join(gates.sources): to_table(gates) for gates in fitted}
    about = "SmolLM2-135M-Instruct, the tuning prompts of benchmarks/prompts, 16 nodes"
    OUT.write_text(json.dumps({"fitted on": about, "gates": tables}, separators=(",", ":")) + "\n")
    print(f"{len(texts)} texts; wrote {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

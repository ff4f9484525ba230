"""The paper's strategies on a real LLM, by replay.

    python research/kim2024/real_llm.py MODEL --heads paper=DIR exact=DIR --lm own=FILE books=FILE

MODEL answers the 160 prompts of benchmarks/prompts (`scripts/fetch_smollm2.py` makes the model of
docs/results.md), `VocabularyHeads` (`lattice-bpd build --heads`) propose 16 tokens for each of 5
slots after every token of the answers, and each strategy says how far its drafts agree with the
answer. alpha and temperature are those with the most tokens per call on the tuning half; printed
are tokens per call on the test half, with 95 % bootstrap intervals over prompts, and by kind of
prompt. --test FILE.jsonl takes other prompts than the test half, objects with "id", "kind" and
"messages". Answers and hidden states are kept in --cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.build.bootstrap import bootstrap_ratio
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.draft.mixture import make_mixture
from lattice_bpd.draft.replay import KnownText, fit_to_texts, replay_text
from lattice_bpd.lattice.lattice_input import LatticeInput

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
TOP_K, NODES, DRAFTS = 16, 16, 16
ALPHAS = (0.25, 0.5, 1.0, 2.0)
TEMPERATURES = (1.0, 1.5, 2.0)
Int32Array = npt.NDArray[np.int32]


@dataclass
class Half:
    """The answers to half of the prompts, and the heads' candidates after each of their tokens.

    Attributes:
        texts: known texts, with candidates.
        contexts: prompt and answer so far, of all positions of all texts.
        lattices: of the same positions.
        following: (M, H) int32, the answer's tokens after each position; -1 beyond its end.
        kinds: of the prompt of each text.
    """

    texts: list[KnownText]
    contexts: list[list[int]]
    lattices: LatticeInput
    following: Int32Array
    kinds: Sequence[str]

    @classmethod
    def of(cls, texts: list[KnownText], kinds: Sequence[str]) -> Half:
        """All positions of some texts."""
        contexts, following, ids, scores = [], [], [], []
        for text in texts:
            tokens, first = list(text.token_ids), text.prompt_length
            assert text.candidates is not None
            slots = text.candidates[0].shape[1]
            padded = np.array([*tokens, *[-1] * slots], np.int32)
            for end in range(first + 1, len(tokens) + 1):
                contexts.append(tokens[max(0, end - 8) : end])
                following.append(padded[end : end + slots])
            ids.append(text.candidates[0])
            scores.append(text.candidates[1])
        lattices = LatticeInput(np.concatenate(ids), np.concatenate(scores), are_log_probs=True)
        return cls(texts, contexts, lattices, np.stack(following), kinds)

    def replay(self, accepted: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Tokens and calls of each text, from the draft tokens accepted at each position."""
        tokens, calls, begin = [], [], 0
        for text in self.texts:
            length = len(text.token_ids) - text.prompt_length
            done, count = 1, 1  # the call of the prompt gives the first token
            while done < length:
                done += int(accepted[begin + done - 1]) + 1
                count += 1
            tokens.append(length)
            calls.append(count)
            begin += length
        return tokens, calls


def accepted_of_lists(drafts: Int32Array, following: Int32Array) -> npt.NDArray[np.int64]:
    """(M,) tokens of the best of p drafts (M, p, H) that agree with what follows."""
    equal = (drafts == following[:, None]) & (drafts >= 0)
    return np.cumprod(equal, axis=2).sum(axis=2).max(axis=1)


def accepted_of_trees(tree: Any, following: Int32Array) -> npt.NDArray[np.int64]:
    """(M,) length of the path of each tree that agrees with what follows."""
    tokens, parents, depths = tree.token_ids, tree.parents, tree.depths
    rows = np.arange(len(tokens))
    best = np.zeros(len(tokens), np.int64)
    on_path = np.zeros(tokens.shape, bool)
    for node in range(tokens.shape[1]):
        parent, depth = parents[:, node], depths[:, node]
        before = np.where(parent < 0, True, on_path[rows, np.maximum(parent, 0)])
        on_path[:, node] = before & (tokens[:, node] == following[rows, depth])
        on_path[:, node] &= tokens[:, node] >= 0
        best = np.maximum(best, on_path[:, node] * (depth + 1))
    return best


def strategies(lms: dict[str, NGramLM]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Name of each row, and the settings that are tried for it."""
    yield "BPD", [{"lm": None, "num_drafts": 1, "alpha": 0.0}]
    for name, lm in lms.items():
        yield f"{name}, 1 best", [{"lm": lm, "num_drafts": 1, "alpha": a} for a in ALPHAS]
    yield f"{DRAFTS} best, no LM", [{"lm": None, "num_drafts": DRAFTS, "alpha": 0.0}]
    for name, lm in lms.items():
        yield (
            f"{name}, {DRAFTS} best",
            [{"lm": lm, "num_drafts": DRAFTS, "alpha": a} for a in ALPHAS],
        )
    yield (
        f"tree of {NODES}, no LM",
        [{"lm": None, "max_nodes": NODES, "alpha": 0.0, "temperature": t} for t in TEMPERATURES],
    )
    for name, lm in lms.items():
        yield (
            f"{name}, tree of {NODES}",
            [
                {"lm": lm, "max_nodes": NODES, "alpha": a, "temperature": t}
                for a, t in itertools.product(ALPHAS, TEMPERATURES)
            ],
        )


def accept_lengths(half: Half, setting: dict[str, Any]) -> npt.NDArray[np.int64]:
    """(M,) accepted draft tokens at every position."""
    search = rescore_tree if "max_nodes" in setting else rescore_lattice
    found: Any = search(half.lattices, half.contexts, log_softmax=False, **setting)
    if "max_nodes" in setting:
        return accepted_of_trees(found, half.following)
    return accepted_of_lists(found.token_ids, half.following)


def per_call(half: Half, setting: dict[str, Any]) -> float:
    """Tokens per call."""
    tokens, calls = half.replay(accept_lengths(half, setting))
    return sum(tokens) / sum(calls)


def measure(
    tuning: Half, test: Half, lms: dict[str, NGramLM], vocab_size: int, watcher: ConsoleWatcher
) -> dict[str, Any]:
    """All rows for one kind of heads."""
    rows: dict[str, Any] = {}
    todo = list(strategies(lms))
    watcher.begin("replay", len(todo) + 1 + len(lms))
    for name, settings in todo:
        best = max(settings, key=lambda setting: per_call(tuning, setting))
        chosen = {key: best[key] for key in ("alpha", "temperature") if key in best}
        rows[name] = summarize(*test.replay(accept_lengths(test, best)), test.kinds, chosen)
        watcher.advance(note=f"{name}: {rows[name]['value']:.2f}")
    for name, used in [("no LM", []), *((name, [lm]) for name, lm in lms.items())]:
        gates = fit_to_texts(vocab_size, used, tuning.texts)
        mixture = make_mixture(vocab_size, used, heads=True, text=True, store=None, gates=gates)
        replays = [replay_text(mixture, text, max_nodes=NODES) for text in test.texts]
        tokens, calls = [one.tokens for one in replays], [one.calls for one in replays]
        rows[f"{name}, mixture of {NODES}"] = summarize(tokens, calls, test.kinds, {})
        watcher.advance()
    watcher.end()
    return rows


def summarize(
    tokens: list[int], calls: list[int], kinds: Sequence[str], chosen: dict[str, Any]
) -> dict[str, Any]:
    """A row: tokens per call with its interval and by kind, and the chosen weights."""
    by_kind = {
        kind: sum(t for t, k in zip(tokens, kinds, strict=True) if k == kind)
        / sum(c for c, k in zip(calls, kinds, strict=True) if k == kind)
        for kind in dict.fromkeys(kinds)
    }
    return {**bootstrap_ratio(tokens, calls).to_json(), "kinds": by_kind, **chosen}


def named(argument: str) -> tuple[str, Path]:
    """NAME=PATH."""
    name, _, path = argument.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"found {argument!r}; expected NAME=PATH")
    return name, Path(path)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--heads", nargs="+", type=named, required=True, metavar="NAME=DIR")
    parser.add_argument("--lm", nargs="+", type=named, default=[], metavar="NAME=FILE")
    parser.add_argument("--test", type=Path, metavar="FILE", help="other prompts to test on")
    parser.add_argument("--tokens", type=int, default=96, help="most of an answer (default 96)")
    parser.add_argument("--cache", type=Path, default=Path("build/real_llm"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    quiet_transformers()
    titles = {"responses": "answers", "states": "hidden states (answers)", "replay": "strategies"}
    watcher = ConsoleWatcher(make_console(), titles)
    texts, lattices, vocab_size = read_answers(args, watcher)
    lms = {name: NGramLM.load(path) for name, path in args.lm}
    results: dict[str, Any] = {}
    for name, of_texts in lattices.items():
        chosen = [[n for n, one in enumerate(texts) if one[2] == s] for s in ("tuning", "test")]
        halves = [
            Half.of(
                [KnownText(*texts[n][:2], of_texts[n]) for n in some], [texts[n][3] for n in some]
            )
            for some in chosen
        ]
        results[name] = measure(*halves, lms, vocab_size, watcher)
        base = results[name]["BPD"]["value"]
        print(f"\n{name}: tokens per call, {len(halves[1].texts)} prompts")
        for row, of in results[name].items():
            weights = ", ".join(f"{k} {v}" for k, v in of.items() if k in ("alpha", "temperature"))
            print(f"  {row:32s} {of['value']:.2f} ({of['low']:.2f}-{of['high']:.2f}) "
                  f"{of['value'] / base - 1:+5.0%}  {weights}")  # fmt: skip
        print("  by kind: " + ", ".join(dict.fromkeys(halves[1].kinds)))
        for row, of in results[name].items():
            print(f"  {row:32s} " + "  ".join(f"{v:.2f}" for v in of["kinds"].values()))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_answers(args: argparse.Namespace, watcher: ConsoleWatcher) -> tuple[Any, Any, int]:
    """Texts (token ids, prompt length, split, kind), candidates by heads and text, V."""
    import torch
    from llm_prompts import PROMPTS, make_prompt
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lattice_bpd.models import load_heads
    from lattice_bpd.train.head_states import StateFile
    from lattice_bpd.train.responses.collect import Exchange
    from lattice_bpd.train.responses.generation import generate_responses

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16").eval()
    args.cache.mkdir(parents=True, exist_ok=True)
    kept = args.cache / "answers.json"
    if not kept.exists():
        rows = read_rows(PROMPTS)
        if args.test:
            rows = [row for row in rows if row["split"] == "tuning"]
            rows += [{**row, "split": "test"} for row in read_rows(args.test)]

        def answer(prompt: list[int]) -> list[int]:
            return next(generate_responses(model, [prompt], args.tokens)).token_ids

        prompts = [make_prompt(row, tokenizer, answer).token_ids for row in rows]
        answers: list[list[int]] = [[] for _ in prompts]
        watcher.begin("responses", len(prompts))
        for response in generate_responses(model, prompts, args.tokens):
            answers[response.prompt] = response.token_ids
            watcher.advance()
        watcher.end()
        content = [
            [p, a, row["split"], row["kind"]]
            for p, a, row in zip(prompts, answers, rows, strict=True)
        ]
        kept.write_text(json.dumps(content), encoding="utf-8")
    known = [one for one in json.loads(kept.read_text(encoding="utf-8")) if len(one[1]) > 1]
    exchanges = [Exchange(n, prompt, output) for n, (prompt, output, *_) in enumerate(known)]
    states = StateFile(args.cache / "states.bin", model).read(exchanges, watcher)
    lattices: dict[str, list[Any]] = {}
    for name, path in args.heads:
        heads: Any = load_heads(path)
        heads.to(dtype=model.dtype).attach(model)
        with torch.inference_mode():
            found = [
                heads.lattice(
                    states.of(n, len(one.response)).to(model.dtype),
                    torch.tensor(one.response, device="cpu"),
                ).cut(heads.num_slots, TOP_K)
                for n, one in enumerate(exchanges)
            ]
        lattices[name] = [(f.token_ids.int().numpy(), f.scores.float().numpy()) for f in found]
    texts = [([*one.prompt, *one.response], len(one.prompt), *about)
             for one, (_, _, *about) in zip(exchanges, known, strict=True)]  # fmt: skip
    return texts, lattices, model.config.vocab_size


if __name__ == "__main__":
    main()

"""An LM of 100 M n-grams: training, size, search and pruning, beside one of 4 M n-grams.

    python benchmarks/bench_scale.py [--tokens N] [--json FILE]     3 minutes, 5 GB of memory

"real" is an LM of the English texts of ../shared/data, without translations and code
(`load_all_text`); "large" of that and N tokens of glued stretches of it (`make_dense_text`). These
are synthetic: they make an LM of the paper's size, in which frequent tokens occur after each other
in far more combinations than in real text. "pruned" is "large", pruned. Searches take turns on the
same lattices, whose candidates and contexts are those of WikiText-2. Before they are timed, the
scores of drafts are compared with those of the LM, and drafts with OpenFst's where the LM is small
enough for it. The tables have the shapes of tables 12 and 13 of Kim et al. 2024, whose LM has 100 M
n-grams too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus, load_all_text, load_corpus, make_dense_text
from engines import make_lm, time_fused
from lattices import check_engines_agree, check_scores, draw_lattices
from machine import describe_machine
from ngram_files import COMMAND, END_ID, FOLDER, train_command
from processes import run_measured
from report import PAPER_BY_DRAFTS, PAPER_BY_SHAPE, print_table, write_json

from lattice_bpd import NGramLM

ORDER = 5
MEMORY = "8G"
PRUNED = "10M"
ROUNDS = 10
OPENFST_NGRAMS = 12_000_000
CHECKED = ((4, 4, 4), (8, 16, 16))  # slots, candidates, drafts
RESULTS = Path(__file__).with_name("results") / "scale.json"


def write_texts(tokens: int) -> tuple[dict[str, Path], dict[str, int]]:
    """The .npy files to train on, and the tokens of the two parts of the larger one."""
    real = load_all_text()
    synthetic = make_dense_text(real, tokens)
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {name: FOLDER / f"scale-{name}.npy" for name in ("real", "large")}
    np.save(files["real"], _end_lines(real))
    np.save(files["large"], np.concatenate([_end_lines(real), _end_lines(synthetic)]))
    return files, {"real": len(real.token_ids), "synthetic": len(synthetic.token_ids)}


def _end_lines(text: Corpus) -> Any:
    """The tokens with END_ID after each line."""
    return np.insert(text.token_ids, text.offsets[1:], END_ID).astype(np.uint16)


def measure_command(name: str, command: list[str | Path], output: Path) -> dict[str, Any]:
    """Seconds, peak memory and the LM's size."""
    usage = run_measured(command)
    num_ngrams = list(NGramLM.load(output).num_ngrams)
    size = output.stat().st_size
    line = {
        "wall_s": round(usage.wall, 1),
        "cpu_s": round(usage.cpu, 1),
        "peak_gib": round(usage.peak_mib / 1024, 2),
        "file_mib": round(size / 2**20, 1),
        "num_ngrams": num_ngrams,
        "million_ngrams": round(sum(num_ngrams) / 1e6, 1),
        "bytes_per_ngram": round(size / sum(num_ngrams), 2),
    }
    print(json.dumps({"name": name, **line}), flush=True)
    return line


def check_answers(lms: dict[str, NGramLM]) -> None:
    """Asserts that drafts have the scores that their LM gives them, and are OpenFst's.

    The latter only with LMs of up to OPENFST_NGRAMS, since OpenFst's copy of an LM takes 200 bytes
    per n-gram.
    """
    corpus = load_corpus()
    for slots, top_k, drafts in CHECKED:
        lattices = draw_lattices(corpus, 20, slots, top_k, context=ORDER - 1)
        for lm in lms.values():
            check_scores(lattices, lm, drafts)
            if sum(lm.num_ngrams) <= OPENFST_NGRAMS:
                check_engines_agree(lattices, lm, drafts)


def time_search(lms: dict[str, NGramLM]) -> list[dict[str, Any]]:
    """Microseconds of tables 12 and 13 with each LM, in turns."""
    corpus = load_corpus()
    shapes = [(shape, 1) for shape in PAPER_BY_SHAPE]
    shapes += [((8, 16), drafts) for drafts in PAPER_BY_DRAFTS if drafts > 1]
    rows = []
    for (slots, top_k), drafts in shapes:
        lattices = draw_lattices(corpus, 1000, slots, top_k, context=ORDER - 1)
        times = time_fused(list(lms.values()), lattices, drafts, ROUNDS)
        paper = PAPER_BY_SHAPE[slots, top_k] if drafts == 1 else PAPER_BY_DRAFTS[drafts]
        row: dict[str, Any] = {"slots": slots, "top_k": top_k, "num_drafts": drafts}
        row |= {name: round(time.median, 2) for name, time in zip(lms, times, strict=True)}
        rows.append({**row, "paper_ms": paper})
    return rows


def measure_perplexity(lms: dict[str, NGramLM]) -> dict[str, float]:
    """On WikiText-2's test text."""
    test = load_corpus("test")
    lines = [test.token_ids[a:b] for a, b in zip(test.offsets, test.offsets[1:], strict=False)]
    return {name: round(lm.evaluate(lines).perplexity, 2) for name, lm in lms.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tokens", type=int, default=32_000_000, help="of synthetic text (default 32 M)"
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    files, tokens = write_texts(args.tokens)
    print(json.dumps({"name": "text", "tokens": tokens}), flush=True)
    outputs = {name: FOLDER / f"scale-{name}.lm" for name in ("real", "large", "pruned")}
    commands = {
        name: train_command(files[name], outputs[name], ORDER, MEMORY) for name in ("real", "large")
    }
    commands["pruned"] = [*COMMAND, "prune", outputs["large"], "--prune-to", PRUNED,
                          "-o", outputs["pruned"]]  # fmt: skip
    made = {name: measure_command(name, commands[name], outputs[name]) for name in commands}
    lms = {"wikitext_4gram": make_lm("corpus.lm", load_corpus())}
    lms |= {f"{name}_5gram": NGramLM.load(path) for name, path in outputs.items()}
    check_answers(lms)
    search = time_search(lms)
    head = ["slots", "top-k", "paths"]
    head += [f"{sum(lm.num_ngrams) / 1e6:.0f} M {name}" for name, lm in lms.items()]
    print_table(
        "microseconds per lattice", [*head, "paper ms"], [list(row.values()) for row in search]
    )
    full = search[-1]
    assert (full["slots"], full["top_k"], full["num_drafts"]) == (8, 16, 16)
    summary = {"million_ngrams": made["large"]["million_ngrams"]}
    for name in outputs:
        ratio = full[f"{name}_5gram"] / full["wikitext_4gram"]
        summary[f"{name}_over_wikitext_8x16_p16"] = round(ratio, 2)
    perplexity = measure_perplexity(lms)
    print_table("summary", ["figure", "value"], list(summary.items()))
    print_table("perplexity of WikiText-2 test", ["LM", "value"], list(perplexity.items()))
    write_json(
        args.json,
        {
            "summary": summary, "machine": describe_machine(), "tokens": tokens, "lms": made,
            "search_us": search, "perplexity": perplexity,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()

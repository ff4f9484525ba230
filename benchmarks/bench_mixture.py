"""Own time of a step of the mixture: heads, a large n-gram LM and a text of 4,000 tokens.

    python benchmarks/bench_mixture.py             # an LM of about 22 M n-grams (2 minutes)
    python benchmarks/bench_mixture.py --quick     # of about 4 M
    python benchmarks/bench_mixture.py --json FILE

A step is what a decoder waits for: the new tokens are appended, which teaches the gates, and the
most probable prefixes are searched. Prints microseconds for trees of 16 and 36 nodes, with and
without heads (16 candidates for each of 5 slots), with GPT-2's vocabulary and one three times as
large. It checks some trees: no node is worth more than its parent, and the nodes are in order.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from corpus import (
    LARGE_VOCAB_SIZE,
    VOCAB_SIZE,
    Corpus,
    make_large_text,
    make_zipf_text,
    multiply_ids,
)
from engines import make_lm
from machine import describe_machine
from report import print_table, write_json
from timing import Times, summarize

from lattice_bpd import NGramLM, _core
from lattice_bpd.verify.prefix_tree import PrefixTree

TEXT, STEPS, SLOTS, TOP_K = 4_000, 400, 5, 16


def make_steps(corpus: Corpus, seed: int = 0) -> tuple[list[int], list[list[int]], Any, Any]:
    """A text, what is decoded in each step, and the heads' candidates after it.

    One of three steps continues with an earlier part of the text, as texts do.
    """
    rng = np.random.default_rng(seed)
    start = int(rng.integers(0, 100_000))
    text = corpus.token_ids[start : start + TEXT].tolist()
    decoded = []
    for step in range(STEPS):
        at = int(rng.integers(0, TEXT - 3)) if step % 3 == 0 else start + TEXT + 3 * step
        source = text if step % 3 == 0 else corpus.token_ids
        decoded.append([int(token) for token in source[at : at + 3]])
    shape = (STEPS, SLOTS, TOP_K)
    token_ids = rng.choice(corpus.token_ids, shape).astype(np.int32)
    token_ids += np.arange(TOP_K, dtype=np.int32)  # mostly different ones
    token_ids = np.minimum(token_ids, int(corpus.token_ids.max()))
    probs = np.sort(rng.dirichlet(np.full(TOP_K + 1, 0.3), shape[:2])[..., :TOP_K], axis=-1)
    return text, decoded, token_ids, np.log(probs[..., ::-1] + 1e-9).astype(np.float32)


def time_steps(steps: Any, lm: NGramLM, nodes: int, *, heads: bool) -> Times:
    """Appending and searching, one text at a time."""
    text, decoded, token_ids, log_probs = steps
    mixture = _core.Mixture(lm.vocab_size, heads, [lm._core], True, None, 0.1)
    of_text = _core.MixtureText(mixture)
    of_text.append(text)
    seconds = []
    for step, tokens in enumerate(decoded):
        part = slice(step, step + 1)
        arrays = (token_ids[part], log_probs[part]) if heads else (None, None)
        begin = time.perf_counter()
        of_text.append(tokens)
        tree = _core.search_mixtures([of_text], [nodes], nodes, False, *arrays)[0]
        seconds.append(time.perf_counter() - begin)
        if step < 20:
            check_tree(PrefixTree.of(tree), nodes)
    return summarize(seconds)


def check_tree(tree: PrefixTree, nodes: int) -> None:
    """Asserts the order of a tree's probabilities."""
    probs = np.array([0.0, *np.asarray(tree.log_probs).tolist()])
    parents = np.array(tree.parents[1:])
    assert 1 < len(tree) <= nodes + 1
    assert (np.diff(probs[1:]) <= 1e-6).all()
    assert (probs[1:] <= probs[parents] + 1e-6).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller LM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args()
    zipf = make_zipf_text()
    corpora = {VOCAB_SIZE: zipf if args.quick else make_large_text(zipf, 4)}
    corpora[LARGE_VOCAB_SIZE] = multiply_ids(zipf)
    figures: dict[str, Any] = {}
    for vocab_size, corpus in corpora.items():
        lm = make_lm(f"mixture-{vocab_size}.lm", corpus, vocab_size)
        steps = make_steps(zipf if vocab_size == VOCAB_SIZE else corpus)
        for heads in (False, True):
            for nodes in (16, 36):
                times = time_steps(steps, lm, nodes, heads=heads)
                sources = "text, LM, heads" if heads else "text, LM"
                figures[f"{sources}; {nodes} nodes; V {vocab_size:,}"] = {
                    "ngrams": sum(lm.num_ngrams),
                    **times.to_json(),
                }
    rows = [[name, f"{f['ngrams'] / 1e6:.1f} M", f["median_us"], f["p90_us"]]
            for name, f in figures.items()]  # fmt: skip
    print_table("one step", ["", "n-grams", "median us", "p90 us"], rows)
    if args.json:
        write_json(args.json, {"machine": describe_machine(), "steps": figures})


if __name__ == "__main__":
    main()

"""Scores of words beside kenlm, and word lattices beside OpenFst; answers are compared first.

    python benchmarks/bench_recognition.py                 both
    python benchmarks/bench_recognition.py --quick         small sizes
    python benchmarks/bench_recognition.py --json FILE     also writes the lines there

Prints a JSON line for each measurement; `ratio` is above 1 where ours is faster. The LM is of the
words of WikiText-2 if the shared data are here, else of Zipf text. OpenFst composes a lattice with
an LM whose failures are written out (pywrapfst has no phi matcher), which is done before, removes
epsilons and searches distinct sequences; all labels are numbers on both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
from corpus import CACHE, ROOT, SHARED
from machine import describe_machine
from timing import summarize

from lattice_bpd import NGramLM
from lattice_bpd.lm import write_lm
from lattice_bpd.train import train_corpus, word_corpus
from lattice_bpd_recognition import Model, rescore_lattice
from lattice_bpd_recognition.kenlm_interface import State

sys.path.insert(0, str(ROOT / "packages" / "recognition" / "tests"))
from random_word_lattices import names, random_lattice, strings_of, to_fst

ORDER, MAX_WORDS = 3, 20_000


def word_text(quick: bool) -> list[str]:
    """Lines of words."""
    path = SHARED / "wikitext2"
    files = sorted(path.rglob("*train*")) if path.is_dir() else []
    if files and not quick:
        lines = files[0].read_text(encoding="utf-8", errors="ignore").splitlines()
        return [line for line in lines if line.strip()]
    rng = np.random.default_rng(0)
    count = 2_000 if quick else 100_000
    return [
        " ".join(f"w{w}" for w in rng.zipf(1.3, rng.integers(3, 25)).clip(max=MAX_WORDS))
        for _ in range(count)
    ]


def interleave(rounds: int, *calls: Callable[[], object]) -> list[list[float]]:
    """Wall-clock seconds of each call, taken in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call in zip(seconds, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return seconds


def line_of(
    name: str, ours: list[float], peer: list[float], items: int, **more: Any
) -> dict[str, Any]:
    """Microseconds for each item."""
    mine, other = summarize(ours, items), summarize(peer, items)
    return {
        "name": name, "ours": mine.to_json(), "peer": other.to_json(),
        "ratio": round(other.median / mine.median, 2), **more,
    }  # fmt: skip


def score_lines(quick: bool) -> list[dict[str, Any]]:
    """`score`, `BaseScore` in a Python loop, and a batch, beside kenlm."""
    CACHE.mkdir(parents=True, exist_ok=True)
    text = word_text(quick)
    corpus, arpa = CACHE / "words.txt", CACHE / "words.arpa"
    corpus.write_text("\n".join(line for i, line in enumerate(text) if i % 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = train_corpus(
            word_corpus([corpus], vocab_size=MAX_WORDS), ORDER,
            smoothing="modified_kneser_ney", unseen="uniform",
        )  # fmt: skip
    lm.save(CACHE / "words.lm")
    write_lm(lm, arpa)
    ours, theirs = Model(CACHE / "words.lm"), kenlm.Model(str(arpa))
    sentences = text[::10][: 200 if quick else 5_000]
    mine = ours.scores(sentences)
    np.testing.assert_allclose(mine, [theirs.score(s) for s in sentences], rtol=1e-5, atol=1e-4)
    words = [word for sentence in sentences[:500] for word in sentence.split()]

    def walk(model: Any, make: Callable[[], Any]) -> None:
        before, after = make(), make()
        model.BeginSentenceWrite(before)
        for word in words:
            model.BaseScore(before, word, after)
            before, after = after, before

    rounds = 5 if quick else 30
    sentence = interleave(
        rounds,
        lambda: [ours.score(s) for s in sentences],
        lambda: [theirs.score(s) for s in sentences],
    )
    single = interleave(rounds, lambda: walk(ours, State), lambda: walk(theirs, kenlm.State))
    batch = interleave(
        rounds,
        lambda: ours.scores(sentences, threads=1),
        lambda: [theirs.score(s) for s in sentences],
    )
    threads = interleave(
        rounds, lambda: ours.scores(sentences), lambda: [theirs.score(s) for s in sentences]
    )
    events = sum(len(s.split()) + 1 for s in sentences)
    return [
        line_of("score, for each word", *sentence, events),
        line_of("BaseScore in a Python loop", *single, len(words)),
        line_of("scores of a batch, one thread, for each word", *batch, events),
        line_of("scores of a batch, every core, for each word", *threads, events),
    ]


def lattice_lines(quick: bool) -> list[dict[str, Any]]:
    """10 best of random lattices beside composition and ShortestPath."""
    import pywrapfst

    rng = np.random.default_rng(1)
    vocab = 200
    count = 200 if quick else 2_000
    texts = [(vocab * rng.random(20) ** 3).astype(np.int32) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = NGramLM.train(
            texts, ORDER, vocab_size=vocab, smoothing="witten_bell", unseen="uniform"
        )
    lm = lm.with_words(names(vocab))
    model = lm.to_pywrapfst(expand_failures=True, end_of_sentence=True).arcsort("ilabel")
    lines = []
    for arcs in (200, 1_000) if quick else (1_000, 10_000, 50_000):
        lattice = random_lattice(rng, arcs // 5, arcs, vocab)
        fst = to_fst(lattice).arcsort("olabel")

        def search(lattice: Any = lattice) -> Any:
            return rescore_lattice(lattice, lm, 1.0, num_paths=10)

        def peer(fst: Any = fst) -> Any:
            composed = pywrapfst.compose(fst, model).rmepsilon()
            return pywrapfst.shortestpath(composed, nshortest=10, unique=True)

        expected = sorted(cost for cost, _ in strings_of(peer()))
        found = [-path.total for path in search().paths]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
        ours, other = interleave(3 if quick else 10, search, peer)
        lines.append(line_of(f"10 best, {arcs:,} arcs", ours, other, 1))
    return lines


def main() -> None:
    """Compares, measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    lines = [*score_lines(args.quick), *lattice_lines(args.quick)]
    for line in lines:
        print(json.dumps(line), flush=True)
    if args.json is not None:
        report = {"machine": describe_machine(), "lines": lines}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

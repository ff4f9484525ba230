"""`lattice-bpd ngram query`: scores lines of standard input, as KenLM's `query` does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli.options import add_command
from lattice_bpd_recognition.normalize import add_normal_options, normalizer_of

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Commands

_EXAMPLE = """examples:
  echo "this is a sentence ." | lattice-bpd ngram query words.lm
  lattice-bpd ngram query words.arpa --summary < heldout.txt

A line is WORD=ID LENGTH LOG10 for each word and </s>, then the sum and the number of unknown words:
LENGTH is that of the n-gram that the word's probability is of, ID is <unk>'s for unknown words.
"""


def add_parser(actions: Commands) -> None:
    """Adds the action."""
    parser = add_command(
        actions, "query", run, epilog=_EXAMPLE,
        summary="score lines of standard input by an LM over words",
        description="Score each line of standard input, as KenLM's query does: log10.",
    )  # fmt: skip
    parser.add_argument("lm", type=Path, metavar="LM", help="LM file with words, or ARPA text")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--sentences", action="store_true", help="the sum and unknown words of each line alone"
    )
    kinds.add_argument("--summary", action="store_true", help="the perplexities alone")
    parser.add_argument("--no-bos", action="store_true", help="no <s> before a line")
    parser.add_argument("--no-eos", action="store_true", help="do not score </s>")
    add_normal_options(parser)
    parser.add_argument("--json", action="store_true", help="a JSON object for each line")


def run(args: argparse.Namespace) -> None:
    """Scores and prints.

    Raises:
        ValueError: the LM has no words, or a line is not UTF-8.
        OSError: the LM cannot be read.
    """
    from lattice_bpd_recognition.kenlm_interface import Model

    model = Model(args.lm)
    normalize = normalizer_of(args)
    totals = _Totals()
    for line in _lines(sys.stdin.buffer):
        text = normalize(line)
        words = [*_words(text), *([] if args.no_eos else ["</s>"])]
        scores = model.word_scores(text, not args.no_bos, not args.no_eos)
        total, oov = sum(score[0] for score in scores), sum(score[2] for score in scores)
        totals.add(scores)
        if args.summary:
            continue
        if args.json:
            parts = zip(words, scores, strict=True)
            print(json.dumps({"log10": total, "oov": oov, "words": [[w, *s] for w, s in parts]}))
            continue
        if not args.sentences:
            for word, (log_prob, length, _) in zip(words, scores, strict=True):
                print(f"{word}={model.symbol(word)} {length} {log_prob:.8g}", end="\t")
        print(f"Total: {total:.8g} OOV: {oov}")
    for name, value in totals.lines():
        print(f"{name}\t{value}", file=sys.stderr if args.json else sys.stdout)


def _words(text: str) -> list[str]:
    from lattice_bpd.train.corpus import split_words

    return split_words(text)


def _lines(stream: Iterable[bytes]) -> Iterator[str]:
    from lattice_bpd.text_input import decode_text

    byte = 0
    for number, line in enumerate(stream, 1):
        yield decode_text(line, "<standard input>", byte, number).rstrip("\n")
        byte += len(line)


class _Totals:
    """Sums over all lines."""

    def __init__(self) -> None:
        self._log_prob = self._known = 0.0
        self._words = self._oov = 0

    def add(self, scores: Iterable[tuple[float, int, bool]]) -> None:
        """Adds those of a line."""
        for log_prob, _, oov in scores:
            self._words += 1
            self._oov += oov
            self._log_prob += log_prob
            self._known += 0.0 if oov else log_prob

    def lines(self) -> Iterator[tuple[str, str]]:
        """The lines of KenLM's query after all others."""
        known = self._words - self._oov
        for name, log_prob, words in (
            ("including", self._log_prob, self._words),
            ("excluding", self._known, known),
        ):
            value = 10.0 ** min(-log_prob / words, 300.0) if words else float("nan")
            yield f"Perplexity {name} OOVs:", f"{value:.6g}"
        yield "OOVs:", str(self._oov)
        yield "Tokens:", str(self._words)

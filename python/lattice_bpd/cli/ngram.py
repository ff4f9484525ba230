"""`lattice-bpd ngram train`: a Katz n-gram LM from a text file."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_EXAMPLE = """example:
  lattice-bpd ngram train corpus.txt --order 4 --tokenizer demo-out/model/tokenizer.json -o corpus.lm
"""  # noqa: E501


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `ngram` and what is below it."""
    group = commands.add_parser("ngram", help="train n-gram LMs", description="N-gram LMs.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = actions.add_parser(
        "train",
        help="train a Katz backoff LM on a text file",
        description="Train a Katz backoff n-gram LM over the token ids of a tokenizer.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--order", type=int, default=4, help="n, 1..6 (default 4)")
    parser.add_argument(
        "--min-counts",
        metavar="C1,C2,..",
        help="rarest n-grams to keep, one count for each order (default: keep all)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="V",
        help="columns of the model's logits, where they are more than the tokenizer's tokens",
    )
    parser.add_argument(
        "--sequence",
        choices=("line", "paragraph", "file"),
        default="paragraph",
        help="what <s> and </s> enclose (default: paragraphs, set off by empty lines)",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LM", help="LM file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Train and write the LM.

    Raises:
        ValueError: a text without tokens, or options out of range.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd import NGramLM
    from lattice_bpd.cli.files import load_tokenizer, read_text

    text = read_text(args.file)
    tokenizer = load_tokenizer(args.tokenizer)
    pieces = list(_split(text, args.sequence))
    start = time.perf_counter()
    ids = [found.ids for found in tokenizer.encode_batch(pieces)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = NGramLM.train(
            ids,
            args.order,
            vocab_size=args.vocab_size or tokenizer.get_vocab_size(),
            min_counts=_min_counts(args.min_counts),
        )
    lm.save(args.output)
    for warning in caught:
        print(f"lattice-bpd: note: {warning.message}", file=sys.stderr)
    print(
        f"{args.output}: order {lm.order}, vocabulary {lm.vocab_size:,}, "
        f"{sum(lm.num_ngrams):,} n-grams from {sum(map(len, ids)):,} tokens in "
        f"{time.perf_counter() - start:.1f} s"
    )


def _split(text: str, sequence: str) -> Iterator[str]:
    """The non-empty sequences of a text, with the line ends inside them."""
    if sequence == "file":
        pieces = [text]
    elif sequence == "line":
        pieces = text.splitlines()
    else:
        pieces = text.replace("\r\n", "\n").split("\n\n")
    return (piece for piece in pieces if piece.strip())


def _min_counts(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--min-counts is {text!r}; expected whole numbers with commas, such as 1,1,2,4"
        ) from None

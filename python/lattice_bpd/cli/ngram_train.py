"""`lattice-bpd ngram train`: an n-gram LM from text, token ids, or counts."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.corpus_options import (
    add_corpus_options,
    add_counting_options,
    add_estimate_options,
    add_inputs,
    add_model_option,
    estimate_arguments,
    make_corpus,
    use_model_vocabulary,
)
from lattice_bpd.cli.ngram_options import timed_step

if TYPE_CHECKING:
    from lattice_bpd import NGramLM

_EXAMPLE = """examples:
  lattice-bpd ngram train corpus.txt --order 4 --model MODEL -o corpus.lm
  lattice-bpd ngram train corpus.txt --order 4 --tokenizer tokenizer.json -o corpus.lm
  lattice-bpd ngram train all.counts --min-counts 1,1,2,4 -o all.lm
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` to the actions of `ngram`."""
    parser = actions.add_parser(
        "train",
        help="train a backoff LM on text, token ids or counts",
        description="Train a backoff n-gram LM over the token ids of a tokenizer.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser, also="; or counts files of `ngram count`")
    add_model_option(parser)
    add_estimate_options(parser, "n, 1..6 (default 4, or that of the counts)")
    add_corpus_options(parser)
    add_counting_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Trains and writes the LM.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written, a full disk.
        ImportError: an extra is missing.
    """
    train_and_write(args.output, lambda: _train(args))


def train_and_write(output: Path, train: Callable[[], NGramLM]) -> None:
    """Trains, prints warnings, writes the LM and prints its size.

    Raises:
        OSError: the LM cannot be written; the output is checked before the training.
    """
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.lm.convert import write_lm

    check_output(output)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = train()
    for warning in caught:
        print(f"lattice-bpd: note: {warning.message}", file=sys.stderr)
    with timed_step(f"write {output}"):
        write_lm(lm, output)
    print(
        f"{output}: order {lm.order}, vocabulary {lm.vocab_size:,}, "
        f"{sum(lm.num_ngrams):,} n-grams in {time.perf_counter() - start:.1f} s"
    )


def _train(args: argparse.Namespace) -> NGramLM:
    from lattice_bpd.cli.count_progress import CountingWatcher
    from lattice_bpd.cli.heartbeat import Heartbeat
    from lattice_bpd.train import train_corpus, train_counts

    options: dict[str, Any] = {
        **estimate_arguments(args),
        "memory": args.memory,
        "temp_dir": args.temp_dir,
    }
    if _all_counts(args.inputs):
        if args.model is not None:
            raise ValueError(
                "--model with counts files, which have a vocabulary already; leave it out, and "
                "give it to `ngram count`"
            )
        with Heartbeat("merge and estimate"):
            return train_counts(args.inputs, args.order, **options)
    use_model_vocabulary(args)
    order = args.order if args.order is not None else 4
    with CountingWatcher() as watcher:
        return train_corpus(make_corpus(args, args.inputs), order, on_progress=watcher, **options)


def _all_counts(inputs: list[str]) -> bool:
    """Whether the inputs are counts files.

    Raises:
        ValueError: only some are.
    """
    from lattice_bpd.train.ngram.corpus_lm import is_counts_file

    is_counts = [is_counts_file(name) for name in inputs]
    if any(is_counts) and not all(is_counts):
        raise ValueError(
            f"{inputs[is_counts.index(False)]}: not a counts file, while "
            f"{inputs[is_counts.index(True)]} is one; count the others first (ngram count), or "
            "leave the counts out"
        )
    return all(is_counts)

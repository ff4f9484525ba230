"""`lattice-bpd ngram train`, `count` and `merge-counts`: LMs and counts of a corpus."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd import train
from lattice_bpd.cli.files import check_output
from lattice_bpd.cli.options import (
    ESTIMATE_OPTIONS,
    add_command,
    add_corpus_options,
    add_estimate_options,
    add_inputs,
    add_model_option,
    add_options,
    make_corpus,
    pick,
    use_model_vocabulary,
)
from lattice_bpd.cli.progress import CorpusWatcher, timed_step
from lattice_bpd.train.words import NORMAL_FORMS

if TYPE_CHECKING:
    from lattice_bpd import NGramLM
    from lattice_bpd.cli.options import Commands

_COUNTING = ("memory", "threads")
_COUNT = ("order", "resume", "checkpoint_minutes", *_COUNTING)
_MERGE = ("order", "allow_repeats", *_COUNTING)
_WORDS = ("normal_form", "lowercase", "min_word_count")
_FOR_IDS = {"smoothing": "katz", "unseen": "cost", "boundaries": "paragraph"}  # defaults
_FOR_WORDS = {"smoothing": "modified_kneser_ney", "unseen": "uniform", "boundaries": "line"}
_SIZE = {"type": str, "metavar": "SIZE"}
_TRAIN_EXAMPLE = """examples:
  lattice-bpd ngram train corpus.txt --order 4 --model MODEL -o corpus.lm
  lattice-bpd ngram train corpus.txt --order 4 --tokenizer tokenizer.json -o corpus.lm
  lattice-bpd ngram train all.counts --min-counts 1,1,2,4 -o all.lm
  lattice-bpd ngram train --words corpus.txt --lowercase -o words.lm
"""
_COUNT_EXAMPLE = """examples:
  lattice-bpd ngram count corpus.jsonl.zst --tokenizer tokenizer.json --order 4 -o corpus.counts
  lattice-bpd ngram count shards/ --tokenizer tokenizer.json --memory 8G --resume -o all.counts
  lattice-bpd ngram count ids.bin --vocab-size 50257 --eos-id 50256 -o ids.counts
"""
_MERGE_EXAMPLE = """example:
  lattice-bpd ngram merge-counts part-0.counts part-1.counts -o all.counts
"""


def add_parsers(actions: Commands) -> None:
    """Adds the actions."""
    parser = add_command(
        actions, "train", run_train, epilog=_TRAIN_EXAMPLE,
        summary="train a backoff LM on text, token ids or counts",
        description="Train a backoff n-gram LM over the token ids of a tokenizer, or over words.",
    )  # fmt: skip
    add_inputs(parser, also="; or counts files of `ngram count`")
    add_model_option(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="LM",
        help="LM file; ARPA or OpenFst where it ends in .arpa, .arpa.gz or .fst",
    )  # fmt: skip
    parser.add_argument(
        "--order", type=int, metavar="N", help="1..6 (default 4, or that of the counts)"
    )
    add_estimate_options(parser)
    add_corpus_options(parser)
    add_options(parser, train.train_corpus, _COUNTING, memory=_SIZE)
    _add_word_options(parser)

    parser = add_command(
        actions, "count", run_count, epilog=_COUNT_EXAMPLE,
        summary="count n-grams out of core",
        description="Count the n-grams of files of text or token ids within a memory budget and "
        "write a counts file, from which `ngram train` makes LMs.",
    )  # fmt: skip
    add_inputs(parser)
    add_model_option(parser)
    _add_counts_output(parser)
    add_corpus_options(parser)
    add_options(
        parser, train.count_corpus, _COUNT, memory=_SIZE,
        checkpoint_minutes={"flag": "--checkpoint", "metavar": "MINUTES"},
    )  # fmt: skip

    parser = add_command(
        actions, "merge-counts", run_merge, epilog=_MERGE_EXAMPLE,
        summary="add counts files up",
        description="Add up counts files of one vocabulary, streaming.",
    )  # fmt: skip
    parser.add_argument("counts", nargs="+", type=Path, metavar="COUNTS", help="counts files")
    _add_counts_output(parser)
    add_options(parser, train.merge_counts, _MERGE, memory=_SIZE)


def _add_word_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("words")
    group.add_argument(
        "--words", action="store_true",
        help="train on the words of the text, which the LM file has beside the n-grams; the "
        "defaults are --boundaries line, --smoothing modified_kneser_ney and --unseen uniform",
    )  # fmt: skip
    add_options(group, train.word_corpus, _WORDS, normal_form={"choices": NORMAL_FORMS})
    parser.set_defaults(**dict.fromkeys((*_FOR_IDS, *_WORDS)))


def _add_counts_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="COUNTS", help="counts file to write"
    )


def run_train(args: argparse.Namespace) -> None:
    """Trains and writes the LM; the output is checked first.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written, a full disk.
        ImportError: an extra is missing.
    """
    from lattice_bpd.lm.convert import write_lm

    check_output(args.output)
    start = time.perf_counter()
    with print_notes():
        lm = _train(args)
    with timed_step(f"write {args.output}"):
        write_lm(lm, args.output)
    print(
        f"{args.output}: order {lm.order}, vocabulary {lm.vocab_size:,}, "
        f"{sum(lm.num_ngrams):,} n-grams in {time.perf_counter() - start:.1f} s"
    )


@contextmanager
def print_notes() -> Iterator[None]:
    """Prints the warnings of a block after it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"lattice-bpd: note: {warning.message}", file=sys.stderr)


def _train(args: argparse.Namespace) -> NGramLM:
    given = {name: value for name, value in pick(args, _WORDS).items() if value is not None}
    if given and not args.words:
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} is of --words; give both")
    for name, default in (_FOR_WORDS if args.words else _FOR_IDS).items():
        setattr(args, name, default if getattr(args, name) is None else getattr(args, name))
    options: dict[str, Any] = pick(args, (*ESTIMATE_OPTIONS, *_COUNTING))
    if _all_counts(args.inputs):
        if args.words:
            raise ValueError("--words with counts files, which have token ids; give the text")
        if args.model is not None:
            raise ValueError(
                "--model with counts files, which have a vocabulary already; leave it out, and "
                "give it to `ngram count`"
            )
        with timed_step("merge and estimate"):
            return train.train_counts(args.inputs, args.order, **options)
    use_model_vocabulary(args)
    order = args.order if args.order is not None else 4
    corpus = _word_corpus(args, given) if args.words else make_corpus(args, args.inputs)
    with closing(CorpusWatcher()) as watcher:
        return train.train_corpus(corpus, order, watcher=watcher, **options)


def _word_corpus(args: argparse.Namespace, given: dict[str, Any]) -> train.Corpus:
    for name in ("model", "tokenizer", "bos_id", "eos_id", "unk_id", "id_type"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} with --words, whose ids are their own")
    names = ("boundaries", "vocab_size", "field")
    with timed_step("count words"):
        return train.word_corpus(args.inputs, **pick(args, names), **given)


def _all_counts(inputs: list[str]) -> bool:
    """Whether the inputs are counts files.

    Raises:
        ValueError: only some are.
    """
    from lattice_bpd.train.corpus_lm import is_counts_file

    is_counts = [is_counts_file(name) for name in inputs]
    if any(is_counts) and not all(is_counts):
        raise ValueError(
            f"{inputs[is_counts.index(False)]}: not a counts file, while "
            f"{inputs[is_counts.index(True)]} is one; count the others first (ngram count), or "
            "leave the counts out"
        )
    return all(is_counts)


def run_count(args: argparse.Namespace) -> None:
    """Counts and writes the counts file.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written, a full disk.
        ImportError: an extra is missing.
    """
    check_output(args.output)
    use_model_vocabulary(args)
    start = time.perf_counter()
    options = pick(args, _COUNT)
    with closing(CorpusWatcher()) as watcher:
        corpus = make_corpus(args, args.inputs)
        info = train.count_corpus(corpus, args.output, watcher=watcher, **options)
    _print_info(args.output, info, time.perf_counter() - start)


def run_merge(args: argparse.Namespace) -> None:
    """Merges and writes the counts file.

    Raises:
        ValueError: files of other vocabularies, or sources counted twice.
        OSError: a file that cannot be read or written.
    """
    check_output(args.output)
    start = time.perf_counter()
    with timed_step("merge"):
        options = pick(args, _MERGE)
        info = train.merge_counts(args.counts, args.output, **options)
    _print_info(args.output, info, time.perf_counter() - start)


def _print_info(path: Path, info: train.CountsInfo, seconds: float) -> None:
    print(
        f"{path}: order {info.order}, vocabulary {info.vocab_size:,}, {info.num_records:,} "
        f"different n-grams of {info.num_tokens:,} tokens in {info.num_sequences:,} sequences, "
        f"{info.file_size:,} bytes, in {seconds:.1f} s"
    )

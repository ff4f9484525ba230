"""`lattice-bpd ngram count` and `ngram merge-counts`: n-gram counts of corpora of any size."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli.corpus_options import (
    add_corpus_options,
    add_counting_options,
    add_inputs,
    add_model_option,
    make_corpus,
    use_model_vocabulary,
)

if TYPE_CHECKING:
    from lattice_bpd.train import CountsInfo

_COUNT_EXAMPLE = """examples:
  lattice-bpd ngram count corpus.jsonl.zst --tokenizer tokenizer.json --order 4 -o corpus.counts
  lattice-bpd ngram count shards/ --tokenizer tokenizer.json --memory 8G --resume -o all.counts
  lattice-bpd ngram count ids.bin --vocab-size 50257 --eos-id 50256 -o ids.counts
"""
_MERGE_EXAMPLE = """example:
  lattice-bpd ngram merge-counts part-0.counts part-1.counts -o all.counts
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `count` and `merge-counts` to the actions of `ngram`."""
    parser = actions.add_parser(
        "count",
        help="count n-grams out of core",
        description="Count the n-grams of files of text or token ids within a memory budget and "
        "write a counts file, from which `ngram train` makes LMs.",
        epilog=_COUNT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="COUNTS", help="counts file"
    )
    parser.add_argument("--order", type=int, default=4, help="n, 1..6 (default 4)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from an existing COUNTS: skip the files that it has counted",
    )
    parser.add_argument(
        "--checkpoint",
        type=float,
        metavar="MINUTES",
        help="interval at which to write COUNTS, for --resume (default: only at the end)",
    )
    add_model_option(parser)
    add_corpus_options(parser)
    add_counting_options(parser)
    parser.set_defaults(run=run_count)
    _add_merge_parser(actions)


def _add_merge_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "merge-counts",
        help="add counts files up",
        description="Add up counts files of one vocabulary, streaming.",
        epilog=_MERGE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("counts", nargs="+", type=Path, metavar="COUNTS", help="counts files")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="counts file to write"
    )
    parser.add_argument("--order", type=int, help="of the result (default: the lowest of theirs)")
    parser.add_argument(
        "--allow-repeats", action="store_true", help="accept files that were counted twice"
    )
    add_counting_options(parser)
    parser.set_defaults(run=run_merge)


def run_count(args: argparse.Namespace) -> None:
    """Count and write the counts file.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written, a full disk.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.count_progress import CountingWatcher
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.train import count_corpus

    check_output(args.output)
    use_model_vocabulary(args)
    start = time.perf_counter()
    with CountingWatcher() as watcher:
        info = count_corpus(
            make_corpus(args, args.inputs),
            args.output,
            order=args.order,
            memory=args.memory,
            threads=args.threads,
            temp_dir=args.temp_dir,
            resume=args.resume,
            checkpoint_minutes=args.checkpoint,
            on_progress=watcher,
        )
    _print_info(args.output, info, time.perf_counter() - start)


def run_merge(args: argparse.Namespace) -> None:
    """Merge and write the counts file.

    Raises:
        ValueError: files of other vocabularies, or sources counted twice.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.cli.heartbeat import Heartbeat
    from lattice_bpd.train import merge_counts

    check_output(args.output)
    start = time.perf_counter()
    with Heartbeat("merge"):
        info = merge_counts(
            args.counts,
            args.output,
            order=args.order,
            memory=args.memory,
            threads=args.threads,
            temp_dir=args.temp_dir,
            allow_repeats=args.allow_repeats,
        )
    _print_info(args.output, info, time.perf_counter() - start)


def _print_info(path: Path, info: CountsInfo, seconds: float) -> None:
    print(
        f"{path}: order {info.order}, vocabulary {info.vocab_size:,}, {info.num_records:,} "
        f"different n-grams of {info.num_tokens:,} tokens in {info.num_sequences:,} sequences, "
        f"{info.file_size:,} bytes, in {seconds:.1f} s"
    )

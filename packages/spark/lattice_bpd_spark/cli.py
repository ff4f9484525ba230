"""`lattice-bpd ngram spark`, also the main file for spark-submit: train n-gram LMs."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli import main
from lattice_bpd.cli.options import (
    ESTIMATE_OPTIONS,
    TEXT_OPTIONS,
    add_corpus_options,
    add_estimate_options,
    parse_size,
    pick,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lattice_bpd_spark import SparkCounts, SparkLM

_EXAMPLE = """examples:
  lattice-bpd ngram spark c4/*.parquet --order 4 --tokenizer tokenizer.json \\
      --boundaries document --min-counts 1,1,2,4 -o c4.lm
  spark-submit --archives env.tar.gz#env SITE/lattice_bpd_spark/cli.py .. (packages/spark/README.md)
  lattice-bpd ngram spark --from-parts shared/c4.parts -o c4.lm
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `ngram spark`, with the options of `ngram train` and `ngram prune`."""
    parser = commands.add_parser(
        "spark",
        help="train a backoff LM on a Spark cluster",
        description="Train a backoff n-gram LM over the token ids of a tokenizer, on Spark.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "inputs", nargs="*", metavar="INPUT", help="Parquet, JSON lines or text; folders, wildcards"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="LM", help="LM file, on the driver")
    parser.add_argument("--order", type=int, default=4, help="n, 1..6 (default 4)")
    add_estimate_options(parser, smoothings=("katz", "witten_bell", "absolute"))
    parser.add_argument("--theta", type=float, help="prune: see lattice-bpd ngram prune")
    parser.add_argument(
        "--prune-to", type=parse_size, metavar="N", help="prune: see lattice-bpd ngram prune"
    )
    add_corpus_options(parser, bin_files=False)
    _add_spark_options(parser)
    parser.set_defaults(run=_run)


def _add_spark_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("spark")
    group.add_argument(
        "--format", choices=("parquet", "json", "text"), help="of the input (default: by its name)"
    )
    group.add_argument(
        "--partitions", type=int, metavar="P", help="default: spark.sql.shuffle.partitions"
    )
    group.add_argument("--master", help="such as local[2] (default: spark-submit's, or local[*])")
    group.add_argument(
        "--parts", metavar="DIR", help="write sorted parts there, for --from-parts elsewhere"
    )
    group.add_argument(
        "--from-parts", metavar="DIR", help="only assemble the LM file of these parts"
    )


def _run(args: argparse.Namespace) -> None:
    if args.from_parts is not None:
        _assemble(args)
        return
    if not args.inputs or (args.output is None and args.parts is None):
        raise ValueError("expected INPUT, and -o LM or --parts DIR")
    from lattice_bpd_spark import start_session

    start = time.perf_counter()
    session = start_session(args.master)  # ends with the process, or with its owner
    counts = _count(session, args)
    _log(start, "counted")
    lm = _train(args, counts)
    _log(start, f"order {lm.order}: estimated; writing")
    if args.parts is not None:
        lm.save_parts(args.parts)
        _log(start, f"{args.parts}: written")
    if args.output is not None:
        written = lm.save(args.output)
        _log(start, f"{args.output}: {written}")
    lm.release()
    counts.release()


def _count(session: SparkSession, args: argparse.Namespace) -> SparkCounts:
    from lattice_bpd_spark import count_corpus, read_corpus

    corpus = read_corpus(
        session,
        args.inputs,
        format=args.format,
        **pick(args, TEXT_OPTIONS),
    )
    return count_corpus(corpus, args.order, partitions=args.partitions)


def _train(args: argparse.Namespace, counts: SparkCounts) -> SparkLM:
    from lattice_bpd.lm.training import SmoothingWarning
    from lattice_bpd_spark import prune_lm, train_counts

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = train_counts(
            counts,
            **pick(args, ESTIMATE_OPTIONS),
        )
    for warning in caught:
        if not issubclass(warning.category, SmoothingWarning):
            continue  # a warning of Spark
        print(f"lattice-bpd: note: {warning.message}", file=sys.stderr)
    if args.theta is not None or args.prune_to is not None:
        lm = prune_lm(lm, theta=args.theta, prune_to=args.prune_to)
    return lm


def _assemble(args: argparse.Namespace) -> None:
    from lattice_bpd_spark import assemble

    if args.output is None or args.inputs:
        raise ValueError("--from-parts takes -o LM and no INPUT")
    start = time.perf_counter()
    lm = assemble(args.from_parts)
    lm.save(args.output)
    _log(start, f"{args.output}: {lm}")


def _log(start: float, what: str) -> None:
    print(f"lattice-bpd: {time.perf_counter() - start:.1f} s: {what}", file=sys.stderr)


if __name__ == "__main__":  # under spark-submit
    sys.exit(main(["ngram", "spark", *sys.argv[1:]]))

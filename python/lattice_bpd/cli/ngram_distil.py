"""`lattice-bpd ngram distil`: an n-gram LM of a model's predictions on a corpus."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli.corpus_options import (
    add_corpus_options,
    add_estimate_options,
    estimate_arguments,
    make_corpus,
)
from lattice_bpd.cli.ngram_train import train_and_write

if TYPE_CHECKING:
    from lattice_bpd import NGramLM
    from lattice_bpd.lm.training import RaggedIds
    from lattice_bpd.token_ids import Int32Array
    from lattice_bpd.train import Corpus

_EXAMPLE = """examples:
  lattice-bpd ngram distil --model target --corpus corpus.txt -o target.lm
  lattice-bpd ngram merge target.lm corpus.lm --weights 0.7,0.3 -o mixed.lm
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `distil` to the actions of `ngram`."""
    parser = actions.add_parser(
        "distil",
        help="train an LM on a model's own predictions over a corpus",
        description="Let a model read a corpus once and train a backoff n-gram LM of its most "
        "likely token after each history of the text.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="MODEL",
        help="the target: a folder of transformers or a blockwise model, or a .bin of llama2.c",
    )
    parser.add_argument(
        "--corpus",
        nargs="+",
        required=True,
        metavar="INPUT",
        help="text (plain, .gz, .zst, .jsonl), token ids (.npy, .bin), folders of them, or - for "
        "standard input; held in memory as token ids",
    )
    add_estimate_options(parser, "n, 1..6 (default 4)")
    parser.add_argument(
        "--window",
        type=int,
        metavar="T",
        help="most tokens that the model reads at once (default: its positions, at most 1024)",
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="default: every core")
    add_corpus_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read the corpus, predict, count, write.

    Raises:
        ValueError: bad input or options, a tokenizer that is not the model's.
        OSError: a file that cannot be read or written.
        ImportError: an extra is missing.
    """
    train_and_write(args.output, lambda: _distil(args))


def _distil(args: argparse.Namespace) -> NGramLM:
    from lattice_bpd.cli.count_progress import CountingWatcher
    from lattice_bpd.cli.files import load_causal_lm
    from lattice_bpd.cli.ngram_options import timed_step

    with timed_step(f"load {args.model}"):
        model = load_causal_lm(args.model)
    from lattice_bpd.train import CountingProgress
    from lattice_bpd.train.ngram.distil import distil_ngram

    own = args.model / "tokenizer.json"
    if args.tokenizer is None and own.is_file():
        args.tokenizer = str(own)
    if args.vocab_size is None:
        args.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    with timed_step("read the corpus"):
        ragged = _read_all(make_corpus(args, args.corpus))
    sequences = len(ragged.offsets) - 1
    size = ragged.token_ids.itemsize
    with CountingWatcher() as watcher:
        return distil_ngram(
            model,
            ragged,
            4 if args.order is None else args.order,
            bos_id=args.bos_id,
            eos_id=args.eos_id,
            unk_id=args.unk_id,
            window=args.window,
            on_tokens=lambda done, total: watcher(
                CountingProgress(done, sequences, size * done, size * total, 0, 0)
            ),
            **estimate_arguments(args),
        )


def _read_all(corpus: Corpus) -> RaggedIds:
    """All sequences of a corpus, pieces of one joined."""
    import numpy as np

    from lattice_bpd.lm.training import RaggedIds

    ids: list[Int32Array] = [np.zeros(0, np.int32)]
    ends, total = [0], 0
    for batch in corpus.batches():
        ids.append(batch.token_ids)
        batch_ends = (total + batch.offsets[1:]).tolist()
        total += len(batch.token_ids)
        ends += batch_ends[:-1] if batch.continues_next else batch_ends
    return RaggedIds(np.concatenate(ids), np.array(ends, np.int64))

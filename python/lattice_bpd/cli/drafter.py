"""`lattice-bpd drafter train`: training of a block drafter, or of transition scores, on text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.corpus_options import add_corpus_options, add_inputs, corpus_arguments
from lattice_bpd.cli.drafter_options import BLOCK_ONLY, SELECTOR_ONLY, add_options
from lattice_bpd_kim2024.cli.training_options import run_training

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd.train.block_drafter.job import BlockJob
    from lattice_bpd.train.selector.job import SelectorJob

_EXAMPLE = """examples:
  lattice-bpd drafter train prompts.txt --target llama-folder -o model
  lattice-bpd drafter train corpus.npy --target llama-folder --own-rows 0 -o model
  lattice-bpd drafter train prompts.txt --selector low-rank --target model -o model-with-selector
  lattice-bpd generate model --lm none --prompt 'Once upon a time'

The target stays as it is. It continues prompts from the input, and the drafter (DFlash) learns to
predict blocks of these continuations from hidden states of several of its layers. DIR then holds
target and drafter; DIR/block_drafter is a checkpoint in the z-lab format.

With --selector low-rank the target is a model folder with heads (heads train, Medusa's) or a block
drafter, which stay as they are too. A selector learns scores of pairs of candidates of adjacent
slots. DIR then holds target, heads and DIR/selector, or a block drafter that has the selector
(DFlash2), and everything that decodes with DIR uses them.

After Ctrl-C, SIGTERM or a crash, the same command resumes from the last checkpoint and ends with
the same weights.
"""
_TITLES = {
    "text": "reading text (MiB)",
    "generation": "generating text with the target (parts of 64)",
    "training": "training",
}
_BLOCK = ("steps", "batch_size", "sequence_length", "anchors", "gamma", "distillation",
          "matrix_lr", "other_lr", "warmup", "clip", "precision", "seed",
          "validate_every")  # fmt: skip
_BLOCK_JOB = ("num_layers", "block_size", "hidden_layers", "intermediate_size", "mask_token_id")
_SELECTOR = ("rank", "top_k", "steps", "batch_size", "anchors", "sequence_length", "learning_rate",
             "warmup", "gamma", "seed")  # fmt: skip
_JOB = ("validation", "validation_share", "validation_pieces", "own_rows", "prompt_length",
        "log_every", "checkpoint_every", "device", "process_timeout", "resume",
        "restart")  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `drafter` and its action `train`."""
    group = commands.add_parser(
        "drafter", help="train a block drafter or transition scores",
        description="Block drafters, and transition scores of heads.",
    )  # fmt: skip
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = actions.add_parser(
        "train",
        help="train a block drafter for a frozen target, or a selector for its heads",
        description="Train a block drafter, which predicts several tokens in one pass, or a\n"
        "selector, which scores pairs of candidates of adjacent slots.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="new or empty folder, or "
        "that of an interrupted run, which is resumed"
    )  # fmt: skip
    parser.add_argument(
        "--target", type=Path, required=True, metavar="DIR", help="folder of a causal LM of "
        "transformers or of a blockwise model, or a llama2.c .bin file; with --selector of a model "
        "with heads"
    )  # fmt: skip
    parser.add_argument(
        "--selector", choices=("low-rank",), help="train transition scores for the target's heads"
    )
    add_options(parser)
    add_corpus_options(parser)
    parser.set_defaults(run=run, boundaries="document")


def run(args: argparse.Namespace) -> None:
    """Trains, and prints a table of the slots.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written; another process that ended.
        ImportError: an extra is missing.
    """
    _refuse_unused(args)
    run_training(args, _TITLES, lambda watcher: _train(args, watcher), _print_lines)


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False)


def _refuse_unused(args: argparse.Namespace) -> None:
    """Raise ValueError for an option of the other kind of training."""
    unused, kind = (
        (SELECTOR_ONLY, "a block drafter; give --selector low-rank, or leave it out")
        if args.selector is None
        else (BLOCK_ONLY, "--selector, which trains no block drafter; leave it out")
    )
    for name in unused:
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is not used for {kind}")


def _train(args: argparse.Namespace, watcher: ConsoleWatcher) -> list[str]:
    """What to print of the result."""
    if args.selector is not None:
        from lattice_bpd.cli.drafter_results import describe_selector
        from lattice_bpd.train.selector.run import run_selector_job

        return describe_selector(run_selector_job(make_selector_job(args), watcher))
    from lattice_bpd.cli.drafter_results import describe_drafter
    from lattice_bpd.train.block_drafter.run import run_block_job

    return describe_drafter(run_block_job(make_job(args), watcher))


def make_job(args: argparse.Namespace) -> BlockJob:
    """The job that the options describe."""
    from lattice_bpd.train.block_drafter.job import BlockJob
    from lattice_bpd.train.block_drafter.options import BlockTrainOptions

    options = BlockTrainOptions(**_given(args, _BLOCK))
    return BlockJob(**_common(args), options=options, **_given(args, _BLOCK_JOB))


def make_selector_job(args: argparse.Namespace) -> SelectorJob:
    """The job that the options describe, with --selector."""
    from lattice_bpd.train.selector.job import SelectorJob
    from lattice_bpd.train.selector.options import SelectorOptions

    options = SelectorOptions(**_given(args, _SELECTOR))
    return SelectorJob(**_common(args), options=options, validate_every=args.validate_every)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    """Target, text and folder of a job."""
    return {
        "target": args.target,
        "output": args.output,
        "inputs": args.inputs,
        "corpus": {**corpus_arguments(args), "id_type": args.id_type, "threads": args.threads},
        **{name: getattr(args, name) for name in _JOB},
    }


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Options that have a value; the others keep their defaults."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}

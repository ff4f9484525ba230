"""`lattice-bpd drafter train`: training of a block drafter on text."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli.corpus_options import add_corpus_options, add_inputs, corpus_arguments

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.train.block_drafter.job import BlockJob
    from lattice_bpd.train.block_drafter.run import BlockResult

_EXAMPLE = """examples:
  lattice-bpd drafter train prompts.txt --target llama-folder -o model
  lattice-bpd drafter train corpus.npy --target llama-folder --own-rows 0 -o model
  lattice-bpd generate model --lm none --prompt 'Once upon a time'

The target stays as it is. It continues prompts from the input, and the drafter (DFlash) learns to
predict blocks of these continuations from hidden states of several of its layers. DIR then holds
target and drafter; DIR/block_drafter is a checkpoint in the z-lab format.

After Ctrl-C, SIGTERM or a crash, the same command resumes from the last checkpoint and ends with
the same weights.
"""
_TITLES = {
    "text": "reading text (MiB)",
    "generation": "generating text with the target (parts of 64)",
    "training": "training the block drafter",
}
_OPTIONS = ("steps", "batch_size", "sequence_length", "anchors", "gamma", "distillation",
            "matrix_lr", "other_lr", "warmup", "clip", "precision", "seed",
            "validate_every")  # fmt: skip
_JOB = ("num_layers", "block_size", "hidden_layers", "intermediate_size", "mask_token_id",
        "validation_share", "validation_pieces", "own_rows", "prompt_length", "log_every",
        "checkpoint_every", "device", "process_timeout", "resume", "restart")  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `drafter` and its action `train`."""
    group = commands.add_parser(
        "drafter", help="train a block drafter", description="Block drafters."
    )
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = actions.add_parser(
        "train",
        help="train a block drafter for a frozen target",
        description="Train a block drafter, which predicts several tokens in one pass.",
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
        "transformers or of a blockwise model, or a llama2.c .bin file"
    )  # fmt: skip
    _add_drafter_options(parser)
    _add_training_options(parser)
    _add_text_options(parser)
    _add_run_options(parser)
    add_corpus_options(parser)
    parser.set_defaults(run=run, boundaries="document")


def _add_drafter_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("drafter").add_argument
    add("--num-layers", type=int, default=2, metavar="N", help="default 2")
    add("--block-size", type=int, default=9, metavar="K",
        help="the anchor and K - 1 predicted tokens (default 9)")  # fmt: skip
    add("--hidden-layers", type=_layers, default=(), metavar="L1,L2,..", help="layers of the "
        "target that it reads, from 0 (default: three or five, evenly spaced)")  # fmt: skip
    add("--intermediate-size", type=int, metavar="F", help="of its MLPs (default: the target's)")
    add("--mask-token-id", type=int, metavar="ID",
        help="fills blocks (default: the largest id that is not in the text)")  # fmt: skip


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, default=3000, metavar="N", help="optimizer steps (default 3000)")
    add("--batch-size", type=int, default=8, metavar="B", help="texts per step (default 8)")
    add("--anchors", type=int, default=32, metavar="N", help="blocks per text (default 32)")
    add("--sequence-length", type=int, metavar="T", help="tokens per text (default 256)")
    add("--gamma", type=float, default=4.0, metavar="X",
        help="slot j has the loss weight exp(-(j - 1) / X) (default 4)")  # fmt: skip
    add("--distillation", type=float, default=0.0, metavar="X", help="share of the loss that is "
        "the cross entropy with the target's distribution (default 0)")  # fmt: skip
    add("--matrix-lr", type=float, default=0.02, metavar="LR",
        help="Muon's, for matrices (default 0.02)")  # fmt: skip
    add("--other-lr", type=float, default=0.01, metavar="LR",
        help="AdamW's, for norms (default 0.01)")  # fmt: skip
    add("--warmup", type=int, default=100, metavar="N",
        help="steps (default 100), then a cosine to 5 %%")  # fmt: skip
    add("--clip", type=float, default=1.0, metavar="X",
        help="largest norm of the gradient (default 1; 0: none)")  # fmt: skip
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="default: fp32")
    add("--seed", type=int, default=0, help="default 0")


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("text").add_argument
    add("--own-rows", type=int, default=4096, metavar="N", help="training texts that the target "
        "generates (default 4096; 0: train on the input itself)")  # fmt: skip
    add("--prompt-length", type=int, default=16, metavar="P",
        help="prompt tokens of each, from the input (default 16)")  # fmt: skip
    add("--validation", nargs="+", default=[], metavar="INPUT", help="files of validation prompts")
    add("--validation-share", type=float, default=0.02, metavar="X",
        help="fraction of the input, without --validation (default 0.02; 0: none)")  # fmt: skip
    add("--validate-every", type=int, default=0, metavar="N", help="steps (default: at the end)")
    add("--validation-pieces", type=int, default=64, metavar="N",
        help="texts that the target generates (default 64)")  # fmt: skip


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--log-every", type=int, default=10, metavar="N", help="steps (default 10)")
    add("--checkpoint-every", type=int, default=200, metavar="N",
        help="steps (default 200); 0: only when a signal stops the run")  # fmt: skip
    resume = group.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", default=None,
                        help="expect a run to resume (default: if there is one)")  # fmt: skip
    resume.add_argument("--restart", action="store_true", help="remove an earlier run in DIR")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    add("--threads", type=int, default=0, metavar="N", help="of the CPU (default: torch's choice)")
    add("--process-timeout", type=float, default=1800.0, metavar="S",
        help="torchrun: seconds to wait for another process (default 1800)")  # fmt: skip


def _layers(text: str) -> tuple[int, ...]:
    """Numbers of layers, such as "0,2,4"."""
    return tuple(int(part) for part in text.split(","))


def run(args: argparse.Namespace) -> None:
    """Trains, and prints a table of the slots.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written; another process that ended.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers

    quiet_transformers()
    import torch

    from lattice_bpd.train.block_drafter.run import run_block_job

    if args.threads < 0:
        raise ValueError(f"--threads is {args.threads}; expected 0 or more")
    if args.threads:
        torch.set_num_threads(args.threads)
    console = make_console()
    with closing(ConsoleWatcher(console, _TITLES)) as watcher:
        try:
            result = run_block_job(make_job(args), watcher)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
                print(f"{args.output}: run the same command again to resume", file=sys.stderr)
            raise
    if os.environ.get("RANK", "0") == "0":
        _print_result(console, result)


def make_job(args: argparse.Namespace) -> BlockJob:
    """The job that the options describe."""
    from lattice_bpd.train.block_drafter.job import BlockJob
    from lattice_bpd.train.block_drafter.options import BlockTrainOptions

    return BlockJob(
        args.target,
        args.output,
        args.inputs,
        corpus={**corpus_arguments(args), "id_type": args.id_type, "threads": args.threads},
        options=BlockTrainOptions(**{name: getattr(args, name) for name in _OPTIONS}),
        validation=args.validation,
        **{name: getattr(args, name) for name in _JOB},
    )


def _print_result(console: Console, result: BlockResult) -> None:
    console.print("\nslot  training loss  accuracy")
    for slot, loss in result.losses.items():
        accuracy = result.accuracies.get(slot)
        share = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        console.print(f"{slot:>4}  {loss:>13.3f}  {share:>8}")
    status = "finished before; --restart trains again" if result.was_finished else "done"
    if result.block_efficiency is not None:
        console.print(
            f"{result.block_efficiency:.2f} tokens per call of the target on validation text, "
            "drafting the most likely tokens"
        )
    console.print(
        f"losses in nats per token\n{result.output}: {result.steps:,} steps in "
        f"{result.seconds:,.1f} s ({status}), {result.precision}, {result.tokens:,} training tokens"
    )

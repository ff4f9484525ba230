"""`lattice-bpd rescorer train`: training of a small causal LM that rescores drafts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.cli.options import CORPUS_OPTIONS, add_corpus_options, add_inputs, pick
from lattice_bpd_kim2024.cli.training_options import add_run_options, run_training

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd_kim2024.rescorer import RescorerJob, RescorerResult

_EXAMPLE = """examples:
  lattice-bpd rescorer train corpus.txt --target model --size 32M -o rescorer
  lattice-bpd rescorer train prompts.txt --target model --size tiny --own-rows 4096 -o rescorer
  lattice-bpd rescorer train news.txt --target model --initial rescorer -o news-rescorer
  lattice-bpd evaluate --model model --rescorer rescorer --task squad --data dev.json --out run

sizes (layers x hidden size): tiny 2 x 128, small 4 x 256; of Kim et al. 2024: 32M 2 x 384,
61M 12 x 384, 94M 6 x 768. The number of parameters depends on the vocabulary and is printed.

After Ctrl-C, SIGTERM or a crash, the same command resumes from the last checkpoint and ends with
the same weights.
"""
_TITLES = {
    "text": "reading text (MiB)",
    "generation": "generating text with the target (parts of 64)",
    "training": "training the rescorer",
}
_JOB = ("size", "num_layers", "hidden_size", "initial", "validation_share", "validate_every",
        "validation_pieces", "own_rows", "prompt_length", "log_every", "checkpoint_every",
        "device", "resume", "restart")  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `rescorer` and its action `train`."""
    group = commands.add_parser(
        "rescorer", help="train a small LM that rescores drafts", description="Rescorers."
    )
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = actions.add_parser(
        "train",
        help="train a small causal LM on the target's token ids",
        description="Train a small causal LM that rescores drafts (strategies neural, mixture).",
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
    add = parser.add_argument_group("rescorer").add_argument
    add("--size", choices=("tiny", "small", "32M", "61M", "94M"), default="32M",
        help="see below (default 32M)")  # fmt: skip
    add("--num-layers", type=int, metavar="N", help="instead of the size's")
    add("--hidden-size", type=int, metavar="D", help="instead of the size's")
    add("--initial", type=Path, metavar="DIR",
        help="a trained rescorer to fine-tune (default: random weights)")  # fmt: skip
    _add_training_options(parser)
    add_run_options(parser)
    add_corpus_options(parser)
    parser.set_defaults(run=run, boundaries="document")


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, metavar="N", help="optimizer steps (default 900)")
    add("--batch-size", type=int, metavar="B", help="sequences per pass (default 32)")
    add("--accumulate", type=int, metavar="N", help="gradient-accumulation steps (default 1)")
    add("--sequence-length", type=int, metavar="T", help="tokens per sequence (default 256)")
    add("--matrix-lr", type=float, metavar="LR", help="Muon's, for matrices (default 0.02)")
    add("--other-lr", type=float, metavar="LR",
        help="AdamW's, for embeddings, norms and biases (default 0.03)")  # fmt: skip
    add("--base-rate", type=float, metavar="X",
        help="factor on both (default 1; 0.02 with --initial)")  # fmt: skip
    add("--warmup", type=int, metavar="N", help="steps (default 30), then a cosine to 5 %%")
    add("--precision", choices=("fp32", "bf16", "auto"), help="default: auto, the faster one")
    add("--seed", type=int, help="default 0")
    add = parser.add_argument_group("text").add_argument
    add("--own-rows", type=int, default=0, metavar="N", help="training texts that the target "
        "generates (default 0: train on the input itself)")  # fmt: skip
    add("--prompt-length", type=int, default=16, metavar="P",
        help="prompt tokens of each, from the input (default 16)")  # fmt: skip
    add("--validation", nargs="+", default=[], metavar="INPUT", help="validation files")
    add("--validation-share", type=float, default=0.02, metavar="X",
        help="fraction of the text, without --validation (default 0.02; 0: none)")  # fmt: skip
    add("--validate-every", type=int, default=0, metavar="N", help="steps (default: at the end)")
    add("--validation-pieces", type=int, default=64, metavar="N", help="at most (default 64)")


def run(args: argparse.Namespace) -> None:
    """Trains, and prints loss and size.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written; another process that ended.
        ImportError: an extra is missing.
    """
    run_training(args, _TITLES, lambda watcher: _train(args, watcher), _print_result)


def _train(args: argparse.Namespace, watcher: ConsoleWatcher) -> RescorerResult:
    from lattice_bpd_kim2024.rescorer import run_rescorer_job

    return run_rescorer_job(make_job(args), watcher)


def make_job(args: argparse.Namespace) -> RescorerJob:
    """The job that the options describe."""
    from lattice_bpd_kim2024.rescorer import OPTIONS, RescorerJob

    train = {name: getattr(args, name) for name in OPTIONS}
    return RescorerJob(
        args.target,
        args.output,
        args.inputs,
        corpus=pick(args, CORPUS_OPTIONS),
        train={name: value for name, value in train.items() if value is not None},
        validation=args.validation,
        **{name: getattr(args, name) for name in _JOB},
    )


def _print_result(console: Console, result: RescorerResult) -> None:
    status = "finished before; --restart trains again" if result.was_finished else "done"
    held = result.validation_loss
    validation = "" if held is None else f", {held:.3f} on validation text"
    console.print(
        f"{result.num_parameters:,} parameters; loss {result.loss:.3f} nats per token{validation}\n"
        f"{result.output}: {result.steps:,} steps in {result.seconds:,.1f} s ({status}), "
        f"{result.precision}, {result.tokens:,} training tokens"
    )

"""`lattice-bpd heads train`: training of prediction heads on text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.options import (
    CORPUS_OPTIONS,
    add_corpus_options,
    add_inputs,
    parse_numbers,
    pick,
)
from lattice_bpd_kim2024.cli.training_options import add_run_options, run_training
from lattice_bpd_kim2024.heads.recipes import OPTIMIZERS, PRESETS, RECIPES

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd_kim2024.heads.job import HeadJob
    from lattice_bpd_kim2024.heads.run import HeadResult

_RECIPES = "\n".join(f"  {recipe.name:15}  {recipe.summary}" for recipe in RECIPES.values())
_EXAMPLE = f"""examples:
  lattice-bpd heads train corpus.txt --recipe frozen --base gpt2-folder -o heads
  lattice-bpd heads train corpus.txt --recipe joint --tokenizer tokenizer.json -o model

recipes:
{_RECIPES}

After Ctrl-C, SIGTERM or a crash, the same command resumes from the last checkpoint and ends with
the same weights. research/kim2024/training.md describes the recipes.
"""
_TITLES = {
    "text": "reading text (MiB)",
    "generation": "generating text with the target (parts of 64)",
    "training": "training heads",
}
_TRAIN = ("steps", "batch_size", "accumulate", "sequence_length", "matrix_lr", "other_lr",
          "base_rate", "warmup", "head_ramp", "head_fraction", "head_weights", "one_head",
          "optimizer", "dropout", "precision", "seed")  # fmt: skip
_JOB = ("base", "config", "heads", "num_heads", "inner_size", "first_head", "preset",
        "validation_share", "validate_every", "validation_pieces", "own_rows", "prompt_length",
        "num_beams", "log_every", "checkpoint_every", "heads_only", "device",
        "restart")  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `heads` and its action `train`."""
    group = commands.add_parser("heads", help="train prediction heads", description="Heads.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = actions.add_parser(
        "train",
        help="train heads on text, by one of five recipes",
        description="Train the prediction heads of a blockwise LM.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="new or empty folder, or "
        "that of an interrupted run, which is resumed"
    )  # fmt: skip
    parser.add_argument("--recipe", choices=tuple(RECIPES), required=True, help="see below")
    parser.add_argument(
        "--preset", choices=tuple(PRESETS), help="a paper's loss and schedule instead of the "
        "recipe's; options given here override it"
    )  # fmt: skip
    _add_model_options(parser)
    _add_training_options(parser)
    _add_run_options(parser)
    add_corpus_options(parser)
    parser.set_defaults(run=run, boundaries="document")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--base", type=Path, metavar="DIR", help="the target: folder of a causal LM of "
        "transformers or of a blockwise model, or a llama2.c .bin file"
    )  # fmt: skip
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="joint: config.json of transformers, or JSON "
        "with sizes of the small preset (default: the preset, 1.2 M parameters)"
    )  # fmt: skip
    group.add_argument(
        "--heads", metavar="DIR", help="initial heads, or 'new' (default: those of a "
        "blockwise model that is the base, else new)"
    )  # fmt: skip
    group.add_argument(
        "--num-heads",
        type=int,
        metavar="H",
        help="number of heads, including the target's own (default 9)",
    )
    group.add_argument("--inner-size", type=int, metavar="F", help="default: the hidden size")
    group.add_argument(
        "--first-head", action=argparse.BooleanOptionalAction, help="joint, finetune: head 1 has "
        "a feed-forward network of its own, as in Kim et al. 2024 (default: no; yes with a preset)"
    )  # fmt: skip


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--steps", type=int, metavar="N", help="optimizer steps (default 600)")
    add("--batch-size", type=int, metavar="B", help="sequences per forward pass (default 16)")
    add("--accumulate", type=int, metavar="N", help="gradient-accumulation steps (default 1)")
    add("--sequence-length", type=int, metavar="T", help="tokens (default 256)")
    add("--matrix-lr", type=float, metavar="LR", help="for matrices (default: recipe's)")
    add(
        "--other-lr",
        type=float,
        metavar="LR",
        help="AdamW's, for other weights (default: recipe's)",
    )
    add("--base-rate", type=float, metavar="X", help="factor on the target's learning rates "
        "(default: 0.02 for finetune, else 1)")  # fmt: skip
    add("--warmup", type=int, metavar="N", help="steps (default 30), then a cosine to 5 %%")
    add("--head-weights", type=parse_numbers, metavar="L1,L2,..",
        help="lambda of each head's loss, the target's own first (default: all 1)")  # fmt: skip
    add("--head-ramp", type=float, metavar="X", help="fraction of steps over which lambda 2.. rise "
        "from 0 (default: recipe's)")  # fmt: skip
    add("--head-fraction", type=float, metavar="X", help="fraction of positions at which draft "
        "heads train (default: recipe's)")  # fmt: skip
    add("--optimizer", choices=OPTIMIZERS, help="of matrices; AdamW trains all other weights "
        "(default muon)")  # fmt: skip
    add("--dropout", action=argparse.BooleanOptionalAction, help="of the target's configuration "
        "(default: on)")  # fmt: skip
    add("--one-head", action="store_true", help="train one random head per step")
    add("--precision", choices=("fp32", "bf16", "auto"), help="default: auto, the faster one")
    add("--seed", type=int, help="default 0")
    group = parser.add_argument_group("distil, distil-finetune")
    group.add_argument("--own-rows", type=int, default=4096, metavar="N",
                       help="texts that the target generates (default 4096)")  # fmt: skip
    group.add_argument("--prompt-length", type=int, default=16, metavar="P",
                       help="prompt tokens of each, from the input (default 16)")  # fmt: skip
    group.add_argument("--num-beams", type=int, default=1, metavar="N",
                       help="beams of their search (default 1: greedy)")  # fmt: skip


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("validation")
    add = group.add_argument
    add("--validation", nargs="+", default=[], metavar="INPUT", help="validation files")
    add("--validation-share", type=float, default=0.02, metavar="X",
        help="fraction of the text, without --validation (default 0.02; 0: none)")  # fmt: skip
    add("--validate-every", type=int, default=0, metavar="N", help="steps (default: at the end)")
    add("--validation-pieces", type=int, default=64, metavar="N", help="at most (default 64)")
    add_run_options(parser).add_argument(
        "--heads-only", action="store_true", help="write the heads without the target"
    )


def run(args: argparse.Namespace) -> None:
    """Trains, and prints a table of the heads.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written; another process that ended.
        ImportError: an extra is missing.
    """
    run_training(args, _TITLES, lambda watcher: _train(args, watcher), _print_result)


def _train(args: argparse.Namespace, watcher: ConsoleWatcher) -> HeadResult:
    from lattice_bpd_kim2024.heads.run import train_heads

    return train_heads(make_job(args), watcher)


def make_job(args: argparse.Namespace) -> HeadJob:
    """The job that the options describe."""
    from lattice_bpd_kim2024.heads.job import HeadJob

    train: dict[str, Any] = {name: getattr(args, name) for name in _TRAIN}
    given = {name: value for name, value in train.items() if value is not None}
    return HeadJob(
        args.recipe,
        args.output,
        args.inputs,
        corpus=pick(args, CORPUS_OPTIONS),
        train=given,
        validation=args.validation,
        resume=args.resume,
        **{name: getattr(args, name) for name in _JOB},
    )


def _print_result(console: Console, result: HeadResult) -> None:
    heads = sorted({*result.losses, *result.validation_losses})
    console.print("\nhead  training loss  validation loss  accuracy")
    for head in heads:
        console.print(
            f"{head:>4}  {_show(result.losses.get(head)):>13}"
            f"  {_show(result.validation_losses.get(head)):>15}"
            f"  {_show(result.accuracies.get(head), percent=True):>8}"
        )
    status = "finished before; --restart trains again" if result.was_finished else "done"
    console.print(
        f"losses in nats per token; head 1 is the target's own\n"
        f"{result.output}: {result.steps:,} steps in {result.seconds:,.1f} s ({status}), "
        f"{result.precision}, {result.tokens:,} training tokens"
    )


def _show(value: float | None, *, percent: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if percent else f"{value:.3f}"

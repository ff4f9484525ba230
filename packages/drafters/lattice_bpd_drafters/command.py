"""`lattice-bpd drafter train`: training of a block drafter, or of transition scores, on text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.options import add_corpus_options, add_inputs, corpus_arguments

try:
    from lattice_bpd_kim2024.cli.training_options import add_run_options, run_training
except ModuleNotFoundError as error:
    raise ImportError(
        "training needs lattice-bpd-kim2024; pip install 'lattice-bpd-drafters[train]'"
    ) from error

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd_drafters.block_run import BlockJob, BlockResult
    from lattice_bpd_drafters.selector_run import SelectorJob, SelectorResult

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
        from lattice_bpd_drafters.selector_run import run_selector_job

        return describe_selector(run_selector_job(make_selector_job(args), watcher))
    from lattice_bpd_drafters.block_run import run_block_job

    return describe_drafter(run_block_job(make_job(args), watcher))


def make_job(args: argparse.Namespace) -> BlockJob:
    """The job that the options describe."""
    from lattice_bpd_drafters.block_run import BlockJob
    from lattice_bpd_drafters.block_training import BlockTrainOptions

    options = BlockTrainOptions(**_given(args, _BLOCK))
    return BlockJob(**_common(args), options=options, **_given(args, _BLOCK_JOB))


def make_selector_job(args: argparse.Namespace) -> SelectorJob:
    """The job that the options describe, with --selector."""
    from lattice_bpd_drafters.selector_run import SelectorJob
    from lattice_bpd_drafters.selector_texts import SelectorOptions

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


BLOCK_ONLY = ("num_layers", "block_size", "hidden_layers", "intermediate_size", "mask_token_id",
              "distillation", "matrix_lr", "other_lr", "clip", "precision")  # fmt: skip
SELECTOR_ONLY = ("rank", "top_k", "learning_rate")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds all options but the input; None where the job's own default applies."""
    _add_drafter_options(parser)
    _add_selector_options(parser)
    _add_training_options(parser)
    _add_text_options(parser)
    add_run_options(parser)


def _add_drafter_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("block drafter").add_argument
    add("--num-layers", type=int, metavar="N", help="default 2")
    add("--block-size", type=int, metavar="K",
        help="the anchor and K - 1 predicted tokens (default 9)")  # fmt: skip
    add("--hidden-layers", type=_layers, metavar="L1,L2,..", help="layers of the "
        "target that it reads, from 0 (default: three or five, evenly spaced)")  # fmt: skip
    add("--intermediate-size", type=int, metavar="F", help="of its MLPs (default: the target's)")
    add("--mask-token-id", type=int, metavar="ID",
        help="fills blocks (default: the largest id that is not in the text)")  # fmt: skip
    add("--distillation", type=float, metavar="X", help="share of the loss that is "
        "the cross entropy with the target's distribution (default 0)")  # fmt: skip
    add("--matrix-lr", type=float, metavar="LR", help="Muon's, for matrices (default 0.02)")
    add("--other-lr", type=float, metavar="LR", help="AdamW's, for norms (default 0.01)")
    add("--clip", type=float, metavar="X",
        help="largest norm of the gradient (default 1; 0: none)")  # fmt: skip
    add("--precision", choices=("fp32", "bf16"), help="default: fp32")


def _add_selector_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("selector").add_argument
    add("--rank", type=int, metavar="R", help="of the pair scores (default 64)")
    add("--top-k", type=int, metavar="K", help="candidates of a slot (default 16)")
    add("--learning-rate", type=float, metavar="LR", help="AdamW's (default 0.005)")


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, metavar="N",
        help="optimizer steps (default 3000; of a selector 1000)")  # fmt: skip
    add("--batch-size", type=int, metavar="B", help="texts per step (default 8)")
    add("--anchors", type=int, metavar="N",
        help="blocks per text (default 32; of a selector 128)")  # fmt: skip
    add("--sequence-length", type=int, metavar="T", help="tokens per text (default 256)")
    add("--gamma", type=float, metavar="X", help="slot j has the loss weight exp(-(j - 1) / X) "
        "(default 4; of a selector (slots + 1) / 2)")  # fmt: skip
    add("--warmup", type=int, metavar="N",
        help="steps (default 100; of a selector 30), then a cosine to 5 %%")  # fmt: skip
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


def _layers(text: str) -> tuple[int, ...]:
    """Numbers of layers, such as "0,2,4"."""
    return tuple(int(part) for part in text.split(","))


def describe_drafter(result: BlockResult) -> list[str]:
    """Losses and accuracies of a block drafter's slots, then the run."""
    lines = ["\nslot  training loss  accuracy"]
    for slot, loss in result.losses.items():
        accuracy = result.accuracies.get(slot)
        share = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        lines.append(f"{slot:>4}  {loss:>13.3f}  {share:>8}")
    if result.block_efficiency is not None:
        lines.append(
            f"{result.block_efficiency:.2f} tokens per call of the target on validation text, "
            "drafting the most likely tokens"
        )
    return [
        *lines,
        f"losses in nats per token\n{result.output}: {result.steps:,} steps in "
        f"{result.seconds:,.1f} s ({_status(result)}), {result.precision}, {result.tokens:,} "
        "training tokens",
    ]


def describe_selector(result: SelectorResult) -> list[str]:
    """Losses and accuracies of the slots with a selector, then the run."""
    scores = result.scores
    lines = ["\nslot  training loss  among candidates  accuracy before   after"]
    for slot, loss in result.losses.items():
        line = f"{slot:>4}  {loss:>13.3f}"
        if scores is not None:
            shares = (scores.coverage, scores.accuracy_before, scores.accuracy)
            among, before, after = (f"{100 * share[slot - 1]:.1f} %" for share in shares)
            line += f"  {among:>16}  {before:>15}  {after:>6}"
        lines.append(line)
    if scores is not None:
        lines.append(
            "accuracy after the text's own previous token; accepted draft tokens of a greedy walk "
            f"on validation text: {scores.accept_length_before:.2f} before, "
            f"{scores.accept_length:.2f} after, mean of {scores.blocks:,} blocks"
        )
    return [
        *lines,
        f"losses in nats per token\n{result.output}: {result.steps:,} steps in "
        f"{result.seconds:,.1f} s ({_status(result)}), {result.tokens:,} training tokens",
    ]


def _status(result: BlockResult | SelectorResult) -> str:
    return "finished before; --restart trains again" if result.was_finished else "done"

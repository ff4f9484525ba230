"""The options of `lattice-bpd drafter train`, for a block drafter or a selector."""

from __future__ import annotations

import argparse

from lattice_bpd_kim2024.cli.training_options import add_run_options

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

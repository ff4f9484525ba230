"""`lattice-bpd certify`: checks a certificate by plain greedy decoding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """example (after `lattice-bpd demo`):
  lattice-bpd generate demo-out/model --prompt 'def main(argv):' --certificate text.json
  lattice-bpd certify text.json --model demo-out/model

The model's own generate writes all tokens again. Where it prefers another token by no more than
rounding explains, which calls of the model in other shapes measure anew, the text is a tie.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `certify`."""
    parser = commands.add_parser(
        "certify",
        help="check a lossless certificate by plain greedy calls",
        description="Decode a certificate's text again by plain greedy calls, and report the first "
        "token that differs.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="file that --certificate wrote")
    parser.add_argument(
        "--model", type=Path, required=True, help="the model that generated the text"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check and print.

    Raises:
        ValueError: the text is not the greedy output, or the model has another vocabulary.
        FormatError: the file is not a certificate.
        OSError: the file cannot be read.
    """
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    import torch

    from lattice_bpd.cli.files import load_causal_lm
    from lattice_bpd.decode import Certificate, DraftingModel
    from lattice_bpd.decode.certificate.certificate import check_text

    certificate = Certificate.load(args.file)
    dtype = getattr(torch, certificate.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{args.file}: dtype is {certificate.dtype!r}; expected one of torch's")
    base: Any = load_causal_lm(args.model)
    model = DraftingModel(base.to(dtype))
    token_ids, count = certificate.token_ids, len(certificate.token_ids)
    choices, noise = check_text(model, certificate.prompt_token_ids, token_ids)
    if not choices.differing:
        print(f"lossless: plain greedy calls give all {count} tokens of {args.file}")
        return
    index = min(choices.differing, key=lambda position: choices.margins[position])
    where = (
        f"{args.file}: plain greedy calls give other tokens at {len(choices.differing)} of {count} "
        f"positions; at position {index} they prefer another one by {-choices.margins[index]:.3g}, "
        f"and rounding explains {noise.margin_bound:.3g}"
    )
    if -choices.margins[index] > noise.margin_bound:
        raise ValueError(f"{where}; expected the same token: another model, or an altered text")
    print(f"tie: {where}")

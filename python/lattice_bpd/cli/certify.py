"""`lattice-bpd certify`: is a certificate's text what plain greedy decoding writes?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """example (after `lattice-bpd demo`):
  lattice-bpd generate demo-out/model --prompt 'def main(argv):' --certificate text.json
  lattice-bpd certify text.json --model demo-out/model

All tokens are decided again: the prompt in one call of the target, then a call for each token.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `certify`."""
    parser = commands.add_parser(
        "certify",
        help="check a lossless certificate by plain greedy calls",
        description="Read a certificate's text with plain greedy calls, all of it, and say where "
        "they write something else.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what --certificate wrote")
    parser.add_argument("--model", type=Path, required=True, help="the model that wrote the text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check and print.

    Raises:
        ValueError: a text that is not greedy's, or a model of another vocabulary.
        FormatError: the file is no certificate.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    import torch

    from lattice_bpd.cli.files import load_causal_lm
    from lattice_bpd.decode import Certificate, DraftingModel
    from lattice_bpd.decode.certificate.plain_calls import disagreeing_places

    found = Certificate.load(args.file)
    dtype = getattr(torch, found.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{args.file}: dtype is {found.dtype!r}; expected one of torch's")
    base: Any = load_causal_lm(args.model)
    model = DraftingModel(base.to(dtype))
    apart = disagreeing_places(model, found.prompt_token_ids, found.token_ids)
    count = len(found.token_ids)
    if not apart:
        print(f"lossless: plain greedy calls write all {count} tokens of {args.file}")
        return
    place = apart[0]
    where = (
        f"{args.file}: plain greedy calls write another token in place {place} of {count}, where "
        f"the certificate has a margin of {found.margins[place]:.3g} and a bound of "
        f"{found.bounds[place]:.3g}"
    )
    if found.margins[place] >= found.bounds[place]:
        raise ValueError(f"{where}; expected the same token: another model, or an altered text")
    print(f"tie: {where}: rounding decides there")

"""`lattice-bpd check`: compares decoding with the model's own generate."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.options import add_code_option, add_command
from lattice_bpd.pretrained import Pretrained, find_pretrained

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Commands

_EXAMPLE = """examples:
  lattice-bpd check demo-out/model                     every strategy, layout and batch size
  lattice-bpd check demo-out/model --strategy tree bpd

Each case is equal, tie, refused (with the reason), different or error. tie: the text differs, but
the model's own generate, made to write it, prefers other tokens only by margins that rounding
explains; how large these are is measured by calls of the model in several shapes. In bfloat16 most
texts differ between any two ways to call a model, so the positions whose token generate selects,
too, are counted beside whole texts, and logits of verifying calls are compared with those of
generate. The exit status is 2 if any case is different or an error, or if all are refused.
"""


def add_parser(commands: Commands) -> None:
    """Add the command `check`."""
    parser = add_command(
        commands, "check", run, epilog=_EXAMPLE,
        summary="compare decoding with a model's own generate",
        description="Decode with every strategy, layout, batch size and interface, and compare "
        "each output with that of model.generate(do_sample=False).",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="folder of transformers, or a hub name")
    parser.add_argument(
        "--strategy", nargs="+", metavar="NAME", help="check these only (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    add_code_option(parser)


def run(args: argparse.Namespace) -> None:
    """Check and print.

    Raises:
        ValueError: no such model, an unknown strategy, a case that is different or an error, or
            no case that is not refused.
        OSError: the JSON file cannot be written.
    """
    from lattice_bpd.cli.progress import quiet_transformers
    from lattice_bpd.extensions import require

    require("torch", "torch")
    quiet_transformers()
    from lattice_bpd_conformance.cases import list_cases
    from lattice_bpd_conformance.check import Checker

    cases = list_cases(args.strategy)
    model, prompts = _load(find_pretrained(args.model, args.trust_remote_code))
    checker = Checker(model, prompts, certificates=True)
    print(f"{type(model).__name__}, {len(cases)} cases of {checker.max_new_tokens} tokens")
    width = max(len(case.name) for case in cases)
    verdicts = []
    for number, case in enumerate(cases, 1):
        verdict = checker.check(case)
        verdicts.append(verdict)
        print(f"[{number:3}/{len(cases)}] {case.name:{width}}  {_describe(verdict)}", flush=True)
    if args.json is not None:
        _write(args.json, model, prompts, verdicts)
    print(_summarize(verdicts))
    failed = sum(verdict.failed for verdict in verdicts)
    if failed:
        raise ValueError(
            f"check: {failed} of {len(cases)} cases of {args.model} differ from its generate; "
            "please report the lines above"
        )
    if all(verdict.outcome == "refused" for verdict in verdicts):
        raise ValueError(
            f"check: all {len(cases)} cases of {args.model} are refused, so nothing was compared; "
            "the reason is above"
        )


def _summarize(verdicts: list[Any]) -> str:
    """The last line: cases by outcome, and positions."""
    from lattice_bpd_conformance.check import OUTCOMES

    counts = Counter(verdict.outcome for verdict in verdicts)
    always = ("equal", "refused", "different")
    outcomes = [f"{counts[name]} {name}" for name in OUTCOMES if counts[name] or name in always]
    positions = sum(verdict.positions for verdict in verdicts)
    agreeing = sum(verdict.agreeing for verdict in verdicts)
    share = f" ({agreeing / positions:.2%})" if positions else ""
    return (
        f"{len(verdicts)} cases: {', '.join(outcomes)}; "
        f"generate selects the token at {agreeing:,} of {positions:,} positions{share}"
    )


def _describe(verdict: Any) -> str:
    if verdict.outcome == "equal":
        return "equal"
    if verdict.position is None:
        return f"{verdict.outcome}: {verdict.detail}"
    margin = ""
    if verdict.margin is not None:
        margin = f", margin {verdict.margin:.3g}, rounding {verdict.bound:.3g}"
    where = f"prompt {verdict.prompt}, position {verdict.position}{margin}"
    positions = f"{verdict.agreeing} of {verdict.positions} positions agree"
    return f"{verdict.outcome}: {verdict.detail} ({where}); {positions}"


def _load(found: Pretrained) -> tuple[Any, list[list[int]]]:
    """The model in evaluation mode, and prompts for it.

    Raises:
        ValueError: no such model, or not a language model.
    """
    from transformers import AutoConfig

    from lattice_bpd_conformance.cases import find_class

    if found.base is not None or "auto_map" in found.config:
        model = found.load_model()
    else:
        pin: dict[str, Any] = {"revision": found.revision}
        config = found.load("config", AutoConfig.from_pretrained, **pin)
        model = found.load("model", find_class(config).from_pretrained, **pin)
    model.eval()
    return model, _make_prompts(found, model)


def _make_prompts(found: Pretrained, model: Any) -> list[list[int]]:
    """Three texts if there is a tokenizer, else random tokens."""
    from lattice_bpd_conformance.cases import random_prompts, text_prompts

    try:
        return text_prompts(found.load_tokenizer())
    except Exception:  # many kinds for a folder without one
        print("no tokenizer: prompts are random tokens")
        return random_prompts(int(model.get_input_embeddings().weight.shape[0]))


def _write(path: Path, model: Any, prompts: list[list[int]], verdicts: list[Any]) -> None:
    import transformers

    content = {
        "model": type(model).__name__,
        "model_type": model.config.model_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "transformers": transformers.__version__,
        "prompt_token_ids": prompts,
        "cases": [verdict.to_json() for verdict in verdicts],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

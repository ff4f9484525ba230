"""`lattice-bpd build`: from a model to a tuned drafter."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.build.job import BuildJob
from lattice_bpd.cli.options import add_code_option, add_command, add_options, parse_size, pick

if TYPE_CHECKING:
    from lattice_bpd.build.plan import Plan
    from lattice_bpd.cli.options import Commands

_OPTIONS = (
    "output", "prompts", "own_prompts", "responses", "server", "server_model", "heads",
    "keep_heads", "chat", "max_new_tokens", "lms", "order", "max_bytes", "epochs",
    "batch_size", "costs", "seconds",
)  # fmt: skip

_EPILOG = """examples:
  lattice-bpd build MODEL -o my-drafter
  lattice-bpd build MODEL --prompts prompts.jsonl -o my-drafter
  lattice-bpd build MODEL --prompts chats.json more.txt --heads --time 40m -o my-drafter
  lattice-bpd generate MODEL --drafter my-drafter --chat 'Write a poem about bees'

Prompts: .jsonl or .json with messages, conversations (ShareGPT), prompt, instruction (Alpaca),
question, chosen (preferences), OpenAI batch files and others (docs/build.md), or strings; any other
file is plain text with a prompt per paragraph. Use prompts like those that the model will get: 500
or more; without any a chat model writes 1,000 itself. The model answers them, an n-gram LM (and
heads) learn from its answers, and what does not raise tokens/s on held-out prompts is left out.
After Ctrl-C the same command continues.
"""
_TITLES = {
    "prompts": "prompts by the model",
    "responses": "the model's own responses",
    "states": "hidden states (responses)",
    "heads": "training heads (steps)",
    "costs": "time of calls (rounds)",
    "choice": "choosing sources (texts)",
    "live": "decoding held-out prompts",
}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_parser(commands: Commands) -> None:
    """Adds the command `build`."""
    parser = add_command(
        commands, "build", run, epilog=_EPILOG,
        summary="make a drafter for a model",
        description="Make a drafter for a model: its own responses to your prompts, an n-gram LM\n"
        "of them, optionally draft heads, and the choice of what pays, in one folder.",
    )  # fmt: skip
    parser.add_argument(
        "model", metavar="MODEL", help="directory or hub name (OWNER/NAME, OWNER/NAME@REVISION) of "
        "a causal LM of transformers",
    )  # fmt: skip
    add_options(
        parser, BuildJob, _OPTIONS,
        output={"flag": "-o --output", "metavar": "DIR", "required": True},
        prompts={"nargs": "+", "type": str, "metavar": "FILE", "help": "see below"},
        own_prompts={"metavar": "N"},
        responses={"nargs": "+", "type": str, "metavar": "FILE"},
        server={"metavar": "URL"},
        server_model={"metavar": "NAME"},
        chat={"help": "prompts as they are, without the chat template"},
        max_bytes={"flag": "--max-size", "type": parse_size, "metavar": "SIZE"},
        lms={"flag": "--lm", "nargs": "+", "type": Path, "metavar": "FILE"},
        seconds={"flag": "--time", "type": _parse_time, "metavar": "TIME"},
    )  # fmt: skip
    add_code_option(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print times and sizes, from a probe of the model"
    )


def run(args: argparse.Namespace) -> None:
    """Build, and print what the drafter gains.

    Raises:
        ValueError: options or files that do not fit together, or a model that refuses drafting.
        OSError: a file that cannot be read or written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.files import has_encoder_decoder, load_causal_lm, to_device
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd.pretrained import find_pretrained

    console = make_console()
    args.heads = args.heads or args.keep_heads
    given = pick(args, _OPTIONS)
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    job = BuildJob(**given)
    job.check()
    found = find_pretrained(args.model, args.trust_remote_code)
    if has_encoder_decoder(found):
        raise ValueError(
            f"build: {args.model} is an encoder-decoder; expected a causal LM "
            "(lattice-bpd-translation decodes encoder-decoders)"
        )
    model = to_device(load_causal_lm(found))
    tokenizer = found.load_tokenizer()
    from lattice_bpd.build.build import build_drafter
    from lattice_bpd.build.plan import make_plan
    from lattice_bpd.train.responses.prompts import find_usable

    if args.dry_run:
        chats, notes = find_usable(tokenizer, job.chats, job.skipped[0], chat=job.chat)
        plan = make_plan(model, tokenizer, chats, job)
        console.print("\n".join([_describe_plan(plan), *notes]), markup=False)
        return
    watcher = ConsoleWatcher(console, _TITLES)
    try:
        build_drafter(model, tokenizer, job, watcher)
    except KeyboardInterrupt:
        file = job.kept / "responses.jsonl"
        count = file.read_bytes().count(b"\n") if file.exists() else 0
        console.print(f"{job.output} keeps {count:,} responses; the same command continues")
        raise
    finally:
        watcher.close()
    console.print((job.output / "README.md").read_text("utf-8"), markup=False)
    text = "--chat TEXT" if job.chat and tokenizer.chat_template else "--prompt TEXT"
    text += " --trust-remote-code" if args.trust_remote_code else ""
    console.print(f"next: lattice-bpd generate {args.model} --drafter {job.output} {text}")


def _describe_plan(plan: Plan) -> str:
    times = {**plan.seconds, "all": sum(plan.seconds.values())}
    stages = "\n".join(f"  {name:32} {time / 60:6.1f} min" for name, time in times.items())
    rate = plan.new_tokens / plan.seconds["responses"]
    return (
        f"{plan.prompts:,} prompts, {plan.prompt_tokens:,} tokens in all; about "
        f"{plan.new_tokens:,} tokens of responses at {rate:,.0f} tokens/s; "
        f"n-gram LM up to {plan.lm_bytes / 1e6:.1f} MB\n{stages}"
    )


def _parse_time(text: str) -> float:
    """Seconds of 90s, 20m or 1h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a time such as 90s, 20m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]

"""What a built drafter is and gains, as the text of its README.md."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version

from lattice_bpd.build.bootstrap import Interval
from lattice_bpd.build.choice import Choice
from lattice_bpd.build.job import FEWEST_TEXTS
from lattice_bpd.build.live import LiveResult


@dataclass
class BuildResult:
    """What `build_drafter` made.

    Attributes:
        counts: conversations and tokens of the training text.
        choice: the sources and their expected gains.
        accuracy: of the heads on held-out responses, by slot; None: no heads.
        live: held-out prompts that were decoded.
        seconds: of each stage.
        notes: sentences on the responses.
        target: size of the target's vocabulary and a hash of some of its weights.
    """

    counts: dict[str, int]
    choice: Choice
    accuracy: list[float] | None
    live: LiveResult
    seconds: dict[str, float]
    notes: list[str]
    target: str


def describe_drafter(result: BuildResult, model: str, has_heads: bool) -> str:
    """The model card of a drafter, in Markdown.

    Args:
        result: of the build.
        model: name of the target.
        has_heads: whether heads were trained.
    """
    counts, live = result.counts, result.live
    advice = []
    if live.prompts < FEWEST_TEXTS:
        advice.append("These are too few to measure gains; give more prompts.")
    elif live.gain.low <= 0.0:
        advice.append("An interval that includes 0 is not a certain gain.")
    lines = [
        f"# Drafter for {model}",
        "",
        f"Built by `lattice-bpd build` {version('lattice-bpd')} on {platform.machine()}, from the "
        f"model's own responses: {counts['responses']:,} with {counts['tokens']:,} tokens, of "
        f"{counts['conversations']:,} conversations (a tenth measured, a tenth fitted the gates).",
        *result.notes,
        "",
        "    lattice-bpd generate MODEL --drafter THIS_FOLDER --prompt TEXT",
        "",
        f"On {live.prompts} held-out prompts: {live.tokens_per_second:.1f} tokens/s, "
        f"{_percent(live.gain)} against `model.generate`; {live.tokens_per_call:.2f} tokens per "
        f"call; {live.equal} of {live.prompts} texts equal to its greedy ones.",
        *advice,
        "",
        "| source | gain in tokens/s, expected on held-out responses | |",
        "|---|---|---|",
        "| text so far | | used |",
    ]
    for step in result.choice.steps:
        option = "; --keep-heads keeps them" if step.name == "heads" and not step.is_used else ""
        status = "used" if step.is_used else f"left out{option}"
        lines.append(f"| {step.name} | {_percent(step.gain)} | {status} |")
    expected = result.choice.gain
    lines.append(f"| all used | {_percent(expected)} against greedy decoding | |")
    if has_heads and result.accuracy is not None:
        shares = ", ".join(f"{share:.2f}" for share in result.accuracy)
        lines += ["", f"Accuracy of the heads by slot, on held-out responses: {shares}."]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    lines += ["", f"Target: {model}, {result.target}. Made with {versions}."]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.seconds.items())
    lines += ["", f"Time: {times}; {sum(result.seconds.values()) / 60:.1f} minutes together."]
    return "\n".join(lines) + "\n"


def _percent(gain: Interval) -> str:
    """+12 % (+3 to +21)."""
    value, low, high = (f"{round(100 * one):+d}" for one in (gain.value, gain.low, gain.high))
    return f"{value} % ({low} to {high})"

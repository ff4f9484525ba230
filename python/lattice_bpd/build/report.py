"""What a build made, and the README.md of its folder."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, Interval
from lattice_bpd.build.choice import Choice
from lattice_bpd.build.live import LiveResult

_SPAN = 8  # tokens
_REPEATED = 0.3  # share of repeated tokens that is reported


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


def describe_drafter(result: BuildResult, model: str) -> str:
    """The model card of a drafter, in Markdown.

    Args:
        result: of the build.
        model: name of the target.
    """
    counts, live, held_out = result.counts, result.live, result.counts["held out"]
    advice = []
    if live.equal < live.prompts:
        advice.append("In bfloat16 and float16 texts differ where two tokens are nearly tied.")
    if live.prompts < FEWEST_TEXTS:
        advice.append("These are too few to measure gains; give more prompts.")
    elif live.gain.low <= 0.0:
        advice.append("An interval that includes 0 is not a certain gain.")
    lines = [
        f"# Drafter for {model}",
        "",
        f"Built by `lattice-bpd build` {version('lattice-bpd')} on {platform.machine()}, from the "
        f"model's own responses: {counts['responses']:,} with {counts['tokens']:,} tokens, of "
        f"{counts['conversations']:,} conversations ({held_out:,} other responses measured, "
        f"{counts['fitting']:,} fitted the gates).",
        *result.notes,
        "",
        "    lattice-bpd generate MODEL --drafter THIS_FOLDER --prompt TEXT",
        "",
        f"On {live.prompts} held-out prompts: {live.tokens_per_second:.1f} tokens/s, "
        f"{_percent(live.gain, live.prompts)} against `model.generate`; "
        f"{live.tokens_per_call:.2f} tokens per call; {live.equal} of {live.prompts} texts equal "
        "to its greedy ones.",
        *advice,
        "",
        f"| source | gain in tokens/s, expected on {held_out} held-out responses | |",
        "|---|---|---|",
        "| text so far | | used |",
    ]
    for step in result.choice.steps:
        option = "; --keep-heads keeps them" if step.name == "heads" and not step.is_used else ""
        used = "used" if step.gain.low > 0.0 else "kept by --keep-heads"
        status = used if step.is_used else f"left out{option}"
        lines.append(f"| {step.name} | {_percent(step.gain, held_out)} | {status} |")
    expected = result.choice.gain
    lines.append(f"| all used | {_percent(expected, held_out)} against greedy decoding | |")
    if result.accuracy is not None:
        shares = ", ".join(f"{share:.2f}" for share in result.accuracy)
        lines += ["", f"Accuracy of the heads by slot, on held-out responses: {shares}."]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    lines += ["", f"Target: {model}, {result.target}. Made with {versions}."]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.seconds.items())
    lines += ["", f"Time: {times}; {sum(result.seconds.values()) / 60:.1f} minutes together."]
    return "\n".join(lines) + "\n"


def _percent(gain: Interval, texts: int) -> str:
    """+12 % (+3 to +21); of few texts without the interval."""
    value, low, high = (f"{round(100 * one):+d}" for one in (gain.value, gain.low, gain.high))
    return f"{value} %" + (f" ({low} to {high})" if texts >= FEWEST_TEXTS else "")


def describe_repetition(responses: Sequence[Sequence[int]]) -> list[str]:
    """What to know where many tokens end a span that their response has before; else nothing."""
    repeated = 0
    for ids in responses:
        spans = [tuple(ids[end - _SPAN : end]) for end in range(_SPAN, len(ids) + 1)]
        repeated += len(spans) - len(set(spans))
    share = repeated / max(1, sum(map(len, responses)))
    if share < _REPEATED:
        return []
    return [
        f"{share:.0%} of the responses' tokens repeat what the same response has before, as those "
        "of a model that is not trained to answer do. Repetitions are easy to draft, so other text "
        "gains less. Give prompts as your application sends them, or the model's chat version."
    ]

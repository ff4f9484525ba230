"""The generator of the page `docs/architectures.md`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from lattice_bpd.conformance.check import MAX_NEW_TOKENS, OUTCOMES, Verdict
from lattice_bpd.conformance.zoo import ArchitectureResult

_COLUMNS: tuple[tuple[str, Callable[[Verdict], bool]], ...] = (
    ("one prompt", lambda v: _is_plain(v) and v.case.batch_size == 1),
    ("batch", lambda v: _is_plain(v) and v.case.batch_size > 1),
    ("tree attention", lambda v: v.case.layout == "tree"),
    ("`CustomGenerate`", lambda v: v.case.custom_generate),
)
_INTRODUCTION = """# Architectures

Every causal, encoder-decoder and image-text architecture that transformers {version} maps, checked
by `make architectures` (`python scripts/write_architectures.py`), which writes this page. To check
your own model: `lattice-bpd check MODEL`.

Each architecture is built tiny with random weights in float32, with attention windows shorter than
the text. {tokens} tokens are decoded after one prompt and after three prompts of different lengths,
with every strategy, both verification layouts, `CustomGenerate` and logits processors, and compared
with `model.generate(do_sample=False)` of each prompt alone. Heads know the output and make planned
mistakes, so that tokens are accepted and rejected. Image-text models read text only.

- **equal**: the same tokens in every case. **tie**: other tokens, to which `generate` prefers no
  token by more than the noise of the model's own calls.
- **refused**: this library says why before it decodes anything; a count means that only some cases
  are refused.
- **different**, **error**: a defect of this library; `make test-architectures` fails.

{summary}
"""


def write_page(results: Sequence[ArchitectureResult], version: str) -> str:
    """The page as Markdown.

    Args:
        results: of all architectures.
        version: of `transformers`.
    """
    checked = [result for result in results if result.not_built is None]
    counts = Counter(_worst(result.verdicts) for result in checked)
    summary = ", ".join(f"{counts[name]} {_SUMMARY[name]}" for name in OUTCOMES if counts[name])
    summary = f"Of {len(checked)} architectures: {summary}."
    lines = [_INTRODUCTION.format(version=version, tokens=MAX_NEW_TOKENS, summary=summary)]
    notes: dict[str, int] = {}
    titles = ["model type", "class", *(title for title, _ in _COLUMNS), "notes"]
    lines += ["## Results", "", _row(titles), _row(["---"] * len(titles))]
    for result in sorted(checked, key=lambda result: result.architecture.name):
        cells = [f"`{result.architecture.model_type}`", f"`{result.architecture.class_name}`"]
        cells += [_cell([v for v in result.verdicts if keep(v)]) for _, keep in _COLUMNS]
        numbers = [notes.setdefault(text, len(notes) + 1) for text in _reasons(result)]
        lines.append(_row([*cells, ", ".join(map(str, numbers))]))
    if notes:
        lines += ["", "## Notes", ""]
        lines += [f"{number}. {text}" for text, number in notes.items()]
    left_out = [result for result in results if result.not_built is not None]
    if left_out:
        lines += ["", "## Not checked", "", _row(["model type", "class", "why"]), _row(["---"] * 3)]
        lines += [
            _row([f"`{result.architecture.model_type}`", f"`{result.architecture.class_name}`",
                  result.not_built or ""])
            for result in sorted(left_out, key=lambda result: result.architecture.name)
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


_SUMMARY = {
    "equal": "are equal everywhere",
    "tie": "are equal but for ties",
    "refused": "are equal or refused",
    "different": "have a difference",
    "error": "end in an error",
}


def _is_plain(verdict: Verdict) -> bool:
    return not verdict.case.custom_generate and verdict.case.layout != "tree"


def _worst(verdicts: Sequence[Verdict]) -> str:
    return max((verdict.outcome for verdict in verdicts), key=OUTCOMES.index, default="equal")


def _cell(verdicts: Sequence[Verdict]) -> str:
    """The worst outcome, with the number of cases where only some have it."""
    worst = _worst(verdicts)
    count = sum(verdict.outcome == worst for verdict in verdicts)
    if count == len(verdicts):
        return worst
    best = min((verdict.outcome for verdict in verdicts), key=OUTCOMES.index)
    return f"{best}; {count} of {len(verdicts)} {worst}"


def _reasons(result: ArchitectureResult) -> list[str]:
    """Distinct details of verdicts that are not equal, without names of caller and class."""
    reasons = []
    for verdict in result.verdicts:
        if verdict.outcome in ("equal", "tie"):
            continue
        text = verdict.detail
        if verdict.outcome == "different":
            text = f"{verdict.case.name}: {text} at position {verdict.position}"
        name = re.escape(result.architecture.class_name)
        text = re.sub(rf"\b{name}\b", "the model", text)
        text = re.sub(r"\b[A-Z]\w+(Model|DecoderWrapper)\b", "its decoder", text)
        text = re.sub(r"\btexts (of|have) up to \d+", r"texts \1 up to N", text)
        text = re.sub(r"^(generate|CustomGenerate): ", "", text)
        reasons.append(text.replace("|", "\\|").replace("<", "&lt;"))
    return list(dict.fromkeys(reasons))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

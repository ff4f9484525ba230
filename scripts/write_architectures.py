"""Check every architecture of the installed transformers; write docs/architectures.md.

    python scripts/write_architectures.py [--jobs N]

Exit status 1 where a case is different or ends in an error.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from lattice_bpd_conformance.check import MAX_NEW_TOKENS, OUTCOMES, Verdict

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architectures.md"
sys.path.append(str(ROOT / "tests" / "python"))
architectures: Any = importlib.import_module("architectures")
NOT_BUILT: dict[str, str] = importlib.import_module("config_overrides").NOT_BUILT

Results = dict[Any, list[Verdict]]  # by architecture

_COLUMNS: tuple[tuple[str, Callable[[Verdict], bool]], ...] = (
    ("one prompt", lambda v: _is_plain(v) and v.case.batch_size == 1),
    ("batch", lambda v: _is_plain(v) and v.case.batch_size > 1),
    ("tree attention", lambda v: v.case.layout == "tree"),
    ("`CustomGenerate`", lambda v: v.case.custom_generate),
)
_INTRODUCTION = """# Architectures

Every causal, encoder-decoder and image-text architecture that transformers {version} maps, checked
by `make architectures`, which writes this page. To check your own model: `lattice-bpd check MODEL`.

Each architecture is built tiny with random weights in float32, with attention windows shorter than
the text. {tokens} tokens are decoded after one prompt and after three prompts of different lengths,
with every strategy, both verification layouts, `CustomGenerate` and logits processors, and compared
with `model.generate(do_sample=False)` of each prompt alone. Heads know the output and make planned
mistakes, so that tokens are accepted and rejected. Image-text models read text only.

- **equal**: the same tokens in every case. **tie**: other tokens, to which `generate` prefers no
  token by more than the noise of the model's own calls.
- **refused**: this library says why before it decodes anything; a count means that only some are.
- **different**, **error**: a defect of this library; `make test-architectures` fails.

Of {count} architectures: {summary}.
"""
_SUMMARY = {
    "equal": "are equal everywhere",
    "tie": "are equal but for ties",
    "refused": "are equal or refused",
    "different": "have a difference",
    "error": "end in an error",
}


def write_page(results: Results, left_out: Sequence[Any]) -> str:
    """The page as Markdown."""
    counts = Counter(_worst(verdicts) for verdicts in results.values())
    summary = ", ".join(f"{counts[name]} {_SUMMARY[name]}" for name in OUTCOMES if counts[name])
    lines = [
        _INTRODUCTION.format(
            version=transformers.__version__, tokens=MAX_NEW_TOKENS, count=len(results),
            summary=summary,
        ),
        "## Results", "",
        *_head(["model type", "class", *(title for title, _ in _COLUMNS), "notes"]),
    ]  # fmt: skip
    notes: dict[str, int] = {}
    for architecture in sorted(results):
        verdicts = results[architecture]
        cells = [_cell([v for v in verdicts if keep(v)]) for _, keep in _COLUMNS]
        reasons = _reasons(architecture.class_name, verdicts)
        numbers = [notes.setdefault(text, len(notes) + 1) for text in reasons]
        lines.append(_row([*_names(architecture), *cells, ", ".join(map(str, numbers))]))
    lines += ["", "## Notes", "", *(f"{number}. {text}" for text, number in notes.items())]
    lines += ["", "## Not checked", "", *_head(["model type", "class", "why"])]
    lines += [_row([*_names(one), NOT_BUILT[one.name]]) for one in sorted(left_out)]
    return "\n".join(lines) + "\n"


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


def _reasons(class_name: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Distinct details of verdicts that are not equal, without names of caller and class."""
    reasons = []
    for verdict in verdicts:
        if verdict.outcome in ("equal", "tie"):
            continue
        text = verdict.detail
        if verdict.outcome == "different":
            text = f"{verdict.case.name}: {text} at position {verdict.position}"
        text = re.sub(rf"\b{re.escape(class_name)}\b", "the model", text)
        text = re.sub(r"\b[A-Z]\w+(Model|DecoderWrapper)\b", "its decoder", text)
        text = re.sub(r"\btexts (of|have) up to \d+", r"texts \1 up to N", text)
        text = re.sub(r"^(generate|CustomGenerate): ", "", text)
        reasons.append(text.replace("|", "\\|").replace("<", "&lt;"))
    return list(dict.fromkeys(reasons))


def _names(architecture: Any) -> list[str]:
    return [f"`{architecture.model_type}`", f"`{architecture.class_name}`"]


def _head(titles: Sequence[str]) -> list[str]:
    return [_row(titles), _row(["---"] * len(titles))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _check(architecture: Any) -> list[Verdict] | str:
    """Verdicts, or what building the model raised: a new architecture may need an override."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        verdicts: list[Verdict] = architectures.check_architecture(architecture)
        return verdicts
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


def main() -> int:
    """Run; see the module."""
    parser = argparse.ArgumentParser(description="Check every architecture; write the page.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    jobs = parser.parse_args().jobs
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    every = architectures.list_architectures()
    checked = [one for one in every if one.name not in NOT_BUILT]
    results: Results = {}
    failed = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for one, verdicts in zip(checked, pool.imap(_check, checked), strict=True):
            print(one.name, verdicts if isinstance(verdicts, str) else _worst(verdicts), flush=True)
            if not isinstance(verdicts, str):
                results[one] = verdicts
            failed += isinstance(verdicts, str) or any(verdict.failed for verdict in verdicts)
    PAGE.write_text(write_page(results, [one for one in every if one not in checked]))
    print(f"wrote {PAGE}: {len(checked)} architectures, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

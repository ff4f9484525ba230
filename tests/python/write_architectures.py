"""Check every architecture of transformers and write docs/architectures.md.

    python tests/python/write_architectures.py [--jobs N] [--only NAME ..] [--out FILE]

Exit status 1 where a case is different or ends in an error.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers

from lattice_bpd_conformance.check import MAX_NEW_TOKENS, OUTCOMES, Verdict
from zoo import ArchitectureResult, check_architecture, list_architectures

ROOT = Path(__file__).resolve().parents[2]


def check(name: str) -> ArchitectureResult | str:
    """An ArchitectureResult, or what building it raised."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    architecture = next(entry for entry in list_architectures() if entry.name == name)
    try:
        return check_architecture(architecture)
    except Exception as error:  # a new architecture may need an override
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


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


def main() -> int:
    """Run; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="these model types, no page")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "architectures.md")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    names = [
        entry.name for entry in list_architectures()
        if not args.only or entry.model_type in args.only
    ]  # fmt: skip
    start, failed = time.perf_counter(), 0
    results: list[ArchitectureResult] = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for number, (name, result) in enumerate(
            zip(names, pool.imap(check, names), strict=True), 1
        ):
            head = f"[{number}/{len(names)}] {name}"
            if isinstance(result, str):
                failed += 1
                print(f"{head}: cannot be built: {result}", flush=True)
                continue
            results.append(result)
            bad = [verdict for verdict in result.verdicts if verdict.failed]
            failed += bool(bad)
            what = result.not_built or f"{len(result.verdicts)} cases, {len(bad)} failed"
            print(f"{head}: {what} ({result.seconds:.1f} s)", flush=True)
            for verdict in bad:
                print(f"    {verdict.outcome}: {verdict.case.name}: {verdict.detail}", flush=True)
    if not args.only:
        args.out.write_text(write_page(results, transformers.__version__), encoding="utf-8")
        print(f"wrote {args.out}")
    print(f"{len(names)} architectures, {failed} failed, {time.perf_counter() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

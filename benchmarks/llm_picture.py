"""README's picture of bench_llm.py's figures: an answer in colors, and speeds as bars.

    make picture                                # measures (25 minutes), then draws
    python benchmarks/llm_picture.py [JSON]     # from figures that were measured

Written are docs/images/llm-light.svg and -dark.svg, and the part of README.md between its marks. A
test compares all three with what this makes of benchmarks/results/llm.json.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from corpus import ROOT

from lattice_bpd import atomic_files

RESULTS = ROOT / "benchmarks" / "results" / "llm.json"
README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- benchmarks/llm_picture.py writes this part -->\n", "<!-- to here -->\n"
LABELS = {  # what is drawn, by the names of lines in bench_llm.py
    "transformers greedy": "transformers, greedy",
    "transformers prompt lookup": "transformers, prompt lookup",
    "greedy, kernels of the core": "lattice-bpd, greedy, with its own kernels",
    "mixture, text, any size": "drafts without any preparation",
    "mixture, text + LM, any size": "and from an n-gram LM of self-generated text",
    "drafter of the folder": "and from draft heads of lattice-bpd build --heads",
}
THEMES = {  # GitHub's colors: text, muted, bar, own bar, accepted text, its background
    "light": ("#1f2328", "#59636e", "#afb8c1", "#1a7f37", "#116329", "#dafbe1"),
    "dark": ("#f0f6fc", "#9198a1", "#656c76", "#3fb950", "#7ee787", "#12361f"),
}
WIDTH, MARGIN = 860, 8
CHARACTER, LINE = 8.0, 24  # of the answer, in pixels; wide enough for any monospaced font of 13 px
COLUMNS = int((WIDTH - 2 * MARGIN) / CHARACTER)
BARS, BAR_HEIGHT, BAR_STEP = 340, 16, 26
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def figures_of(results: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Label, tokens per call and relative speed of each line that README shows."""
    shown = {label: results["lines"].get(name) for name, label in LABELS.items()}
    return [
        (label, line["all"]["tokens_per_call"]["value"], line["all"]["speed"]["value"])
        for label, line in shown.items()
        if line is not None
    ]


def describe_machine(results: dict[str, Any]) -> str:
    """Such as "2 cores of an AMD EPYC, without AVX-512"."""
    machine = results["machine"]
    name = re.sub(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b|@.*| \(family.*", "", machine["processor"])
    has = "with" if "avx512" in machine["search_instructions"] else "without"
    name = " ".join(name.split())
    article = "an" if name[0] in "AEIOU" else "a"
    return f"{machine['cores']} cores of {article} {name} {has} AVX-512"


def describe(results: dict[str, Any]) -> str:
    """The picture in words, for those who do not see it."""
    count, calls = len(results["example"]["tokens"]), results["example"]["calls"]
    lines = "; ".join(
        f"{label}: {speed:.2f} ({tokens:.2f} tokens per call)"
        for label, tokens, speed in figures_of(results)
    )
    return (
        f"An answer of {count} tokens in {calls} calls of the model, with the accepted draft "
        "tokens in green. Tokens per second relative to greedy decoding with transformers: "
        f"{lines}."
    )


def wrap(tokens: Sequence[tuple[str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Line, column, text and whether it was drafted, of each piece of a line; words stay whole."""
    parts = [
        (part, is_draft) for text, is_draft in tokens for part in re.split(r"(\n)", text) if part
    ]
    line = column = 0
    for i, (text, is_draft) in enumerate(parts):
        if text == "\n":
            line, column = line + 1, 0
            continue
        ends = (n for n in range(i + 1, len(parts)) if parts[n][0][0].isspace())
        word = sum(len(part) for part, _ in parts[i : next(ends, len(parts))])
        if column and text[0].isspace() and column + word > COLUMNS:
            line, column, text = line + 1, 0, text.lstrip()
        yield line, column, text, is_draft
        column += len(text)


def draw(results: dict[str, Any], theme: str) -> str:
    """The picture as SVG."""
    ink, muted, bar, own_bar, green, tint = THEMES[theme]
    example, figures = results["example"], figures_of(results)
    parts: list[str] = []

    def write(x: float, y: float, text: str, color: str, more: str = "") -> None:
        parts.append(f'<text x="{x:g}" y="{y:g}" fill="{color}"{more}>{escape(text)}</text>')

    y = 20.0
    tokens = example["tokens"]
    write(MARGIN, y, example["question"], muted)
    y += 30
    for line, column, text, is_draft in wrap(tokens):
        word = text.strip()
        x, top = MARGIN + column * CHARACTER, y + line * LINE
        if is_draft:
            parts.append(
                f'<rect x="{x + 0.5:g}" y="{top - 15:g}" width="{len(text) * CHARACTER - 1:g}" '
                f'height="20" rx="3" fill="{tint}"/>'
            )
        if word:
            x += (len(text) - len(text.lstrip())) * CHARACTER
            length = f' class="t" textLength="{len(word) * CHARACTER:g}"'
            write(x, top, word, green if is_draft else ink, length)
    y = top + 30
    count, drafted = len(tokens), sum(is_draft for _, is_draft in tokens)
    calls = f"{count} tokens in {example['calls']} calls of the model instead of {count}"
    write(MARGIN, y, f"{calls}; green: {drafted} accepted draft tokens", muted)
    y += 40
    write(MARGIN, y, "Tokens per second, relative", ink, ' font-weight="600"')
    write(WIDTH - MARGIN, y, "tokens per call of the model", muted, ' text-anchor="end"')
    y += 12
    scale = (WIDTH - BARS - 3 * CHARACTER - 80) / max(speed for _, _, speed in figures)
    for label, per_call, speed in figures:
        bottom, width = y + BAR_HEIGHT - 3, speed * scale
        write(BARS - 12, bottom, label, ink, ' text-anchor="end"')
        parts.append(
            f'<rect x="{BARS}" y="{y:g}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" '
            f'fill="{bar if label.startswith("transformers") else own_bar}"/>'
        )
        write(round(BARS + width + 8, 1), bottom, f"{speed:.2f}", ink, ' font-weight="600"')
        write(WIDTH - MARGIN, bottom, f"{per_call:.2f}", muted, ' text-anchor="end"')
        y += BAR_STEP
    height = y + 4
    title = "An answer in fewer calls of the model, and decoding speeds"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc" font-family="{SANS}" '
        'font-size="13">\n'
        f'<title id="title">{title}</title>\n<desc id="desc">{escape(describe(results))}</desc>\n'
        f"<style>.t {{ font-family: {MONOSPACE}; }}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def describe_in_readme(results: dict[str, Any]) -> str:
    """The picture and what was measured, in Markdown."""
    return "\n".join([
        "<picture>",
        '<source media="(prefers-color-scheme: dark)" srcset="docs/images/llm-dark.svg">',
        f'<img src="docs/images/llm-light.svg" width="{WIDTH}" alt={quoteattr(describe(results))}>',
        "</picture>",
        "",
        f"{results['model']} in {results['dtype']} on {describe_machine(results)},",
        f"{results['texts']['all']['prompts']} instruction prompts of eight kinds",
        "(`make picture`, [docs/results.md](docs/results.md)).",
        "",
    ])  # fmt: skip


def fill_readme(results: dict[str, Any], readme: str) -> str:
    """README with the picture of some figures.

    Raises:
        ValueError: it lacks the marks of the part that is written.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"llm_picture: README.md lacks the lines {BEGIN!r} and {END!r}")
    return before + BEGIN + describe_in_readme(results) + END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "json", type=Path, nargs="?", default=RESULTS, help=f"default: {RESULTS.name}"
    )
    parser.add_argument("--lines", action="store_true", help="print what bench_llm.py measures")
    args = parser.parse_args()
    if args.lines:
        print(";".join(LABELS))
        return
    results = json.loads(args.json.read_text(encoding="utf-8"))
    if results["example"] is None:
        raise SystemExit(
            "llm_picture: the figures have no example, since no short question was decoded with "
            "drafts; expected one: measure for longer (--minutes)"
        )
    for theme in THEMES:
        atomic_files.write_text(IMAGES / f"llm-{theme}.svg", draw(results, theme))
    atomic_files.write_text(README, fill_readme(results, README.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()

"""Translation with drafts: SpecDec, blockwise heads and n-gram rescoring on an encoder-decoder.

    python examples/specdec_translation.py [--quick] [--teacher D] [--encoder-layers L]
        [--decoder-layers L] [--json FILE] [--out DIR]

On Multi30k, German to English: trains a small target, has it translate its training text, trains
blockwise heads (Stern et al. 2018), a SpecDrafter (Xia et al. 2022) and an n-gram LM on that,
and prints BLEU, speed and block efficiency with and without rescoring. With --teacher the target
learns from the translations of a larger model of hidden size D.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from rich.table import Table
from specdec_translation_parts import (
    FULL,
    QUICK,
    Recipe,
    Translators,
    load_sentences,
    to_text,
    train_all,
)

from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.decode import DecodeStats, generate
from lattice_bpd_translation.heads import SpecDrafterHeads
from lattice_bpd_translation.text import generate_outputs

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "multi30k_de_en"


@dataclass
class Row:
    """One way to translate, and what came of it."""

    name: str
    options: dict[str, Any]
    lossless: bool = True
    outputs: list[list[int]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)

    @property
    def accepted(self) -> float:
        """Draft tokens kept by a verifying call, on average."""
        return sum(self.stats.accept_lengths) / max(len(self.stats.accept_lengths), 1)


def main(arguments: Sequence[str] | None = None, recipe: Recipe | None = None) -> list[Row]:
    """Train, tune, translate, print."""
    args = read_arguments(arguments)
    recipe = recipe or (QUICK if args.quick else FULL)
    recipe = replace(
        recipe, teacher_size=args.teacher,
        encoder_layers=args.encoder_layers or recipe.encoder_layers,
        decoder_layers=args.decoder_layers or recipe.decoder_layers,
    )  # fmt: skip
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    quiet_transformers()
    start, console = time.perf_counter(), make_console()
    watcher = ConsoleWatcher(console, {})
    tokenizer, sentences = load_sentences(args.data, recipe)
    console.print(f"{len(sentences.train):,} pairs to train on, vocabulary of {recipe.vocab_size}")
    translators = train_all(sentences, recipe, watcher)
    if args.out is not None:
        save(translators, tokenizer, args.out)
    alphas = tune(translators, sentences.tune[0], recipe, watcher)
    rows = make_rows(translators, recipe, alphas)
    measure(translators, rows, sentences.test[0], recipe, watcher)
    lines = [[to_text(tokenizer, output) for output in row.outputs] for row in rows]
    scores = [bleu(text, sentences.test[1]) for text in lines]
    console.print()
    console.print(render(rows, scores, len(sentences.test[0])))
    teacher_bleu = None
    if translators.teacher is not None:
        texts = generate_outputs(translators.teacher, sentences.test[0], recipe.max_new_tokens)
        teacher_bleu = bleu([to_text(tokenizer, text) for text in texts], sentences.test[1])
        console.print(f"BLEU of the teacher: {teacher_bleu:.2f}")
    console.print("alpha, tuned on the validation part: " + json.dumps(alphas))
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s in all")
    if args.json is not None:
        write_json(args.json, rows, scores, alphas, recipe, seconds, teacher_bleu)
    return rows


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, under 5 minutes")
    parser.add_argument(
        "--teacher", type=int, default=0, metavar="D",
        help="train the target on the translations of a model of this hidden size",
    )  # fmt: skip
    for side in ("encoder", "decoder"):
        parser.add_argument(
            f"--{side}-layers", type=int, metavar="L",
            help=f"{side} layers of the target (default: {getattr(FULL, side + '_layers')})",
        )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep models there")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", default=DATA,
        help="folder with Multi30k's train, val and test_2016_flickr (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    if not (args.data / "train.de.gz").is_file():
        parser.error(f"{args.data} has no train.de.gz; give the folder of Multi30k by --data DIR")
    return args


def make_rows(translators: Translators, recipe: Recipe, alphas: dict[str, float]) -> list[Row]:
    """All ways to translate, greedy first."""
    from lattice_bpd.verify.acceptance import SpecDecPlusPlus

    relaxed = SpecDecPlusPlus(recipe.top_beta, recipe.tau)
    heads, drafter = {"heads": translators.heads}, {"heads": SpecDrafterHeads(translators.drafter)}
    size = {"top_k": recipe.top_k}
    tree = {**size, "max_nodes": recipe.max_nodes, "temperature": recipe.temperature}
    by_heads = {**size, "lm": translators.lm, "alpha": alphas["heads"]}
    by_drafter = {**size, "lm": translators.lm, "alpha": alphas["drafter"]}
    return [
        Row("greedy", {"drafter": "greedy"}),
        Row("blockwise heads", {"drafter": "bpd", **heads}),
        Row("blockwise heads + n-gram", {"drafter": "ngram", **heads, **by_heads}),
        Row("SpecDec", {"drafter": "bpd", **drafter}),
        Row("SpecDec + n-gram", {"drafter": "ngram", **drafter, **by_drafter}),
        Row("SpecDec tree", {"drafter": "tree", **drafter, **tree}),
        Row("SpecDec tree + n-gram", {"drafter": "tree", **drafter, **tree, **by_drafter}),
        Row("SpecDec++", {"drafter": "bpd", "acceptance": relaxed, **drafter}, lossless=False),
        Row(
            "SpecDec++ + n-gram",
            {"drafter": "ngram", "acceptance": relaxed, **drafter, **by_drafter},
            lossless=False,
        ),
    ]


def tune(
    translators: Translators, sources: list[list[int]], recipe: Recipe, watcher: ConsoleWatcher
) -> dict[str, float]:
    """The n-gram LM's weight with the best block efficiency, for heads and drafter."""
    givers: dict[str, Any] = {
        "heads": translators.heads,
        "drafter": SpecDrafterHeads(translators.drafter),
    }
    best = {}
    watcher.begin("tuning alpha", len(givers) * len(recipe.alphas))
    for name, heads in givers.items():
        rows = [
            Row(str(alpha), {"drafter": "ngram", "heads": heads, "lm": translators.lm,
                             "alpha": alpha, "top_k": recipe.top_k})
            for alpha in recipe.alphas
        ]  # fmt: skip
        for row in rows:
            translate(translators, [row], sources, recipe, lambda: None)
            watcher.advance()
        best[name] = float(max(rows, key=lambda row: row.stats.block_efficiency).name)
    watcher.end()
    return best


def measure(
    translators: Translators, rows: list[Row], sources: list[list[int]], recipe: Recipe,
    watcher: ConsoleWatcher,
) -> None:  # fmt: skip
    """Translate all sources in every way."""
    watcher.begin("translating the test part", len(sources))
    translate(translators, rows, sources, recipe, watcher.advance)
    watcher.end()


def translate(
    translators: Translators, rows: list[Row], sources: list[list[int]], recipe: Recipe,
    on_source: Callable[[], None],
) -> None:  # fmt: skip
    """One source after the other, in all ways: other work on the machine disturbs all alike."""
    for source in sources:
        for row in rows:
            result = generate(
                translators.target, source, max_new_tokens=recipe.max_new_tokens, **row.options
            )
            row.outputs.append(result.token_ids)
            row.stats.merge(result.stats)
        on_source()


def bleu(lines: list[str], references: list[str]) -> float:
    """Case-insensitive BLEU: the tokenizer lowers all text."""
    return float(sacrebleu.corpus_bleu(lines, [references], lowercase=True).score)


def render(rows: list[Row], scores: list[float], count: int) -> Table:
    """The table."""
    title = f"Multi30k German-English, {count} sentences of test 2016"
    table = Table(title=title, title_justify="left")
    columns = (
        "strategy", "BLEU", "tokens/s", "speed", "block eff.", "accepted", "lossless", "= greedy",
    )  # fmt: skip
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row, score in zip(rows, scores, strict=True):
        same = sum(a == b for a, b in zip(row.outputs, rows[0].outputs, strict=True))
        table.add_row(
            row.name, f"{score:.2f}", f"{row.stats.tokens_per_second:,.0f}",
            f"{row.stats.tokens_per_second / rows[0].stats.tokens_per_second:.2f}",
            f"{row.stats.block_efficiency:.2f}", f"{row.accepted:.2f}",
            "yes" if row.lossless else "no", f"{same} of {count}",
        )  # fmt: skip
    return table


def save(translators: Translators, tokenizer: Any, folder: Path) -> None:
    """Target, tokenizer, heads, drafter and n-gram LM."""
    folder.mkdir(parents=True, exist_ok=True)
    translators.target.base.save_pretrained(folder / "target")
    tokenizer.save(str(folder / "tokenizer.json"))
    translators.heads.save_pretrained(folder)
    translators.drafter.save_pretrained(folder)
    translators.lm.save(folder / "target-text.lm")


def write_json(
    path: Path, rows: list[Row], scores: list[float], alphas: dict[str, float], recipe: Recipe,
    seconds: float, teacher_bleu: float | None,
) -> None:  # fmt: skip
    """Every figure of the table, whole or not at all."""
    results = {
        "strategies": {
            row.name: {
                "bleu": score,
                "tokens_per_second": row.stats.tokens_per_second,
                "block_efficiency": row.stats.block_efficiency,
                "accepted": row.accepted,
                "target_calls": row.stats.target_calls,
                "tokens": row.stats.tokens,
                "lossless": row.lossless,
                "differing": sum(a != b for a, b in zip(row.outputs, rows[0].outputs, strict=True)),
            }
            for row, score in zip(rows, scores, strict=True)
        },
        "teacher_bleu": teacher_bleu,
        "alphas": alphas,
        "recipe": asdict(recipe),
        "seconds": seconds,
    }
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"specdec_translation: {error}")

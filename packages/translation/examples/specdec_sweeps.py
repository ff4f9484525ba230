"""SpecDec on a trained translator: block size, drafts, and SpecDec++'s beta and tau.

    python examples/specdec_translation.py --out models
    python examples/specdec_sweeps.py models [--betas 2,3] [--taus 0.5,1] [--margins 0,1]
        [--json FILE]

Records the validation part once and replays every strategy and block size on it, tunes drafts by a
measured cost curve, tunes beta and tau of SpecDec++ (most tokens per call of those whose loss of
BLEU on the validation part, plus a margin of bootstrap standard errors, is at most 0.5), and
reports the choices on the test part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sacrebleu
import torch
from rich.table import Table
from specdec_translation import DATA
from specdec_translation_parts import encode, read_sentences, to_text
from tokenizers import Tokenizer
from transformers import MarianMTModel

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.atomic_files import write_text
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.decode import DecodeStats, generate
from lattice_bpd.verify import verify_trees
from lattice_bpd.verify.acceptance import SpecDecPlusPlus
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd_kim2024.cli.evaluate_options import parse_list
from lattice_bpd_kim2024.evaluate import Recording
from lattice_bpd_kim2024.lab.drafter_search import DrafterSearch
from lattice_bpd_kim2024.record.heads import record_sources
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_translation.drafter import SpecDrafter
from lattice_bpd_translation.heads import SpecDrafterHeads
from lattice_bpd_translation.target import Seq2SeqTarget

Counts = npt.NDArray[np.int64]

REPLAYED = ("bpd", "ngram_1best", "chain", "tree_0gram", "tree", "oracle")
LOSS = 0.5  # BLEU that SpecDec++ may lose


@dataclass(frozen=True)
class Sweep:
    """The values that are tried, and the sentences that they are tried on."""

    validation: int = 400
    test: int = 1000
    top_k: int = 8
    max_nodes: int = 16
    alphas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.8)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0)
    betas: tuple[int, ...] = (2, 3, 5)
    taus: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5)
    margins: tuple[float, ...] = (0.0, 1.0)  # bootstrap standard errors
    max_new_tokens: int = 60


@dataclass
class Models:
    """What `specdec_translation.py --out` kept."""

    target: Seq2SeqTarget
    tokenizer: Tokenizer
    drafter: SpecDrafter
    lm: NGramLM


@dataclass
class Way:
    """A way to translate, and what came of it."""

    name: str
    options: dict[str, Any]
    rule: SpecDecPlusPlus | None = None
    outputs: list[list[int]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)
    bleu: float = 0.0
    loss: float = 0.0  # of BLEU, against greedy decoding of the same sentences
    loss_error: float = 0.0  # bootstrap standard error of the loss
    margins: list[float] = field(default_factory=list)  # that chose the rule

    def to_json(self) -> dict[str, Any]:
        """A line of the results."""
        return {
            "name": self.name, "rule": str(self.rule or "exact"), "bleu": self.bleu,
            "loss": self.loss, "loss_error": self.loss_error, "margins": self.margins,
            "block_efficiency": self.stats.block_efficiency,
            "tokens_per_second": self.stats.tokens_per_second, "sentences": len(self.outputs),
        }  # fmt: skip


def main(arguments: Sequence[str] | None = None, sweep: Sweep | None = None) -> dict[str, Any]:
    """Record, replay, tune, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, help="folder that specdec_translation.py --out wrote")
    parser.add_argument("--data", type=Path, default=DATA, help="Multi30k (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    sweep = sweep or Sweep()
    for part in ("validation", "test"):
        most = getattr(sweep, part)
        parser.add_argument(f"--{part}", type=int, default=most, help=f"sentences ({most})")
    parser.add_argument("--betas", metavar="N,..", default=",".join(map(str, sweep.betas)))
    parser.add_argument("--taus", metavar="X,..", default=",".join(map(str, sweep.taus)))
    parser.add_argument(
        "--margins", metavar="X,..", default=",".join(map(str, sweep.margins)),
        help="standard errors that are added to the loss on the validation part (%(default)s)",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    sweep = replace(
        sweep, validation=args.validation, test=args.test,
        betas=parse_list(args.betas, "--betas", int), taus=parse_list(args.taus, "--taus", float),
        margins=parse_list(args.margins, "--margins", float),
    )  # fmt: skip
    torch.set_num_threads(1)
    quiet_transformers()
    watcher = ConsoleWatcher(make_console(), {})
    models = load(args.models)
    validation = read_part(models, args.data, "val", sweep.validation)
    results = replay(models, validation[0], sweep, watcher)
    drafts = tuned_drafts(models, results, sweep)
    swept = sweep_rules(models, drafts, validation, sweep, watcher)
    results["specdec++ on validation"] = [way.to_json() for way in swept]
    test = read_part(models, args.data, "test_2016_flickr", sweep.test)
    ways = [Way("greedy", {"drafter": "greedy"})]
    for name, options in drafts.items():
        ways += [Way(name, options), *chosen_ways(swept, name, sweep.margins)]
    translate(models, ways, test, sweep, watcher, "translating the test part")
    watcher.console.print(table("test part, beta and tau tuned on the validation part", ways))
    results["test"] = [way.to_json() for way in ways]
    if args.json is not None:
        write_text(args.json, json.dumps(results, indent=2) + "\n")
    return results


def load(folder: Path) -> Models:
    """The models of a folder."""
    if not (folder / "target" / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder}: no target/config.json; expected the folder that specdec_translation.py "
            "--out wrote"
        )
    model = MarianMTModel.from_pretrained(folder / "target", attn_implementation="eager")
    return Models(
        Seq2SeqTarget(model.eval()), Tokenizer.from_file(str(folder / "tokenizer.json")),
        SpecDrafter.from_pretrained(folder), NGramLM.load(folder / "target-text.lm"),
    )  # fmt: skip


def read_part(
    models: Models, folder: Path, name: str, count: int
) -> tuple[list[list[int]], list[str]]:
    """Sources as token ids, and references."""
    sources, references = read_sentences(folder, name)
    return encode(models.tokenizer, sources[:count]), references[:count]


def replay(
    models: Models, sources: list[list[int]], sweep: Sweep, watcher: ConsoleWatcher
) -> dict[str, Any]:
    """Block efficiency by strategy and block size, and the fastest drafts."""
    heads = SpecDrafterHeads(models.drafter)
    watcher.begin("recording the validation part", len(sources))
    texts = record_sources(
        models.target, heads, sources, top_k=sweep.top_k, max_new_tokens=sweep.max_new_tokens,
        on_text=watcher.advance,
    )  # fmt: skip
    watcher.end()
    recording = Recording(texts)
    best = {name: best_options(models, recording, name, sweep) for name in REPLAYED}
    lines = [
        {
            "strategy": name, "block_size": size,
            "block_efficiency": recording.with_slots(size)
            .replay(STRATEGIES[name], Rescorers(models.lm), options)
            .block_efficiency,
        }
        for name, options in best.items()
        for size in range(1, heads.num_slots + 1)
    ]  # fmt: skip
    grid = Table(title="block efficiency by block size, validation part", title_justify="left")
    grid.add_column("strategy")
    for size in range(1, heads.num_slots + 1):
        grid.add_column(str(size), justify="right")
    for name in REPLAYED:
        values = [line["block_efficiency"] for line in lines if line["strategy"] == name]
        grid.add_row(name, *(f"{value:.2f}" for value in values))
    watcher.console.print(grid)
    costs = time_calls(models, sources[0])
    tuned = DrafterSearch({"lm": models.lm}, costs).run(recording)
    watcher.console.print(
        f"fastest drafts by call times {costs}: {tuned.choice.name} {tuned.choice.options.options}"
    )
    return {
        "by_block_size": lines,
        "weights": {
            name: {"alpha": one.alpha, "temperature": one.temperature} for name, one in best.items()
        },
        "milliseconds_by_draft_tokens": costs,
        "tuned": {"strategy": tuned.choice.name, **tuned.choice.options.options},
    }


def best_options(models: Models, recording: Recording, name: str, sweep: Sweep) -> DraftConfig:
    """The weights of the greatest block efficiency."""
    strategy = STRATEGIES[name]
    base = DraftConfig(top_k=sweep.top_k, max_nodes=sweep.max_nodes)
    uses_temperature = "temperature" in strategy.option_names
    tried = [
        replace(base, alpha=alpha, temperature=temperature)
        for alpha in (sweep.alphas if strategy.uses_lm else (0.0,))
        for temperature in (sweep.temperatures if uses_temperature else (1.0,))
    ]
    rescorers = Rescorers(models.lm)
    return max(tried, key=lambda one: recording.replay(strategy, rescorers, one).block_efficiency)


@torch.inference_mode()
def time_calls(models: Models, source: list[int], rounds: int = 15) -> dict[int, float]:
    """Median milliseconds of a call of the target by its draft tokens."""
    target, times = models.target, dict[int, list[float]]()
    for _ in range(rounds + 1):
        for size in (0, 1, 4, 8, 16, 36):
            prompt = torch.tensor([target.decoder_prompt], device="cpu")
            _, cache = target.read_prompts(prompt, source=target.encode([source]))
            tree = PrefixTree.from_drafts(3, [[token] for token in range(4, 4 + size)])
            verified = verify_trees(target, cache, [tree], layout="tree")
            times.setdefault(size, []).append(1e3 * verified.target_seconds)
    return {size: sorted(of_size[1:])[rounds // 2] for size, of_size in times.items()}


def tuned_drafts(models: Models, results: dict[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Drafts of SpecDec with the best weights, by name."""
    heads = SpecDrafterHeads(models.drafter)
    common: dict[str, Any] = {"heads": heads, "top_k": sweep.top_k}
    tree = {**common, "drafter": "tree", "lm": models.lm, "max_nodes": sweep.max_nodes}
    weights = results["weights"]
    return {
        "SpecDec": {"heads": heads, "drafter": "bpd"},
        "SpecDec + n-gram": {
            **common, "drafter": "ngram", "lm": models.lm, "alpha": weights["ngram_1best"]["alpha"],
        },
        "SpecDec tree + n-gram": {**tree, **weights["tree"]},
    }  # fmt: skip


def sweep_rules(
    models: Models, drafts: dict[str, Any], part: tuple[list[list[int]], list[str]], sweep: Sweep,
    watcher: ConsoleWatcher,
) -> list[Way]:  # fmt: skip
    """All drafts with all beta and tau; greedy decoding is the first."""
    ways = [Way("greedy", {"drafter": "greedy"})]
    for name, options in drafts.items():
        rules = [SpecDecPlusPlus(beta, tau) for beta in sweep.betas for tau in sweep.taus]
        ways += [Way(name, options, rule) for rule in rules]
    translate(models, ways, part, sweep, watcher, "SpecDec++ on the validation part")
    for name in drafts:
        watcher.console.print(grid(name, ways, sweep))
    return ways


def grid(name: str, ways: list[Way], sweep: Sweep) -> Table:
    """Loss of BLEU and tokens per call of drafts, by beta and tau."""
    by_rule = {way.rule: way for way in ways if way.name == name}
    printed = Table(
        title=f"{name}, validation part: loss against BLEU {ways[0].bleu:.2f} (standard error), "
        "tokens per call",
        title_justify="left",
    )
    for title in ("beta", *(f"tau {tau:g}" for tau in sweep.taus)):
        printed.add_column(title, justify="right", no_wrap=True)
    for beta in sweep.betas:
        of_beta = [by_rule[SpecDecPlusPlus(beta, tau)] for tau in sweep.taus]
        printed.add_row(
            str(beta),
            *(f"{way.loss:.2f} ({way.loss_error:.2f})\n{way.stats.block_efficiency:.2f}"
              for way in of_beta),
        )  # fmt: skip
    return printed


def chosen_ways(swept: list[Way], name: str, margins: Sequence[float]) -> list[Way]:
    """Drafts with the rule that each margin chooses, without repeats."""
    chosen: dict[SpecDecPlusPlus, Way] = {}
    for margin in margins:
        best = choose(swept, name, margin)
        if best is not None and best.rule is not None:
            way = chosen.setdefault(best.rule, Way(name, best.options, best.rule))
            way.margins.append(margin)
    return list(chosen.values())


def choose(ways: list[Way], name: str, margin: float) -> Way | None:
    """The way of most tokens per call that loses at most LOSS BLEU; None: none does.

    Args:
        ways: translations of the validation part.
        name: of the drafts.
        margin: standard errors of the loss that are added to it.
    """
    allowed = [
        way for way in ways if way.name == name and way.loss + margin * way.loss_error <= LOSS
    ]
    return max(allowed, key=lambda way: way.stats.block_efficiency, default=None)


def translate(
    models: Models, ways: list[Way], part: tuple[list[list[int]], list[str]], sweep: Sweep,
    watcher: ConsoleWatcher, title: str,
) -> None:  # fmt: skip
    """One source after the other, in all ways, so that other load affects all alike."""
    watcher.begin(title, len(part[0]))
    for source in part[0]:
        for way in ways:
            result = generate(
                models.target, source, acceptance=way.rule, max_new_tokens=sweep.max_new_tokens,
                **way.options,
            )  # fmt: skip
            way.outputs.append(result.token_ids)
            way.stats.merge(result.stats)
        watcher.advance()
    watcher.end()
    score_losses(ways, models.tokenizer, part[1])


def score_losses(
    ways: list[Way], tokenizer: Tokenizer, references: list[str], samples: int = 1000
) -> None:
    """BLEU of all ways, and their losses against the first with bootstrap standard errors."""
    counts = [
        count_ngrams([to_text(tokenizer, output) for output in way.outputs], references)
        for way in ways
    ]
    total = len(references)
    weights = np.random.default_rng(0).multinomial(total, np.full(total, 1 / total), samples)
    sampled = [[bleu_of(row) for row in weights @ of_way] for of_way in counts]
    for way, of_way, scores in zip(ways, counts, sampled, strict=True):
        way.bleu = bleu_of(of_way.sum(axis=0))
        way.loss = bleu_of(counts[0].sum(axis=0)) - way.bleu
        way.loss_error = float(np.std(np.subtract(sampled[0], scores)))


def count_ngrams(lines: list[str], references: list[str]) -> Counts:
    """(N, 10) matching and all n-grams of each line, its length and its reference's."""
    metric, rows = sacrebleu.BLEU(lowercase=True, effective_order=True), []
    for line, reference in zip(lines, references, strict=True):
        score = metric.sentence_score(line, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.int64)


def bleu_of(counts: Counts) -> float:
    """Case-insensitive corpus BLEU of summed counts."""
    values = counts.tolist()
    score = sacrebleu.BLEU.compute_bleu(
        correct=values[:4], total=values[4:8], sys_len=values[8], ref_len=values[9],
        smooth_method="exp",
    )  # fmt: skip
    return float(score.score)


def table(title: str, ways: list[Way]) -> Table:
    """A line for each way; losses of BLEU are against the first."""
    columns: dict[str, Callable[[Way], str]] = {
        "strategy": lambda way: way.name,
        "rule": lambda way: str(way.rule or "exact"),
        "BLEU": lambda way: f"{way.bleu:.2f}",
        "margin": lambda way: ", ".join(f"{margin:g}" for margin in way.margins),
        "loss": lambda way: f"{way.loss:.2f}",
        "error": lambda way: f"{way.loss_error:.2f}",
        "block eff.": lambda way: f"{way.stats.block_efficiency:.2f}",
        "tokens/s": lambda way: f"{way.stats.tokens_per_second:,.0f}",
    }
    printed = Table(title=f"{title}, {len(ways[0].outputs)} sentences", title_justify="left")
    for number, name in enumerate(columns):
        printed.add_column(name, justify="right" if number > 1 else "left", no_wrap=True)
    for way in ways:
        printed.add_row(*(show(way) for show in columns.values()))
    return printed


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"specdec_sweeps: {error}")

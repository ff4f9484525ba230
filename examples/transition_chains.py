"""One draft of a lattice: best path, two greedy walks, or greatest expected length.

    python examples/transition_chains.py --quick
    python examples/transition_chains.py --quick --model demo --json results.json

Engines such as vLLM verify a single draft. The heads of stories260K (or of the demo's model) with a
4-gram give the lattice; alpha, temperature and normalization of each line are tuned on other
prompts.

best_path        the path of greatest score
greedy_walk      in each slot the candidate of greatest score after the one before it
mass_walk        in each slot the most probable next token, all completions counted
expected_length  the chain of greatest expected accepted length (strategy "chain")

Tokens per call are of live decoding, which shortens drafts where less than a draft remains to be
decoded. "Whole drafts" are of replays that do not, as in vLLM. All lines decode the same prompts,
and intervals of differences are paired. The last lines compare mass walk and chain at the same
weights: what the lattice's distribution P expects of them, and what the target accepts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from block_parts import write_results
from stories260k import check_model, make_parser
from stories260k_parts import BEGIN, FULL, QUICK, Prepared, Recipe, prepare
from transition_demo import FULL_DEMO, QUICK_DEMO, prepare_demo
from transition_parts import (
    SEARCHES,
    MassWalkDrafter,
    RecordingDrafter,
    WalkDrafter,
    count_accepted,
    count_calls,
    positions_of,
    search_all,
    tune_search,
    walk_masses,
)
from transition_results import decode_together, require_lossless

from lattice_bpd.build.bootstrap import Interval, bootstrap_ratio
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_kim2024.evaluate import Setting

LABELS = {
    "best_path": "best path", "greedy_walk": "greedy walk by scores",
    "mass_walk": "greedy walk over exact prefix masses",
    "expected_length": "chain of greatest expected length",
}  # fmt: skip
DRAFTERS = {"greedy_walk": WalkDrafter, "mass_walk": MassWalkDrafter}
SAME = DraftConfig("chain", alpha=0.8, temperature=2.0)  # weights of the last lines
REFERENCES = ("expected_length", "best_path")


def main(arguments: Sequence[str] | None = None, recipe: Recipe | None = None) -> None:
    """Train or load, tune, decode, print."""
    parser = make_parser(__doc__)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # matrices this small are slower on several
    start, console = time.perf_counter(), make_console()
    made, recipe, stop = prepare_model(args, parser, recipe, ConsoleWatcher(console, {}))
    results = compare(made, recipe, stop, ConsoleWatcher(console, {}))
    for line in describe(results):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - start:.0f} s in all; parts are kept in {made.work}")
    if args.json is not None:
        write_results(args.json, results)


def prepare_model(
    args: argparse.Namespace, parser: argparse.ArgumentParser, recipe: Recipe | None,
    watcher: ConsoleWatcher,
) -> tuple[Prepared, Recipe, int]:  # fmt: skip
    """A model with heads and a 4-gram, and the token that ends its texts."""
    if str(args.model) == "demo":
        recipe = recipe or replace(
            QUICK_DEMO if args.quick else FULL_DEMO, tune_prompts=48, test_prompts=96
        )
        made, demo = prepare_demo(args, recipe, watcher)
        return made, recipe, demo.settings.end_of_text
    check_model(args, parser)
    # Tuned on a grid as fine as that of the full run.
    plain = replace(QUICK, alphas=FULL.alphas, temperatures=FULL.temperatures)
    recipe = recipe or (plain if args.quick else FULL)
    return prepare(args, recipe, "quick" if args.quick else "full", watcher), recipe, BEGIN


def compare(made: Prepared, recipe: Recipe, stop: int, watcher: ConsoleWatcher) -> dict[str, Any]:
    """All lines, and what the lattice's probabilities predict for two of them."""
    recorder, texts = record(made, made.found.tune, recipe, stop)
    watcher.begin("tuning", len(LABELS))
    options = {}
    for search in LABELS:
        options[search] = tune_search(recorder, texts, search, made.lm, recipe, has_pairs=False)
        watcher.advance()
    watcher.end()
    settings = [Setting("greedy", "greedy", "greedy")]
    settings += [setting_of(search, made) for search in LABELS]
    found = decode_together(
        made.model, made.lm, made.found.test, settings, options, recipe, stop, watcher
    )
    require_lossless(found)
    recorder, texts = record(made, made.found.test, recipe, stop)
    lattice, contexts = recorder.joined(), recorder.contexts
    lines = []
    for search, line in zip(LABELS, found.results[1:], strict=True):
        paths = search_all(lattice, contexts, search, made.lm, options[search])
        _, whole = count_calls(count_accepted(paths, contexts, texts), contexts, texts)
        lines.append(
            {
                "name": search,
                "alpha": options[search].alpha,
                "temperature": options[search].temperature,
                "normalization": options[search].normalization or "global",
                "tokens": [stats.tokens for stats in line.stats],
                "calls": [stats.target_calls for stats in line.stats],
                "calls_with_whole_drafts": whole,
            }
        )
    return {
        "prompts": len(texts), "loop_share": found.loop_share, "lines": lines,
        "predictions": predict(made, lattice, contexts, texts),
    }  # fmt: skip


def setting_of(search: str, made: Prepared) -> Setting:
    """A line of the table."""
    make = DRAFTERS.get(search)
    strategy = SEARCHES.get(search, "chain")
    if make is None:
        return Setting(search, search, strategy, uses_lm=True, heads=made.model.heads)
    return Setting(
        search, search, strategy, uses_lm=True, heads=made.model.heads,
        make=lambda lm, _output, config: make(lm, config),
    )  # fmt: skip


def record(
    made: Prepared, prompts: list[list[int]], recipe: Recipe, stop: int
) -> tuple[RecordingDrafter, list[list[int]]]:
    """The lattice of every position of the greedy outputs, and the texts."""
    recorder = RecordingDrafter(recipe.top_k)
    outputs = decode(
        DraftingModel(made.base, made.model.heads), prompts, recorder,
        max_new_tokens=recipe.max_new_tokens, stop_token_ids=[stop],
    )  # fmt: skip
    texts = [prompt + one.token_ids for prompt, one in zip(prompts, outputs, strict=True)]
    return recorder, texts


def predict(
    made: Prepared, lattice: LatticeInput, contexts: list[list[int]], texts: list[list[int]]
) -> dict[str, Any]:
    """Expected and accepted draft tokens of the mass walk and the chain with the weights of SAME.

    The means are of all positions after which the text has at least a whole draft, and of those
    where the two drafts differ. Calls are those of whole drafts.
    """
    recent = [context[-8:] for context in contexts]
    options: dict[str, Any] = {"alpha": SAME.alpha, "temperature": SAME.temperature}
    walks, walk_log_probs = walk_masses(lattice, recent, made.lm, **options)
    chains = rescore_lattice(
        lattice, recent, made.lm, num_drafts=1, objective="accept_length", **options
    )
    paths = {"mass_walk": walks, "expected_length": np.asarray(chains.token_ids)[:, 0]}
    log_probs = {
        "mass_walk": walk_log_probs,
        "expected_length": np.asarray(chains.prefix_log_probs)[:, 0],
    }
    whole = np.array(
        [length + walks.shape[1] <= len(texts[number])
         for number, length in positions_of(contexts, texts)]
    )  # fmt: skip
    differ = whole & (paths["mass_walk"] != paths["expected_length"]).any(axis=1)
    found: dict[str, Any] = {"positions": int(whole.sum()), "differ": int(differ.sum())}
    for name, path in paths.items():
        expected = np.exp(log_probs[name]).sum(axis=1)
        accepted = np.array(count_accepted(path[:, None], contexts, texts))
        found[name] = {"calls": count_calls(accepted.tolist(), contexts, texts)[1]}
        found[name] |= {
            f"{kind}_{where}": float(values[chosen].mean()) if chosen.any() else None
            for where, chosen in (("all", whole), ("differing", differ))
            for kind, values in (("expected", expected), ("accepted", accepted))
        }
    return found


def describe(results: dict[str, Any]) -> list[str]:
    """The table, and the predictions."""
    lines = results["lines"]
    by_name = {line["name"]: line for line in lines}
    head = ("drafts", "alpha", "temperature", "normalization", "tokens per call (95 %)",
            "relative to the chain (95 %)", "relative to the best path (95 %)",
            "whole drafts", "relative to the chain (95 %)")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in lines:
        live, whole = line["calls"], line["calls_with_whole_drafts"]
        cells = [
            LABELS[line["name"]], f"{line['alpha']:g}", f"{line['temperature']:g}",
            line["normalization"],
            _efficiency(line["tokens"], live),
            *(_gain(line, by_name[reference], "calls") for reference in REFERENCES),
            f"{sum(line['tokens']) / sum(whole):.3f}",
            _gain(line, by_name["expected_length"], "calls_with_whole_drafts"),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    tokens, found = lines[0]["tokens"], results["predictions"]
    walk, chain = found["mass_walk"], found["expected_length"]
    rows += [
        "",
        f"{results['prompts']} prompts, {sum(tokens)} new tokens; {results['loop_share']:.0%} of "
        "them in loops.",
        f"Both with alpha {SAME.alpha:g}, temperature {SAME.temperature:g}: whole drafts of the "
        f"mass walk {sum(tokens) / sum(walk['calls']):.3f} tokens per call, of the chain "
        f"{sum(tokens) / sum(chain['calls']):.3f}; the walk relative to the chain "
        f"{_percent(bootstrap_ratio(chain['calls'], walk['calls'], less=1.0))}.",
        f"They differ at {found['differ']} of {found['positions']} positions. Draft tokens:",
    ]
    for name in ("mass_walk", "expected_length"):
        for where in ("all", "differing"):
            if (expected := found[name][f"expected_{where}"]) is not None:
                rows.append(
                    f"{LABELS[name]}, {where} positions: {expected:.3f} expected, "
                    f"{found[name][f'accepted_{where}']:.3f} accepted"
                )
    return rows


def _efficiency(tokens: list[int], calls: list[int]) -> str:
    found = bootstrap_ratio(tokens, calls)
    return f"{found.value:.3f} ({found.low:.2f}-{found.high:.2f})"


def _gain(line: dict[str, Any], reference: dict[str, Any], kind: str) -> str:
    if line is reference:
        return ""
    return _percent(bootstrap_ratio(reference[kind], line[kind], less=1.0))


def _percent(gain: Interval) -> str:
    return f"{100 * gain.value:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"transition_chains: {error}")

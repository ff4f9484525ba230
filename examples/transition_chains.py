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
import hashlib
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stories260k import check_model, make_parser
from stories260k_parts import (
    BATCH,
    BEGIN,
    FULL,
    QUICK,
    Beginnings,
    Prepared,
    Recipe,
    prepare,
    train_lm,
)

from lattice_bpd import NGramLM
from lattice_bpd.atomic_files import write_json
from lattice_bpd.build.bootstrap import Interval, bootstrap_ratio
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DecodeState, DecodeStats, Drafter, DraftingModel, decode
from lattice_bpd.decode.drafters.head_candidates import LatticeDrafter
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify import PrefixTree
from lattice_bpd_kim2024.demo.library_text import Corpus, draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import DemoModel, load_demo_model
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.statistics import count_looping

LABELS = {
    "best_path": "best path", "greedy_walk": "greedy walk by scores",
    "mass_walk": "greedy walk over exact prefix masses",
    "expected_length": "chain of greatest expected length",
}  # fmt: skip
STRATEGIES = {"best_path": "p_best", "greedy_walk": "p_best"}  # the others: chain
OBJECTIVES = {"greedy_walk": "greedy_walk", "expected_length": "accept_length"}
SAME = DraftConfig("chain", alpha=0.8, temperature=2.0)  # weights of the last lines
REFERENCES = ("expected_length", "best_path")
FULL_DEMO = Recipe(
    prompt_lengths=(96,), stories=8192, row_length=192, prompt_length=96, max_new_tokens=64,
    tune_prompts=48, test_prompts=96, alphas=(0.4, 0.8, 1.2), temperatures=(1.0, 1.5, 2.0, 2.5),
)  # fmt: skip
QUICK_DEMO = replace(FULL_DEMO, stories=2048)
FILES = 200  # of the library that continuations begin in


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
        write_json(args.json, results)


def prepare_model(
    args: argparse.Namespace, parser: argparse.ArgumentParser, recipe: Recipe | None,
    watcher: ConsoleWatcher,
) -> tuple[Prepared, Recipe, int]:  # fmt: skip
    """A model with heads and a 4-gram, and the token that ends its texts."""
    if str(args.model) == "demo":
        recipe = recipe or (QUICK_DEMO if args.quick else FULL_DEMO)
        made, demo = prepare_demo(args, recipe, watcher)
        return made, recipe, demo.settings.end_of_text
    check_model(args, parser)
    # Tuned on a grid as fine as that of the full run.
    plain = replace(QUICK, alphas=FULL.alphas, temperatures=FULL.temperatures)
    recipe = recipe or (plain if args.quick else FULL)
    return prepare(args, recipe, "quick" if args.quick else "full", watcher), recipe, BEGIN


def prepare_demo(
    args: argparse.Namespace, recipe: Recipe, watcher: ConsoleWatcher
) -> tuple[Prepared, DemoModel]:
    """The demo's model with its heads, text that it generates, and an n-gram LM of that text."""
    demo, corpus = load_demo_model(), read_library_sources(max_files=FILES)
    made_from = (recipe.stories, recipe.prompt_lengths, recipe.row_length, corpus.fingerprint)
    digest = hashlib.sha256(repr(made_from).encode()).hexdigest()[:8]
    work = args.work / f"demo-{digest}"
    work.mkdir(parents=True, exist_ok=True)
    rows = _cached_rows(work, demo, corpus, recipe, watcher)
    length, room = recipe.prompt_length, recipe.max_new_tokens
    tune, test = (
        draw_prompts(demo.encode(texts), count, length, room, seed=0)
        for texts, count in ((corpus.tune, recipe.tune_prompts), (corpus.test, recipe.test_prompts))
    )
    found = Beginnings([], tune, test, [])
    lm = train_lm(rows, recipe, vocab_size=demo.model.vocab_size)
    return Prepared(demo.model.base, found, work, rows, lm, demo.model), demo


def _cached_rows(
    work: Path, demo: DemoModel, corpus: Corpus, recipe: Recipe, watcher: ConsoleWatcher
) -> np.ndarray:
    """(N, row_length) greedy continuations of prompts from the training files."""
    path = work / "text.npy"
    if path.is_file():
        return np.load(path)
    length = recipe.prompt_lengths[0]
    prompts = draw_prompts(demo.encode(corpus.train), recipe.stories, length, 0, seed=1)
    watcher.begin("generating text to learn from", -(-len(prompts) // BATCH))
    rows = generate_texts(
        demo.model.base, prompts, recipe.row_length - length, batch_size=BATCH,
        on_batch=watcher.advance,
    )  # fmt: skip
    watcher.end()
    np.save(work / ".text.npy", rows)
    (work / ".text.npy").replace(path)
    return rows


def compare(made: Prepared, recipe: Recipe, stop: int, watcher: ConsoleWatcher) -> dict[str, Any]:
    """All lines, and what the lattice's probabilities predict for two of them."""
    recorder, texts = record(made, made.found.tune, recipe, stop)
    watcher.begin("tuning", len(LABELS))
    options = {}
    for search in LABELS:
        options[search] = tune_search(recorder, texts, search, made.lm, recipe)
        watcher.advance()
    watcher.end()
    found, loop_share = decode_together(made, options, recipe, stop, watcher)
    recorder, texts = record(made, made.found.test, recipe, stop)
    lattice, contexts = recorder.joined(), recorder.contexts
    lines = []
    for search in LABELS:
        paths = search_all(lattice, contexts, search, made.lm, options[search])
        _, whole = count_calls(count_accepted(paths, contexts, texts), contexts, texts)
        lines.append(
            {
                "name": search,
                "alpha": options[search].alpha,
                "temperature": options[search].temperature,
                "normalization": options[search].normalization or "global",
                "tokens": [stats.tokens for stats in found[search]],
                "calls": [stats.target_calls for stats in found[search]],
                "calls_with_whole_drafts": whole,
            }
        )
    return {
        "prompts": len(texts), "loop_share": loop_share, "lines": lines,
        "predictions": predict(made, lattice, contexts, texts),
    }  # fmt: skip


def decode_together(
    made: Prepared, options: dict[str, DraftConfig], recipe: Recipe, stop: int,
    watcher: ConsoleWatcher,
) -> tuple[dict[str, list[DecodeStats]], float]:  # fmt: skip
    """Decode all prompts as one batch with each search; times are not measured.

    Returns:
        Statistics of each text, as if it were decoded alone, by search; and the share of the
        target's tokens that loop.

    Raises:
        ValueError: an output is not that of the target's own greedy `generate`.
    """
    prompts = made.found.test
    watcher.begin("decoding held-out beginnings", len(options) + 1)
    plain = [plain_output(made.base, prompt, recipe, stop) for prompt in prompts]
    watcher.advance()
    stats = {}
    for search, config in options.items():
        found = decode(
            DraftingModel(made.base, made.model.heads), prompts,
            drafter_of(search, made.lm, config),
            max_new_tokens=recipe.max_new_tokens, stop_token_ids=[stop],
        )  # fmt: skip
        if [one.token_ids for one in found] != plain:
            raise ValueError(f"output differs from greedy decoding with {search}")
        stats[search] = [one.stats for one in found]
        watcher.advance(note=search)
    watcher.end()
    loops = sum(itertools.starmap(count_looping, zip(prompts, plain, strict=True)))
    return stats, loops / sum(map(len, plain))


def drafter_of(search: str, lm: NGramLM, config: DraftConfig) -> Drafter:
    """The drafter of a search."""
    if search == "greedy_walk":
        return WalkDrafter(lm, config)
    if search == "mass_walk":
        return MassWalkDrafter(lm, config)
    return make_drafter(config, DraftSources(lm))


def plain_output(base: Any, prompt: list[int], recipe: Recipe, stop: int) -> list[int]:
    """What the target's own greedy `generate` gives."""
    tokens = base.generate(
        torch.tensor([prompt]), max_new_tokens=recipe.max_new_tokens, do_sample=False,
        eos_token_id=stop, pad_token_id=stop,
    )  # fmt: skip
    output: list[int] = tokens[0, len(prompt) :].tolist()
    return output


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


class WalkDrafter(LatticeDrafter):
    """The greedy walk: in each slot the candidate of the greatest score after the one before."""

    strategy = "chain"

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        found, contexts, _ = self.read_lattices(states)
        drafts = rescore_lattice(
            found, contexts, self.lm, num_drafts=1, objective="greedy_walk", alpha=self.config.alpha
        )
        rows = zip(states, np.asarray(drafts.token_ids), strict=True)
        return [PrefixTree.from_drafts(state.tokens[-1], row) for state, row in rows]


class MassWalkDrafter(LatticeDrafter):
    """The walk over exact prefix masses; see `walk_masses`."""

    strategy = "chain"

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        found, contexts, _ = self.read_lattices(states)
        lattice = LatticeInput(found.token_ids, found.scores).end_after(
            [state.max_draft_length for state in states]
        )
        token_ids, _ = walk_masses(
            lattice, contexts, self.lm, alpha=self.config.alpha, temperature=self.config.temperature
        )
        rows = zip(states, token_ids, strict=True)
        return [PrefixTree.from_drafts(state.tokens[-1], row[None]) for state, row in rows]


class RecordingDrafter(Drafter):
    """Drafts nothing, and keeps the lattice of every step.

    Args:
        top_k: k.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.lattices: list[LatticeInput] = []
        self.contexts: list[list[int]] = []

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """None for each state."""
        logits = states[0].model.read_heads(states)
        best = select_top_k(logits, self.top_k, log_softmax=False, where="RecordingDrafter")
        self.lattices.append(LatticeInput(best.token_ids, best.scores))
        self.contexts += [list(state.tokens) for state in states]
        return [None] * len(states)

    def joined(self) -> LatticeInput:
        """All lattices as one batch."""
        return LatticeInput(
            torch.cat([torch.as_tensor(one.token_ids) for one in self.lattices]),
            torch.cat([torch.as_tensor(one.scores) for one in self.lattices]),
        )


def tune_search(
    recorder: RecordingDrafter, texts: list[list[int]], search: str, lm: NGramLM, recipe: Recipe
) -> DraftConfig:
    """The best alpha, temperature and normalization on recorded lattices."""
    plain = DraftConfig(STRATEGIES.get(search, "chain"), top_k=recipe.top_k, num_drafts=1)
    has_temperature = search in ("expected_length", "mass_walk")
    tried = [
        replace(plain, alpha=alpha, temperature=temperature, normalization=normalization)
        for alpha, temperature, normalization in itertools.product(
            recipe.alphas,
            recipe.temperatures if has_temperature else (1.0,),
            (None,) if search == "mass_walk" else ("global", "local"),
        )
    ]
    lattice, contexts = recorder.joined(), recorder.contexts
    efficiencies = [
        simulate(search_all(lattice, contexts, search, lm, one), contexts, texts) for one in tried
    ]
    return tried[int(np.argmax(efficiencies))]


def search_all(
    lattice: LatticeInput, contexts: list[list[int]], search: str, lm: NGramLM, config: DraftConfig
) -> Any:
    """(N, 1, H) int paths of all lattices; negative tokens end a path."""
    if config.normalization is not None:
        lattice = replace(lattice, normalization=config.normalization)
    recent = [context[-8:] for context in contexts]
    options: dict[str, Any] = {"alpha": config.alpha, "temperature": config.temperature}
    if search == "mass_walk":
        return walk_masses(lattice, recent, lm, **options)[0][:, None]
    objective: Any = OBJECTIVES.get(search, "score")
    drafts = rescore_lattice(lattice, recent, lm, num_drafts=1, objective=objective, **options)
    return np.asarray(drafts.token_ids)


def walk_masses(
    lattice: LatticeInput, contexts: list[list[int]], lm: NGramLM, *, alpha: float,
    temperature: float,
) -> tuple[Any, Any]:  # fmt: skip
    """The walk over exact prefix masses: from the root always the most probable next token.

    Args:
        lattice: of N positions, without transitions and with normalization "global".
        contexts: the tokens before each of them.
        lm: n-gram LM.
        alpha: its weight.
        temperature: divides all scores.

    Returns:
        (N, H) int tokens, -1 after the last unmasked slot, and (N, H) float64 ln probabilities of
        the prefixes that they end, -inf there.
    """
    if lattice.transitions is not None or lattice.normalization != "global":
        raise ValueError("walk_masses: expected slots without transitions, normalization global")
    shape = (len(contexts), lattice.num_slots)
    token_ids, log_probs = np.full(shape, -1), np.full(shape, -np.inf)
    paths = [list(context) for context in contexts]
    for slot in range(shape[1]):
        later = replace(
            lattice, token_ids=lattice.token_ids[:, slot:], scores=lattice.scores[:, slot:]
        )
        # The most probable prefix has one token. Its mass counts all completions, given the path.
        tree = rescore_tree(later, paths, lm, max_nodes=1, alpha=alpha, temperature=temperature)
        token_ids[:, slot] = np.where(
            np.asarray(tree.counts) > 0, np.asarray(tree.token_ids)[:, 0], -1
        )
        log_probs[:, slot] = np.asarray(tree.log_probs)[:, 0]
        for path, token in zip(paths, token_ids[:, slot], strict=True):
            path += [int(token)] if token >= 0 else []
    return token_ids, np.where(token_ids >= 0, np.cumsum(log_probs, axis=1), -np.inf)


def simulate(paths: Any, contexts: list[list[int]], texts: list[list[int]]) -> float:
    """Tokens per call, if these drafts had been verified along the recorded texts.

    Args:
        paths: (N, p, H) of the recorded positions.
        contexts: tokens before each of them.
        texts: prompt and output of each sequence.
    """
    texts = [list(text) for text in dict.fromkeys(map(tuple, texts))]
    tokens, calls = count_calls(count_accepted(paths, contexts, texts), contexts, texts)
    return sum(tokens) / sum(calls)


def count_accepted(paths: Any, contexts: list[list[int]], texts: list[list[int]]) -> list[int]:
    """How many tokens of the best draft of each position are those of its text.

    Args:
        paths: (N, p, H), as for `simulate`.
        contexts: tokens before each position.
        texts: prompt and output of each sequence, no two alike.
    """
    accepted = []
    for (number, length), drafts in zip(positions_of(contexts, texts), paths, strict=True):
        following = np.array(texts[number][length : length + drafts.shape[1]])
        agrees = np.cumprod(drafts[:, : len(following)] == following, axis=1)
        accepted.append(int(agrees.sum(axis=1).max()) if len(following) else 0)
    return accepted


def positions_of(contexts: list[list[int]], texts: list[list[int]]) -> list[tuple[int, int]]:
    """The text of each recorded position, and the number of its tokens before the position."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        alike[tuple(text[:16])].append(number)
    found = []
    for context in contexts:
        numbers = alike[tuple(context[:16])]
        number = next(one for one in numbers if texts[one][: len(context)] == context)
        found.append((number, len(context)))
    return found


def count_calls(
    accepted: list[int], contexts: list[list[int]], texts: list[list[int]]
) -> tuple[list[int], list[int]]:
    """Decoded tokens and calls of each text, whose drafts may reach beyond the last token."""
    by_position = dict(zip(positions_of(contexts, texts), accepted, strict=True))
    firsts: dict[int, int] = {}
    for number, length in by_position:
        firsts[number] = min(length, firsts.get(number, length))
    tokens, calls = [0] * len(texts), [0] * len(texts)
    for number, length in firsts.items():
        end = len(texts[number])
        tokens[number], calls[number] = end - length + 1, 1  # the prompt's call
        while length < end:
            length += by_position.get((number, length), 0) + 1
            calls[number] += 1
    return tokens, calls


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

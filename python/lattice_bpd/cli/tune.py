"""`lattice-bpd tune`: the drafts of the least predicted time for a token. This file only wires."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lattice_bpd import NGramLM
    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd.decode import DrafterFile
    from lattice_bpd.evaluate.lab.drafter_search import Choice, Tuned
    from lattice_bpd.evaluate.replay.replay import Recording
    from lattice_bpd.evaluate.statistics import PairedTest

_EXAMPLE = """examples:
  lattice-bpd tune run --measure MODEL                 # times calls of the model first
  lattice-bpd tune run --cost cost.json --lm 4gram=four.lm -o drafter.json

cost.json holds milliseconds of a call of the target by its draft tokens: {"0": 1.9, "36": 2.4}.
Decoders load the result by generate(..., drafter=load_drafter("drafter.json", lm=lm)).
"""
_FILE = "drafter.json"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `tune`."""
    parser = commands.add_parser(
        "tune",
        help="the drafts of the least time for a token, as drafter.json",
        description="Find strategy, sizes, LM and weights of the least predicted time for a token.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="of record or evaluate")
    cost = parser.add_mutually_exclusive_group(required=True)
    cost.add_argument("--cost", type=Path, metavar="FILE", help="JSON: draft tokens -> ms")
    cost.add_argument("--measure", type=Path, metavar="MODEL", help="time calls of this model")
    parser.add_argument(
        "--lm", action="append", default=[], metavar="[NAME=]FILE",
        help="n-gram LM to try; repeatable (default: those of the run)",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="the first N texts of each task")
    parser.add_argument("--seed", type=int, default=0, help="of the split of texts (default 0)")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help=f"default: RUN/{_FILE}"
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Search, write and print.

    Raises:
        ValueError: options or files that do not fit together.
        OSError: a file that cannot be read or written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd.evaluate.costs.call_costs import make_curve
    from lattice_bpd.evaluate.lab.drafter_search import DrafterSearch

    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit is {args.limit}; expected 1 or more")
    recording, vocab_size = _recording(args)
    lms, files = _lms(args, vocab_size)
    watcher = ConsoleWatcher(make_console(), {})
    costs = _costs(args, watcher)
    watcher.begin("searching")
    search = DrafterSearch(lms, make_curve(costs), on_replay=watcher.advance, seed=args.seed)
    tuned = search.run(recording)
    watcher.end()
    file = _to_file(tuned, vocab_size, recording.num_slots, lms, files, costs)
    path = args.out or args.run_folder / _FILE
    file.save(path)
    _print(watcher, tuned, path)


def _recording(args: argparse.Namespace) -> tuple[Recording, int]:
    """The texts of all tasks, and the vocabulary."""
    from lattice_bpd.evaluate.record.read import find_records, read_record
    from lattice_bpd.evaluate.replay.replay import Recording

    records = [read_record(path) for path in find_records(args.run_folder).values()]
    texts = [text for record in records for text in record.texts[: args.limit]]
    return Recording(texts), records[0].manifest.vocab_size


def _lms(
    args: argparse.Namespace, vocab_size: int
) -> tuple[Mapping[str, NGramLM], Mapping[str, str]]:
    """LMs and their files by name: those given, or those of the run whose files are there."""
    from lattice_bpd.cli.evaluate_options import load_lms
    from lattice_bpd.evaluate.lab.results import RESULTS_FILE, read_results

    values = list(args.lm)
    if not values and (args.run_folder / RESULTS_FILE).is_file():
        known = read_results(args.run_folder)["lms"]
        values = [
            f"{name}={lm['file']}"
            for name, lm in known.items()
            if lm.get("file") and Path(lm["file"]).is_file()
        ]
    lms = load_lms(values)
    for name, lm in lms.items():
        if lm.vocab_size != vocab_size:
            raise ValueError(
                f"--lm {name} has a vocabulary of {lm.vocab_size}, the record one of "
                f"{vocab_size}; train the LM on token ids of the record's tokenizer"
            )
    files = {
        name: str(Path(value.removeprefix(f"{name}=")).resolve())
        for name, value in zip(lms, values, strict=True)
    }
    return lms, files


def _costs(args: argparse.Namespace, watcher: ConsoleWatcher) -> dict[int, float]:
    from lattice_bpd.evaluate.costs.call_costs import ROUNDS, measure_costs, read_costs

    if args.cost is not None:
        return read_costs(args.cost)
    from lattice_bpd.cli.evaluate_options import load_model
    from lattice_bpd.decode import DraftingModel

    model = DraftingModel(load_model(args.measure))
    watcher.begin("timing calls of the target", ROUNDS + 1)
    costs = measure_costs(model, on_round=watcher.advance)
    watcher.end()
    return costs


def _to_file(
    tuned: Tuned, vocab_size: int, num_slots: int, lms: Mapping[str, NGramLM],
    files: Mapping[str, str], costs: dict[int, float],
) -> DrafterFile:  # fmt: skip
    from lattice_bpd.decode import DrafterFile

    choice = tuned.choice
    strategies = {"p_best_0gram": "p_best", "p_best_ngram": "p_best", "tree_0gram": "tree"}
    lm = None
    if choice.lm:
        about = {"order": lms[choice.lm].order, "vocab_size": vocab_size}
        lm = {"name": choice.lm, "file": files[choice.lm], **about}
    options = choice.options
    return DrafterFile(
        strategies.get(choice.name, choice.name), vocab_size, num_slots, lm,
        options.top_k, options.num_drafts, options.max_nodes, options.alpha, options.temperature,
        choice.head_scales, choice.entropy_weight, _predicted(tuned, costs),
    )  # fmt: skip


def _predicted(tuned: Tuned, costs: dict[int, float]) -> dict[str, Any]:
    return {
        "milliseconds_per_token": tuned.milliseconds,
        "block_efficiency": tuned.block_efficiency,
        "over_greedy": tuned.over_greedy.to_json(),
        "over_bpd": tuned.over_bpd.to_json(),
        "heads_weighed_over_plain": None if tuned.adopted is None else tuned.adopted.to_json(),
        "texts": dict(zip(("searched", "chosen", "confirmed"), tuned.texts, strict=True)),
        "milliseconds_by_draft_tokens": {str(size): cost for size, cost in costs.items()},
    }


def _print(watcher: ConsoleWatcher, tuned: Tuned, path: Path) -> None:
    choice, console = tuned.choice, watcher.console
    console.print(f"best: {_describe(choice)}", markup=False)
    if tuned.adopted is not None:
        kept = "kept" if choice != tuned.plain else "left out, since the interval reaches below 0"
        console.print(f"factors of heads, entropies: {_gain(tuned.adopted)} on texts apart; {kept}")
    console.print(
        f"on {tuned.texts[2]} other texts: {tuned.milliseconds:.3f} ms a token predicted, "
        f"{tuned.block_efficiency:.2f} tokens a call; tokens a second against greedy "
        f"{_gain(tuned.over_greedy)}, against BPD {_gain(tuned.over_bpd)}"
    )
    console.print(f"{path}: written", markup=False)


def _describe(choice: Choice) -> str:
    from lattice_bpd.evaluate.replay.strategies import STRATEGIES

    kept = STRATEGIES[choice.name].kept(choice.options)
    numbers = ", ".join(f"{knob} {value:g}" for knob, value in kept.items())
    parts = [choice.name, f"LM {choice.lm}" if choice.lm else "", numbers]
    if choice.entropy_weight != 0.0:
        parts.append(f"entropy weight {choice.entropy_weight:g}")
    if choice.head_scales is not None:
        parts.append(f"factors of heads {' '.join(f'{s:g}' for s in choice.head_scales)}")
    return ", ".join(part for part in parts if part)


def _gain(test: PairedTest) -> str:
    gain = test.gain
    return f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"

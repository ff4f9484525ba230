"""`lattice-bpd tune`: find the fastest drafting options and write them as drafter.json."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.files import has_encoder_decoder
from lattice_bpd.cli.options import add_heads_option
from lattice_bpd_kim2024.cli.evaluate_options import (
    TEXT_LIMIT,
    add_rescorer_option,
    check_numbers,
    check_vocabularies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lattice_bpd import NGramLM
    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd.decode import DraftingModel
    from lattice_bpd.decode.drafter_file import DrafterFile
    from lattice_bpd_kim2024.lab.drafter_search import Choice, Tuned
    from lattice_bpd_kim2024.lab.paired import PairedTest
    from lattice_bpd_kim2024.record.files import Manifest

_EXAMPLE = """examples:
  lattice-bpd tune run --measure MODEL                 # times calls of the model first
  lattice-bpd tune run --cost cost.json --lm 4gram=four.lm -o drafter.json
  lattice-bpd tune run --measure MODEL --chain-only -o FOLDER     # for vLLM

cost.json holds milliseconds of a call of the target by its draft tokens: {"0": 1.9, "36": 2.4}.
Decoders load the result by generate(..., drafter=load_drafter("drafter.json", lm=lm)).
"""
_FILE = "drafter.json"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `tune`."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest drafting options, as drafter.json",
        description="Find strategy, sizes, LM and weights with the lowest predicted time per "
        "token.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="of record or evaluate")
    cost = parser.add_mutually_exclusive_group(required=True)
    cost.add_argument("--cost", type=Path, metavar="FILE", help="JSON: draft tokens -> ms")
    cost.add_argument("--measure", type=Path, metavar="MODEL", help="time calls of this model")
    add_heads_option(parser)
    parser.add_argument(
        "--lm", action="append", default=[], metavar="[NAME=]FILE",
        help="n-gram LM to try; repeatable (default: those of the run)",
    )  # fmt: skip
    add_rescorer_option(parser, " (no default)")
    parser.add_argument("--limit", type=int, metavar="N", help=TEXT_LIMIT)
    parser.add_argument("--seed", type=int, default=0, help="of the split of texts (default 0)")
    parser.add_argument(
        "--chain-only", action="store_true",
        help="single drafts only, for engines that verify no trees, such as vLLM",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH",
        help=f"file that ends in .json, or folder for {_FILE}, its LMs and the heads of MODEL, "
        f"created if missing (default: RUN/{_FILE})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Search, write and print."""
    from lattice_bpd.extensions import require

    require("torch", "lattice-bpd-kim2024")
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_kim2024.cli.evaluate_options import load_rescorers
    from lattice_bpd_kim2024.lab.drafter_search import CHAIN_FAMILIES, FAMILIES, DrafterSearch
    from lattice_bpd_kim2024.record.files import find_records, read_record
    from lattice_bpd_kim2024.replay.replay import Recording
    from lattice_bpd_kim2024.replay.scorers import measure_rescoring

    check_numbers(args, 1, "limit")
    path = args.out or args.run_folder / _FILE
    if is_folder := path.suffix != ".json":
        path = path / _FILE
    known = path.parent
    while not known.exists():  # it is created, with the folders above it
        known = known.parent
    check_output(known / path.name, takes_devices=True)
    if args.heads is not None and args.measure is None:
        raise ValueError("tune: --heads without --measure; expected --measure MODEL --heads DIR")
    if args.chain_only and args.rescorer:
        raise ValueError(
            "tune: --rescorer with --chain-only; expected one of them, since engines that verify "
            "single drafts have no strategy 'neural'"
        )
    records = [read_record(path) for path in find_records(args.run_folder).values()]
    recording = Recording([text for record in records for text in record.texts[: args.limit]])
    vocab_size = records[0].manifest.vocab_size
    lms, files = _lms(args, vocab_size)
    scorers = load_rescorers(args.rescorer)
    check_vocabularies(scorers, vocab_size, "--rescorer")
    watcher = ConsoleWatcher(make_console(), {})
    costs = _costs(args, watcher, [record.manifest for record in records])
    rescoring = {
        name: measure_rescoring(scorer, recording.texts[0], min(16, recording.top_k))
        for name, scorer in scorers.items()
    }
    watcher.begin("searching")
    search = DrafterSearch(
        lms, costs, on_replay=watcher.advance, seed=args.seed, scorers=scorers,
        rescoring=rescoring, families=CHAIN_FAMILIES if args.chain_only else FAMILIES,
    )  # fmt: skip
    tuned = search.run(recording)
    watcher.end()
    file = _to_file(tuned, vocab_size, recording.num_slots, lms, files, _folders(args), costs)
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        file = _copy_parts(file, path.parent, args.measure, args.heads)
    file.save(path)
    _print(watcher, tuned, path)
    if args.chain_only and tuned.choice.name == "greedy":
        watcher.console.print(
            "warning: decoding without drafts is fastest, and lattice-bpd-vllm refuses this file; "
            "serve without the plug-in"
        )


def _lms(
    args: argparse.Namespace, vocab_size: int
) -> tuple[Mapping[str, NGramLM], Mapping[str, str]]:
    """LMs and their files by name: those given, or those of the run whose files exist."""
    from lattice_bpd_kim2024.cli.evaluate_options import load_lms
    from lattice_bpd_kim2024.lab.results import RESULTS_FILE, read_results

    values = list(args.lm)
    if not values and (args.run_folder / RESULTS_FILE).is_file():
        values = [
            f"{name}={lm['file']}"
            for name, lm in read_results(args.run_folder)["lms"].items()
            if lm.get("file") and Path(lm["file"]).is_file()
        ]
    lms = load_lms(values)
    check_vocabularies(lms, vocab_size)
    files = {
        name: str(Path(value.removeprefix(f"{name}=")).resolve())
        for name, value in zip(lms, values, strict=True)
    }
    return lms, files


def _folders(args: argparse.Namespace) -> dict[str, str]:
    """The rescorers' folders by name."""
    from lattice_bpd_kim2024.cli.evaluate_options import name_files

    found = name_files(args.rescorer, "--rescorer")
    return {name: str(path.resolve()) for name, path in found.items()}


def _costs(
    args: argparse.Namespace, watcher: ConsoleWatcher, manifests: Sequence[Manifest]
) -> dict[int, float]:
    from lattice_bpd.build.job import read_costs

    if args.cost is not None:
        return read_costs(args.cost)
    from lattice_bpd_kim2024.blockwise import to_drafting
    from lattice_bpd_kim2024.cli.evaluate_options import load_model
    from lattice_bpd_kim2024.record.heads import ROUNDS, time_calls

    model = to_drafting(load_model(args.measure, args.heads))
    _check_recorded(args, model, manifests)
    watcher.begin("timing calls of the target", ROUNDS + 1)
    costs = time_calls(model, on_round=watcher.advance)
    watcher.end()
    return costs


def _check_recorded(
    args: argparse.Namespace, model: DraftingModel, manifests: Sequence[Manifest]
) -> None:
    """Raise ValueError unless the records are of this model with these heads, in any dtype."""
    from lattice_bpd_kim2024.record.files import fingerprint_model

    recorded = {manifest.model_fingerprint for manifest in manifests}
    found = fingerprint_model(model)
    if recorded == {found} or any(recorded == {one} for one in _other_fingerprints(args, model)):
        return
    heads = args.heads or args.measure
    raise ValueError(
        f"tune: {args.measure} with the heads of {heads} ({model.num_slots} slots, fingerprint "
        f"{found}) is not what {args.run_folder} was recorded with ({manifests[0].model}, "
        f"{manifests[0].num_slots} slots, fingerprint {', '.join(sorted(recorded))}); give the "
        "recorded model and heads, or record again with these"
    )


def _other_fingerprints(args: argparse.Namespace, model: DraftingModel) -> Iterator[str]:
    """Of the same files in other dtypes."""
    import torch

    from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
    from lattice_bpd_kim2024.record.files import fingerprint_model

    if model.target.decoder_prompt is not None:  # an encoder-decoder
        return
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        loaded = BlockwiseLM.from_pretrained(args.measure, args.heads, dtype=dtype)
        yield fingerprint_model(to_drafting(loaded))


def _to_file(
    tuned: Tuned, vocab_size: int, num_slots: int, lms: Mapping[str, NGramLM],
    files: Mapping[str, str], folders: Mapping[str, str], costs: dict[int, float],
) -> DrafterFile:  # fmt: skip
    from dataclasses import asdict, replace

    from lattice_bpd.decode.drafter_file import DrafterFile

    choice = tuned.choice
    lm: dict[str, Any] | None = None
    ngram_lm: dict[str, Any] | None = None
    if name := choice.lm:
        lm = {"name": name, "file": files[name], "order": lms[name].order, "vocab_size": vocab_size}
    if name := choice.scorer:
        ngram_lm = lm and {**lm, "weight": choice.lm_weight}
        lm = {"name": name, "file": folders[name], "vocab_size": vocab_size}
    strategies = {
        "p_best_0gram": "p_best", "p_best_ngram": "p_best", "tree_0gram": "tree",
        "mixture": "neural",
    }  # fmt: skip
    predicted = {
        "milliseconds_per_token": tuned.milliseconds,
        "block_efficiency": tuned.block_efficiency,
        "over_greedy": asdict(tuned.over_greedy),
        "over_bpd": asdict(tuned.over_bpd),
        "texts": dict(zip(("searched", "confirmed"), tuned.texts, strict=True)),
        "milliseconds_by_draft_tokens": {str(size): cost for size, cost in costs.items()},
    }
    config = replace(choice.options, strategy=strategies.get(choice.name, choice.name))
    return DrafterFile(config, vocab_size, num_slots, lm, predicted, ngram_lm)


def _copy_parts(
    file: DrafterFile, folder: Path, model: Path | None, heads: Path | None
) -> DrafterFile:
    """Copies the LMs of a drafter, and the heads of a model where there are none, into a folder.

    Heads of an encoder-decoder are not copied.

    Returns:
        The same drafter with the copies' names.
    """
    from dataclasses import replace

    from lattice_bpd.models.checkpoint import has_heads, load_heads, save_heads

    def copy(about: dict[str, Any] | None) -> dict[str, Any] | None:
        if about is None:
            return None
        source = Path(about["file"])
        _copy(source, folder / source.name)
        return {**about, "file": source.name}

    file = replace(file, lm=copy(file.lm), ngram_lm=copy(file.ngram_lm))
    if model is not None and not has_encoder_decoder(model) and not has_heads(folder):
        save_heads(load_heads(heads or model), folder)
    return file


def _copy(source: Path, target: Path) -> None:
    """Copies a file, or the files of a folder; each is replaced as a whole."""
    import shutil

    from lattice_bpd.atomic_files import replacing

    if source.resolve() == target.resolve():
        return
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for file in sorted(source.iterdir()):
            if file.is_file():
                _copy(file, target / file.name)
        return
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _print(watcher: ConsoleWatcher, tuned: Tuned, path: Path) -> None:
    choice, console = tuned.choice, watcher.console
    console.print(f"best: {_describe(choice)}", markup=False)
    console.print(
        f"on {tuned.texts[1]} other texts: {tuned.milliseconds:.3f} ms per token predicted, "
        f"{tuned.block_efficiency:.2f} tokens per call; tokens per second against greedy "
        f"{_gain(tuned.over_greedy)}, against BPD {_gain(tuned.over_bpd)}"
    )
    console.print(f"{path}: written", markup=False)


def _describe(choice: Choice) -> str:
    from lattice_bpd_kim2024.replay.strategies import STRATEGIES

    options = STRATEGIES[choice.name].kept(choice.options)
    parts = [choice.name, f"LM {choice.lm}" if choice.lm else "", choice.scorer]
    if choice.lm and choice.scorer:
        parts.append(f"LM weight {choice.lm_weight:g}")
    parts += [f"{name} {value:g}" for name, value in options.items()]
    return ", ".join(part for part in parts if part)


def _gain(test: PairedTest) -> str:
    gain = test.gain
    return f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"

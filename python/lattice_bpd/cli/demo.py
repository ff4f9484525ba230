"""`lattice-bpd demo`: decodes held-out prompts with the demo model by every strategy."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.atomic_files import write_json

if TYPE_CHECKING:
    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd_kim2024.demo.library_text import Corpus
    from lattice_bpd_kim2024.demo.model_folder import DemoModel

_EXAMPLE = """examples:
  lattice-bpd demo
  lattice-bpd demo --train --out demo-out
  lattice-bpd demo --model demo-out/model
"""
_TITLES = {
    "corpus": "reading the standard library's sources",
    "tokenizer": "training a byte-level BPE",
    "encode": "encoding the corpus",
    "ngram": "training the n-gram LM",
    "heads": "training the blockwise LM",
    "tune": "tuning alpha and temperature",
    "load": "loading the demo model",
    "prompts": "choosing held-out prompts",
    "decode": "decoding held-out prompts",
    "generate": "checking greedy against the target's own generate",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `demo`."""
    parser = commands.add_parser(
        "demo",
        help="decode held-out prompts with a small model by every strategy",
        description="Decode prompts from the Python standard library's sources, from files that "
        "the model was not trained on, with every strategy. Prints block efficiency and speed, the "
        "calls of one continuation, and two drafts before and after rescoring.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR",
        help="folder of results.json (default: demo-out)",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--model", type=Path, metavar="DIR",
        help="a demo model (default: examples/demo_model of the source tree)",
    )  # fmt: skip
    source.add_argument(
        "--train", action="store_true",
        help="train a smaller model from nothing, about 6 minutes; kept in DIR of --out",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="smoke test: few prompts; with --train, few steps"
    )
    parser.add_argument(
        "--retrain", action="store_true", help="with --train: train again although DIR has a model"
    )
    parser.add_argument("--no-color", action="store_true", help="plain text on a terminal, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Decode, print and write results.json.

    Raises:
        ValueError: damaged files, or a corpus without text.
        OSError: no demo model, or DIR cannot be written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers

    if args.retrain and not args.train:
        raise ValueError("--retrain without --train; add --train to train a model")
    start = time.perf_counter()
    quiet_transformers()
    import torch

    from lattice_bpd.cli.demo_output import print_run
    from lattice_bpd.evaluate.demo.run import FULL_SIZE, SMOKE_SIZE, run_demo

    torch.set_num_threads(min(torch.get_num_threads(), 4))  # for training; more slow it down
    console = make_console(no_color=args.no_color)
    watcher = ConsoleWatcher(console, _TITLES)
    args.out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"smoke_test": args.quick, "reused": True, "seconds": {}}
    if args.train:
        demo, corpus = _train(args, watcher, about)
    else:
        demo, corpus = _load(args.model, watcher, about)
    torch.set_num_threads(1)  # matrices of one prompt are too small to split
    size = SMOKE_SIZE if args.quick else FULL_SIZE
    demo_run = run_demo(demo, corpus.test, size, watcher)
    console.print()
    print_run(console, demo_run, is_smoke_test=args.quick)
    results = demo_run.to_json()
    results["block_efficiency_by_alpha"] = demo.settings.training.get(
        "block_efficiency_by_alpha", {}
    )
    seconds = {**about["seconds"], **demo_run.seconds, "total": time.perf_counter() - start}
    write_json(
        args.out / "results.json",
        {**results, **about, "model": str(demo.directory), "seconds": seconds},
    )
    tree = demo.settings.options("tree")
    console.print(
        f"\n{seconds['total']:.0f} s in all; results: {args.out / 'results.json'}\n"
        f"try: lattice-bpd generate {demo.directory} --strategy tree --alpha {tree.alpha} "
        f"--temperature {tree.temperature} --prompt 'def main('"
    )


def _load(
    directory: Path | None, watcher: ConsoleWatcher, about: dict[str, Any]
) -> tuple[DemoModel, Corpus]:
    import torch

    from lattice_bpd_kim2024.demo.library_text import read_library_sources
    from lattice_bpd_kim2024.demo.model_folder import load_demo_model

    start = time.perf_counter()
    watcher.begin("load")
    demo = load_demo_model(directory)
    if torch.cuda.is_available():
        demo.model.to("cuda")
    corpus = read_library_sources()
    watcher.end()
    about["seconds"]["load"] = time.perf_counter() - start
    return demo, corpus


def _train(
    args: argparse.Namespace, watcher: ConsoleWatcher, about: dict[str, Any]
) -> tuple[DemoModel, Corpus]:
    from lattice_bpd.evaluate.demo.training import train_demo_model
    from lattice_bpd_kim2024.demo import recipe as recipes
    from lattice_bpd_kim2024.demo.library_text import read_library_sources

    recipe = recipes.QUICK if args.quick else recipes.FULL
    watcher.begin("corpus")
    corpus = read_library_sources(max_files=recipe.max_files)
    watcher.end()
    folder = args.out / recipe.name
    demo, parts = train_demo_model(folder, recipe, corpus, watcher, retrain=args.retrain)
    if parts.reused:
        watcher.console.print(f"reusing the model in {folder} (--retrain trains it again)")
    about.update(reused=parts.reused, seconds=dict(parts.seconds))
    return demo, corpus

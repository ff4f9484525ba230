"""Decodes held-out prompts with a small model by every strategy, and prints the table.

    make demo                                  # or: python examples/demo/demo.py
    make demo ARGS="--train --out demo-out"    # trains the model first
    python examples/demo/demo.py --model demo-out/model

The prompts are from the Python standard library's sources, from files that the model was not
trained on. Prints block efficiency and speed, the calls of one continuation, and two drafts before
and after rescoring. Needs the extra `demo` and the distribution lattice-bpd-kim2024.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from demo_run import FULL_SIZE, SMOKE_SIZE, print_run, run_demo
from lattice_bpd.atomic_files import write_json
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd_kim2024.demo import recipe as recipes
from lattice_bpd_kim2024.demo.library_text import Corpus, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import DemoModel, load_demo_model
from lattice_bpd_kim2024.demo.training import train_demo_model

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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status: 2 for an error of the user, in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
        "--small", action="store_true", help="the small model of examples/demo_model: the default"
    )
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the console's encoding lacks is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(parser.parse_args(argv))
    except (ValueError, OSError, ImportError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _run(args: argparse.Namespace) -> None:
    """Decodes, prints and writes results.json."""
    if args.retrain and not args.train:
        raise ValueError("--retrain without --train; add --train to train a model")
    start = time.perf_counter()
    quiet_transformers()
    torch.set_num_threads(min(torch.get_num_threads(), 4))  # for training; more slow it down
    if args.no_color:
        os.environ["NO_COLOR"] = "1"
    console = make_console()
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


if __name__ == "__main__":
    sys.exit(main())

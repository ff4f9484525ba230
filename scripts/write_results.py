"""Measure the generated tables of research/kim2024/RESULTS.md and write them between their marks.

    python scripts/write_results.py              # everything: two models, 64 prompts per task
    python scripts/write_results.py --limit 24   # fewer prompts
    python scripts/write_results.py --run DIR    # the paper's tables, of a run of evaluate --quick

The demo's small model continues files of Python's library and HumanEval prompts; stories260K,
frozen and with its own heads, continues stories and prompts of the paper's tasks. If a data file is
missing, a message names it, its task is skipped, and its section of the page is unchanged.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from results_tables import (
    describe_gains,
    describe_h_max,
    describe_losses,
    describe_paper_tables,
    describe_perplexity,
    describe_rules,
    describe_sampling,
    describe_strategies,
    replace_section,
)

if TYPE_CHECKING:
    from lattice_bpd.train.corpus import Encoder
    from lattice_bpd_kim2024.demo.quick import Source
    from lattice_bpd_kim2024.lab.lab import LabOptions
    from lattice_bpd_kim2024.record.write import Prompt
    from lattice_bpd_kim2024.tasks import Example

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
DOCUMENT = ROOT / "research" / "kim2024" / "RESULTS.md"
STORY_TASKS = {
    "samsum": "samsum/samsum_test.jsonl",
    "xsum": "xsum/xsum_1000.jsonl",
    "squad": "squad/squad_dev_answerable.jsonl",
    "newsroom": "newsroom/newsroom_60.jsonl",
    "cnndm": "cnndm/cnndm_realsumm_100.jsonl",
    "lambada": "lambada/lambada_openai_context_continuation.jsonl",
}
STORIES, SUBWORDS = "stories260K/stories260K.bin", "stories260K/tok512.model"
RULES = {
    "stories": ("top_k:2", "top_k:3", "specdec++:2,0.5", "specdec++:3,1.0", "typical:0.09,0.3"),
}  # fmt: skip
"""Acceptance rules to compare, by model."""
SECTIONS = ("strategies", "sampling")
GAINS_TITLE = "Gains over BPD, here and in the paper:"
H_MAX_TITLE = "Figure 3b, h_max and BPD's block efficiency:"
MAX_PROMPT_TOKENS = 80  # the last ones: heads are trained on rows of 144, and 64 are decoded


def main() -> None:
    """Measure and write."""
    args = read_arguments()
    if args.run is not None:
        write_paper_tables(args.document, args.run)
        return
    import torch

    torch.set_num_threads(1)  # matrices this small are slower on several threads
    documents = {"demo": demo_source, "stories": stories_source}
    for name in args.models.split(","):
        if name not in documents:
            sys.exit(f"write_results: unknown model {name!r}; expected demo or stories")
        start = time.perf_counter()
        source = documents[name](args)
        if source is None:
            continue
        results = evaluate(name, source, args) if "strategies" in args.sections else {}
        if "sampling" in args.sections:
            results["sampling"] = sample(source, args.limit)
        command = f"python scripts/write_results.py --limit {args.limit}"
        write_sections(args.document, name, results, command)
        print(f"{name}: {time.perf_counter() - start:.0f} s; {args.document}", flush=True)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="demo,stories", help="default: %(default)s")
    parser.add_argument(
        "--sections", default=SECTIONS, type=lambda text: text.split(","),
        help=f"sections to measure (default: {','.join(SECTIONS)}); others are unchanged",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, default=64, help="prompts per task (default 64)")
    parser.add_argument("--work", type=Path, default=ROOT / "demo-out" / "results", metavar="DIR")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    parser.add_argument("--document", type=Path, default=DOCUMENT, metavar="FILE")
    parser.add_argument(
        "--run", type=Path, metavar="DIR",
        help="measure nothing; write the paper's tables of this folder of `lattice-bpd evaluate "
        "--quick`",
    )  # fmt: skip
    args = parser.parse_args()
    for section in args.sections:
        if section not in SECTIONS:
            parser.error(f"--sections: unknown {section!r}; expected {' or '.join(SECTIONS)}")
    if args.limit < 4:
        parser.error(f"--limit is {args.limit}; expected 4 or more (half are for tuning)")
    return args


def evaluate(name: str, source: Source, args: argparse.Namespace) -> dict[str, Any]:
    """Record and replay everything; the run folder is kept for `lattice-bpd report`."""
    from lattice_bpd_kim2024.lab.results import write_results
    from lattice_bpd_kim2024.lab.run_folder import evaluate_source

    watcher = make_watcher()
    results = evaluate_source(
        args.work / name, source, lab_options(name), watcher, live_texts=1
    )  # fmt: skip
    write_results(args.work / name, results)
    failed = [
        (task, check["strategy"])
        for task, result in results["tasks"].items()
        for check in result["live"]
        if not check["holds"]
    ]
    if failed:
        sys.exit(f"write_results: output differs from greedy decoding: {failed}")
    return results


def sample(source: Source, limit: int) -> list[dict[str, Any]]:
    """Compare kinds of drafts under sampling on the first task, half of it for tuning."""
    from lattice_bpd_kim2024.evaluate import compare_sampling

    watcher = make_watcher()
    prompts = [list(prompt.token_ids) for prompt in next(iter(source.prompts.values()))][:limit]
    half = max(len(prompts) // 2, 1)
    watcher.begin("sampling")
    gains = compare_sampling(
        source.model, next(iter(source.lms.values())), prompts[:half], prompts[half:],
        on_decode=watcher.advance,
    )  # fmt: skip
    watcher.end()
    return [gain.to_json() for gain in gains]


def lab_options(name: str) -> LabOptions:
    """Options of the replays; half of the texts are for tuning."""
    from lattice_bpd_kim2024.lab.lab import LabOptions

    rules = RULES.get(name, ())
    return LabOptions(temperatures=(1.0, 1.5, 2.0, 3.0), max_nodes=(9, 18, 36, 72), rules=rules)


def demo_source(args: argparse.Namespace) -> Source:
    """The demo's model, trained for a number of steps, and tasks of the library and HumanEval."""
    from lattice_bpd_kim2024.demo import library_text as corpus
    from lattice_bpd_kim2024.demo import recipe
    from lattice_bpd_kim2024.demo.quick import make_quick_source
    from lattice_bpd_kim2024.demo.training import train_demo_model

    used = replace(recipe.QUICK, max_train_seconds=3600.0)
    text = corpus.read_library_sources(max_files=used.max_files)
    work, watcher = args.work / "demo", make_watcher()
    demo, _ = train_demo_model(work / used.name, used, text, watcher)
    source = make_quick_source(work, demo, text, watcher, prompts=args.limit)
    tokenizer = source.tokenizer
    path = args.data / "humaneval" / "HumanEval.jsonl.gz"
    if path.is_file():
        rows = read_rows("humaneval", path, args.limit)
        ids = [tokenizer.encode(row.prompt).ids for row in rows]
        source.prompts["humaneval"] = prompts_of(rows, ids, used.prompt_length)
    else:
        print(f"write_results: no {path}; skipping humaneval", file=sys.stderr)
    return replace(source, record=replace(source.record, top_k=16))


def stories_source(args: argparse.Namespace) -> Source | None:
    """stories260K with heads, LM and rescorer of examples/stories260k.py --quick --all."""
    if not (args.data / STORIES).is_file():
        print(f"write_results: no {args.data / STORIES}; skipping stories", file=sys.stderr)
        return None
    sys.path.insert(0, str(ROOT / "examples"))
    parts = importlib.import_module("stories260k_parts")
    from lattice_bpd.decode.drafters import NeuralScorer
    from lattice_bpd.train.corpus import load_encoder
    from lattice_bpd_kim2024.demo.quick import Source
    from lattice_bpd_kim2024.record.write import Prompt, RecordOptions

    stories = args.data / "tinystories" / "tinystories_10k.txt"
    paths = argparse.Namespace(model=args.data / "stories260K", text=stories, work=args.work)
    used = replace(
        parts.QUICK, tune_prompts=args.limit // 2, test_prompts=args.limit - args.limit // 2
    )
    made = parts.prepare(paths, used, "stories", make_watcher())
    made.lm.save(made.work / "4-gram.lm")
    scorers = importlib.import_module("stories260k_scorers")
    rescorer = scorers.cached_rescorer(made.work, made.rows, scorers.QUICK_SCORERS, make_watcher())
    rescorer.save_pretrained(made.work / "rescorer")
    prompts = {"tinystories": [Prompt(ids) for ids in made.found.tune + made.found.test]}
    encoder = load_encoder(str(args.data / SUBWORDS))
    tokenizer = SentencePieceTokenizer(encoder)
    for task, file in STORY_TASKS.items():
        if not (args.data / file).is_file():
            print(f"write_results: no {args.data / file}; skipping {task}", file=sys.stderr)
            continue
        examples = read_rows(task, args.data / file, args.limit)
        ids = [[parts.BEGIN, *row.tolist()] for row in encoder.encode([e.prompt for e in examples])]
        prompts[task] = prompts_of(examples, ids, -MAX_PROMPT_TOKENS)
    record = RecordOptions(
        top_k=16, max_new_tokens=used.max_new_tokens, stop_token_ids=(parts.BEGIN,)
    )
    return Source(
        made.model, "stories260K", tokenizer, str(args.data / SUBWORDS), prompts,
        {"4-gram": made.lm}, {"4-gram": str(made.work / "4-gram.lm")}, record,
        {"rescorer": NeuralScorer(rescorer)}, {"rescorer": str(made.work / "rescorer")},
        metrics={"lambada": "perplexity"},
    )  # fmt: skip


class SentencePieceTokenizer:
    """SentencePiece with the `encode` of the `tokenizers` library, for LAMBADA's last words."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def encode(self, text: str) -> SimpleNamespace:
        """The token ids of a text, as `.ids`; SentencePiece itself adds the space before it."""
        return SimpleNamespace(ids=self._encoder.encode([text.strip()])[0].tolist())


def read_rows(task: str, path: Path, limit: int) -> list[Example]:
    """The examples of a task."""
    from lattice_bpd_kim2024.tasks import find_task, read_task

    return read_task(find_task(task), path, limit)


def prompts_of(rows: list[Example], ids: list[list[int]], limit: int) -> list[Prompt]:
    """Prompts, cut to their first `limit` tokens, or to the last -`limit` if it is negative."""
    from lattice_bpd_kim2024.record.write import Prompt

    def cut(tokens: list[int]) -> list[int]:
        return tokens[:limit] if limit > 0 else tokens[limit:]

    return [
        Prompt(cut(tokens), row.name, row.references) for row, tokens in zip(rows, ids, strict=True)
    ]


def make_watcher() -> Any:
    """Progress on the terminal."""
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console

    return ConsoleWatcher(make_console(), {})


def write_paper_tables(document: Path, run: Path) -> None:
    """Replace the section of the paper's tables by those of a run folder."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    lines = ["    lattice-bpd evaluate --quick --out run", "", *describe_paper_tables(results)]
    text = replace_section(document.read_text(encoding="utf-8"), "results-paper", "\n".join(lines))
    replace_text(document, text)


def write_sections(document: Path, name: str, results: dict[str, Any], command: str) -> None:
    """Replace the text between the marks of this model's sections."""
    text = document.read_text(encoding="utf-8")
    sections = {}
    if tasks := results.get("tasks"):
        sections[f"results-{name}"] = [
            *describe_strategies(tasks), *describe_perplexity(tasks), "",
            GAINS_TITLE, "", *describe_gains(tasks), "",
            *describe_losses(tasks), "", H_MAX_TITLE, "",
            *describe_h_max(tasks, results["h_max_correlation"]),
        ]  # fmt: skip
        if all("acceptance" in task for task in tasks.values()):
            sections[f"results-{name}-rules"] = describe_rules(tasks)
    if "sampling" in results:
        sections[f"results-{name}-sampling"] = describe_sampling(results["sampling"])
    for section, lines in sections.items():
        text = replace_section(text, section, "\n".join([f"    {command}", "", *lines]))
    replace_text(document, text)


def replace_text(document: Path, text: str) -> None:
    """Write a file as a whole."""
    temporary = document.with_name(f".{document.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(document)


if __name__ == "__main__":
    main()

"""The yardstick: a real LLM decodes instruction prompts with every strategy and peer.

    make bench-llm                                     # at most 25 minutes
    make bench-llm ARGS=--quick                        # 4 minutes
    make bench-llm ARGS="--drafter FOLDER --json F"    # with the n-gram LM and heads of a folder
    make bench-llm ARGS="--model DIR --drafter DIR"    # another model
    make picture                                       # README's lines, its picture and its table
    make bench-llm ARGS="--gguf FILE"                  # in llama-cpp-python, which this needs:
        .venv/bin/pip install llama-cpp-python ./integrations/llama_cpp

The model is SmolLM2-135M-Instruct (`scripts/fetch_smollm2.py`), the drafter by default the n-gram
LM of its own text in `examples/smollm2`, without heads.

Each prompt is decoded by all lines in random order, in one process; those of transformers with
attention and linear layers of torch, ours with those of the core (`use_cpu_kernels`). If CUDA finds
a GPU, all lines decode on it. Printed are tokens per call of the model, tokens/s relative to the
engine's own greedy decoding of the same prompts (both with 95 % bootstrap intervals over prompts),
the share of texts equal to greedy's and of positions before the first difference, all by kind of
prompt; milliseconds a call by stage; and how much of greedy's output loops (its last 8 tokens
occurred earlier) or is copied (its last 4 are in the prompt).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT
from llm_lines import Line, Run, make_lines, make_llama_cpp_lines
from llm_prompts import Prompt, describe_outputs, make_prompt, read_rows
from machine import OtherLoad, describe_machine
from peer_drafters import CallCounter
from report import print_table, write_json

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, bootstrap_ratio
from lattice_bpd.cli.files import to_device
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.token_ids import count_shared

DRAFTER = ROOT / "examples" / "smollm2"
MINUTES, QUICK_MINUTES = 24.0, 3.6  # of decoding
STAGES = ("prompt", "heads", "top_k", "rescore", "lookup", "draft", "target", "predict", "verify")
WARM_UP = 8  # tokens
FEWEST_PROMPTS = 3  # that are decoded, whatever the time
BUSY = 0.05  # share of the processors that other work may take
LONGEST_QUESTION = 110  # characters, of the example


def measure(
    lines: Sequence[Line], rows: list[dict[str, Any]], tokenizer: Any, counter: CallCounter,
    tokens: int, positions: int, minutes: float,
) -> list[Prompt]:  # fmt: skip
    """Decodes prompts by all lines until the time is over; returns those that were decoded."""
    rng = random.Random(0)
    greedy = lines[0]
    prompts: list[Prompt] = []
    watcher = ConsoleWatcher(make_console(), {"decode": "prompts decoded by all lines"})
    watcher.begin("decode", len(rows))
    if any(line.prepare for line in lines):  # earlier answers of a chat have `tokens` at most
        lengths = [len(make_prompt(row, tokenizer, lambda ids: ids[:1] * tokens).token_ids)
                   for row in rows]  # fmt: skip
        longest = max((one for one in lengths if one + tokens <= positions), default=1)
        for line in lines:
            if line.prepare is not None:
                line.prepare(longest, tokens)
    start = time.perf_counter()
    for row in rows:
        spent = time.perf_counter() - start
        if len(prompts) >= FEWEST_PROMPTS and spent * (1 + 1 / len(prompts)) > 60 * minutes:
            break
        prompt = make_prompt(row, tokenizer, lambda ids: greedy.decode(ids, tokens)[0])
        if len(prompt.token_ids) + tokens > positions:
            watcher.advance(note=f"{prompt.name} is longer than the model's {positions} positions")
            continue
        if not prompts:
            for line in lines:
                line.decode(prompt.token_ids, WARM_UP)
        for line in rng.sample(lines, len(lines)):
            line.runs.append(line.run(prompt.token_ids, tokens, counter))
        prompts.append(prompt)
        share = max(len(prompts) / len(rows), (time.perf_counter() - start) / (60 * minutes))
        watcher.advance(note=prompt.name, share=min(share, 1.0))
    watcher.end()
    if not prompts:
        raise SystemExit(f"bench_llm: no prompt has {positions - tokens} tokens or fewer")
    return prompts


def describe_line(runs: Sequence[Run], greedy: Sequence[Run]) -> dict[str, Any]:
    """The figures of some prompts."""
    tokens = np.array([len(run.output) for run in runs], np.float64)
    calls = np.array([run.calls for run in runs], np.float64)
    seconds = np.array([run.seconds["total"] for run in runs])
    plain = [run.seconds["total"] / len(run.output) for run in greedy]
    speed = bootstrap_ratio(np.array(plain) * tokens, seconds)
    equal = [run.output == other.output for run, other in zip(runs, greedy, strict=True)]
    before = [
        count_shared(run.output, other.output) for run, other in zip(runs, greedy, strict=True)
    ]
    return {
        "tokens_per_call": bootstrap_ratio(tokens, calls).to_json(),
        "speed": speed.to_json(),
        "tokens_per_second": float(tokens.sum() / seconds.sum()),
        "equal_texts": sum(equal) / len(equal),
        "equal_positions": sum(before) / sum(len(run.output) for run in greedy),
        "ms_per_call": ms_per_call(runs),
    }


def ms_per_call(runs: Sequence[Run]) -> dict[str, float]:
    """Milliseconds by stage, of all calls; "other" is what no stage counts."""
    calls = sum(run.calls for run in runs)
    names = {name for run in runs for name in run.seconds}
    sums = {name: sum(run.seconds.get(name, 0.0) for run in runs) for name in names}
    if len(sums) > 1:
        sums["other"] = 2 * sums["total"] - sum(sums.values())
    return {name: round(1e3 * value / calls, 2) for name, value in sums.items()}


def summarize(lines: Sequence[Line], prompts: Sequence[Prompt]) -> dict[str, Any]:
    """All figures by line, of all prompts and by kind."""
    greedy = lines[0].runs
    kinds = list(dict.fromkeys(prompt.kind for prompt in prompts))
    groups = {"all": list(range(len(prompts)))}
    groups |= {kind: [i for i, p in enumerate(prompts) if p.kind == kind] for kind in kinds}
    return {
        "texts": {
            name: describe_outputs([prompts[i] for i in rows], [greedy[i].output for i in rows])
            for name, rows in groups.items()
        },
        "lines": {
            line.name: {
                name: describe_line([line.runs[i] for i in rows], [greedy[i] for i in rows])
                for name, rows in groups.items()
            }
            for line in lines
        },
    }


def pick_example(
    lines: Sequence[Line], rows: list[dict[str, Any]], prompts: Sequence[Prompt], tokenizer: Any
) -> dict[str, Any] | None:
    """A typical answer of the last line with its accepted draft tokens, for README's picture.

    The short question whose number of tokens per call is nearest to that of all prompts, of those
    that are answered as by greedy decoding, if there are any.

    Returns:
        Prompt, question, line, calls, and tokens as [text, whether it was drafted]; None: no
        question is that short, or nothing was drafted.
    """
    turns = {row["id"]: row.get("turns") or [m["content"] for m in row["messages"]] for row in rows}
    greedy, line = lines[0], lines[-1]
    mean = sum(len(run.output) for run in line.runs) / sum(run.calls for run in line.runs)
    short = [
        (run.output != plain.output, abs(len(run.output) / run.calls - mean), prompt.name, run)
        for prompt, run, plain in zip(prompts, line.runs, greedy.runs, strict=True)
        if any(run.accepted) and is_short(turns[prompt.name])
    ]
    if not short:
        return None
    *_, name, run = min(short, key=lambda one: one[:3])
    drafted = [is_draft for count in (0, *run.accepted) for is_draft in (*[True] * count, False)]
    tokens: list[tuple[str, bool]] = []
    known = ""
    for end, is_draft in zip(range(1, len(run.output) + 1), drafted, strict=False):
        whole = tokenizer.decode(run.output[:end], skip_special_tokens=True).rstrip("\ufffd")
        tokens.append((whole[len(known) :], is_draft))
        known = max(known, whole, key=len)
    question = turns[name][0]
    return {
        "prompt": name, "question": question, "line": line.name, "calls": run.calls,
        "tokens": tokens,
    }  # fmt: skip


def is_short(turns: Sequence[str]) -> bool:
    """Whether a conversation is one question of one line."""
    return len(turns) == 1 and len(turns[0]) <= LONGEST_QUESTION and "\n" not in turns[0]


def print_tables(summary: dict[str, Any]) -> None:
    """What main() prints."""
    lines, kinds = summary["lines"], [kind for kind in summary["texts"] if kind != "all"]
    count, first = summary["texts"]["all"]["prompts"], next(iter(lines))

    def interval(values: dict[str, float]) -> list[str]:
        bounds = f"{values['low']:.2f}-{values['high']:.2f}" if count >= FEWEST_TEXTS else "-"
        return [f"{values['value']:.2f}", bounds]

    print_table(
        f"all {count} prompts; speed: tokens/s over {first}",
        ["", "tokens/call", "95 %", "speed", "95 %", "tokens/s", "equal texts", "positions"],
        [
            [name, *interval(of["all"]["tokens_per_call"]), *interval(of["all"]["speed"]),
             *(f"{of['all'][key]:.{digits}f}" for key, digits in
               (("tokens_per_second", 1), ("equal_texts", 2), ("equal_positions", 2)))]
            for name, of in lines.items()
        ],
    )  # fmt: skip
    for title, key in (("tokens per call", "tokens_per_call"), ("speed", "speed")):
        rows = [
            [name, *(f"{of[k][key]['value']:.2f}" for k in kinds)] for name, of in lines.items()
        ]
        print_table(f"{title} by kind", ["", *kinds], rows)
    shown = ["total", *(s for s in (*STAGES, "other") if any(
        of["all"]["ms_per_call"].get(s) for of in lines.values()))]  # fmt: skip
    rows = [
        [name, *(_milliseconds(of["all"]["ms_per_call"].get(stage)) for stage in shown)]
        for name, of in lines.items()
    ]
    print_table("milliseconds a call by stage", ["", *shown], rows)
    fields = ("prompts", "prompt_tokens", "output_tokens", "loops", "copied")
    rows = [[name, *(str(of[key]) for key in fields)] for name, of in summary["texts"].items()]
    print_table("greedy's outputs", ["", *(name.replace("_", " ") for name in fields)], rows)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def load_sources(args: argparse.Namespace) -> dict[str, Any]:
    """The n-gram LM, the heads, the rescorer and the built drafter that are given."""
    sources: dict[str, Any] = {}
    folder = args.drafter or (None if args.model else DRAFTER)
    lm = args.lm or next(iter(sorted(folder.glob("*.lm")) if folder else []), None)
    if lm is not None:
        from lattice_bpd import NGramLM

        sources["lm"] = NGramLM.load(lm)
    if args.heads or (folder and list(folder.glob("*heads*.safetensors"))):
        from lattice_bpd.models import load_heads

        sources["heads"] = load_heads(args.heads or folder)
    if args.rescorer:
        from transformers import AutoModelForCausalLM

        sources["rescorer"] = AutoModelForCausalLM.from_pretrained(args.rescorer).eval()
    if folder and (folder / "drafter.json").is_file():
        sources["drafter"] = folder
    return sources


def choose(lines: Sequence[Line], names: Sequence[str]) -> list[Line]:
    """The lines of some names, and the first one, greedy decoding.

    Raises:
        SystemExit: there is no line of a name.
    """
    known = [line.name for line in lines]
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f"bench_llm: no line {missing[0]!r}; expected some of {'; '.join(known)}")
    return [line for line in lines if line.name in (lines[0].name, *names)]


def fetch_model() -> Path:
    """The folder of SmolLM2 in the cache."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_smollm2 import fetch

    return fetch()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="at most 4 minutes, fewer lines")
    parser.add_argument("--model", metavar="DIR", help="default: SmolLM2-135M-Instruct, fetched")
    parser.add_argument("--drafter", type=Path, metavar="DIR", help="folder: an n-gram LM, heads")
    parser.add_argument(
        "--lm", type=Path, metavar="FILE", help="n-gram LM of the model's token ids"
    )
    parser.add_argument("--heads", type=Path, metavar="DIR", help="draft heads")
    parser.add_argument(
        "--rescorer", metavar="DIR", help="a small causal LM with the same tokenizer"
    )
    parser.add_argument("--gguf", metavar="FILE", help="the model, for llama-cpp-python's lines")
    parser.add_argument("--lines", metavar="NAME;..", help="only these lines, besides greedy")
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default bfloat16)")
    parser.add_argument("--no-record", action="store_true", help="do not replay calls on a GPU")
    parser.add_argument("--split", default="test", choices=("test", "tuning"))
    parser.add_argument("--tokens", type=int, default=96, help="most new tokens (default 96)")
    parser.add_argument("--minutes", type=float, help="of decoding, at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures, and each prompt's")
    args = parser.parse_args()
    quiet_transformers()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lattice_bpd.verify import record_calls

    folder = args.model or fetch_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, own = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=args.dtype).eval() for _ in range(2)
    )
    own = to_device(own)
    model = model.to(own.device)
    record_calls(own, on=not args.no_record)
    sources = load_sources(args)
    if args.gguf:
        skipped: dict[str, str] = {}
        lines = make_llama_cpp_lines(args.gguf, torch.get_num_threads(), sources.get("lm"))
    else:
        lines, skipped = make_lines(model, own, sources, quick=args.quick)
    if args.lines:
        lines, skipped = choose(lines, args.lines.split(";")), {}
    for name, reason in skipped.items():
        print(f"left out: {name} ({reason})")
    minutes, load = args.minutes or (QUICK_MINUTES if args.quick else MINUTES), OtherLoad()
    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    rows = read_rows(args.split)
    prompts = measure(lines, rows, tokenizer, CallCounter(model), args.tokens, positions, minutes)
    summary, others = summarize(lines, prompts), load.share()
    print_tables(summary)
    if others > BUSY:
        print(
            f"Other work took {others:.0%} of this machine's processors meanwhile, so times and "
            "speeds are no verdict; tokens per call are. OMP_WAIT_POLICY=passive or "
            "OMP_NUM_THREADS=1 decodes faster beside it."
        )
    if args.json:
        records = {
            line.name: [
                {"prompt": p.name, "tokens": len(r.output), "calls": r.calls, "seconds": r.seconds}
                for p, r in zip(prompts, line.runs, strict=True)
            ]
            for line in lines
        }
        settings = {
            "other_load": round(others, 3),
            "model": Path(folder).name,
            "dtype": args.dtype,
            "split": args.split,
            "tokens": args.tokens,
            "record": not args.no_record,
        }
        example = {"example": pick_example(lines, rows, prompts, tokenizer)}
        write_json(args.json, {"machine": describe_machine(), **settings, **summary, **example,
                               "left_out": skipped, "runs": records})  # fmt: skip


if __name__ == "__main__":
    main()

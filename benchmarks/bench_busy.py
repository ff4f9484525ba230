"""Decoding on a machine that is in use: a busy process on one core, a quota of processors.

    python benchmarks/bench_busy.py [--model DIR] [--minutes 3] [--json FILE]

Each load is measured in a process of its own: bench_llm.py decodes prompts by transformers and by
us in turns, so that both meet the same load.

    quiet   nothing else runs
    busy    another process computes on one of the cores all the time
    quota   1.5 processors for two threads (a control group of the version that this system has;
            needs root, else it is left out)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import describe_machine
from report import print_table, write_json

ROOT = Path(__file__).resolve().parents[1]
LINES = "greedy, kernels of the core;mixture, text, any size;drafter of the folder"
QUOTA, PERIOD = 150_000, 100_000  # microseconds
GROUP = "lattice_bpd_bench_busy"


@contextlib.contextmanager
def busy_core() -> Iterator[list[str]]:
    """A process that computes on the first core that we may use."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield []
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def quota() -> Iterator[list[str]]:
    """A control group with a quota; yields the start of a command that joins it.

    Raises:
        OSError: it cannot be made.
    """
    old = Path("/sys/fs/cgroup/cpu")
    group = (old if old.is_dir() else old.parent) / GROUP
    group.mkdir()
    try:
        if old.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA))
        else:
            (group / "cpu.max").write_text(f"{QUOTA} {PERIOD}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


LOADS: dict[str, Any] = {
    "quiet": lambda: contextlib.nullcontext([]),
    "busy": busy_core,
    "quota": quota,
}


def measure(load: str, args: argparse.Namespace) -> dict[str, Any]:
    """The summary of bench_llm.py under a load.

    Raises:
        OSError: the load cannot be made.
        subprocess.CalledProcessError: bench_llm.py failed.
    """
    with tempfile.TemporaryDirectory() as folder, LOADS[load]() as start:
        out = Path(folder) / "out.json"
        command = [
            *start, sys.executable, str(ROOT / "benchmarks" / "bench_llm.py"), "--lines", LINES,
            "--drafter", str(args.drafter), "--minutes", str(args.minutes), "--tokens", "48",
            "--json", str(out), *(["--model", args.model] if args.model else []),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads(out.read_text())
        return summary


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="default: SmolLM2-135M-Instruct, fetched")
    parser.add_argument("--drafter", type=Path, default=ROOT / "examples" / "smollm2")
    parser.add_argument("--minutes", type=float, default=3.0, help="of decoding for each load")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for load in args.loads:
        try:
            results[load] = measure(load, args)
        except OSError as error:
            print(f"left out: {load} ({error})")
    rows = [
        [load, str(one["texts"]["all"]["prompts"]), name, f"{of['all']['tokens_per_second']:.1f}",
         f"{of['all']['speed']['value']:.2f}", f"{of['all']['tokens_per_call']['value']:.2f}"]
        for load, one in results.items() for name, of in one["lines"].items()
    ]  # fmt: skip
    print_table(
        "speed: tokens/s over transformers greedy under the same load",
        ["load", "prompts", "", "tokens/s", "speed", "tokens/call"], rows,
    )  # fmt: skip
    if args.json:
        write_json(args.json, {"machine": describe_machine(), "loads": results})


if __name__ == "__main__":
    main()

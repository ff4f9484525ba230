"""make fuzz: each target of tests/fuzz for its share of SECONDS, and a table of what they did.

Targets are built by clang with libFuzzer, AddressSanitizer and UBSan. Corpora grow in
build/fuzz/corpus, and whatever crashes is kept in build/fuzz/crashes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "fuzz"
TARGETS = ROOT / "tests" / "fuzz"
SEEDS = ROOT / "tests" / "data" / "fuzz"
CRASHES = BUILD / "crashes"
APT = ("clang", "libclang-rt-dev")
FLAGS = (
    "-timeout=30",
    "-rss_limit_mb=3000",
    "-max_len=4096",
    "-print_final_stats=1",
    "-entropic=0",  # weighing inputs takes more time than running them
)


@dataclass
class Outcome:
    """What a target did.

    Attributes:
        executions: inputs run.
        rate: inputs a second.
        coverage: edges reached; "-" without coverage.
        status: exit status.
        output: all that it said.
        crashes: files with what crashed it.
    """

    executions: str
    rate: str
    coverage: str
    status: int
    output: str
    crashes: list[Path] = field(default_factory=list)


def say(text: str) -> None:
    """One line of progress."""
    print(f"fuzz: {text}", flush=True)


def run_quietly(command: list[str], log: Path, **environment: str) -> bool:
    """Runs a command with its words in a log; whether it succeeded."""
    with log.open("w") as file:
        done = subprocess.run(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment}, check=False,
        )  # fmt: skip
    return done.returncode == 0


def links_fuzzers() -> bool:
    """Whether clang is there with the libraries that fuzzing needs."""
    if shutil.which("clang++") is None:
        return False
    code = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) {return 0;}'
    command = ["clang++", "-xc++", "-", "-fsanitize=fuzzer,address,undefined", "-o", "/dev/null"]
    return subprocess.run(command, input=code, text=True, capture_output=True).returncode == 0


def have_clang() -> bool:
    """Installs clang where it is missing and that is allowed; says what to type where it is not."""
    if links_fuzzers():
        return True
    if shutil.which("apt-get") and os.geteuid() == 0:
        say(f"apt-get install {' '.join(APT)}")
        run_quietly(["apt-get", "-qq", "update"], BUILD / "apt.log")
        options = ["-qq", "install", "-y", "--no-install-recommends"]
        run_quietly(
            ["apt-get", *options, *APT], BUILD / "apt.log", DEBIAN_FRONTEND="noninteractive"
        )
        if links_fuzzers():
            return True
    say("clang with libFuzzer and AddressSanitizer cannot be had here;")
    say(f"`sudo apt-get install {' '.join(APT)}` (Debian's names) and run again")
    return False


def build() -> None:
    """Compiles the C++ targets; exits where that fails."""
    say("build (clang, AddressSanitizer, UBSan)")
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    steps = (
        ["cmake", "--preset", "fuzz", *launcher],
        ["cmake", "--build", "--preset", "fuzz", "--parallel", str(os.cpu_count() or 1)],
    )
    for step in steps:
        log = BUILD / "build.log"
        if not run_quietly(step, log):
            print("\n".join(log.read_text().splitlines()[-30:]), file=sys.stderr)
            sys.exit(f"fuzz: {' '.join(step)} failed (above; the whole story is in {log})")


def find_targets(wanted: str) -> dict[str, list[str]]:
    """Names of targets and the commands that run them; exits where a name is none."""
    stems = sorted(source.stem for source in TARGETS.glob("fuzz_*.cc"))
    commands = {stem.removeprefix("fuzz_"): [str(BUILD / stem)] for stem in stems}
    names = wanted.split(",") if wanted else list(commands)
    unknown = [name for name in names if name not in commands]
    if unknown:
        sys.exit(f"fuzz: no target {unknown[0]!r}; expected some of {', '.join(commands)}")
    return {name: commands[name] for name in names}


def fuzz(name: str, command: list[str], seconds: int) -> Outcome:
    """Runs one target."""
    corpus, prefix = BUILD / "corpus" / name, CRASHES / f"{name}-"
    corpus.mkdir(parents=True, exist_ok=True)
    before = set(CRASHES.glob(f"{name}-*"))
    log = BUILD / f"{name}.log"
    folders = [str(folder) for folder in (corpus, SEEDS / name) if folder.is_dir()]
    flags = [*FLAGS, f"-max_total_time={seconds}", f"-artifact_prefix={prefix}"]
    fine = run_quietly(
        [*command, *flags, *folders], log,
        ASAN_OPTIONS="allocator_may_return_null=0:detect_leaks=1",
        UBSAN_OPTIONS="print_stacktrace=1",
    )  # fmt: skip
    output = log.read_text(errors="replace")
    return Outcome(
        last(r"stat::number_of_executed_units: *(\d+)", output),
        last(r"stat::average_exec_per_sec: *(\d+)", output),
        last(r"cov: (\d+)", output),
        0 if fine else 1,
        output,
        sorted(set(CRASHES.glob(f"{name}-*")) - before),
    )


def last(pattern: str, text: str) -> str:
    """What the last match has in its group, or "-"."""
    matches = re.findall(pattern, text)
    return str(matches[-1]) if matches else "-"


def report_crash(name: str, command: list[str], outcome: Outcome) -> None:
    """The end of what a target said, and how to go on."""
    lines = outcome.output.splitlines()
    starts = [i for i, line in enumerate(lines) if re.search("ERROR|runtime error|Uncaught", line)]
    first = starts[0] if starts else max(0, len(lines) - 25)
    print("\n".join(lines[first : first + 25]), file=sys.stderr)
    shown = " ".join(str(Path(part).relative_to(ROOT)) if str(ROOT) in part else part
                     for part in command)  # fmt: skip
    print(f"fuzz: {name} failed; all it said is in build/fuzz/{name}.log", file=sys.stderr)
    for path in outcome.crashes:
        print(
            f"fuzz: run it again: {shown} {path.relative_to(ROOT)}\n"
            "fuzz: then fix it and make the input a test (CONTRIBUTING.md, Fuzzing)",
            file=sys.stderr,
        )


def main() -> int:
    """Installs, builds, fuzzes; 1 where a target failed."""
    parser = argparse.ArgumentParser(description="Fuzz every target for its share of the time.")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--targets", default="", help="names, with commas between; default: all")
    arguments = parser.parse_args()
    if arguments.seconds < 1:
        parser.error(f"--seconds is {arguments.seconds}; expected 1 or more")
    CRASHES.mkdir(parents=True, exist_ok=True)
    if not have_clang():
        return 1
    build()
    targets = find_targets(arguments.targets)
    share = max(1, round(arguments.seconds / len(targets)))
    say(f"{len(targets)} targets, {share} s each")
    row = "{:<20} {:>12} {:>10} {:>10}  {}"
    print(row.format("target", "executions", "a second", "coverage", "outcome"), flush=True)
    failures = []
    for name, command in targets.items():
        outcome = fuzz(name, command, share)
        word = "crash" if outcome.status else "fine"
        print(
            row.format(name, outcome.executions, outcome.rate, outcome.coverage, word), flush=True
        )
        if outcome.status:
            failures.append((name, command, outcome))
    for failure in failures:
        report_crash(*failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs a Python fuzz target: guided by coverage where atheris is installed, else by hypothesis.

Both take libFuzzer's arguments: folders (the first is the corpus that grows), -max_total_time=N,
-artifact_prefix=PATH, or a file to run alone; and print its final statistics.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

Target = Callable[[bytes], None]


def has_atheris() -> bool:
    """Whether coverage can guide."""
    return importlib.util.find_spec("atheris") is not None


def run(prepare: Callable[[], Target]) -> None:
    """Fuzzes what `prepare` returns until the time is over; exits non-zero on a crash.

    Args:
        prepare: imports what is fuzzed (so that atheris can instrument it) and returns the target.
    """
    if has_atheris():
        import atheris

        with atheris.instrument_imports(include=["lattice_bpd"]):
            target = prepare()
        atheris.Setup(sys.argv, target)
        atheris.Fuzz()
    else:
        sys.exit(run_without_coverage(prepare(), sys.argv[1:]))


def option(arguments: list[str], name: str, default: str) -> str:
    """The value of a libFuzzer option."""
    values = [text.split("=", 1)[1] for text in arguments if text.startswith(f"-{name}=")]
    return values[-1] if values else default


def run_without_coverage(target: Target, arguments: list[str]) -> int:
    """The seeds, then examples that hypothesis draws; the exit status."""
    prefix = option(arguments, "artifact_prefix", "")
    seconds = float(option(arguments, "max_total_time", "60"))
    paths = [Path(text) for text in arguments if not text.startswith("-")]
    files = [path for path in paths if path.is_file()]
    seeds = [file for path in paths if path.is_dir() for file in sorted(path.iterdir())]
    started, count = time.monotonic(), 0
    for data in (file.read_bytes() for file in [*files, *seeds]):
        if not runs(target, data, prefix):
            return 77
        count += 1
    while not files and time.monotonic() - started < seconds:
        failed = draw_examples(target, [file.read_bytes() for file in seeds], started + seconds)
        if failed is not None:
            runs(target, failed.data, prefix)
            return 77
        count += EXAMPLES
    rate = count / max(time.monotonic() - started, 1e-9)
    print(f"stat::number_of_executed_units: {count}\nstat::average_exec_per_sec: {rate:.0f}")
    return 0


EXAMPLES = 200


class FailedError(Exception):
    """A target raised on these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


def draw_examples(target: Target, seeds: list[bytes], end: float) -> FailedError | None:
    """What fails among bytes of any kind, and among seeds that were altered, made small."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    altered = st.tuples(
        st.sampled_from(seeds or [b""]), st.integers(0), st.binary(max_size=16), st.integers(0, 16)
    ).map(lambda parts: alter(*parts))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(max_size=4096) | altered)
    def check(data: bytes) -> None:
        if time.monotonic() > end:
            return
        try:
            target(data)
        except Exception as error:
            raise FailedError(data) from error

    try:
        check()
    except FailedError as error:
        return error
    return None


def alter(seed: bytes, at: int, new: bytes, dropped: int) -> bytes:
    """A seed with other bytes at one offset."""
    at %= len(seed) + 1
    return seed[:at] + new + seed[at + dropped :]


def runs(target: Target, data: bytes, prefix: str) -> bool:
    """Runs the target once; keeps bytes on which it raises."""
    try:
        target(data)
    except Exception:
        traceback.print_exc()
        path = Path(f"{prefix}crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}")
        path.write_bytes(data)
        print(f"Test unit written to {path}", file=sys.stderr)
        return False
    return True

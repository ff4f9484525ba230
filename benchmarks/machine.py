"""What a benchmark ran on, for its results."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from lattice_bpd import _core


class OtherLoad:
    """What other work took of the processors since this was made.

    Linux alone says it; elsewhere nothing is known.
    """

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Seconds of all processors in use, of this process, and of wall time."""
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            fields = []
        ticks = [int(field) for field in fields]
        used = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")  # but idle and iowait
        return used, time.process_time(), time.perf_counter()

    def share(self) -> float:
        """Share of the processors, 0 to 1; what a host takes for others is among it."""
        used, own, wall = (
            end - start for end, start in zip(self._read(), self._start, strict=True)
        )
        return min(1.0, max(0.0, (used - own) / (max(wall, 1e-9) * (os.cpu_count() or 1))))


def describe_machine() -> dict[str, Any]:
    """Processor, memory, load and versions; instruction sets that our code uses here."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "search_instructions": _core.fused_instruction_sets(),
        "top_k_instructions": _core.top_k_instruction_sets(),
        "versions": {name: _version(name) for name in ("numpy", "torch", "pynini")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in reversed(lines) if ":" in line
    )
    name = fields.get("model name", platform.machine())
    family = "/".join(fields.get(key, "?") for key in ("cpu family", "model"))
    return f"{name} (family/model {family}, {fields.get('cache size', '?')} cache a core)"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""What a benchmark ran on, for its results."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from lattice_bpd import _core


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

"""The number of threads that a command may use."""

from __future__ import annotations

import math
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def find_quota(root: Path = _CGROUPS) -> float | None:
    """Processors that the container may use, such as 1.5; None: no limit is known.

    Args:
        root: where control groups are mounted, of version 2 or 1; a container's own is the top.
    """
    quota, period = _read(root / "cpu.max").split() or [
        _read(root / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    is_limit = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if is_limit else None


def limit_threads() -> None:
    """Let torch use no more threads than the quota has processors, rounded up.

    torch counts the processors that the process may run on, not the time that it gets: threads
    beyond a quota use it up while they wait for each other.
    """
    import torch

    quota = find_quota()
    if quota is not None:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), math.ceil(quota))))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

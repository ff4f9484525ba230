"""The number of threads that a command may use."""

from __future__ import annotations

import math
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def find_quota(root: Path = _CGROUPS, process: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors that control groups allow this process, such as 1.5; None: no limit is known.

    Args:
        root: where control groups are mounted, of version 2 or 1.
        process: the groups of this process, a line "id:controllers:path" each.
    """
    limits = []
    for line in _read(process).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        group = top / path.strip("/")
        for folder in (group, *group.parents):  # a container may see its own group as the top
            values = _read(folder / "cpu.max").split() or [
                _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            ]  # fmt: skip
            if all(value.strip().isdigit() for value in values) and int(values[1]) > 0:
                limits.append(int(values[0]) / int(values[1]))
            if folder == top:
                break
    return min(limits, default=None)


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

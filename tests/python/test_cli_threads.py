"""Quotas of control groups, which torch does not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_bpd.cli import threads
from lattice_bpd.cli.threads import find_quota


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_quota_of_version_2(tmp_path: Path) -> None:
    assert find_quota(tmp_path) is None
    write(tmp_path / "cpu.max", "max 100000")
    assert find_quota(tmp_path) is None
    write(tmp_path / "cpu.max", "150000 100000")
    assert find_quota(tmp_path) == 1.5


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    """-1 is no limit."""
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1")
    assert find_quota(tmp_path) is None
    write(tmp_path / "cpu/cpu.cfs_quota_us", "250000")
    assert find_quota(tmp_path) == 2.5


@pytest.mark.parametrize(
    ("quota", "before", "after"), [(None, 8, 8), (1.5, 8, 2), (6.0, 4, 4), (0.2, 8, 1)]
)
def test_threads_are_no_more_than_the_quota(
    quota: float | None, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    number = before

    def set_num_threads(count: int) -> None:
        nonlocal number
        number = count

    monkeypatch.setattr(threads, "find_quota", lambda: quota)
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    monkeypatch.setattr(torch, "set_num_threads", set_num_threads)
    threads.limit_threads()
    assert number == after

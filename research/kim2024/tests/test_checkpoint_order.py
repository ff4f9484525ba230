"""How a checkpoint gets to the disk: flushed, renamed, and only then the old one is removed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd_kim2024.heads.checkpoints import find_checkpoint, save_training


def trainer_at(step: int) -> SimpleNamespace:
    """What a checkpoint is made of: two weights, no optimizer."""
    weights = {"a": torch.nn.Parameter(torch.ones(3)), "b": torch.nn.Parameter(torch.zeros(2, 2))}
    report = SimpleNamespace(step=step, steps=9, precision="fp32", losses=[1.0], seconds=0.5)
    return SimpleNamespace(
        report=report, options=SimpleNamespace(seed=0), trained_weights=lambda: weights,
        optimizers=[],
    )  # fmt: skip


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations on the disk, in order."""
    operations: list[str] = []
    replace, rmtree = Path.replace, shutil.rmtree

    def flush(handle: int) -> None:
        operations.append(f"flush {Path(f'/proc/self/fd/{handle}').readlink().name}")

    def rename(path: Path, target: Path) -> Path:
        operations.append(f"rename {path.name} {target.name}")
        return replace(path, target)

    def remove(path: Path, **options: bool) -> None:
        if Path(path).exists():
            operations.append(f"remove {Path(path).name}")
        rmtree(path, **options)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "replace", rename)
    monkeypatch.setattr(shutil, "rmtree", remove)
    return operations


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_everything_is_flushed_before_the_rename_and_the_name_after_it(disk, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    save_training(folder, trainer_at(3), {})
    temporary = disk[2].removeprefix("flush ")
    assert temporary.startswith(".checkpoint-")
    assert sorted(disk[:2]) == ["flush state.json", "flush state.safetensors"]
    assert disk[2:] == [
        f"flush {temporary}",
        f"rename {temporary} checkpoint-00000003",
        "flush run",
    ]
    disk.clear()
    save_training(folder, trainer_at(6), {})
    assert disk[-2:] == ["flush run", "remove checkpoint-00000003"]
    assert [path.name for path in folder.iterdir()] == ["checkpoint-00000006"]


def test_a_disk_that_does_not_take_it_keeps_the_checkpoint_before(monkeypatch, tmp_path):
    save_training(tmp_path, trainer_at(3), {})

    def fail(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_training(tmp_path, trainer_at(6), {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000003"]
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoint-00000003"

"""Data-parallel processes started by torchrun.

They communicate through torch.distributed: NCCL between GPUs, gloo between CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
from torch import Tensor, distributed

_BUCKET = 1 << 23  # numbers per message
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_Result = TypeVar("_Result")


class Processes:
    """The process group of a training; with one process, all methods are no-ops.

    Args:
        rank: of this process, 0..world_size-1.
        world_size: number of processes.
        timeout: seconds to wait for another process.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, timeout: float = 600.0) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over all processes.

        Raises:
            ConnectionError: another process has ended or timed out.
        """
        if self.world_size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._communicate(lambda flat=flat: distributed.all_reduce(flat))  # type: ignore[misc]
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites tensors with those of process 0.

        Raises:
            ConnectionError: another process has ended or timed out.
        """
        if self.world_size > 1:
            for tensor in tensors:
                self._communicate(lambda tensor=tensor: distributed.broadcast(tensor, 0))  # type: ignore[misc]

    def broadcast(self, value: _Result) -> _Result:
        """The value of process 0.

        Raises:
            ConnectionError: another process has ended or timed out.
        """
        if self.world_size == 1:
            return value
        box = [value]
        self._communicate(lambda: distributed.broadcast_object_list(box, 0))
        return box[0]

    def run_on_first(self, work: Callable[[], _Result]) -> _Result:
        """Runs a function in process 0; all processes get its result.

        Raises:
            Exception: whatever the function raises, in every process.
            ConnectionError: another process has ended or timed out.
        """
        if self.world_size == 1:
            return work()
        outcome: tuple[_Result | None, Exception | None] = (None, None)
        if self.is_first:
            try:
                outcome = (work(), None)
            except Exception as error:  # passed to all processes, so that none keeps waiting
                outcome = (None, error)
        result, failure = self.broadcast(outcome)
        if failure is not None:
            raise failure
        return cast(_Result, result)

    def any_true(self, flag: bool) -> bool:
        """Whether the flag is true in any process.

        Raises:
            ConnectionError: another process has ended or timed out.
        """
        if self.world_size == 1:
            return flag
        total = torch.tensor([float(flag)], device=_device())
        self._communicate(lambda: distributed.all_reduce(total))
        return bool(total.item() > 0)

    def _communicate(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} of {self.world_size}: another process ended or sent "
                f"nothing for {self.timeout:g} s ({str(error).splitlines()[0][:160]}); see its "
                "message; start all processes again to resume from the last checkpoint"
            ) from error


ALONE = Processes()


@contextmanager
def join_processes(device: str, timeout: float) -> Iterator[Processes]:
    """Joins the process group of torchrun; without torchrun there is one process.

    Args:
        device: "cpu" or "cuda".
        timeout: seconds to wait for another process, at least the longest time that one works
            alone, for instance reads text.

    Raises:
        ConnectionError: the others do not join.
        ValueError: torchrun's variables are incomplete, or the timeout is not positive.
    """
    if timeout <= 0:
        raise ValueError(f"process timeout is {timeout}; expected seconds above 0")
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ValueError(f"WORLD_SIZE is {count} without {missing[0]}; start with torchrun")
    processes = Processes(int(os.environ["RANK"]), count, timeout)
    if device == "cuda":
        torch.cuda.set_device(_device())
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a timeout raises, not aborts
    backend = "nccl" if device == "cuda" else "gloo"
    limit = timedelta(seconds=timeout)
    processes._communicate(lambda: distributed.init_process_group(backend, timeout=limit))
    try:
        yield processes
    finally:
        distributed.destroy_process_group()


def choose_device(device: str) -> str:
    """The device of an option: "cpu" or "cuda", which "auto" chooses.

    Raises:
        ValueError: another option, or "cuda" without a GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; expected auto, cpu or cuda")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda and torch finds no GPU; expected one, or --device cpu")
    return device


def own_device(device: str) -> torch.device:
    """The device of this process: its own GPU of this machine, or the CPU."""
    return _device() if device == "cuda" else torch.device("cpu")


def _device() -> torch.device:
    if torch.cuda.is_available() and (
        not distributed.is_initialized() or distributed.get_backend() == "nccl"
    ):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Groups of tensors of one dtype, about _BUCKET numbers each."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in sorted(tensors, key=lambda tensor: str(tensor.dtype)):
        if bucket and (size + tensor.numel() > _BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket

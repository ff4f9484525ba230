"""Processes that train one model together, each on its share of every batch.

`torchrun` starts them; they talk through torch.distributed: NCCL between GPUs, gloo between CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
from torch import Tensor, distributed

_BUCKET = 1 << 23  # numbers that are sent at once
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_Result = TypeVar("_Result")


class Processes:
    """The processes of a training; alone, every method does nothing at no cost.

    Args:
        number: of this process, 0..count-1.
        count: of all.
        timeout: seconds after which a silent process is given up.
    """

    def __init__(self, number: int = 0, count: int = 1, timeout: float = 600.0) -> None:
        self.number, self.count, self.timeout = number, count, timeout

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.number == 0

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        Raises:
            ConnectionError: a process is gone or silent.
        """
        if self.count == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            self._talk(lambda flat=flat: distributed.all_reduce(flat))  # type: ignore[misc]
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of process 0.

        Raises:
            ConnectionError: a process is gone or silent.
        """
        if self.count > 1:
            for tensor in tensors:
                self._talk(lambda tensor=tensor: distributed.broadcast(tensor, 0))  # type: ignore[misc]

    def first_says(self, value: _Result) -> _Result:
        """What process 0 gave here.

        Raises:
            ConnectionError: a process is gone or silent.
        """
        if self.count == 1:
            return value
        box = [value]
        self._talk(lambda: distributed.broadcast_object_list(box, 0))
        return box[0]

    def first_does(self, work: Callable[[], _Result]) -> _Result:
        """Let process 0 do some work and give all its result.

        Raises:
            Exception: what the work raised, in every process.
            ConnectionError: a process is gone or silent.
        """
        if self.count == 1:
            return work()
        outcome: tuple[_Result | None, Exception | None] = (None, None)
        if self.is_first:
            try:
                outcome = (work(), None)
            except Exception as error:  # handed to all, so that none waits for nothing
                outcome = (None, error)
        result, failure = self.first_says(outcome)
        if failure is not None:
            raise failure
        return cast(_Result, result)

    def any_says(self, flag: bool) -> bool:
        """Whether the flag is true in any process.

        Raises:
            ConnectionError: a process is gone or silent.
        """
        if self.count == 1:
            return flag
        count = torch.tensor([float(flag)], device=_device())
        self._talk(lambda: distributed.all_reduce(count))
        return bool(count.item() > 0)

    def _talk(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.number} of {self.count}: another process ended or was silent for "
                f"{self.timeout:g} s ({str(error).splitlines()[0][:160]}); see its own message; "
                "start all again to go on from the last checkpoint"
            ) from error


ALONE = Processes()


@contextmanager
def join_processes(device: str, timeout: float) -> Iterator[Processes]:
    """Meet the other processes that torchrun started; without torchrun there is one.

    Args:
        device: "cpu" or "cuda".
        timeout: seconds to wait for a process that says nothing; it covers the longest time that
            one of them works alone, such as reading text.

    Raises:
        ConnectionError: the others do not come.
        ValueError: torchrun's variables are incomplete, a timeout that is not above 0.
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
    processes._talk(lambda: distributed.init_process_group(backend, timeout=limit))
    try:
        yield processes
    finally:
        distributed.destroy_process_group()


def own_device(device: str) -> torch.device:
    """The device of this process: its own GPU among those of this machine, or the CPU."""
    return _device() if device == "cuda" else torch.device("cpu")


def _device() -> torch.device:
    if torch.cuda.is_available() and (
        not distributed.is_initialized() or distributed.get_backend() == "nccl"
    ):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype, about _BUCKET numbers together."""
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

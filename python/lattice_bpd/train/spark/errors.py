"""Errors of executors, raised again on the driver without Spark's traces.

Spark wraps an executor's error into a Python traceback inside a Java trace. Functions that run
there mark errors that users can fix; the driver finds the mark and raises the same error.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lattice_bpd._core import FormatError

_MARK = "lattice-bpd, in an executor: "
_KINDS: tuple[type[Exception], ...] = (FormatError, ValueError, ImportError, OSError, MemoryError)
_MARKED = re.compile(re.escape(_MARK) + r'(\["\w+", ".*?"\])')

Batches = Iterator[Any]


def guarded(function: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """For mapInArrow: marks the errors of `function`."""

    @functools.wraps(function)
    def run(batches: Batches) -> Batches:
        try:
            yield from function(batches)
        except _KINDS as error:
            kind = next(kind.__name__ for kind in _KINDS if isinstance(error, kind))
            raise RuntimeError(_MARK + json.dumps([kind, str(error)]) + ";") from error

    return run


@contextmanager
def clear_errors() -> Iterator[None]:
    """For actions on the driver: raises errors marked by executors.

    Raises:
        FormatError, ValueError, ImportError, OSError, MemoryError: as in the executor.
    """
    try:
        yield
    except Exception as error:
        clear = _unwrap(str(error))
        if clear is None:
            raise
        raise clear from None


def _unwrap(text: str) -> Exception | None:
    marked = _MARKED.search(text)
    if marked is not None:
        name, message = json.loads(marked[1])
        kind = next(kind for kind in _KINDS if kind.__name__ == name)
        return kind(message)
    extra = re.search(r"^ImportError: (.*\[spark\].*)$", text, re.MULTILINE)
    if extra is not None:
        return ImportError(f"on an executor: {extra[1]}")
    missing = re.search(r"ModuleNotFoundError: No module named '(lattice_bpd|numpy|pyarrow)", text)
    if missing is not None:
        return ImportError(
            f"{missing[1]}: not installed on the executors; install "
            "'lattice-bpd[spark]' there, or ship an environment (spark-submit --archives; "
            "docs/spark.md)"
        )
    absent = re.search(r"\[PATH_NOT_FOUND\] (.*?)(?: SQLSTATE|\n|$)", text)
    return FileNotFoundError(absent[1]) if absent is not None else None

"""Spark sessions, and errors of executors without Spark's traces.

Spark wraps an executor's error into a Python traceback inside a Java trace. Functions that run
there mark errors that users can fix; the driver finds the mark and raises the same error.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(master: str | None = None, **config: Any) -> SparkSession:
    """The running Spark session, or a new one.

    Args:
        master: such as "local[2]"; default: spark-submit's, or every core of this machine.
        **config: Spark's settings with "_" for ".": ``spark_ui_enabled="false"``.

    Raises:
        ImportError: pyspark, pyarrow or pandas is not installed.
        OSError: no Java, or Spark does not start; the message says what to do.
    """
    sql = require("pyspark.sql", "lattice-bpd-spark")
    for module in ("pyarrow", "pandas"):  # Spark's mapInArrow refuses to work without pandas
        require(module, "spark")
    running = sql.SparkSession.getActiveSession()
    if running is None:
        check_java()
    builder = sql.SparkSession.builder.appName("lattice-bpd")
    if master is not None:
        builder = builder.master(master)
    for name, value in config.items():
        builder = builder.config(name.replace("_", "."), value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:  # Py4J and PySpark raise various types
        raise OSError(
            f"Spark does not start: {str(error).strip().splitlines()[0]}; see its messages above. "
            "It needs Java 17 or later"
        ) from error
    _use_this_python(session)
    return session


def _use_this_python(session: SparkSession) -> None:
    """On one machine, makes workers use the driver's Python instead of PATH's python3."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    context = session.sparkContext
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def check_java() -> None:
    """Checks that Spark can find Java.

    Raises:
        OSError: no Java.
    """
    home = os.environ.get("JAVA_HOME")
    if home is not None and not (Path(home) / "bin" / "java").is_file():
        raise OSError(
            f"JAVA_HOME is {home}, which has no bin/java; set it to the folder of Java 17 or later"
        )
    if home is None and shutil.which("java") is None:
        raise OSError(
            "Spark needs Java 17 or later and there is none; install it (Debian: apt-get install "
            "openjdk-17-jre-headless), or set JAVA_HOME"
        )


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
    extra = re.search(r"^ImportError: (.*lattice-bpd-spark.*)$", text, re.MULTILINE)
    if extra is not None:
        return ImportError(f"on an executor: {extra[1]}")
    missing = re.search(r"ModuleNotFoundError: No module named '(lattice_bpd|numpy|pyarrow)", text)
    if missing is not None:
        return ImportError(
            f"{missing[1]}: not installed on the executors; install "
            "lattice-bpd-spark there, or ship an environment (spark-submit --archives; "
            "packages/spark/README.md)"
        )
    absent = re.search(r"\[PATH_NOT_FOUND\] (.*?)(?: SQLSTATE|\n|$)", text)
    return FileNotFoundError(absent[1]) if absent is not None else None

"""Spark sessions and their requirements."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(master: str | None = None, **config: Any) -> SparkSession:
    """The running Spark session, or a new one.

    Args:
        master: such as "local[2]"; default: spark-submit's, or every core of this machine.
        **config: Spark's settings with "_" for ".": ``spark_ui_enabled="false"``.

    Raises:
        ImportError: pyspark, pyarrow or pandas is not installed (extra ``spark``).
        OSError: no Java, or Spark does not start; the message says what to do.
    """
    sql = require("pyspark.sql", "spark")
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

"""Trains an n-gram LM by `spark-submit` on a standalone Spark cluster, loses a worker on the way.

Usage: spark_cluster.py [--megabytes 2]    `make test-spark-cluster`

A master and two workers run as processes of their own. Their Python is an environment with the
wheel, packed by venv-pack and sent with --archives, as its README describes. The job runs twice:
once undisturbed, and once with a worker and its executors killed while counts are on it. Both LM
files must equal, byte for byte, the file that `lattice-bpd ngram train` writes. Everything is in
build/spark-cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "spark-cluster"
ENV = FOLDER / "env"
CORES = 1  # of each worker
STARTED = 180.0  # seconds that a master or worker may need to start
FINISHED = 600.0  # seconds that a job may need
LM_OPTIONS = ("--order", "4", "--boundaries", "document", "--min-counts", "1,1,2,2")


def say(text: str) -> None:
    print(f"test-spark-cluster: {text}", flush=True)


def run(*command: str | Path) -> None:
    """Runs a command; its output is printed only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-6000:], file=sys.stderr)
        raise SystemExit(f"test-spark-cluster: {' '.join(map(str, command))} failed (above)")


def make_environment() -> Path:
    """The archive of an environment with both wheels, pyspark and venv-pack."""
    archive = FOLDER / "env.tar.gz"
    if archive.exists():
        return archive
    FOLDER.mkdir(parents=True, exist_ok=True)
    say("building the wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", FOLDER / "wheel",
        ROOT, ROOT / "packages" / "spark")  # fmt: skip
    say("pip install the wheels, pyspark and venv-pack")
    run(sys.executable, "-m", "venv", "--clear", ENV)
    python = ENV / "bin" / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *constraints,
        *(FOLDER / "wheel").glob("lattice_bpd*.whl"), "venv-pack", "setuptools")  # fmt: skip
    run(ENV / "bin" / "venv-pack", "-p", ENV, "-o", FOLDER / "env.tmp.tar.gz")
    (FOLDER / "env.tmp.tar.gz").rename(archive)
    return archive


def write_corpus(megabytes: float) -> list[Path]:
    """JSON lines of the standard library's sources, in four files."""
    library = Path(sysconfig.get_path("stdlib"))
    texts, size = [], 0
    for path in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        if size >= megabytes * 1e6:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(json.dumps({"text": text}))
        size += len(text)
    folder = FOLDER / "corpus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = [folder / f"{number}.jsonl" for number in range(4)]
    for number, file in enumerate(files):
        file.write_text("".join(f"{text}\n" for text in texts[number::4]), encoding="utf-8")
    say(f"corpus: {len(texts)} texts, {size / 1e6:.1f} MB")
    return files


class Cluster:
    """A standalone master and its workers, each a process in a session of its own."""

    def __init__(self) -> None:
        home = next((ENV / "lib").glob("python*/site-packages/pyspark"))
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(FOLDER / "work"),
        }
        self._class = home / "bin" / "spark-class"
        self.submit = home / "bin" / "spark-submit"
        self._processes: list[subprocess.Popen[bytes]] = []
        shutil.rmtree(FOLDER / "work", ignore_errors=True)
        master = self._start("master", "Master", "--host", "127.0.0.1", "--port", "0")
        self.url = _wait_for(master, r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            worker = self._start(
                f"worker{number}", "Worker", "--cores", str(CORES), "--memory", "2g", self.url
            )
            _wait_for(worker, r"(Successfully registered with master)")

    def _start(self, name: str, kind: str, *arguments: str) -> Path:
        log = FOLDER / f"{name}.log"
        with log.open("wb") as output:
            command: list[str | Path] = [
                self._class,
                f"org.apache.spark.deploy.{kind.lower()}.{kind}",
            ]
            self._processes.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            )
        return log

    def kill_worker(self) -> None:
        """Ends the last worker and its executors at once, as a lost machine does."""
        _kill(self._processes.pop())

    def stop(self) -> None:
        """Ends all processes."""
        while self._processes:
            _kill(self._processes.pop())

    def environment(self) -> dict[str, str]:
        """Variables for spark-submit."""
        return self._environment


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_for(log: Path, pattern: str) -> str:
    """What a log says, once it says it."""
    end = time.monotonic() + STARTED
    while time.monotonic() < end:
        matched = re.search(pattern, log.read_text(errors="replace"))
        if matched:
            return matched[1]
        time.sleep(0.2)
    raise SystemExit(f"test-spark-cluster: {log} does not say {pattern!r} after {STARTED:.0f} s")


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.stop()


def submit(archive: Path, inputs: list[Path], output: Path, *, lose_worker: bool) -> float:
    """Runs the job on a new cluster; returns its seconds."""
    log = output.with_suffix(".log")
    start = time.monotonic()
    with running_cluster() as cluster, log.open("wb") as written:
        (main,) = (ENV / "lib").glob("python*/site-packages/lattice_bpd_spark/cli.py")
        command: list[str | Path] = [
            cluster.submit, "--master", cluster.url, "--archives", f"{archive}#env",
            "--conf", "spark.pyspark.python=./env/bin/python",
            "--conf", f"spark.pyspark.driver.python={ENV / 'bin' / 'python'}",
            "--conf", "spark.sql.shuffle.partitions=4",
            "--conf", "spark.ui.enabled=false",
            "--executor-cores", str(CORES), "--executor-memory", "1g",
            main, *inputs, "--tokenizer", tokenizer(), *LM_OPTIONS, "-o", output,
        ]  # fmt: skip
        job = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=cluster.environment(),
            start_new_session=True,
        )  # fmt: skip
        try:
            if lose_worker:
                while job.poll() is None and "counted" not in log.read_text(errors="replace"):
                    time.sleep(0.1)
                if job.poll() is None:
                    cluster.kill_worker()
                    say("a worker was killed after the counting")
            status = job.wait(FINISHED)
        finally:
            _kill(job)
    if status:
        print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
        raise SystemExit(f"test-spark-cluster: spark-submit ended with status {status} (above)")
    if lose_worker and "Lost executor" not in log.read_text(errors="replace"):
        raise SystemExit(f"test-spark-cluster: {log} names no lost executor")
    return time.monotonic() - start


def tokenizer() -> Path:
    return ROOT / "examples" / "demo_model" / "tokenizer.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=2.0, help="of text (default 2)")
    args = parser.parse_args()
    archive = make_environment()
    inputs = write_corpus(args.megabytes)
    local = FOLDER / "local.lm"
    run(ENV / "bin" / "lattice-bpd", "ngram", "train", *inputs, "--tokenizer", tokenizer(),
        *LM_OPTIONS, "-o", local)  # fmt: skip
    for lose_worker in (False, True):
        output = FOLDER / ("lost.lm" if lose_worker else "cluster.lm")
        seconds = submit(archive, inputs, output, lose_worker=lose_worker)
        if not filecmp.cmp(local, output, shallow=False):
            raise SystemExit(f"test-spark-cluster: {output} differs from {local}")
        say(f"{output.name}: equal to the local LM, byte for byte, after {seconds:.0f} s")


if __name__ == "__main__":
    main()

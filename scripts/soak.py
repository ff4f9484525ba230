"""make soak: threads rescore for a long time while LMs are opened, closed and replaced underneath.

Every answer must equal the one that a single thread gave before the start, and memory must stay
flat: from the end of the warm-up on it may grow by --bound MiB. Exits non-zero where either fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import NGramLM, rescore_lattice, rescore_tree

VOCAB = 400
NUM_FILES = 3
NUM_JOBS = 60
WARM_UP = 0.25  # of the time

Arrays = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class Job:
    """One call.

    Attributes:
        head_logits: (B, H, V) float32.
        contexts: B of them.
        tree: a tree, else drafts.
        options: of the call.
    """

    head_logits: npt.NDArray[np.float32]
    contexts: list[list[int]]
    tree: bool
    options: dict[str, Any]

    def run(self, lm: NGramLM, threads: int) -> Arrays:
        """All arrays of the answer."""
        call = {**self.options, "threads": threads}
        if self.tree:
            tree = rescore_tree(self.head_logits, self.contexts, lm, max_nodes=24, **call)
            return (tree.token_ids, tree.parents, tree.log_probs, tree.counts)
        drafts = rescore_lattice(self.head_logits, self.contexts, lm, num_drafts=8, **call)
        return (drafts.token_ids, drafts.scores, drafts.counts)


def make_lm(seed: int) -> NGramLM:
    """An LM of its own for each seed: other texts, orders 2 to 4."""
    rng = np.random.default_rng(seed)
    texts = [(VOCAB * rng.random(3000) ** 2).astype(np.int32) for _ in range(4)]
    return NGramLM.train(texts, 2 + seed % 3, vocab_size=VOCAB, smoothing="witten_bell")


def make_job(rng: np.random.Generator) -> Job:
    """Lattices of a random size, one or a batch."""
    batch, slots = int(rng.choice([1, 1, 3, 8])), int(rng.integers(1, 9))
    logits = rng.normal(size=(batch, slots, VOCAB)).astype(np.float32)
    contexts = [rng.integers(0, VOCAB, rng.integers(0, 6)).tolist() for _ in range(batch)]
    tree = bool(rng.integers(2))
    options: dict[str, Any] = {"top_k": int(rng.integers(1, 17)), "alpha": float(rng.normal())}
    if not tree and rng.integers(16) == 0:
        options |= {"engine": "openfst", "top_k": 3}
    return Job(logits, contexts, tree, options)


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The files, the jobs with their answers, and what has been counted.

    File i holds LM 2i or LM 2i + 1, whichever was written last.
    """

    def __init__(self, folder: Path) -> None:
        self.lms = [make_lm(seed) for seed in range(2 * NUM_FILES)]
        self.paths = [folder / f"{index}.lm" for index in range(NUM_FILES)]
        for index, path in enumerate(self.paths):
            self.lms[2 * index].save(path)
        rng = np.random.default_rng(0)
        self.jobs = [make_job(rng) for _ in range(NUM_JOBS)]
        self.answers = [[job.run(lm, 1) for job in self.jobs] for lm in self.lms]
        self.sizes = [lm.num_ngrams for lm in self.lms]
        self.counts = Counter({"calls": 0, "opened": 0, "replaced": 0})
        self.failures: list[str] = []
        self.stop = threading.Event()
        self.lock = threading.Lock()

    def count(self, what: str) -> None:
        """Adds one."""
        with self.lock:
            self.counts[what] += 1

    def fail(self, text: str) -> None:
        """Keeps the words and stops all threads."""
        with self.lock:
            self.failures.append(text)
        self.stop.set()

    def open(
        self, rng: np.random.Generator, kept: list[tuple[int, NGramLM]]
    ) -> tuple[int, NGramLM]:
        """An LM and its number: in memory, mapped before, or opened now (and kept for a while)."""
        how = rng.integers(8)
        if how == 0:
            number = int(rng.integers(len(self.lms)))
            return number, self.lms[number]
        if how < 6 and kept:
            return kept[int(rng.integers(len(kept)))]
        index = int(rng.integers(NUM_FILES))
        lm = NGramLM.load(self.paths[index], verify=bool(rng.integers(2)))
        number = 2 * index + self.sizes[2 * index : 2 * index + 2].index(lm.num_ngrams)
        kept.append((number, lm))
        if len(kept) > 4:
            del kept[int(rng.integers(len(kept)))]
        self.count("opened")
        return number, lm

    def rescore(self, seed: int) -> None:
        """A thread: random jobs until the end."""
        rng = np.random.default_rng(seed)
        kept: list[tuple[int, NGramLM]] = []
        while not self.stop.is_set():
            number, lm = self.open(rng, kept)
            job = int(rng.integers(NUM_JOBS))
            threads = int(rng.integers(1, 4))
            answer = self.jobs[job].run(lm, threads)
            self.count("calls")
            if not all(map(np.array_equal, answer, self.answers[number][job])):
                self.fail(f"job {job} with LM {number} and {threads} threads: another answer")

    def replace(self) -> None:
        """A thread: replaces each file by the other LM, repeatedly."""
        rng = np.random.default_rng(1)
        while not self.stop.wait(0.02):
            index = int(rng.integers(NUM_FILES))
            self.lms[2 * index + int(rng.integers(2))].save(self.paths[index])
            self.count("replaced")

    @contextmanager
    def running(self, num_threads: int) -> Iterator[None]:
        """All threads, which an exception in any of them stops."""

        def guard(work: Any, *arguments: Any) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.fail(f"{type(error).__name__}: {error}")

        works = [(self.rescore, 100 + i) for i in range(num_threads)]
        threads = [threading.Thread(target=guard, args=work) for work in [*works, (self.replace,)]]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()


def watch(soak: Soak, seconds: float, bound: float) -> None:
    """Prints rates and memory; fails where memory grows."""
    start = time.monotonic()
    every, warm, highest = max(1.0, seconds / 20), 0, 0
    shown = start
    while (passed := time.monotonic() - start) < seconds and not soak.stop.wait(0.25):
        now = resident()
        if passed < seconds * WARM_UP:
            warm = max(warm, now)
            continue
        highest = max(highest, now)
        if time.monotonic() - shown < every:
            continue
        shown = time.monotonic()
        rates = ", ".join(f"{n / passed:,.0f} {what} a second" for what, n in soak.counts.items())
        left = seconds - passed
        print(f"soak: {rates}; {now / 2**20:,.0f} MiB; {left:,.0f} s left", flush=True)
    grown = (highest - warm) / 2**20
    print(f"soak: memory {warm / 2**20:,.0f} MiB after warm-up, {grown:+.1f} MiB since, "
          f"bound +{bound:g} MiB")  # fmt: skip
    if grown > bound:
        soak.fail(f"memory grew by {grown:.1f} MiB; expected {bound:g} at most")


def main() -> int:
    """Soaks; 1 where something failed."""
    parser = argparse.ArgumentParser(description="Rescore with many threads for a long time.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=(os.cpu_count() or 1) + 2)
    parser.add_argument("--bound", type=float, default=32, help="MiB that memory may grow by")
    arguments = parser.parse_args()
    if arguments.seconds < 4 or arguments.threads < 1:
        parser.error("expected 4 seconds or more, and 1 thread or more")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name))
        with soak.running(arguments.threads):
            watch(soak, arguments.seconds, arguments.bound)
        beside = sorted(path.name for path in Path(name).iterdir() if path not in soak.paths)
        if beside:
            soak.fail(f"files left beside the LMs: {beside}")
    totals = ", ".join(f"{n:,} {what}" for what, n in soak.counts.items())
    for failure in soak.failures[:5]:
        print(f"soak: {failure}", file=sys.stderr)
    print(f"soak: {totals}: {'FAILED' if soak.failures else 'every answer as before'}")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())

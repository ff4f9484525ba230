"""N-gram training, sizes, scoring and pruning beside KenLM; answers are compared first.

    python benchmarks/bench_ngram.py            everything
    python benchmarks/bench_ngram.py --quick    one run of each, no text of ten times the size

Prints a JSON line for each measurement (`ratio` is above 1 where ours is better) and writes
benchmarks/results/ngram.json. Training is a whole command on either side: `lattice-bpd ngram train`
from a .npy file of token ids, Python's start included, and `lmplz` from text of decimal ids, which
always writes ARPA. Both use every core and have the same memory budget. They estimate different
models of the same n-grams: Katz and modified Kneser-Ney.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import kenlm_peer as kenlm
import numpy as np
from corpus import ROOT, load_corpus, make_large_text
from machine import describe_machine
from ngram_files import COMMAND, END_ID, FOLDER, NUM_IDS, count_seen, train_command, write_corpus
from processes import run_measured, take_medians
from report import write_json

from lattice_bpd import NGramLM
from lattice_bpd.lm.training import RaggedIds

ORDER = 4
MEMORY = "2G"  # for both
SMALL_MEMORY = "500M"
COPIES = 9  # beside the corpus itself, for the text of ten times the size
PRUNED = 1_000_000
PRUNING_LIMIT = 10.0  # seconds; the goal, since KenLM does not prune by entropy


class Bench:
    """One run; every `measure_` method adds lines."""

    def __init__(self, quick: bool) -> None:
        self.rounds = 1 if quick else 5
        self.quick = quick
        self.corpus = load_corpus()
        self.files = write_corpus(self.corpus, "corpus", ORDER)
        self.lm_file, self.arpa = FOLDER / "ours.lm", FOLDER / "ours.arpa"
        self.peer_arpa = FOLDER / "lmplz.arpa"
        self.lines: list[dict[str, Any]] = []

    def add(self, name: str, ours: float, peer: float, unit: str, **details: Any) -> None:
        """A line; both figures are such that less is better."""
        line = {"name": name, "ours": round(ours, 3), "peer": round(peer, 3)}
        line |= {"ratio": round(peer / ours, 2), "unit": unit, **details}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def measure_training(self) -> None:
        """`train`, `train_arpa`, and memory within a small budget."""
        ids, text = self.files.ids, self.files.text
        binary, arpa, peer = take_turns(
            self.rounds,
            lambda: run_measured(train_command(ids, self.lm_file, ORDER, MEMORY)),
            lambda: run_measured(train_command(ids, self.arpa, ORDER, MEMORY)),
            lambda: kenlm.run_lmplz(text, self.peer_arpa, ORDER, MEMORY),
        )
        self.check_counts()
        theirs = take_medians(peer)
        details = {"peer_name": f"lmplz of {kenlm.NAME}", "peer_usage": theirs, "memory": MEMORY}
        extra = {"in_process_s": self.time_in_process()}
        for name, usages, goal in (("train", binary, 3.0), ("train_arpa", arpa, 1.5)):
            ours = take_medians(usages)
            self.add(name, ours["wall_s"], theirs["wall_s"], "s for the whole command",
                     goal_ratio=goal, ours_usage=ours, **details, **extra)  # fmt: skip
            extra = {}
        self.add("train_memory", ours["peak_mib"], theirs["peak_mib"], "MiB, peak", memory=MEMORY)
        small = run_measured(train_command(ids, self.lm_file, ORDER, SMALL_MEMORY))
        peer_small = kenlm.run_lmplz(text, self.peer_arpa, ORDER, SMALL_MEMORY)
        self.add("train_memory_small", small.peak_mib, peer_small.peak_mib, "MiB, peak",
                 memory=SMALL_MEMORY)  # fmt: skip

    def check_counts(self) -> None:
        """Asserts that both trainers found the same n-grams (KenLM lists seen unigrams only)."""
        ours, theirs = kenlm.read_counts(self.arpa), kenlm.read_counts(self.peer_arpa)
        assert ours == NGramLM.load(self.lm_file).num_ngrams
        assert ours[1:] == theirs[1:], (ours, theirs)
        assert theirs[0] == count_seen(self.corpus.token_ids) + 3, theirs  # <s>, </s>, <unk>

    def time_in_process(self) -> float:
        """Seconds of NGramLM.train on arrays that are in memory, best of the rounds."""
        ragged = RaggedIds(self.corpus.token_ids, self.corpus.offsets)
        seconds = []
        for _ in range(self.rounds):
            start = time.perf_counter()
            NGramLM.train(ragged, ORDER, vocab_size=NUM_IDS, eos_id=END_ID)
            seconds.append(time.perf_counter() - start)
        return round(float(np.median(seconds)), 3)

    def measure_growth(self) -> None:
        """Ten times the corpus: copies whose ids are permuted, each with n-grams of its own."""
        large = write_corpus(make_large_text(self.corpus, COPIES), "large", ORDER)
        output = FOLDER / "large.lm"
        command = train_command(large.ids, output, ORDER, MEMORY)
        ours = take_medians([run_measured(command) for _ in range(3)])
        # With ten copies hardly a word is rare, which lmplz takes for an error otherwise.
        peer = kenlm.run_lmplz(large.text, FOLDER / "large.arpa", ORDER, MEMORY, fallback=True)
        once = next(line for line in self.lines if line["name"] == "train")
        self.add(
            "train_10x", ours["wall_s"], peer.wall, "s for the whole command",
            ngrams=sum(NGramLM.load(output).num_ngrams),
            growth=round(ours["wall_s"] / once["ours"], 2), goal_growth=10.5, memory=MEMORY,
            ours_usage=ours, peer_usage=take_medians([peer]),
        )  # fmt: skip

    def measure_sizes(self) -> None:
        """`size_exact`, `size_quantized`: bytes for each n-gram of the same model."""
        lm = NGramLM.load(self.lm_file)
        small = FOLDER / "ours-8bit.lm"
        run_measured([*COMMAND, "convert", self.lm_file, small, "--quantize", "8"])
        for name, file, goal in (("exact", self.lm_file, 9.3), ("quantized", small, 4.5)):
            trie = FOLDER / f"kenlm-{name}.trie"
            peer = kenlm.build_binary(self.arpa, trie, "trie", quantized=name == "quantized")
            count = sum(lm.num_ngrams)
            title = f"trie of {kenlm.NAME}" + (", -q 8 -b 8 -a 22" if "q" in name else "")
            self.add(f"size_{name}", file.stat().st_size / count, peer / count,
                     "bytes for each n-gram", goal=goal, ngrams=count, peer_name=title)  # fmt: skip

    def measure_query(self) -> None:
        """`query`: one call for the text, next to KenLM's probing format on one thread."""
        self.probing = FOLDER / "kenlm.probing"
        kenlm.build_binary(self.arpa, self.probing, "probing")
        self._measure_query("query", self.corpus.token_ids, self.files)
        valid = load_corpus("valid")
        self._measure_query("query_heldout", valid.token_ids, write_corpus(valid, "valid", ORDER))

    def _measure_query(self, name: str, token_ids: Any, files: Any) -> None:
        lm = NGramLM.load(self.lm_file)
        theirs = kenlm.query_words(self.probing, files.line) * np.log(10.0)
        difference = np.abs(lm.score(token_ids, bos=False) - theirs)
        seen = theirs > -200  # never-seen tokens: cost 1000 in ours; KenLM reads what ARPA says
        assert difference[seen].max() < 1e-3, difference.max()
        kenlm_ids, empty = FOLDER / f"{name}.ids", FOLDER / "empty.txt"
        kenlm.convert_to_ids(self.probing, files.text, kenlm_ids)
        empty.write_text("\n")
        ours, ids, text = take_turns(
            self.rounds,
            lambda: time_call(lambda: lm.score(token_ids, bos=False)) / len(token_ids),
            lambda: kenlm.time_id_query(self.probing, kenlm_ids),
            lambda: kenlm.time_text_query(self.probing, files.line, empty) / len(token_ids),
        )
        nanoseconds = [float(np.median(times)) * 1e9 for times in (ours, ids, text)]
        self.add(
            name, *nanoseconds[:2], "ns for each token, CPU time of one thread",
            peer_name=f"kenlm_benchmark of {kenlm.NAME}: probing, ids in memory",
            peer_query_ns=round(nanoseconds[2], 1),
            peer_query_name="`query`: probing, text on standard input",
            tokens=len(token_ids), largest_difference=float(difference[seen].max()),
        )  # fmt: skip

    def measure_pruning(self) -> None:
        """`prune`: the whole command, from the LM file to the small LM's file."""
        output = FOLDER / "pruned.lm"
        command = [*COMMAND, "prune", self.lm_file, "--prune-to", str(PRUNED), "-o", output]
        usages = [run_measured(command) for _ in range(self.rounds)]
        left = sum(NGramLM.load(output).num_ngrams)
        assert 0.99 * PRUNED <= left <= PRUNED + NUM_IDS, left  # unseen unigrams come on top
        ours = take_medians(usages)
        self.add("prune", ours["wall_s"], PRUNING_LIMIT, "s for the whole command",
                 peer_name="the goal; KenLM does not prune by entropy", ngrams_left=left,
                 ours_usage=ours)  # fmt: skip

    def write(self) -> None:
        path = (
            ROOT / "benchmarks" / "results" / ("ngram-quick.json" if self.quick else "ngram.json")
        )
        head = {"machine": describe_machine(), "corpus": self.corpus.name, "peer": kenlm.NAME}
        write_json(path, {**head, "tokens": len(self.corpus.token_ids), "lines": self.lines})


def take_turns(rounds: int, *calls: Callable[[], Any]) -> list[list[Any]]:
    """What each call returns in each round; by turns, so that a busy machine is busy for all."""
    results: list[list[Any]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, results, strict=True):
            taken.append(call())
    return results


def time_call(call: Callable[[], Any]) -> float:
    """CPU seconds of this thread."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each, no large text")
    args = parser.parse_args()
    kenlm.build_kenlm()
    bench = Bench(args.quick)
    bench.measure_training()
    if not args.quick:
        bench.measure_growth()
    bench.measure_sizes()
    bench.measure_query()
    bench.measure_pruning()
    bench.write()


if __name__ == "__main__":
    main()

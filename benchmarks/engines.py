"""Both engines over the same lattices, each in passes of its own, and the LMs that they search."""

from __future__ import annotations

import warnings
from typing import Any

from corpus import CACHE, VOCAB_SIZE, Corpus
from lattices import Lattices, check_engines_agree, rescore_arguments
from report import PAPER_BY_DRAFTS, PAPER_BY_SHAPE
from timing import Contender, Times, time_in_turns

from lattice_bpd import NGramLM, _core
from lattice_bpd.lm.training import KatzWarning, RaggedIds

PART = 10  # lattices in one call


def engine_contender(
    lm: NGramLM,
    num_drafts: int,
    engine: str,
    parts: list[Lattices],
    *,
    threads: int = 1,
    slow: bool = False,
) -> Contender:
    """The core's call alone: arguments are made before."""
    made = [rescore_arguments(part, lm, num_drafts, engine, threads) for part in parts]
    return Contender(lambda arguments: _core.rescore(*arguments), made, slow)


def time_fused(lms: list[NGramLM], lattices: Lattices, num_drafts: int, rounds: int) -> list[Times]:
    """The fused engine on the same lattices with each LM."""
    parts = lattices.split(PART)
    calls = [engine_contender(lm, num_drafts, "fused", parts) for lm in lms]
    return time_in_turns(calls, items_per_call=PART, rounds=rounds)


def compare_engines(
    name: str, lm: NGramLM, lattices: Lattices, some: Lattices, num_drafts: int, rounds: int
) -> dict[str, Any]:
    """The fused engine on `lattices`, openfst on `some` of them, which must agree."""
    check_engines_agree(some, lm, num_drafts)
    fused, openfst = time_in_turns(
        [
            engine_contender(lm, num_drafts, "fused", lattices.split(PART)),
            engine_contender(lm, num_drafts, "openfst", some.split(PART), slow=True),
        ],
        items_per_call=PART,
        rounds=rounds,
    )
    return make_row(name, lattices, num_drafts, fused, openfst)


def make_row(
    name: str, lattices: Lattices, num_drafts: int, fused: Times, openfst: Times
) -> dict[str, Any]:
    """A line of the results, with the paper's figure where it has one."""
    slots, top_k = lattices.token_ids.shape[1:]
    paper = PAPER_BY_SHAPE.get((slots, top_k)) if num_drafts == 1 else None
    if (slots, top_k) == (8, 16):
        paper = PAPER_BY_DRAFTS[num_drafts]
    return {
        "lattices": name,
        "slots": slots,
        "top_k": top_k,
        "num_drafts": num_drafts,
        "paper_ms": paper,
        "fused": fused.to_json(),
        "openfst": openfst.to_json(),
        "ratio": round(openfst.median / fused.median, 1),
    }


def make_lm(name: str, corpus: Corpus, vocab_size: int = VOCAB_SIZE) -> NGramLM:
    """A 4-gram LM of all n-grams, through its file."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)  # synthetic text repeats itself
        text = RaggedIds(corpus.token_ids, corpus.offsets)
        NGramLM.train(text, 4, vocab_size=vocab_size).save(CACHE / name)
    return NGramLM.load(CACHE / name)


def bytes_per_ngram(lm: NGramLM, name: str) -> float:
    """Of the LM's file."""
    return round((CACHE / name).stat().st_size / sum(lm.num_ngrams), 2)

"""Token ids of every integer type, from Python, numpy and torch; bools and floats are refused."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import NGramLM, rescore_lattice
from lattice_bpd.decode import generate
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify.prefix_tree import PrefixTree
from target_models import VOCAB, build_target

IDS = [1, 2, 3, 4, 1, 2, 3]
DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
KINDS: dict[str, Callable[[], Any]] = {
    "big-endian": lambda: np.array(IDS, ">u2"),
    "strided": lambda: np.repeat(np.array(IDS, np.uint16), 2)[::2],
    "array": lambda: array.array("H", IDS),
    "mixed": lambda: [np.uint64(1), 2, np.int64(3), np.int8(4), torch.tensor(1), 2, 3],
}
for dtype in DTYPES:
    KINDS |= {
        f"numpy {dtype}": lambda dtype=dtype: np.array(IDS, dtype),
        f"list of numpy {dtype}": lambda dtype=dtype: list(np.array(IDS, dtype)),
        f"torch {dtype}": lambda dtype=dtype: torch.tensor(IDS, dtype=getattr(torch, dtype)),
        f"list of torch {dtype}": lambda dtype=dtype: list(
            torch.tensor(IDS, dtype=getattr(torch, dtype))
        ),
    }
WRONG: dict[str, Callable[[], Any]] = {
    "numpy bool": lambda: np.ones(7, np.bool_),
    "torch bool": lambda: torch.ones(7, dtype=torch.bool),
    "a bool among ints": lambda: [1, True, 3, 4, 1, 2, 3],
    "a numpy bool among ints": lambda: [1, np.True_, 3, 4, 1, 2, 3],
    "a torch bool among ints": lambda: [1, torch.tensor(True), 3, 4, 1, 2, 3],
    "a float among ints": lambda: [1, 2.0, 3, 4, 1, 2, 3],
    "torch float": lambda: torch.ones(7),
}
LM = NGramLM.train([IDS * 5], 3, vocab_size=VOCAB, smoothing="witten_bell")
LOGITS = np.random.default_rng(0).normal(size=(4, VOCAB)).astype(np.float32)
MODEL = build_target("llama").eval()
TREE = [-1, 0, 1, 2, 3, 4, 5]


CALLS: dict[str, Callable[[Any], Any]] = {
    "rescore_lattice": lambda ids: rescore_lattice(LOGITS, ids, LM, top_k=4).token_ids.tolist(),
    "batch": lambda ids: rescore_lattice(
        LOGITS[None], [ids], LM, top_k=4, num_drafts=2
    ).token_ids.tolist(),
    "train": lambda ids: NGramLM.train(
        [ids] * 5, 3, vocab_size=VOCAB, smoothing="witten_bell"
    ).num_ngrams,
    "score": lambda ids: LM.score(ids).tolist(),
    "log_prob": lambda ids: LM.log_prob(ids[1], ids),
    "keep_ids": lambda ids: LM.prune(keep_ids=ids).num_ngrams,
    "from_drafts": lambda ids: PrefixTree.from_drafts(1, [ids, ids]).token_ids,
    "from_drafts of an array": lambda ids: PrefixTree.from_drafts(
        1, ids[None] if hasattr(ids, "ndim") else [ids]
    ).token_ids,
    "from_nodes": lambda ids: PrefixTree.from_nodes(1, ids, TREE, 9).token_ids,
    "generate": lambda ids: generate(MODEL, ids, "mixture", max_new_tokens=6).token_ids,
    "generate in a batch": lambda ids: [
        result.token_ids
        for result in generate(MODEL, [ids, ids[:3]], "mixture", max_new_tokens=6)
    ],
    "stop tokens": lambda ids: generate(
        MODEL, IDS, "mixture", max_new_tokens=6, stop_token_ids=ids
    ).token_ids,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_integer_type_is_the_same(call: str) -> None:
    expected = CALLS[call](list(IDS))
    for kind, make in KINDS.items():
        assert CALLS[call](make()) == expected, kind


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_integer_is_refused(call: str, kind: str) -> None:
    with pytest.raises(TypeError, match=r"expected (an integer|integers|token ids)"):
        CALLS[call](WRONG[kind]())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_candidates_of_every_integer_type(convert: Any, dtype: str) -> None:
    ids, scores = np.array(IDS[:4]).reshape(1, 2, 2), np.zeros((1, 2, 2), np.float32)
    lattice = LatticeInput(convert(ids.astype(dtype)), convert(scores))
    drafts = rescore_lattice(lattice, [IDS], LM, num_drafts=4)
    expected = rescore_lattice(LatticeInput(ids, scores), [IDS], LM, num_drafts=4)
    assert np.array_equal(np.asarray(drafts.token_ids), expected.token_ids)


def test_numbers_that_fit_no_token_id() -> None:
    huge = np.array([1, 2**64 - 1], np.uint64)
    for call in ("score", "from_drafts", "generate"):
        with pytest.raises((ValueError, TypeError), match=r"expected|18446744073709551615"):
            CALLS[call](huge)
    assert PrefixTree.from_drafts(np.uint16(1), [[2]]).exact_token == 1
    for exact in (True, np.True_, 1.0):
        with pytest.raises(TypeError, match="expected an integer"):
            PrefixTree.from_drafts(exact, [[2]])

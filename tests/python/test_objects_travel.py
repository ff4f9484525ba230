"""Objects that are pickled, copied, compared, and sent to processes that start afresh."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import (
    FormatError,
    NGramLM,
    SausageLattice,
    rescore_lattice,
    rescore_tree,
    sample_tree,
)
from same_results import is_same

LOGITS = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
CONTEXTS = [[1], [0, 2]]
TEXT = [0, 1, 2, 3, 0, 1, 2]


def send(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def deep(value: Any) -> Any:
    return copy.deepcopy(value)


WAYS = [send, copy.copy, deep]


@pytest.mark.parametrize("way", WAYS)
def test_ngram_lm(way: Any, small_lm: NGramLM) -> None:
    again = way(small_lm)
    np.testing.assert_array_equal(again.score(TEXT, eos=True), small_lm.score(TEXT, eos=True))
    np.testing.assert_array_equal(send(again).score(TEXT), small_lm.score(TEXT))


def test_a_mapped_lm_travels_by_its_path(
    small_lm: NGramLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [np.random.default_rng(0).integers(0, 500, 5000)]
    lm = NGramLM.train(texts, 3, vocab_size=500, smoothing="witten_bell")
    lm.save("large.lm")
    by_bytes = pickle.dumps(lm)
    by_path = pickle.dumps(NGramLM.load("large.lm"))
    assert len(by_bytes) > 10_000 > 500 > len(by_path)
    monkeypatch.chdir("/")  # the path is absolute
    np.testing.assert_array_equal(
        pickle.loads(by_path).score(TEXT),  # noqa: S301
        lm.score(TEXT),
    )
    small_lm.save(tmp_path / "large.lm")
    with pytest.raises(FormatError, match=r"large\.lm: the file holds another LM than when it was"):
        pickle.loads(by_path)  # noqa: S301
    Path(tmp_path, "large.lm").unlink()
    with pytest.raises(FileNotFoundError, match=r"cannot open .*large\.lm") as raised:
        pickle.loads(by_path)  # noqa: S301
    assert raised.value.filename == str(tmp_path / "large.lm")


def results_of(lm: NGramLM, logits: Any) -> list[Any]:
    options: dict[str, Any] = {"top_k": 3}
    return [
        rescore_lattice(logits, CONTEXTS, lm, num_drafts=4, **options),
        rescore_tree(logits, CONTEXTS, lm, max_nodes=9, **options),
        sample_tree(logits, CONTEXTS, lm, max_nodes=9, seed=1, **options),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_results_travel(way: Any, small_lm: NGramLM) -> None:
    for result in results_of(small_lm, LOGITS):
        assert is_same(way(result), result)
        with pytest.raises(ValueError, match="ambiguous"):  # as numpy, instead of a wrong False
            result == copy.deepcopy(result)  # noqa: B015


@pytest.mark.parametrize("way", [send, deep])
def test_drafters(way: Any, small_lm: NGramLM) -> None:
    decode = pytest.importorskip("lattice_bpd.decode")
    drafters = pytest.importorskip("lattice_bpd.decode.drafters")
    for one in (
        drafters.TreeDrafter(small_lm, max_nodes=6),
        drafters.PBestDrafter(small_lm, num_drafts=3),
        decode.CustomGenerate(lm=small_lm),
    ):
        assert type(way(way(one))) is type(one)


def test_objects_of_the_core_do_not_travel() -> None:
    drafters = pytest.importorskip("lattice_bpd.decode.drafters")
    tree_class = pytest.importorskip("lattice_bpd.verify").PrefixTree
    for one in (
        tree_class([1, 2, 3], [-1, -1, 1]),
        drafters.TextStore(50),
        drafters.MixtureDrafter(store=drafters.TextStore(50)),
        SausageLattice([([1], [0.0])]),
    ):
        for way in (send, deep):
            with pytest.raises((TypeError, AttributeError), match=r"(?i)can.*t pickle"):
                way(one)

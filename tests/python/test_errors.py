"""Bad input: the type of the error, and a message that says what was found and expected."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import (
    FormatError,
    NGramLM,
    SausageLattice,
    rescore_fst,
    rescore_lattice,
    rescore_tree,
)
from lattice_bpd.draft import NGramScorer
from lattice_bpd.lm import read_lm, write_lm
from lattice_bpd.verify import PrefixTree

torch = pytest.importorskip("torch")
INF, NAN = float("inf"), float("nan")
MASKED_IDS = np.ma.array([1, 2], np.int32, mask=[False, True])


def logits(*shape: int) -> Any:
    return np.zeros(shape or (3, 4), np.float32)


def logits_with(value: float) -> Any:
    array = logits(2, 3, 4)
    array[1, 2, 3] = value
    return array


def rescore(defaults: dict[str, Any], changes: dict[str, Any]) -> Any:
    return rescore_lattice(**{"head_logits": logits(), "context": [1], **defaults, **changes})


# Changed arguments, the error's type, and patterns that the message must hold, in order.
RESCORE: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one dimension": ({"head_logits": logits(8)}, ValueError,
                      r"shape \(8,\).*\(slots, vocab\) or \(batch, slots, vocab\).*missing axis"),
    "float64": ({"head_logits": logits().astype(float)}, TypeError,
                r"float64; expected float32, float16 or bfloat16; convert"),
    "foreign byte order": ({"head_logits": logits().astype(">f4")}, TypeError, "byte order"),
    "a list": ({"head_logits": [[0.0, 1.0]]}, TypeError, "a list; expected a numpy array"),
    "NaN": ({"head_logits": logits_with(NAN), "context": [[], []]}, ValueError,
            "NaN at row 5, token 3; expected finite"),
    "infinity": ({"head_logits": logits_with(INF), "context": [[], []]}, ValueError,
                 r"\+inf at row 5, token 3"),
    "bfloat16 NaN": ({"head_logits": torch.full((3, 4), NAN).bfloat16()}, ValueError, "NaN"),
    "k above V": ({"top_k": 5}, ValueError, r"top_k is 5; expected 1\.\.4"),
    "a fraction of k": ({"top_k": 2.5}, TypeError, r"top_k is 2\.5; expected an integer"),
    "p above the limit": ({"num_drafts": 100_000}, ValueError,
                          r"num_drafts is 100000; expected 1\.\.4096"),
    "NaN alpha": ({"alpha": NAN}, ValueError, "alpha is nan; expected a finite number"),
    "alpha that is no number": ({"alpha": "much"}, TypeError, "alpha is 'much'"),
    "unknown engine": ({"engine": "fast"}, ValueError, 'engine is "fast"; expected "auto"'),
    "id above V": ({"context": [1, 4]}, ValueError, r"id 4 at position 1; expected 0\.\.3"),
    "gigantic id": ({"context": [2**80]}, TypeError, "object; expected integers"),
    "float context": ({"context": [1.0]}, TypeError, "float64; expected integers"),
    "batch of contexts for one lattice": ({"context": [[1], [2]]}, ValueError, "single lattice"),
    "one context for a batch": ({"head_logits": logits(1, 3, 4)}, ValueError,
                                "1 entries for a batch of 1.*one sequence"),
    "bad id in a batch": ({"head_logits": logits(2, 3, 4), "context": [[], [0, 9]]}, ValueError,
                          "context of row 1 has token id 9 at position 1"),
    "ragged context in a batch": ({"head_logits": logits(1, 3, 4), "context": [[[1], [1, 2]]]},
                                  ValueError, "context of row 0"),
    "LM of another size": ({"head_logits": logits(3, 9)}, ValueError,
                           "vocabulary of 4, the target one of 9; .*; use one with the target's"),
    "an engine that is no name": ({"engine": 3}, ValueError, 'engine is "3"; expected "auto"'),
    "an LM's path": ({"lm": "corpus.lm"}, TypeError,
                     r"lm is the path 'corpus\.lm'; expected an NGramLM: .*load\('corpus\.lm'\)"),
    "a lookalike of an LM": ({"lm": 3}, TypeError, r"lm is a int; expected an NGramLM"),
    "masked logits": ({"head_logits": np.ma.array(logits(), mask=logits() == 0)}, TypeError,
                      r"rescore_lattice: head_logits is a masked numpy array; expected .*\.filled"),
    "meta logits": ({"head_logits": torch.zeros(3, 4, device="meta")}, TypeError,
                    "head_logits is a tensor on torch's meta device, which holds no values"),
    "lattice outside the LM": ({"head_logits": SausageLattice([([9], [0])])}, ValueError,
                               "token id 9.*4 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("kind", RESCORE)
def test_rescore_lattice(kind: str, small_lm: NGramLM) -> None:
    changes, error, message = RESCORE[kind]
    with pytest.raises(error, match=message) as raised:
        rescore({"lm": small_lm, "top_k": 2}, changes)
    assert raised.type is error
    assert "incompatible function arguments" not in str(raised.value)


def slots(*given: Any) -> Callable[..., Any]:
    return lambda *_: SausageLattice(list(given))


def write_words(lm: NGramLM, words: list[Any]) -> None:
    write_lm(lm, "x.arpa", vocab=words)


def load(**options: Any) -> Callable[..., Any]:
    return lambda _, arpa: read_lm(arpa, **options)


# What is called with an LM and its ARPA file, the error's type, and a pattern of the message.
CALLS: dict[str, tuple[Callable[[NGramLM, Path], Any], type[Exception], str]] = {
    "no candidates": (slots(([1], [0]), ([], [])), ValueError, "slot 1 has 0 token ids"),
    "lengths differ": (slots(([1, 2], [0])), ValueError, "2 token ids and 1 scores"),
    "doubled": (slots(([4, 1, 4], [0, 1, 2])), ValueError, "token 4 occurs twice in slot 0"),
    "NaN": (slots(([1, 2], [0, NAN])), ValueError, "nan of token 2 in slot 0; expected a finite"),
    "masked ids": (slots(([0], [0]), (MASKED_IDS, [0, 1])), TypeError,
                   "slot 1 is a masked numpy array"),
    "too many slots": (slots(*[([1], [0])] * 1025), ValueError, "more than 1024 slots"),
    "id above V": (lambda lm, _: lm.log_prob(4), ValueError, r"id 4 .*expected 0\.\.3"),
    "context": (lambda lm, _: lm.log_prob(1, [0, 7]), ValueError, "id 7 at position 1"),
    "text": (lambda lm, _: lm.score([0, 4]), ValueError, "id 4 at position 1"),
    "export context": (lambda lm, _: lm.to_pywrapfst([9]), ValueError, "id 9 at position 0"),
    "short vocab": (lambda lm, _: write_words(lm, ["a"]), ValueError, "1 words.*4 token ids"),
    "space in a word": (lambda lm, _: write_words(lm, ["a", "b c", "d", "e"]), ValueError,
                        "token id 1 .*white space"),
    "doubled word": (lambda lm, _: write_words(lm, ["a", "b", "a", "c"]), ValueError,
                     '"a" of token id 2'),
    "word that is no text": (lambda lm, _: write_words(lm, ["a", 1, "b", "c"]), TypeError,
                             "token id 1 is 1; expected a str"),
    "masked drafts for a tree": (lambda *_: PrefixTree.from_drafts(1, MASKED_IDS[None]), TypeError,
                                 "PrefixTree: drafts is a masked numpy array"),
    "a path for a scorer": (lambda *_: NGramScorer("a.lm"), TypeError, r"load\('a\.lm'\)"),
    "a path for a tree": (lambda *_: rescore_tree(logits(), [], "a.lm"), TypeError, "the path"),
    "half a node": (lambda *_: rescore_tree(logits(), [], None, top_k=2, max_nodes=1.5), TypeError,
                    r"max_nodes is 1\.5; expected an integer"),
    "many drafts of an FST": (lambda *_: rescore_fst(b"", None, 100_000), ValueError,
                              r"num_drafts is 100000; expected 1\.\.4096"),
    "training with 1.5 tokens": (lambda *_: NGramLM.train([[0, 1]], vocab_size=1.5), TypeError,
                                 r"vocab_size is 1\.5; expected an integer"),
    "a flag": (lambda *_: rescore_tree(logits(), [], None, top_k=2, max_nodes=True), TypeError,
               "max_nodes is True; expected an integer"),
    "training on a masked text": (lambda *_: NGramLM.train([MASKED_IDS], vocab_size=4), TypeError,
                                  "sequence 0 is a masked numpy array"),
    "small vocab_size": (load(vocab_size=3), ValueError, "vocab_size is 3.*token id 3"),
    "bos outside": (load(bos_id=4), ValueError, r"bos_id is 4; expected a token id in 0\.\.3"),
    "unk is bos": (load(vocab_size=6, bos_id=5, unk_id=5), ValueError, "unk_id is 5"),
    "bos is a word": (load(bos_id=0), FormatError, "occurs twice"),
    "doubled word of a file": (load(vocab=["a", "b", "a"]), ValueError, '"a" twice'),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_calls(
    kind: str, small_lm: NGramLM, small_arpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, error, message = CALLS[kind]
    with pytest.raises(error, match=message) as raised:
        call(small_lm, small_arpa)
    assert raised.type is error
    assert "\n" not in str(raised.value)
    assert "incompatible function arguments" not in str(raised.value)
    assert not list(tmp_path.iterdir())


READERS = [NGramLM.load, read_lm]


@pytest.mark.parametrize("read", READERS)
def test_paths_that_cannot_be_read(read: Callable[..., NGramLM], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot open|No such file") as raised:
        read(tmp_path / "missing")
    assert str(raised.value.filename) == str(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(OSError, match="not a regular file"):
        read(os.devnull)
    with pytest.raises(ValueError, match="NUL"):
        read(f"{tmp_path}\0.lm")


@pytest.mark.parametrize("write", [NGramLM.save, partial(write_lm, to="arpa")])
def test_paths_that_cannot_be_written(
    write: Callable[[NGramLM, Path], None], small_lm: NGramLM, tmp_path: Path
) -> None:
    with pytest.raises(IsADirectoryError, match="untouched"):
        write(small_lm, tmp_path)
    with pytest.raises(FileNotFoundError):
        write(small_lm, tmp_path / "missing" / "file")
    os.mkfifo(tmp_path / "pipe")  # like a device: renaming over it would replace it
    with pytest.raises(OSError, match="not a regular file"):
        write(small_lm, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("extra", ["to_pywrapfst of an LM", "to_pywrapfst of a lattice"])
def test_a_missing_extra_is_named(
    extra: str, small_lm: NGramLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pywrapfst", None)
    owner = small_lm if "LM" in extra else SausageLattice([([1], [0])])
    with pytest.raises(ImportError, match=r"pip install 'lattice-bpd\[openfst\]'"):
        owner.to_pywrapfst()

"""Arguments of `rescore_lattice` and `rescore_tree`: any, in any combination.

Whatever they are: a result of the stated shape, or a TypeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from draws import Draws
from python_driver import Target, run

VOCAB = 6
NUMBERS = (
    0, 1, 2, 3, 5, 6, 7, -1, 2**31, 2**63, -(2**63), 10**30, 1.0, 0.5, -2.0, float("nan"), 10**400,
)  # fmt: skip
ODD = (None, True, False, "auto", "fused", "openfst", "", b"x", (), [], {}, float("inf"), 1j)


def draw_logits(draws: Draws) -> Any:
    """Mostly a lattice or two with any numbers; arrays of other kinds, axes and strides too."""
    kinds = ("f4", "f2", "f8", "i4", "u1", "?", "c8", "S1", "O", ">f4", "M8[s]")
    if draws.rarely():
        return draws.one_of(ODD)
    shape = draws.one_of(((3, VOCAB), (1, VOCAB), (2, 3, VOCAB)))
    if draws.rarely():
        shape = tuple(draws.one_of((0, 1, 2, 3, VOCAB)) for _ in range(draws.byte() % 5))
    logits = np.zeros(shape, "f4")
    for _ in range(draws.byte() % 8):
        if logits.size:
            usual = draws.byte() / 16
            logits.flat[draws.byte() % logits.size] = draws.number() if draws.rarely() else usual
    if draws.rarely():
        logits = logits.astype(draws.one_of(kinds))
    if draws.rarely() and logits.ndim:
        logits = draws.one_of((logits[::-1], logits.T, logits[..., ::2], np.asfortranarray(logits)))
    return logits


def draw_context(draws: Draws, batch: int | None) -> Any:
    """Mostly right; else ids outside the vocabulary, a batch for a lattice, or no ids at all."""
    ids = [draws.byte() % VOCAB for _ in range(draws.byte() % 5)]
    if not draws.rarely():
        return ids if batch is None else [ids] * batch
    wild = [draws.one_of((0, 5, 6, -1, 2**31, 2**40, 2**70)) for _ in range(draws.byte() % 5)]
    forms: list[Callable[[], Any]] = [
        lambda: wild,
        lambda: np.array(wild),
        lambda: [wild, ids],
        lambda: [[0], [1, 2], ids],
        lambda: np.array(ids).astype(draws.one_of(("i4", "u8", "f4", "?"))),
        lambda: draws.one_of(ODD),
    ]
    return draws.one_of(forms)()


def draw_option(draws: Draws, *usual: Any) -> Any:
    """Mostly one of the usual values, else a number or what is none."""
    if not draws.rarely():
        return draws.one_of(usual)
    return draws.one_of(NUMBERS + ODD)


def prepare() -> Target:
    """The target, on an LM of six tokens."""
    from lattice_bpd import NGramLM, rescore_lattice, rescore_tree

    lm = NGramLM.train([[0, 1, 2, 3, 4, 5, 0, 1]] * 9, 3, vocab_size=VOCAB, smoothing="witten_bell")

    def fuzz_one(data: bytes) -> None:
        draws = Draws(data)
        logits = draw_logits(draws)
        shape = getattr(logits, "shape", ())
        context = draw_context(draws, shape[0] if len(shape) == 3 else None)
        options = {
            "top_k": draw_option(draws, 3, 1, VOCAB),
            "alpha": draw_option(draws, 0.5, -1.0, 0.0),
            "bos": draw_option(draws, True, False),
            "log_softmax": draw_option(draws, False, True),
            "threads": draw_option(draws, 1, 2),
        }
        model = "lm" if draws.rarely() else draws.one_of((lm, lm, None))
        size = draw_option(draws, 4, 1, 40)
        if isinstance(size, (int, float)) and size > 4096:
            size = 2**40  # a legal million drafts would only take time
        try:
            if draws.byte() % 2 == 0:
                drafts = rescore_lattice(logits, context, model, num_drafts=size, **options)
                assert drafts.scores.shape == (len(drafts.counts), size)
            else:
                tree = rescore_tree(logits, context, model, max_nodes=size, **options)
                assert tree.parents.shape == (len(tree.counts), size)
        except (TypeError, ValueError):
            pass

    return fuzz_one


if __name__ == "__main__":
    run(prepare)

"""The draft of greatest expected accepted length, against the probabilities of all paths."""

from typing import Any

import numpy as np
import pytest

from lattice_bpd import (
    NGramLM,
    rescore_lattice,
)
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.verify.search import draft_chains, search_trees


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["candidates", "numpy", "torch"])
@pytest.mark.parametrize("normalization", ["global", "local"])
def test_draft_tokens_are_those_of_shorter_lattices(
    small_lm: NGramLM, kind: str, normalization: str, threads: int
) -> None:
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((40, 5, 4)).astype(np.float32)
    best = select_top_k(logits, 3, log_softmax=False, where="test")
    start, pairs = rng.standard_normal((40, 3)), rng.standard_normal((40, 4, 3, 3))
    arrays = [best.token_ids, best.scores, start.astype(np.float32), pairs.astype(np.float32)]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(array) for array in arrays]
    lattice: Any = LatticeInput(*arrays, normalization=normalization)
    if kind == "candidates":
        lattice = best
    contexts, lengths = [[row % 4] for row in range(40)], [row % 7 for row in range(40)]
    options = {"alpha": 0.5, "temperature": 1.5, "threads": threads}
    drafts = draft_chains(lattice, contexts, small_lm, lengths, **options)
    cut = draft_chains(lattice, contexts, small_lm, lengths, min_prob=0.4, **options)
    assert 0 < sum(map(len, cut)) < sum(map(len, drafts))
    divided = lattice.at_temperature(1.5)
    for row, (draft, short) in enumerate(zip(drafts, cut, strict=True)):
        if lengths[row] == 0:
            assert draft == short == []
            continue
        of_row = slice(row, row + 1)
        if kind == "candidates":
            slots = of_row, slice(0, lengths[row])
            shorter: Any = Candidates(divided.token_ids[slots], divided.scores[slots])
        else:
            shorter = LatticeInput(
                divided.token_ids[of_row], divided.scores[of_row], divided.start[of_row],
                divided.transitions[of_row], normalization=normalization,
            ).cut(lengths[row], 3)  # fmt: skip
        given = {"kind": "chain", "alpha": 0.5 / 1.5}
        tree = search_trees(shorter, [contexts[row]], small_lm, [5], **given)[0]
        assert draft == tree.token_ids[1:]
        assert short == draft[: int(np.count_nonzero(np.exp(tree.log_probs) >= 0.4))]
    with pytest.raises(ValueError, match="found 2 maximum lengths for 40 lattices"):
        draft_chains(lattice, contexts, small_lm, [2, 2], alpha=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "length"}, "objective is 'length'; expected one of \"score\""),
        (
            {"objective": "accept_length", "num_drafts": 4},
            "num_drafts is 4 .* expected num_drafts=1",
        ),
        (
            {"objective": "accept_length", "num_drafts": 1, "engine": "openfst"},
            'engine "openfst" has no search',
        ),
        ({"temperature": 0.0}, "temperature is 0.0; expected a finite number above 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"rescore_lattice: {message}"):
        rescore_lattice(np.zeros((2, 4), np.float32), [], None, top_k=2, **options)

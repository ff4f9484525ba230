"""Every kind of array gives what the same numbers as a plain float32 numpy array give."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lattice_bpd import Drafts, NGramLM, SausageLattice, rescore_lattice

torch = pytest.importorskip("torch")
VOCAB, SLOTS, BATCH = 37, 5, 3


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    rng = np.random.default_rng(8)
    texts = [rng.integers(0, VOCAB, 50) % 11 for _ in range(40)]
    with pytest.warns():
        return NGramLM.train(texts, 3, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def logits() -> Any:
    """(B, H, V) multiples of 1/8 below 16: exact in float16 and bfloat16, with ties and masks."""
    rng = np.random.default_rng(9)
    values = (rng.integers(-128, 128, (BATCH, SLOTS, VOCAB)) / 8).astype(np.float32)
    values[np.abs(values) >= 4] = np.round(values[np.abs(values) >= 4])
    values[rng.random(values.shape) < 0.1] = -np.inf
    return values


CONTEXTS = [[1, 2, 3], [], [7]]


def rescore(logits: Any, lm: NGramLM, contexts: Any = CONTEXTS) -> Drafts:
    return rescore_lattice(logits, contexts, lm, top_k=4, num_drafts=9, alpha=0.5)


def check_equal(drafts: Drafts, expected: Drafts) -> None:
    for name in ("token_ids", "scores", "counts"):
        np.testing.assert_array_equal(np.asarray(getattr(drafts, name)), getattr(expected, name))


def unaligned(values: Any) -> Any:
    raw = np.empty(values.nbytes + 1, np.uint8)
    view = raw[1:].view(np.float32).reshape(values.shape)
    view[...] = values
    return view


def padded(values: Any) -> Any:
    wide = np.full((BATCH, SLOTS + 1, 2 * VOCAB), np.nan, np.float32)
    wide[:, 1:, ::2] = values
    return wide[:, 1:, ::2]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "float16": lambda z: z.astype(np.float16),
    "fortran": np.asfortranarray,
    "transposed": lambda z: np.ascontiguousarray(z.transpose(2, 0, 1)).transpose(1, 2, 0),
    "every other column": padded,
    "backwards": lambda z: np.ascontiguousarray(z[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
    "float16 backwards": lambda z: z[:, :, ::-1].astype(np.float16)[:, :, ::-1],
    "read-only": lambda z: np.frombuffer(z.tobytes(), np.float32).reshape(z.shape),
    "unaligned": unaligned,
}


@pytest.mark.parametrize("view", VIEWS)
def test_numpy_views(view: str, logits: Any, lm: NGramLM) -> None:
    shown = VIEWS[view](logits)
    np.testing.assert_array_equal(shown.astype(np.float32), logits)
    drafts = rescore(shown, lm)
    check_equal(drafts, rescore(logits, lm))
    assert all(isinstance(a, np.ndarray) for a in (drafts.token_ids, drafts.scores, drafts.counts))


TENSORS: dict[str, Callable[[Any], Any]] = {
    "float32": torch.from_numpy,
    "float16": lambda z: torch.from_numpy(z).half(),
    "bfloat16": lambda z: torch.from_numpy(z).bfloat16(),
    "strided": lambda z: torch.from_numpy(padded(z)),
    "bfloat16 strided": lambda z: torch.from_numpy(padded(z)).bfloat16(),
    "permuted": lambda z: torch.from_numpy(z).permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "bfloat16 permuted": lambda z: (
        torch.from_numpy(z).bfloat16().permute(1, 2, 0).contiguous().permute(2, 0, 1)
    ),
    "with gradients": lambda z: torch.from_numpy(z.copy()).requires_grad_(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_torch_tensors(kind: str, logits: Any, lm: NGramLM) -> None:
    tensor = TENSORS[kind](logits)
    np.testing.assert_array_equal(tensor.detach().float().numpy(), logits)
    drafts = rescore(tensor, lm)
    check_equal(drafts, rescore(logits, lm))
    assert drafts.token_ids.dtype == drafts.counts.dtype == torch.int32
    assert drafts.scores.dtype == torch.float32
    assert drafts.token_ids.device == tensor.device


def test_a_rectangular_batch_of_contexts(logits: Any, lm: NGramLM) -> None:
    contexts = [[1, 2], [3, 4], [5, 6]]
    expected = rescore(logits, lm, contexts)
    check_equal(rescore(logits, lm, np.array(contexts)), expected)
    check_equal(rescore(logits, lm, torch.tensor(contexts)), expected)


def test_lattices_instead_of_logits(logits: Any, lm: NGramLM) -> None:
    lattices = [SausageLattice.from_logits(row, top_k=4) for row in logits]
    check_equal(rescore(lattices, lm), rescore(logits, lm))
    check_equal(rescore(lattices[0], lm, CONTEXTS[0]), rescore(logits[0], lm, CONTEXTS[0]))


def test_the_callers_logits_stay_as_they_are(logits: Any, lm: NGramLM) -> None:
    before = logits.copy()
    rescore(logits, lm)
    np.testing.assert_array_equal(logits, before)


def test_results_outlive_what_made_them(logits: Any) -> None:
    def make() -> Drafts:
        own = NGramLM.train([[0, 1, 2]] * 40, 2, vocab_size=VOCAB)
        return rescore(logits.copy(), own)

    check_equal(make(), make())


def test_threads_give_what_one_thread_gives(logits: Any, lm: NGramLM) -> None:
    alphas = [0.25 * i for i in range(12)]  # more alphas than the cache of LM FSTs holds

    def work(alpha: float) -> Drafts:
        return rescore_lattice(logits, CONTEXTS, lm, top_k=4, num_drafts=9, alpha=alpha)

    expected = [work(alpha) for alpha in alphas]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for drafts, wanted in zip(pool.map(work, alphas), expected, strict=True):
                check_equal(drafts, wanted)


def test_drafts_print_their_best(logits: Any, lm: NGramLM) -> None:
    text = repr(rescore(logits, lm))
    assert "batch 3, up to 9 drafts of 5 tokens" in text
    assert "best of row 0" in text


def test_references_do_not_leak(logits: Any, lm: NGramLM) -> None:
    before = sys.getrefcount(logits), sys.getrefcount(lm)
    for _ in range(50):
        rescore(logits, lm)
    assert (sys.getrefcount(logits), sys.getrefcount(lm)) == before

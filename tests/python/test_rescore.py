"""Drafts against brute force over all paths, and from every kind of array."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lattice_bpd import Drafts, NGramLM, SausageLattice, _core, rescore_lattice, rescore_tree
from oracles import Slot, list_all_drafts, random_arpa, read_arpa, top_k_slots
from same_results import is_same

ENGINES = ["openfst", *_core.fused_instruction_sets()]
ALPHAS = [1.0, 1.0, 0.5, 0.0, -0.75, 3.25, 64.0, 1e-3]
INF = float("inf")


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of ENGINES; the fused one with an instruction set."""
    is_fused = request.param != "openfst"
    _core.set_fused_instruction_set(request.param if is_fused else "")
    yield "fused" if is_fused else "openfst"
    _core.set_fused_instruction_set("")


def check_row(drafts: Drafts, row: int, expected: list[tuple[tuple[int, ...], float]]) -> None:
    """Row `row` holds exactly the first p of `expected`, in order, then padding."""
    num_drafts = drafts.scores.shape[1]
    count = min(num_drafts, len(expected))
    assert drafts.counts[row] == count
    pads = [Drafts.PAD_TOKEN] * drafts.token_ids.shape[2]  # a lattice may end before the last slot
    assert drafts.token_ids[row, :count].tolist() == [
        [*tokens, *pads[len(tokens) :]] for tokens, _ in expected[:count]
    ]
    scores = np.array([score for _, score in expected[:count]], np.float32)
    np.testing.assert_array_equal(drafts.scores[row, :count], scores)
    assert (drafts.token_ids[row, count:] == Drafts.PAD_TOKEN).all()
    assert (drafts.scores[row, count:] == -INF).all()


def random_scores(rng: np.random.Generator, size: int, integers: bool) -> Any:
    """Head scores: small integers for ties, else real numbers; now and then a masked token."""
    scores = rng.integers(-2, 3, size) if integers else 3 * rng.standard_normal(size)
    return np.where(rng.random(size) < 0.08, -np.inf, scores).astype(np.float32)


def random_slots(rng: np.random.Generator, vocab_size: int, max_paths: int = 700) -> list[Slot]:
    """Up to six slots of different widths."""
    integers, paths, slots = bool(rng.integers(2)), 1, []
    for _ in range(rng.integers(1, 7)):
        width = int(rng.integers(1, min(vocab_size, max(1, max_paths // paths), 8) + 1))
        paths *= width
        ids = rng.choice(vocab_size, width, replace=False)
        slots.append((ids, random_scores(rng, width, integers)))
    return slots


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("seed", range(240))
def test_brute_force(seed: int, rng: np.random.Generator, engine: str, core_of: Any) -> None:
    vocab_size, order = int(rng.integers(2, 12)), 1 + seed % 6
    exact = bool(rng.integers(2))
    text = random_arpa(rng, vocab_size, order, exact=exact, ngrams=int(rng.integers(30)))
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    for _ in range(3):
        slots = random_slots(rng, vocab_size)
        context = rng.integers(0, vocab_size, rng.integers(0, 8)).tolist()
        bos, alpha = bool(rng.integers(2)), float(rng.choice(ALPHAS))
        expected = list_all_drafts(slots, oracle, context, alpha=alpha, bos=bos)
        for num_drafts in {1, 2, 16, int(rng.integers(1, len(expected) + 4))}:
            drafts = rescore_lattice(
                SausageLattice(slots), context, lm,
                num_drafts=num_drafts, alpha=alpha, bos=bos, engine=engine,
            )  # fmt: skip
            check_row(drafts, 0, expected)


@pytest.mark.parametrize("seed", range(30))
def test_batch_of_different_contexts(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    batch, num_slots, vocab_size = (int(n) for n in rng.integers(1, 6, 3))
    vocab_size += 3
    top_k = int(rng.integers(1, min(vocab_size, 4) + 1))
    text = random_arpa(rng, vocab_size, 1 + seed % 6)
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    shape = (batch, num_slots, vocab_size)
    logits = random_scores(rng, int(np.prod(shape)), True).reshape(shape)
    contexts = [rng.integers(0, vocab_size, rng.integers(0, 9)) for _ in range(batch)]
    drafts = rescore_lattice(logits, contexts, lm, top_k=top_k, num_drafts=20, alpha=0.5)
    assert drafts.token_ids.shape == (batch, 20, num_slots)
    for row in range(batch):
        slots = top_k_slots(logits[row], top_k)
        check_row(drafts, row, list_all_drafts(slots, oracle, contexts[row], alpha=0.5))
        alone = rescore_lattice(
            logits[row], contexts[row], lm, top_k=top_k, num_drafts=20, alpha=0.5
        )
        np.testing.assert_array_equal(alone.token_ids[0], drafts.token_ids[row])
        np.testing.assert_array_equal(alone.scores[0], drafts.scores[row])


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_all_paths_tie(small_lm: NGramLM, engine: str) -> None:
    logits = np.zeros((5, 4), np.float32)
    every = list_all_drafts(top_k_slots(logits, 4), None)
    for num_drafts in (1, 2, 63, 64, 65, 500, 1024, 1025):
        drafts = rescore_lattice(
            logits, [0], small_lm, top_k=4, num_drafts=num_drafts, alpha=0.0, engine=engine
        )
        check_row(drafts, 0, every)


def test_named_bos_in_the_context_is_not_doubled(core_of: Any, small_arpa: Any) -> None:
    lm = core_of(small_arpa.read_text(), vocab_size=6, bos_id=4, eos_id=5)
    logits = np.zeros((2, 6), np.float32)
    logits[:, 4:] = -INF
    plain = rescore_lattice(logits, [0], lm, top_k=4, alpha=1.0)
    explicit = rescore_lattice(logits, [4, 0], lm, top_k=4, alpha=1.0)
    np.testing.assert_array_equal(plain.token_ids, explicit.token_ids)
    np.testing.assert_array_equal(plain.scores, explicit.scores)


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
    "transposed": lambda z: np.ascontiguousarray(z.transpose(2, 0, 1)).transpose(1, 2, 0),
    "every other column": padded,
    "backwards": lambda z: np.ascontiguousarray(z[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
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
    "bfloat16 strided": lambda z: torch.from_numpy(padded(z)).bfloat16(),
    "permuted": lambda z: torch.from_numpy(z).permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "bfloat16 permuted": lambda z: (
        torch.from_numpy(z).bfloat16().permute(1, 2, 0).contiguous().permute(2, 0, 1)
    ),
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


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads_callers_and_engines_give_the_same_bytes(
    threads: int, logits: Any, lm: NGramLM
) -> None:
    many, contexts = np.concatenate([logits] * 12), CONTEXTS * 12
    alphas = [0.25 * i for i in range(12)]  # more alphas than the cache of LM FSTs holds

    def work(alpha: float, engine: str = "auto", threads: int = threads) -> Drafts:
        options: dict[str, Any] = {"engine": engine, "threads": threads}
        return rescore_lattice(many, contexts, lm, top_k=4, num_drafts=9, alpha=alpha, **options)

    expected = [work(alpha, "openfst", 1) for alpha in alphas]
    for engine in ("auto", "openfst"):
        with ThreadPoolExecutor(4) as pool:
            for drafts, wanted in zip(pool.map(work, alphas, [engine] * 12), expected, strict=True):
                check_equal(drafts, wanted)
    tree = rescore_tree(many, contexts, lm, top_k=4, max_nodes=20, threads=threads)
    assert is_same(tree, rescore_tree(many, contexts, lm, top_k=4, max_nodes=20, threads=1))

"""A cache beside the LM: `ContextNGram`, and searches with it against all paths."""

import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lattice_bpd
from lattice_bpd import NGramLM, SausageLattice, _core, rescore_lattice, rescore_tree
from lattice_bpd.lm import ContextNGram
from oracles import ArpaOracle, Slot, read_arpa
from test_engines import random_lm, random_options, random_slots
from test_tree import masses_of, prefixes_of

LEAST_WEIGHT, LEAST_WEIGHT_ALONE = 0.02, 0.15  # of lm/context_ngram.h, with an LM and without


@pytest.fixture(autouse=True)
def best_instruction_set() -> Iterator[None]:
    yield
    _core.set_fused_instruction_set("")


class CacheOracle:
    """P of a cache mixed with an LM, from lists of n-grams."""

    def __init__(
        self, text: list[int], cache: ContextNGram, lm: ArpaOracle | None, bos: bool
    ) -> None:
        self.lm, self.bos, self.vocab_size = lm, bos, cache.vocab_size
        least = LEAST_WEIGHT_ALONE if lm is None else LEAST_WEIGHT
        self.weights = cache.weights.tolist() if cache.weight >= least else []
        self.after: dict[tuple[int, ...], Counter[int]] = {}
        for end in range(1, len(text)):
            for size in range(1, min(cache.order, end + 1)):
                self.after.setdefault(tuple(text[end - size : end]), Counter())[text[end]] += 1

    def log_prob(self, before: list[int], token: int) -> float:
        log_static = -math.log(self.vocab_size)
        if self.lm is not None:
            log_static = self.lm.log_prob(self.lm.history(before, self.bos), token)
        kept, cached = 1.0, 0.0
        for size, weight in enumerate(self.weights, 1):
            seen = self.after.get(tuple(before[-size:])) if size <= len(before) else None
            if seen is None:
                break
            count = sum(seen.values())
            share = weight * count / (count + len(seen))
            kept *= 1 - share
            cached = (1 - share) * cached + share * seen[token] / count
        if cached == 0.0:
            return log_static + math.log(kept)
        return math.log(kept * math.exp(log_static) + cached)


def list_paths(
    slots: list[Slot], oracle: CacheOracle, context: list[int], alpha: float
) -> list[tuple[tuple[int, ...], float]]:
    """Every path with its score, up to the first slot that is masked altogether."""
    listed = [[(int(t), float(z)) for t, z in zip(*slot, strict=True)] for slot in slots]
    unmasked = [[pair for pair in slot if pair[1] > -math.inf] for slot in listed]
    kept = list(itertools.takewhile(bool, unmasked))
    paths = []
    for path in itertools.product(*kept) if kept else ():
        tokens = [token for token, _ in path]
        score = sum(z for _, z in path)
        for index, token in enumerate(tokens):
            score += alpha * oracle.log_prob([*context, *tokens[:index]], token)
        paths.append((tuple(tokens), score))
    return sorted(paths, key=lambda pair: (-pair[1], pair[0]))


def random_text(rng: np.random.Generator, vocab_size: int) -> list[int]:
    period = rng.integers(0, vocab_size, rng.integers(1, 9)).tolist()
    noise = rng.integers(0, vocab_size, rng.integers(0, 30)).tolist()
    return [*noise, *period * int(rng.integers(0, 8)), *noise[:3]]


@pytest.mark.parametrize("seed", range(40))
def test_cache_is_brute_force(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    vocab_size = int(rng.integers(1, 12))
    text = random_lm(rng, vocab_size)
    has_lm = seed % 4 != 0
    lm = core_of(text, vocab_size=vocab_size) if has_lm else None
    for trial in range(6):
        slots, options = random_slots(rng, vocab_size, 150), random_options(rng, vocab_size)
        limit = options.pop("num_drafts")
        cache = ContextNGram(vocab_size, int(rng.integers(1, 7)))
        said = random_text(rng, vocab_size)
        cache.update(said, lm, bos=options["bos"])
        if trial % 2:
            options["context"] = said[-8:]
        oracle = CacheOracle(said, cache, read_arpa(text) if has_lm else None, options["bos"])
        paths = list_paths(slots, oracle, options["context"], options["alpha"])
        scores = dict(paths)
        lattice = SausageLattice(slots)
        for name in _core.fused_instruction_sets():
            _core.set_fused_instruction_set(name)
            drafts = rescore_lattice(lattice, lm=lm, num_drafts=limit, ngram_cache=cache, **options)
            count = min(limit, len(paths))
            assert drafts.counts.tolist() == [count]
            token_ids = [tuple(draft) for draft in drafts.token_ids[0, :count].tolist()]
            assert len(set(token_ids)) == count
            close = {"rtol": 1e-5, "atol": 1e-4}
            np.testing.assert_allclose(
                drafts.scores[0, :count], [scores[f] for f in token_ids], **close
            )
            best = [score for _, score in paths[:count]]
            np.testing.assert_allclose(drafts.scores[0, :count], best, **close)
            tree = rescore_tree(lattice, lm=lm, max_nodes=limit, ngram_cache=cache, **options)
            masses, prefixes = masses_of(paths), prefixes_of(tree)
            wanted = [masses[prefix] for prefix in prefixes]
            held = np.exp(tree.log_probs[0, : len(prefixes)], dtype=np.float64)
            np.testing.assert_allclose(held, wanted, rtol=1e-3, atol=1e-30)
            top = sorted(masses.values(), reverse=True)[: len(prefixes)]
            np.testing.assert_allclose(held, top, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("seed", range(15))
def test_log_prob_is_the_definition(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    vocab_size = int(rng.integers(2, 10))
    text = random_lm(rng, vocab_size)
    lm = core_of(text, vocab_size=vocab_size) if seed % 3 else None
    cache = ContextNGram(vocab_size, int(rng.integers(1, 7)), max_tokens=20)
    said = random_text(rng, vocab_size)
    for token in said:  # one by one, more than the window holds
        cache.update([token], lm)
    assert len(cache) == min(len(said), 20)
    oracle = CacheOracle(said[-20:], cache, read_arpa(text) if lm else None, True)
    total = 0.0
    for token in range(vocab_size):
        log_prob = cache.log_prob(token, said[-6:], lm)
        assert log_prob == pytest.approx(oracle.log_prob(said[-6:], token), abs=1e-5)
        total += math.exp(log_prob)
    if lm is None:
        assert total == pytest.approx(1.0)


def test_batch_is_as_alone(small_lm: NGramLM) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((5, 4, 4)).astype(np.float32)
    contexts = [[0, 1, 2], [], [3], [1, 2], [2, 2, 1]]
    caches: list[ContextNGram | None] = [None]
    for row in range(4):
        cache = ContextNGram(4)
        cache.update(rng.integers(0, 4, 5).tolist() * 6, small_lm)
        caches.append(cache if row else caches[0])
    options: dict[str, Any] = {"top_k": 3, "alpha": 0.5}
    drafts = rescore_lattice(logits, contexts, small_lm, ngram_cache=caches, **options)
    tree = rescore_tree(logits, contexts, small_lm, ngram_cache=caches, max_nodes=9, **options)
    again = drafts.tree(9)
    for row, cache in enumerate(caches):
        given = (logits[row], contexts[row], small_lm)
        alone = rescore_lattice(*given, ngram_cache=cache, **options)
        assert drafts.scores[row].tobytes() == alone.scores[0].tobytes()
        one = rescore_tree(*given, ngram_cache=cache, max_nodes=9, **options)
        assert tree.log_probs[row].tobytes() == one.log_probs[0].tobytes()
        assert again.log_probs[row].tobytes() == one.log_probs[0].tobytes()
    shared = rescore_lattice(logits, contexts, small_lm, ngram_cache=caches[2], **options)
    each = rescore_lattice(logits, contexts, small_lm, ngram_cache=[caches[2]] * 5, **options)
    assert shared.scores.tobytes() == each.scores.tobytes()


def test_weights_rise_in_loops_and_fall_on_random_text() -> None:
    cache = ContextNGram(50)
    cache.update([3, 14, 15, 9, 2, 6] * 20)
    assert (cache.weights > 0.6).all()
    rng = np.random.default_rng(1)
    cache.update(rng.integers(0, 50, 20_000))  # long enough for all histories to match
    assert cache.weight < 0.05
    cache.clear()
    assert len(cache) == 0
    assert cache.weight == pytest.approx(0.1)
    assert ContextNGram(50, 1).weight == 0.0
    assert repr(cache) == (
        "ContextNGram(order 4, vocabulary 50, 0 tokens, weights 0.100, 0.100, 0.100)"
    )


def test_a_cache_may_learn_while_others_search() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((6, 50)).astype(np.float32)
    cache, done = ContextNGram(50, max_tokens=64), threading.Event()

    def learn() -> None:
        for token in rng.integers(0, 50, 4000).tolist():
            cache.update([token])
        done.set()

    learner = threading.Thread(target=learn)
    learner.start()
    while not done.is_set():
        drafts = rescore_lattice(logits, [1, 2], None, top_k=8, ngram_cache=cache)
        assert drafts.counts.tolist() == [16]
    learner.join()
    assert len(cache) == 64


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no cache": ({"ngram_cache": 4}, TypeError, "ngram_cache is a int; expected a ContextNGram"),
    "a string": (
        {"ngram_cache": "abc"},
        TypeError,
        "ngram_cache is a str; expected a ContextNGram",
    ),
    "a list of none": (
        {"ngram_cache": [7]},
        TypeError,
        "ngram_cache is a int; expected a ContextNGram",
    ),
    "too many": ({"ngram_cache": [None, None]}, ValueError, "2 caches for 1 lattices"),
    "vocabulary": (
        {"ngram_cache": ContextNGram(9)},
        ValueError,
        "vocabulary of 9 tokens, the LM one of",
    ),
    "lattice": (
        {"ngram_cache": ContextNGram(1), "lm": None},
        ValueError,
        "the cache's vocabulary has 1",
    ),
    "engine": ({"ngram_cache": ContextNGram(4), "engine": "openfst"}, ValueError, 'use "fused"'),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_of_searches_with_a_cache(case: str, small_lm: NGramLM) -> None:
    changes, error, message = BAD[case]
    arguments = {"head_logits": np.zeros((2, 4), np.float32), "context": [], "lm": small_lm}
    with pytest.raises(error, match=message):
        rescore_lattice(**{**arguments, "top_k": 4, **changes})


def test_errors_of_caches(small_lm: NGramLM) -> None:
    for arguments, error, message in [
        (("9",), TypeError, "vocab_size is '9'; expected an integer"),
        ((9, 2.5), TypeError, "order is 2.5"),
        ((0,), ValueError, "vocab_size is 0"),
        ((9, 0), ValueError, r"order is 0; expected 1\.\.6"),
        ((2**40,), ValueError, "below 2"),
    ]:
        with pytest.raises(error, match=message):
            ContextNGram(*arguments)
    with pytest.raises(ValueError, match=r"max_tokens is 3; expected 16\.\."):
        ContextNGram(9, max_tokens=3)
    cache = ContextNGram(9)
    for call, error, message in [
        (lambda: cache.update([1, 9]), ValueError, "token id 9 at position 1"),
        (lambda: cache.update([0.5]), TypeError, "expected integers"),
        (lambda: cache.update([1], "lm"), TypeError, "lm is the path 'lm'; expected an NGramLM"),
        (
            lambda: cache.update([1], small_lm),
            ValueError,
            "vocabulary of 9 tokens, the LM one of 4",
        ),
        (lambda: cache.log_prob(9), ValueError, "token id 9"),
        (lambda: cache.log_prob(1, [-1]), ValueError, "token id -1"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert len(cache) == 0
    assert cache  # an empty cache is still one


def test_cache_is_public_and_documented() -> None:
    assert lattice_bpd.lm.context.ContextNGram is lattice_bpd.lm.ContextNGram
    assert "ContextNGram" in lattice_bpd.lm.__all__
    for name, member in vars(ContextNGram).items():
        if not name.startswith("_"):
            assert (member.fget if isinstance(member, property) else member).__doc__, name

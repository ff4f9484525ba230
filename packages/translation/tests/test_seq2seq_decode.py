"""Encoder-decoders in the loop: what comes out is what the model's own generate writes."""

from __future__ import annotations

import contextlib
import functools
import random

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import CustomGenerate, decode, generate
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.verify import PrefixTree
from lattice_bpd_kim2024.evaluate import record
from lattice_bpd_translation.target import Seq2SeqTarget
from seq2seq_models import (
    KINDS,
    POSITIONS,
    START,
    VOCAB,
    build,
    model_of,
    plain_greedy,
    sources,
)

pytestmark = pytest.mark.filterwarnings("ignore:Katz")

LENGTH = 16


class Guesser:
    """Drafts that are right until a random place: the truth, and wrong turns from it."""

    def __init__(self, truth: list[int], seed: int) -> None:
        self.truth, self.rng, self.done = truth, random.Random(seed), 0

    def observe(self, _state, token_ids):
        self.done += len(token_ids)

    def propose(self, states):
        return [self.draft(state) for state in states]

    def draft(self, state):
        slots = min(state.num_slots, 4)
        right = (self.truth[self.done :] + [0] * slots)[:slots]
        rows = []
        for _ in range(4):
            row, turn = list(right), self.rng.randrange(slots + 1)
            row[turn:] = [self.rng.randrange(VOCAB) for _ in row[turn:]]
            rows.append(row)
        return PrefixTree.from_drafts(state.tokens[-1], rows)


@functools.cache
def greedy_of(kind: str, source: tuple[int, ...]) -> list[int]:
    return plain_greedy(model_of(kind), list(source), LENGTH)


def random_heads(hidden):
    """Four slots of logits that depend on the hidden state."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(hidden.shape[-1], 4 * VOCAB, generator=generator)
    return (hidden @ weight).view(len(hidden), 4, VOCAB)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["greedy", "bpd", "ngram", "p_best", "tree", "mixture"])
def test_every_strategy_writes_what_generate_writes(kind, strategy):
    lm = NGramLM.train([[3, 4, 5, 6, 7] * 20], 2, vocab_size=VOCAB)
    for source in sources(4, seed=1):
        found = generate(
            model_of(kind), source, DraftConfig(strategy, top_k=5), heads=random_heads, lm=lm,
            max_new_tokens=LENGTH,
        )  # fmt: skip
        assert found.token_ids == greedy_of(kind, tuple(source)), source
        assert found.lossless


@pytest.mark.parametrize(
    ("kind", "layout"), [("t5", "rows"), ("bart", "rows"), ("bart", "tree"), ("marian", "tree")]
)
def test_accepted_and_rejected_drafts_leave_no_trace(kind, layout):
    tokens = calls = 0
    for number, source in enumerate(sources(8, seed=2)):
        truth = plain_greedy(model_of(kind), source, LENGTH)
        found = decode(
            model_of(kind), source, Guesser(truth, number), max_new_tokens=LENGTH, layout=layout
        )
        assert found.token_ids == truth
        tokens, calls = tokens + found.stats.tokens, calls + found.stats.target_calls
    assert tokens / calls > 2


@pytest.mark.parametrize("kind", ["bart", "marian"])
def test_batches_of_different_sources_at_different_speeds(kind):
    texts = sources(5, seed=3)
    truths = [plain_greedy(model_of(kind), text, LENGTH) for text in texts]
    for layout in ("tree", "rows"):
        drafters = [Guesser(truth, number) for number, truth in enumerate(truths)]
        found = decode(model_of(kind), texts, drafters, max_new_tokens=LENGTH, layout=layout)
        assert [one.token_ids for one in found] == truths


def test_the_encoder_runs_once():
    calls = []
    model = model_of("bart")
    handle = model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    Seq2SeqTarget(model).refuses_tree()  # tries the layout out, once with these hooks
    calls.clear()
    generate(model, [5, 6, 7], "tree", heads=random_heads, top_k=4, max_new_tokens=12)
    handle.remove()
    assert len(calls) == 1


def test_a_forced_first_token_belongs_to_the_prompt():
    model = build("bart", seed=2)
    model.generation_config.forced_bos_token_id = 7
    assert Seq2SeqTarget(model).decoder_prompt == [START, 7]
    for source in sources(3, seed=5):
        found = generate(model, source, "bpd", heads=random_heads, max_new_tokens=LENGTH - 1)
        assert found.token_ids == plain_greedy(model, source, LENGTH)


def test_which_targets_take_trees(monkeypatch):
    assert Seq2SeqTarget(model_of("bart")).refuses_tree() is None
    assert Seq2SeqTarget(model_of("marian")).refuses_tree() is None
    assert "position" in Seq2SeqTarget(model_of("t5")).refuses_tree()
    monkeypatch.setattr(Seq2SeqTarget, "_at", lambda *_: contextlib.nullcontext())
    assert "does not keep" in Seq2SeqTarget(build("bart", seed=5)).refuses_tree()


def test_blockwise_heads_on_the_decoder():
    torch.manual_seed(0)
    model, heads = model_of("bart"), BlockwiseHeads(32, 4)
    torch.nn.init.normal_(heads.outer_weight)
    truth = plain_greedy(model, [9, 8, 7], LENGTH)
    assert generate(model, [9, 8, 7], "bpd", heads=heads, max_new_tokens=LENGTH).token_ids == truth
    with pytest.raises(ValueError, match="width 16"):
        generate(model, [9], "bpd", heads=BlockwiseHeads(16, 4))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: generate(m, [VOCAB], "greedy"), ValueError, "token id 40"),
        (lambda m: generate(m, [5] * (POSITIONS + 1), "greedy"), ValueError, "positions for 48"),
        (lambda m: Seq2SeqTarget(m, [VOCAB]), ValueError, "decoder_prompt"),
        (lambda m: record(m, [[5]], [[6]]), TypeError, "record: Bart.* is an encoder-decoder"),
        (
            lambda m: m.generate(
                torch.tensor([[5]]), custom_generate=CustomGenerate(), max_new_tokens=4
            ),
            TypeError,
            "CustomGenerate: BartForConditionalGeneration is an encoder-decoder",
        ),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(model_of("bart"))


def test_an_encoder_decoder_names_the_distribution_that_decodes_it(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    expected = "'encoder-decoder' is a kind of target of lattice-bpd-translation; pip install"
    with pytest.raises(ImportError, match=expected):
        generate(model_of("bart"), [5], "greedy")

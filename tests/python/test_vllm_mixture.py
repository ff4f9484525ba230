"""Draft form "mixture" of the vLLM plug-in: sources, heads, texts, steps without drafts."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fake_vllm import (
    SLOTS,
    VOCAB,
    PerfectHeads,
    Request,
    Target,
    config_of,
    draft_freely,
    is_right,
    make_proposer,
    next_token,
    vllm,
)
from lattice_bpd import DraftConfig, _core
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd_vllm import mixture_chains, predictions, step_drafter
from lattice_bpd_vllm import proposer as proposer_module
from lattice_bpd_vllm.batch import DraftBatch
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.proposer import LatticeProposer
from lattice_bpd_vllm.slot_sources import make_source
from lattice_bpd_vllm.targets import TargetInfo

__all__ = ["vllm"]  # a fixture


def test_nothing_is_needed_but_the_text(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty object of options: the text so far is drafted from, past what heads have slots."""
    config = config_of(log_seconds=0)
    config.additional_config = {"lattice_bpd": {}}
    config.speculative_config.num_speculative_tokens = 2 * SLOTS
    proposer = LatticeProposer(config)
    proposer.load_model(Target())
    prompt = list(range(VOCAB)) * 2
    runner = vllm.runner(proposer, [Request(prompt)])
    runner.budget = 2 * SLOTS
    monkeypatch.setattr(proposer, "observe_step", without_states(proposer.observe_step))
    runner.step()  # as long as pays: nothing is measured yet
    draft_freely(proposer, monkeypatch)
    runner.step()
    (request,) = runner.batch
    exact = request.text[-1]
    follows = [b for a, b in itertools.pairwise(prompt) if a == exact]
    assert request.drafts[0] in follows  # what followed the exact token in the text
    assert len(request.drafts) == 2 * SLOTS
    assert proposer.counters.failures == 0
    assert is_right(request)


def without_states(observe: Any) -> Any:
    """Steps whose hidden states must not be read."""
    return lambda step: observe(step._replace(hidden=None))


@pytest.mark.parametrize("with_heads", [False, True])
def test_outputs_are_the_target_s(
    with_heads: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    heads = PerfectHeads() if with_heads else None
    proposer = make_proposer(monkeypatch, "mixture", heads, check=True)
    draft_freely(proposer, monkeypatch)
    requests = [
        Request(rng.integers(0, VOCAB, size=int(rng.integers(2, 9))).tolist(), max_tokens=40,
                unread=int(rng.integers(0, 3)))
        for _ in range(5)
    ]  # fmt: skip
    runner = vllm.runner(proposer, requests)
    for _ in range(24):
        runner.step()
    assert all(map(is_right, requests))
    assert proposer.counters.failures == 0
    assert proposer.counters.accepted_tokens > 0
    if with_heads:  # they know the next SLOTS tokens, which the text does not
        kept = [len(one.text) - len(one.prompt) for one in requests]
        assert sum(kept) / proposer.counters.target_calls > 2.0


class Recorder:
    """A text that keeps the predictions that it is given: what they follow, and their best."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.found = tokens, {}

    def add_predictions(self, length: int, tree: Any, token_ids: Any, log_probs: Any) -> None:
        assert len(tree.token_ids) == len(token_ids) == len(log_probs)
        assert tree.token_ids[0] == self.tokens[length - 1]
        for count in range(1, len(token_ids) + 1):
            after = tuple(self.tokens[: length - 1] + list(tree.token_ids[:count]))
            self.found[after] = token_ids[count - 1, 0], log_probs[count - 1, 0]


def test_predictions_follow_the_tokens_that_were_verified(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Against the target's rule, with requests that read prompts, cut drafts and padding."""
    proposer = make_proposer(monkeypatch, "mixture", None, check=True)
    draft_freely(proposer, monkeypatch)
    assert proposer._drafter._mixture.reads_predictions
    add, found = mixture_chains.add_predictions, []

    def record(texts: Any, step: Any, batch: DraftBatch, vocab_size: int) -> None:
        add(texts, step, batch, vocab_size)
        for request, length in zip(batch.requests, batch.lengths, strict=True):
            found.append(Recorder(step.token_ids[request, :length].tolist()))
        add(found[len(found) - len(batch.requests) :], step, batch, vocab_size)

    monkeypatch.setattr(mixture_chains, "add_predictions", record)
    requests = [
        Request(rng.integers(0, VOCAB, size=7).tolist(), max_tokens=40, unread=int(n % 3))
        for n in range(5)
    ]
    runner = vllm.runner(proposer, requests)
    num_rows = 0
    for _ in range(24):
        num_rows += sum(len(one.drafts) + 1 for one in requests if one.unread == 0)
        runner.step()
        for one in requests:
            if one.drafts and rng.random() < 0.3:
                one.drafts = one.drafts[:2] + [-1] * int(rng.integers(0, 3))
    log_prob = 5.0 - np.log(np.exp(5.0) + VOCAB - 1)
    for one in found:
        for after, (token, score) in one.found.items():
            assert -1 not in after
            assert token == next_token(list(after))
            assert score == pytest.approx(log_prob, abs=1e-5)
    assert num_rows / 2 < sum(len(one.found) for one in found) <= num_rows
    assert all(map(is_right, requests))
    assert proposer.counters.failures == 0


def test_predictions_are_drafts(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in which no token occurred before has drafts from rejected ones."""
    proposer = make_proposer(monkeypatch, "mixture", None, check=True)
    draft_freely(proposer, monkeypatch)
    request = Request([1, 2, 3])
    runner = vllm.runner(proposer, [request])
    runner.step()
    exact = request.text[-1]
    wrong = (next_token(request.text) + 1) % VOCAB
    expected = next_token([*request.text, wrong])  # what the target predicts after the wrong one
    request.drafts = [wrong]
    runner.step()
    text = proposer._drafter._mixture.texts._texts["0"].drafts
    ends = [*request.text, exact, wrong]
    text.append([exact, wrong])
    tree = _core.search_mixtures([text], [1], 1, True)[0]
    assert tree.token_ids[1] == expected, ends


@pytest.mark.parametrize(
    ("sources", "reads"), [(None, True), (("text",), False), (("text", "target"), True)]
)
def test_predictions_are_selected_where_they_are_a_source(
    sources: Any, reads: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    selected: list[int] = []

    def select(logits: Any, *args: Any) -> Any:
        selected.append(len(logits))
        return predictions.select_predictions(logits, *args)

    monkeypatch.setattr(step_drafter, "select_predictions", select)
    made = DrafterParts(None, (), DraftConfig(sources=sources), "mixture", VOCAB)
    monkeypatch.setattr(proposer_module, "load_parts", lambda _: made)
    proposer = LatticeProposer(config_of(log_seconds=0))
    proposer.load_model(Target())
    runner = vllm.runner(proposer, [Request([1, 2, 3])])
    runner.step()
    assert bool(selected) == reads
    selected.clear()
    monkeypatch.setattr(proposer._drafter._mixture, "lengths", Paused())
    runner.step()
    selected.clear()
    runner.step()  # the step before was paused
    assert not selected
    assert proposer.counters.failures == 0


def test_a_release_without_the_method_drafts_without_predictions(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _sample(self: Any, logits: Any, metadata: Any) -> None:
        """Of another release."""

    monkeypatch.setattr(vllm.runner, "_sample", _sample)
    proposer = make_proposer(monkeypatch, "mixture", None, check=True)
    assert not proposer._drafter._mixture.reads_predictions
    runner = vllm.runner(proposer, [Request(list(range(VOCAB)) * 2)])
    draft_freely(proposer, monkeypatch)
    for _ in range(4):
        runner.step()
    assert proposer.counters.draft_tokens > 0
    assert is_right(runner.batch[0])


def test_logits_that_cannot_be_read_cost_drafts_only(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch, "mixture", None)

    def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(step_drafter, "select_predictions", fail)
    runner = vllm.runner(proposer, [Request(list(range(VOCAB)) * 2)])
    for _ in range(4):
        runner.step()
    assert proposer.counters.failures == 4
    assert "planted" in caplog.text
    assert is_right(runner.batch[0])


def test_texts_are_those_of_the_requests(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch, "mixture", None, check=True)
    draft_freely(proposer, monkeypatch)
    mixture = proposer._drafter._mixture
    assert mixture is not None
    requests = [Request([1, 2, 3], unread=1), Request([3, 4]), Request([5, 6])]
    runner = vllm.runner(proposer, requests)
    for is_paused in (False, False, True, False):  # texts get the tokens of a pause later
        monkeypatch.setattr(mixture, "lengths", Paused() if is_paused else None)
        runner.step()
    texts = mixture.texts._texts
    assert {name: len(text.drafts) for name, text in texts.items()} == {
        str(i): len(one.text) for i, one in enumerate(requests)
    }
    requests[1].text = requests[1].text[:3]  # a request of the same name begins again
    runner.step()
    assert len(texts["1"].drafts) == len(requests[1].text)
    for name in ("0", "2"):  # two requests end
        del runner.requests[name]
    runner.batch = requests[1:2]
    runner.step()
    assert list(texts) == ["1"]


@torch.inference_mode()
def test_heads_draft_in_their_own_vocabulary() -> None:
    """Candidates are those of the library's own heads on the same target."""
    torch.manual_seed(0)
    embedding, output = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12, bias=False)
    heads = VocabularyHeads([1, 3, 5, 7, 11], 8, 12, num_slots=3, inner_size=4)
    for weight in heads.parameters():
        weight.normal_()
    hidden, tokens = torch.randn(2, 8), [3, 9]
    base = SimpleNamespace(
        get_input_embeddings=lambda: embedding, get_output_embeddings=lambda: output
    )
    own = copy.deepcopy(heads)
    own.attach(base)
    expected = own.lattice(hidden, torch.tensor(tokens)).cut(2, 5)
    padded = torch.cat([output.weight, torch.zeros(4, 8)])  # as engines keep it
    target = TargetInfo(
        output, 8, 12, torch.float32, torch.device("cpu"), 1, embedding, output_weight=padded
    )
    parts = DrafterParts(heads, (), DraftConfig("mixture"), "mixture", 12)
    batch = DraftBatch([0, 1], tokens, [2, 2], [5, 5])
    found = make_source(parts, target, 2).read(batch, hidden)
    assert torch.equal(found.token_ids, expected.token_ids)  # type: ignore[union-attr]
    torch.testing.assert_close(found.scores, expected.scores)  # type: ignore[union-attr]
    for weight in (None, padded[:6]):  # of another process
        with pytest.raises(ValueError, match="rows of the target's output embedding"):
            make_source(parts, target._replace(output_weight=weight), 2)


# Lengths


class Paused:
    """`DraftLengths` in a pause."""

    def __init__(self, lengths: Any = None) -> None:
        self.observe = lengths.observe if lengths else lambda *_: None
        self._lengths = lengths

    @property
    def is_timing(self) -> bool:
        return self._lengths is not None and self._lengths.is_timing

    def is_paused(self, _: int) -> bool:
        return True


def test_paused_steps_are_counted_and_not_read(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch, "mixture", None, check=True)
    runner, reads = vllm.runner(proposer, [Request([1, 2] * 8, max_tokens=40)]), []
    runner.step()
    read, mixture = proposer._read, proposer._drafter._mixture
    mixture.lengths = Paused(mixture.lengths)
    monkeypatch.setattr(proposer, "_read", lambda *args: reads.append(1) or read(*args))
    for _ in range(4):
        runner.step()
    assert len(reads) == 1  # of the first, for its time
    counters = proposer.counters
    assert (counters.steps, counters.target_calls, counters.tokens) == (5, 5, 5)

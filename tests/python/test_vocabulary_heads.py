"""VocabularyHeads: against formulas by hand, `forward` and `generate` of the target."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lattice_bpd import FormatError
from lattice_bpd.models import VocabularyHeads, load_heads
from lattice_bpd.models import vocabulary_heads as heads_module
from lattice_bpd.train import head_states as states_module
from lattice_bpd.train import vocabulary_heads as training
from lattice_bpd.train.head_states import KeptStates, StateFile
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.train.vocabulary_heads import (
    Positions,
    VocabularyHeadsOptions,
    _cross_entropy,
    _find_distributions,
    find_positions,
    measure_accuracy,
    most_frequent,
    train_vocabulary_heads,
    vary_exchanges,
)
from lattice_bpd.watcher import Watcher
from target_models import VOCAB, build_target, plain_generate

IDS = [3, 50, 7, 21, 9, 60, 33]
SLOTS, WIDTH = 3, 32


def make_heads(*, inner_size: int = 16) -> VocabularyHeads:
    torch.manual_seed(0)
    heads = VocabularyHeads(IDS, WIDTH, VOCAB, num_slots=SLOTS, inner_size=inner_size)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(0.0, 0.3)
    return heads


def logits_by_hand(heads: VocabularyHeads, model: Any, hidden: Any, exact: int) -> Any:
    """(H, V) logits of one state by plain formulas."""
    params = {name: value.detach().double().numpy() for name, value in heads.named_parameters()}
    embedding = model.get_input_embeddings().weight.detach().double().numpy()
    head = model.get_output_embeddings()
    output = head.weight.detach().double().numpy()
    bias = 0.0 if head.bias is None else head.bias.detach().double().numpy()

    def norm(vector: Any) -> Any:
        return vector / np.sqrt((vector**2).mean() + np.finfo(np.float32).eps)

    inputs = np.concatenate([norm(hidden), norm(embedding[exact])])
    logits = np.full((SLOTS, VOCAB), -np.inf)
    for slot in range(SLOTS):
        rows = slice(slot * heads.inner_size, (slot + 1) * heads.inner_size)
        inner = params["inner.weight"][rows] @ inputs + params["inner.bias"][rows]
        inner = inner / (1 + np.exp(-inner))
        outer = params["outer_weight"][slot * WIDTH : (slot + 1) * WIDTH]
        state = hidden + outer @ inner + params["outer_bias"][slot]
        logits[slot, IDS] = (output @ state + bias)[IDS]
    return logits


def test_heads_follow_a_target_that_moves() -> None:
    model, heads = copy.deepcopy(build_target("llama")), make_heads()
    heads.attach(model)
    model.to("meta")
    heads.to("meta")
    hidden, exact = torch.zeros(2, WIDTH, device="meta"), torch.zeros(2, dtype=torch.int64)
    assert heads.draft_logits(hidden, exact.to("meta")).device.type == "meta"


def test_heads_against_formulas() -> None:
    model, heads = build_target("llama"), make_heads()
    heads.attach(model)
    hidden, exact = torch.randn(4, WIDTH), torch.tensor([0, 5, 9, 63])
    logits = heads(hidden, exact)
    assert logits.shape == (4, SLOTS, VOCAB)
    lattice = heads.lattice(hidden, exact)
    for row in range(4):
        expected = logits_by_hand(heads, model, hidden[row].double().numpy(), int(exact[row]))
        np.testing.assert_allclose(logits[row].detach().numpy(), expected, rtol=1e-4, atol=1e-4)
        log_probs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
        order = np.argsort(-log_probs, axis=1)[:, : len(IDS)]
        np.testing.assert_array_equal(lattice.token_ids[row], order)
        np.testing.assert_allclose(
            lattice.scores[row].detach(), np.take_along_axis(log_probs, order, 1), atol=1e-4
        )


@torch.no_grad()
def test_a_single_state_is_read_with_weights_of_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, heads = build_target("llama"), make_heads(inner_size=64)
    heads.attach(model)
    hidden, exact = torch.randn(1, WIDTH), torch.tensor([9])

    def check() -> None:
        expected = logits_by_hand(heads, model, hidden[0].double().numpy(), 9)
        log_probs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
        lattice = heads.lattice(hidden, exact)
        found = np.take_along_axis(log_probs, lattice.token_ids[0].numpy(), 1)
        np.testing.assert_allclose(lattice.scores[0], found, atol=0.02 * np.ptp(found))

    with monkeypatch.context() as patch:
        patch.setattr(heads, "draft_logits", None)  # not called
        check()
        heads.attach(model)  # as each call of `generate` does
        patch.setattr(heads_module, "_core", None)  # not called again
        check()
    for weight in (heads.inner.weight, heads.outer_weight, model.get_output_embeddings().weight):
        weight.mul_(1.5)
        heads.attach(model)
        check()
    model, heads = copy.deepcopy(model), copy.deepcopy(heads)  # another target
    model.get_output_embeddings().weight.neg_()
    model.get_output_embeddings().bias = torch.nn.Parameter(torch.randn(VOCAB))
    heads.attach(model)
    check()
    model.set_input_embeddings(torch.nn.Embedding(VOCAB, WIDTH))  # the output embedding stays
    heads.attach(model)
    check()


def test_files_of_heads(tmp_path: Path) -> None:
    heads = make_heads()
    heads.save_pretrained(tmp_path, build_target("llama"))
    loaded: Any = load_heads(tmp_path)
    assert isinstance(loaded, VocabularyHeads)
    for name, value in heads.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value)
    with pytest.raises(ValueError, match=r"shape \(64, 32\), the target has one of \(64, 24\)"):
        loaded.attach(build_target("rembert"))
    config = json.loads((tmp_path / "heads.json").read_text())
    (tmp_path / "heads.json").write_text(json.dumps({**config, "vocab_size": 40}))
    with pytest.raises(FormatError, match=r"token ids 3\.\.60"):
        load_heads(tmp_path)
    with pytest.raises(ValueError, match=r"7 of 8 distinct"):
        VocabularyHeads([*IDS, 3], WIDTH, VOCAB)


def exchanges_of(model: Any, count: int = 6) -> list[Exchange]:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(6, VOCAB, 2 + number).tolist() for number in range(count)]
    return [
        Exchange(n, prompt, plain_generate(model, prompt)[: 1 + 4 * n])
        for n, prompt in enumerate(prompts)
    ]


def positions_of(states: torch.Tensor, responses: Any, chosen: Any) -> Positions:
    kept = KeptStates(states, np.cumsum([0, *map(len, responses)])[:-1])
    return find_positions(kept, responses, chosen, 2)


def test_states_are_those_of_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "_TOKENS", 50)
    model, path = build_target("llama"), tmp_path / "states"
    exchanges = exchanges_of(model)
    expected = []
    for one in exchanges:
        ids = torch.tensor([one.prompt + one.response])
        hidden = model.base_model(input_ids=ids).last_hidden_state[0]
        expected.append(hidden[len(one.prompt) - 1 : -1])
    read: list[int] = []
    real = states_module._read
    monkeypatch.setattr(
        states_module,
        "_read",
        lambda lm, texts: (read.extend(t.chat for t in texts), real(lm, texts))[1],
    )

    def check(some: list[Exchange], computed: set[int]) -> None:
        """The states of some exchanges in a file that is opened anew, and which are computed."""
        read.clear()
        states = StateFile(path, model).read(some)
        assert set(read) == computed
        assert states.rows.dtype == torch.bfloat16
        for number, one in enumerate(some):
            found = states.of(number, len(one.response)).float()
            torch.testing.assert_close(found, expected[one.chat], rtol=1e-2, atol=1e-2)

    StateFile(path, model).add(exchanges[4].prompt, exchanges[4].response, expected[4])
    check(exchanges[:3], {0, 1, 2})
    check(exchanges[::-1], {3, 5})
    check(exchanges, set())
    last = max(exchanges, key=lambda one: StateFile(path, model).read(exchanges).starts[one.chat])
    os.truncate(path, path.stat().st_size - 1)  # a crash while it was written
    check(exchanges, {last.chat})
    index = Path(f"{path}.jsonl")
    os.truncate(index, index.stat().st_size - 5)
    check(exchanges, {last.chat})
    other = copy.deepcopy(model)
    other.get_output_embeddings().weight.data.mul_(2)
    StateFile(path, other)  # another target begins anew
    check(exchanges, set(range(6)))


def test_positions_have_the_tokens_that_follow() -> None:
    responses = [[5, 6, 7], [8], [9, 10, 11, 12]]
    positions = positions_of(torch.zeros(8, 2), responses, [0, 1, 2])
    assert positions.rows.tolist() == [0, 1, 4, 5, 6]
    assert positions.exact_tokens.tolist() == [5, 6, 9, 10, 11]
    assert positions.labels.tolist() == [[6, 7], [7, -1], [10, 11], [11, 12], [12, -1]]
    assert positions_of(torch.zeros(8, 2), responses, [2]).rows.tolist() == [4, 5, 6]


def test_varied_texts_have_tokens_that_the_target_finds_likely() -> None:
    model, rng, ids = build_target("llama"), np.random.default_rng(0), list(range(10, VOCAB))
    exchanges = [
        Exchange(7 + n, rng.integers(0, 10, before).tolist(), rng.integers(10, 20, after).tolist())
        for n, (before, after) in enumerate([(1, 50), (30, 60), (80, 40), (5, 1)])
    ]
    likely = rng.integers(20, 30, 151)  # by the states, nearly only this token
    likely[:25] = exchanges[0].response[:25]
    weight = model.get_output_embeddings().weight.detach()[torch.from_numpy(likely)]
    rows = (40 * weight / weight.square().sum(dim=1, keepdim=True)).bfloat16()
    states = KeptStates(rows, np.array([0, 50, 110, 150]))
    varied = vary_exchanges(model, exchanges, states, [2, 0, 1], ids)
    assert varied == vary_exchanges(model, exchanges, states, [2, 0, 1], ids)
    assert [one.chat for one in varied] == [9, 7, 8]
    assert [len(one.prompt) for one in varied] == [40, 1, 1]  # the rest counts as response
    new = np.full(151, -1)
    for number, found in zip([2, 0, 1], varied, strict=True):
        one, text = exchanges[number], [*found.prompt, *found.response]
        assert text[: len(one.prompt)] == one.prompt
        start = int(states.starts[number])
        new[start : start + len(one.response)] = text[len(one.prompt) :]
    old = np.array([token for one in exchanges for token in one.response])[:150]
    changed = np.flatnonzero(new[:150] != old)
    assert 0.15 < len(changed) / 150 < 0.35
    assert (new[changed] == likely[changed]).tolist() == (changed >= 25).tolist()
    assert any(changed < 25)  # there the likeliest is the response's own
    assert set(new[changed].tolist()) <= set(ids)


def test_training_learns_what_follows() -> None:
    model = build_target("llama")
    rng = np.random.default_rng(0)
    # the token after the exact one is a function of it, the one after that cannot be known
    successor = rng.permutation(np.arange(10, 20))
    responses = []
    for _ in range(60):
        exact = rng.integers(0, 10, 1)
        responses.append([int(exact[0]) + 10, int(successor[exact[0]]), int(rng.integers(20, 30))])
    rows = model.get_output_embeddings().weight.detach()[torch.tensor(responses).flatten()]
    states = (10 * rows / rows.square().sum(dim=1, keepdim=True)).bfloat16()  # each is certain
    positions = positions_of(states, responses, range(60))
    options = VocabularyHeadsOptions(num_slots=2, inner_size=16, epochs=120, batch_size=32)
    ids = most_frequent(responses, 100)
    heads = train_vocabulary_heads(model, positions, ids, options)
    first = positions_of(states, responses, range(60))
    first = first._replace(
        rows=first.rows[::2], exact_tokens=first.exact_tokens[::2], labels=first.labels[::2]
    )
    accuracy = measure_accuracy(model, heads, first)
    assert accuracy[0] > 0.85
    assert accuracy[1] < 0.6
    again = train_vocabulary_heads(model, positions, ids, options)
    torch.testing.assert_close(again.outer_weight, heads.outer_weight, rtol=0, atol=0)
    with pytest.raises(ValueError, match="no position"):
        train_vocabulary_heads(model, positions_of(states, responses, []), ids, options)


def test_the_gradient_is_that_of_autograd() -> None:
    model, heads = build_target("llama"), make_heads()
    heads.attach(model)
    states = torch.randn(30, WIDTH, requires_grad=True)
    kept = torch.randn(40, WIDTH).bfloat16()  # those that predicted the labels
    labels = torch.randint(-1, 40, (30,))
    rows = model.get_output_embeddings().weight.detach()[IDS]
    wanted = (kept.float() @ rows.T).softmax(dim=1)
    indices, shares = _find_distributions(heads.output_rows(), kept)
    found = torch.zeros(40, len(IDS)).scatter(1, indices.long(), shares.float())
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.005)  # bfloat16
    loss, gradients = _cross_entropy(heads, states.detach(), labels, indices, shares)
    known = labels >= 0
    expected = torch.nn.functional.cross_entropy(states[known] @ rows.T, wanted[labels[known]])
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=0.02)  # bfloat16
    scale = float(states.grad.abs().max())
    torch.testing.assert_close(gradients, states.grad, rtol=0.05, atol=0.02 * scale)
    assert bool((gradients[~known] == 0).all())


class Interrupted(Watcher):
    """Counts steps; Ctrl-C after one of them."""

    def __init__(self, after: int = -1) -> None:
        self.after, self.steps = after, 0

    def advance(self, *_: Any, **__: Any) -> None:
        self.steps += 1
        if self.steps == self.after:
            raise KeyboardInterrupt


def random_positions() -> Positions:
    torch.manual_seed(3)
    labels = torch.tensor(IDS)[torch.randint(len(IDS), (100, SLOTS))]
    states = torch.randn(100 + SLOTS, WIDTH).bfloat16()
    return Positions(states, torch.arange(100), torch.randint(VOCAB, (100,)), labels)


@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupted_training_ends_with_the_same_bits(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, positions, file = build_target("llama"), random_positions(), tmp_path / "checkpoint"
    options = VocabularyHeadsOptions(num_slots=SLOTS, inner_size=8, epochs=4, batch_size=32)
    whole = train_vocabulary_heads(model, positions, IDS, options)
    watcher = Interrupted(after=7)
    if inside:  # the interrupt comes while the gradients of step 8 are computed

        def interrupt(*_args: Any) -> Any:
            if watcher.steps == 7:
                raise KeyboardInterrupt
            return _cross_entropy(*_args)

        watcher.after = -1
        monkeypatch.setattr(training, "_cross_entropy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_vocabulary_heads(model, positions, IDS, options, watcher, file)
    monkeypatch.undo()
    again = Interrupted()
    resumed = train_vocabulary_heads(model, positions, IDS, options, again, file)
    assert (watcher.steps, again.steps) == (7, 6)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    finished = Interrupted()
    taken = train_vocabulary_heads(model, positions, IDS, options, finished, file)
    assert finished.steps == 0
    assert torch.equal(taken.outer_weight, whole.outer_weight)
    others = Interrupted()  # another text
    other = positions._replace(labels=positions.labels.flip(0))
    train_vocabulary_heads(model, other, IDS, options, others, file)
    assert others.steps == 13
    file.write_bytes(b"half of it")
    with pytest.raises(FormatError, match="checkpoint: the checkpoint cannot be used"):
        train_vocabulary_heads(model, positions, IDS, options, None, file)

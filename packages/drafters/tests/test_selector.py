"""Low-rank selectors: training on heads and block drafters, files, and decoding with them."""

from __future__ import annotations

import copy
import functools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from block_drafters import build_drafter
from blockwise_models import HEADS, VOCAB, random_model
from lattice_bpd import FormatError
from lattice_bpd.decode import DecodeState, DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.models import CallableHeads
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import SelectorConfig
from lattice_bpd_drafters.features import read_features
from lattice_bpd_drafters.medusa import MedusaHeads
from lattice_bpd_drafters.selector import (
    CandidateSelector,
    SelectorHeads,
    candidates_of,
    greedy_walk,
)
from lattice_bpd_drafters.selector_run import train_selector
from lattice_bpd_drafters.selector_texts import Pieces, SelectorOptions, slots_of
from lattice_bpd_drafters.selector_training import (
    ScoreCounter,
    SelectorTrainer,
    cross_entropies,
    weighted_mean,
)

SLOTS = HEADS - 1
QUICK = SelectorOptions(
    rank=24, top_k=VOCAB, steps=60, batch_size=8, anchors=24, learning_rate=0.05, warmup=5
)


def texts(count: int = 40, length: int = 30) -> list[np.ndarray]:
    """Each token follows from the one before it, of which random heads know nothing."""
    starts = np.random.default_rng(0).integers(0, VOCAB - 1, count)
    found = [[int(start)] for start in starts]
    for row in found:
        while len(row) < length:
            row.append((row[-1] * 5 + 3) % (VOCAB - 1))
    return [np.array(row, np.int32) for row in found]


def random_selector(num_slots: int | None, top_k: int = 6) -> CandidateSelector:
    torch.manual_seed(7)
    config = SelectorConfig(rank=5, top_k=top_k)
    selector = CandidateSelector(config, VOCAB, 32, num_slots=num_slots)
    with torch.no_grad():
        for weight in selector.parameters():
            weight.normal_()
    return selector.eval()


@functools.cache
def drafter() -> tuple[BlockDrafter, Any]:
    """A random drafter and its target."""
    made = build_drafter(hidden_layers=(0, 1))
    torch.manual_seed(0)
    target = random_model("llama").base
    made.attach(target)
    return made, target


@pytest.mark.parametrize("kind", ["heads", "medusa", "drafter"])
def test_what_follows_from_the_token_before_is_learned(kind):
    target = random_model("llama").base
    if kind == "drafter":
        heads, target = drafter()
    else:
        medusa = MedusaHeads.from_target(target, SLOTS)
        heads = random_model("llama").heads if kind == "heads" else medusa
    before = copy.deepcopy([target.state_dict(), heads.state_dict()])
    trained = train_selector(target, heads, texts(), QUICK)
    scores = trained.scores
    assert scores.coverage == (1.0,) * heads.num_slots
    assert max(scores.accuracy_before) < 0.3
    assert min(scores.accuracy) > 0.8
    assert scores.accept_length > scores.accept_length_before + 1.0
    assert scores.blocks > 0
    assert len(trained.losses) == QUICK.steps
    assert trained.losses[-1] < 0.5 * trained.losses[0]
    assert not trained.selector.training
    for old, new in zip(before, [target.state_dict(), heads.state_dict()], strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert all(weight.grad is None for weight in [*target.parameters(), *heads.parameters()])


def test_training_depends_on_the_seed_only():
    model = random_model("llama")
    model.heads.train()
    options = replace(QUICK, steps=4)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(runs))
        state = torch.get_rng_state()
        runs.append(train_selector(model.base, model.heads, texts(), replace(options, seed=seed)))
        assert torch.equal(torch.get_rng_state(), state)
    assert model.heads.training
    model.heads.eval()
    assert runs[0].losses == runs[1].losses
    assert runs[0].scores == runs[1].scores
    for name, weight in runs[0].selector.state_dict().items():
        assert torch.equal(weight, runs[1].selector.state_dict()[name])
        assert not torch.equal(weight, runs[2].selector.state_dict()[name]), name


@pytest.mark.parametrize("num_slots", [None, SLOTS])
def test_an_untrained_selector_leaves_the_heads_as_they_are(num_slots):
    selector = CandidateSelector(SelectorConfig(5, 6), VOCAB, 32, num_slots=num_slots)
    logits = torch.randn(2, SLOTS, VOCAB)
    slots = candidates_of(logits, torch.randn(2, SLOTS, 32), torch.tensor([1, 2]), 6)
    lattice = selector(slots)
    assert torch.equal(lattice.start, slots.logits[:, 0])
    assert torch.equal(lattice.transitions, slots.logits[:, 1:, None].expand(-1, -1, 6, -1))
    selector.row_scores(slots, torch.ones(2, SLOTS, dtype=torch.int64)).square().sum().backward()
    assert selector.successor_codebook.grad.abs().max() > 0  # not a saddle


def test_scores_with_vectors_of_slots_are_those_of_the_formula():
    selector = random_selector(SLOTS)
    logits, states = torch.randn(2, SLOTS, VOCAB), torch.randn(2, 1, 32)
    anchors = torch.tensor([4, 9])
    slots = candidates_of(logits, states, anchors, 6)
    previous = torch.randint(VOCAB, (2, SLOTS))
    with torch.no_grad():
        lattice, rows = selector(slots), selector.row_scores(slots, previous)
    weights = {name: weight.double() for name, weight in selector.state_dict().items()}
    for b in range(2):
        projected = weights["hidden_projection.weight"] @ states[b, 0].double()
        for j in range(SLOTS):
            gate = projected + weights["slot_gates"][j]

            def score(a: int, i: int, gate=gate, b=b, j=j) -> float:
                token = int(slots.token_ids[b, j, i])
                left, right = (weights[f"{name}_codebook"] for name in ("predecessor", "successor"))
                pair = float((left[a] * gate * right[token]).sum())
                return float(logits[b, j, token]) + pair

            for i in range(6):
                assert float(rows[b, j, i]) == pytest.approx(score(previous[b, j], i), abs=1e-4)
                if j == 0:
                    assert float(lattice.start[b, i]) == pytest.approx(
                        score(anchors[b], i), abs=1e-4
                    )
                    continue
                for a in range(6):
                    found = float(lattice.transitions[b, j - 1, a, i])
                    before = int(slots.token_ids[b, j - 1, a])
                    assert found == pytest.approx(score(before, i), abs=1e-4)


def test_the_loss_leaves_out_labels_that_are_no_candidates():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, SLOTS, VOCAB, generator=generator)
    slots = candidates_of(logits, torch.zeros(3, 1, 32), torch.zeros(3, dtype=torch.int64), 6)
    scores = torch.randn(3, SLOTS, 6, generator=generator)
    labels = slots.token_ids[:, :, 2].clone()
    worst = logits.argmin(dim=-1)
    labels[0, 1], labels[2, 0], labels[1, 3] = worst[0, 1], worst[2, 0], -1
    weights = torch.tensor([1.0, 0.5, 0.25, 0.125])
    total = share = 0.0
    for n in range(3):
        for j in range(SLOTS):
            if (n, j) in ((0, 1), (2, 0), (1, 3)):
                continue
            row = scores[n, j].tolist()
            nats = math.log(sum(math.exp(value) for value in row)) - row[2]
            total += float(weights[j]) * nats
            share += float(weights[j])
    nats, covered = cross_entropies(scores, slots, labels)
    found = weighted_mean(nats, weights * covered)
    assert float(found) == pytest.approx(total / share, rel=1e-5)
    nats, covered = cross_entropies(scores, slots, torch.full_like(labels, -1))
    nothing = weighted_mean(nats, weights * covered)
    assert float(nothing) == 0.0


@pytest.mark.parametrize("first", [1, 6])
def test_blocks_hold_the_tokens_around_their_anchors(first):
    options = replace(QUICK, first_position=first, anchors=9)
    rows = [np.arange(number, number + 7 + 3 * number) for number in range(6)]
    pieces = Pieces(rows, options, 12, VOCAB)
    longest = len(rows[-1])
    assert sum(len(piece) for piece, _ in pieces.training + pieces.validation) <= sum(
        map(len, rows)
    )
    assert any(one == 1 for _, one in pieces.training) or first == 1  # later pieces of a text
    which = list(range(len(pieces.training)))
    blocks = pieces.sample(which, SLOTS, torch.Generator().manual_seed(0), held_out=False)
    assert blocks.token_ids.shape[1] == 12 < longest
    for row, number in enumerate(which):
        piece, earliest = pieces.training[number]
        chosen = []
        parts = [part[row].tolist() for part in (blocks.anchors, blocks.previous, blocks.labels)]
        for anchor, before, labels in zip(*parts, strict=True):
            if labels[0] == -1:
                assert labels == [-1] * SLOTS
                continue
            chosen.append(anchor)
            rest = piece[anchor + 1 : anchor + 1 + SLOTS].tolist()
            assert labels == rest + [-1] * (SLOTS - len(rest))
            assert before[: len(rest)] == piece[anchor : anchor + len(rest)].tolist()
        assert len(set(chosen)) == len(chosen) == min(9, len(piece) - 1 - earliest)
        assert all(earliest <= anchor < len(piece) - 1 for anchor in chosen)


def test_held_out_texts_are_not_trained_on():
    rows = [np.full(8, number) for number in range(20)]
    pieces = Pieces(rows, replace(QUICK, validation_fraction=0.2), 256, VOCAB)
    parts = [{int(piece[0]) for piece, _ in part} for part in (pieces.training, pieces.validation)]
    assert len(parts[1]) == 4
    assert parts[0] | parts[1] == set(range(20))
    assert not parts[0] & parts[1]


def state_of(model: DraftingModel, tokens: list[int], hidden: torch.Tensor) -> DecodeState:
    return DecodeState(model, tokens, len(tokens), hidden, 8, DecodeStats())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_training_and_decoding_see_the_same_slots(kind):
    model = random_model(kind)
    selector = random_selector(SLOTS)
    heads = SelectorHeads(model.heads, selector)
    ids = torch.tensor(np.stack(texts(3, 14)), dtype=torch.int64)
    anchors = torch.tensor([[3], [7], [12]])
    slots = slots_of(model.base, model.heads).read(ids, anchors, 6)
    with torch.inference_mode():
        hidden = model.hidden_states(ids)
    drafting = DraftingModel(model, heads)
    states = [
        state_of(drafting, row[: anchor + 1].tolist(), hidden[number, anchor - 1])
        for number, (row, (anchor,)) in enumerate(zip(ids, anchors.tolist(), strict=True))
    ]
    found = drafting.read_heads(states)
    expected = selector(slots)
    assert torch.equal(found.token_ids, expected.token_ids)
    for field in ("scores", "start", "transitions"):
        torch.testing.assert_close(getattr(found, field), getattr(expected, field))
    assert (found.unary, found.normalization) == ("included", "local")


def test_a_drafter_with_its_selector_is_a_dflash2_drafter(tmp_path):
    made, target = drafter()
    made = copy.deepcopy(made)
    made.attach(target)
    selector = random_selector(None)
    ids = torch.tensor(np.stack(texts(2, 14)), dtype=torch.int64)
    slots = slots_of(target, made).read(ids, torch.tensor([[9], [9]]), 6)
    made.use_selector(selector)
    made.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["architectures"] == ["DFlash2DraftModel"]
    loaded = BlockDrafter.from_pretrained(tmp_path)
    loaded.attach(target)
    expected = selector(slots)
    features = read_features(target, ids, loaded.hidden_layers).features
    for one in (made, loaded):
        cache = one.new_cache(2)
        one.append(cache, features[:, :9], [9, 9])
        found = one.lattice(cache, ids[:, 9])
        assert torch.equal(found.token_ids, expected.token_ids)
        torch.testing.assert_close(found.transitions, expected.transitions, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.start, expected.start, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"num_slots \(48, 32, 4\); expected \(48, 32, None\)"):
        made.use_selector(random_selector(SLOTS))


def test_accept_lengths_are_those_of_the_walk():
    model = random_model("llama")
    trained = train_selector(model.base, model.heads, texts(), QUICK)
    options = replace(QUICK, anchors=100)
    pieces = Pieces(texts(), options, 256, VOCAB)
    lengths = []
    reader = slots_of(model.base, model.heads)
    for piece, first in pieces.validation:
        for anchor in range(first, len(piece) - SLOTS):
            ids = torch.from_numpy(piece)[None]
            slots = reader.read(ids, torch.tensor([[anchor]]), QUICK.top_k)
            lattice = trained.selector(slots)
            path = greedy_walk(lattice.start, lattice.transitions)[0]
            walked = [int(slots.token_ids[0, j, i]) for j, i in enumerate(path.tolist())]
            labels = piece[anchor + 1 : anchor + 1 + SLOTS].tolist()
            wrong = [j for j in range(SLOTS) if walked[j] != labels[j]]
            lengths.append(min(wrong, default=SLOTS))
    exact = train_selector(model.base, model.heads, texts(), options=options, watcher=None)
    assert exact.scores.blocks == len(lengths)
    counter = ScoreCounter(trained.selector)
    blocks = pieces.sample(range(len(pieces.validation)), SLOTS, torch.Generator(), held_out=True)
    counter.add(*SelectorTrainer(model.base, model.heads, texts(), QUICK).read(blocks))
    scores = counter.scores()
    assert scores.blocks == len(lengths)
    assert scores.accept_length == pytest.approx(np.mean(lengths))


def test_files(tmp_path):
    for num_slots in (None, SLOTS):
        saved = random_selector(num_slots)
        saved.save_pretrained(tmp_path)
        loaded = CandidateSelector.from_pretrained(tmp_path)
        assert (loaded.config, loaded.num_slots) == (saved.config, num_slots)
        assert loaded.state_dict().keys() == saved.state_dict().keys()
        for name, weight in saved.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], weight)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["candidate_selector.json", "candidate_selector.safetensors"]
    path = tmp_path / "candidate_selector.json"
    content = json.loads(path.read_text())
    for change, message in (
        ({"rank": 6}, "weights cannot be read"),
        ({"num_slots": 0}, "weights cannot be read"),
        ({"top_k": 0}, "top_k is 0, expected an integer of 1"),
        ({"format": "x"}, "is not a"),
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(FormatError, match=message):
            CandidateSelector.from_pretrained(tmp_path)


BAD_OPTIONS = [
    ({"rank": 0}, "rank is 0; expected 1"),
    ({"top_k": VOCAB + 1}, "top_k is 49; expected 1..48"),
    ({"steps": 0}, "steps is 0"),
    ({"sequence_length": 2}, "sequence_length is 2; expected 3"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0"),
    ({"gamma": -1.0}, "gamma is -1.0"),
    ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
    ({"first_position": 29}, "0 texts have 31 tokens or more"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_OPTIONS)
def test_options_out_of_range(changes, message):
    model = random_model("llama")
    with pytest.raises(ValueError, match=message):
        train_selector(model.base, model.heads, texts(), replace(QUICK, **changes))


BAD_TEXTS = [
    ([[1, 2, 3]], "1 texts have 3 tokens or more; expected 2"),
    ([[1, 2, 3], [1, VOCAB, 3]], r"text 1 has ids 1\.\.48; expected 0\.\.47"),
    ([[1, 2, 3], [[1, 2, 3]]], r"text 1 has shape \(1, 3\)"),
    ([[1, 2, 3], [1.0, 2.0, 3.0]], "type float64"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_TEXTS)
def test_texts_that_cannot_be_used(rows, message):
    model = random_model("llama")
    with pytest.raises(ValueError, match=message):
        train_selector(model.base, model.heads, rows, QUICK)


def test_heads_that_cannot_be_used():
    model = random_model("llama")
    with pytest.raises(TypeError, match="heads is a int"):
        train_selector(model.base, 3, texts(), QUICK)  # type: ignore[arg-type]
    made, _ = drafter()
    with pytest.raises(ValueError, match=r"by drafter\.use_selector"):
        SelectorHeads(made, random_selector(None))
    with pytest.raises(ValueError, match=r"\(48, 32, None\); expected \(48, 32, 4\)"):
        SelectorHeads(model.heads, random_selector(None))
    huge = CallableHeads(lambda hidden: torch.full((len(hidden), 2, VOCAB), torch.nan), 2)
    with pytest.raises(ValueError, match="losses at step 1"):
        train_selector(model.base, huge, texts(), QUICK)

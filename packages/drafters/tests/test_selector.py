"""Low-rank selectors: training on heads and block drafters, files, and decoding with them."""

from __future__ import annotations

import copy
import functools
import json
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
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_drafters.selector import (
    CandidateSelector,
    SelectorHeads,
    candidates_of,
)
from lattice_bpd_drafters.selector_run import train_selector
from lattice_bpd_drafters.selector_texts import Pieces, SelectorOptions, slots_of

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
    ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
    ({"first_position": 29}, "0 texts have 31 tokens or more"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_OPTIONS)
def test_options_out_of_range(changes, message):
    model = random_model("llama")
    with pytest.raises(ValueError, match=message):
        train_selector(model.base, model.heads, texts(), replace(QUICK, **changes))


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

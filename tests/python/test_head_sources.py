"""Head sources of the core: BlockwiseHeads alone, heads in turn, functions."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, looping_text, model_of
from lattice_bpd import FormatError
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM, CallableHeads, SequentialHeads
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise

WIDTH = 32


def test_blockwise_heads_alone_are_saved_and_loaded(tmp_path):
    heads = model_of("gpt2").heads
    heads.save_pretrained(tmp_path)
    loaded = BlockwiseHeads.from_pretrained(tmp_path)
    assert (loaded.num_heads, loaded.vocab_size) == (HEADS, VOCAB)
    assert torch.equal(loaded.outer_weight, heads.outer_weight)
    path = tmp_path / "blockwise_heads.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": -1}))
    with pytest.raises(FormatError, match="vocab_size is -1, expected an integer of 1 or more"):
        BlockwiseHeads.from_pretrained(tmp_path)


class MtpStep(nn.Module):
    """One depth of multi-token prediction: joins state and embedding, then a small network."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.join = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth))

    def forward(self, states, embeddings, slot):
        both = torch.cat([F.normalize(states, dim=-1), F.normalize(embeddings, dim=-1)], dim=-1)
        return states + F.silu(self.join[slot](both))


def test_heads_in_turn_see_state_and_token_before_them():
    base, step = model_of("llama").base, MtpStep(3)
    heads = SequentialHeads(step, 3, base)
    hidden, exact = torch.randn(4, WIDTH), torch.tensor([5, 0, 47, 9])
    embed, project = base.get_input_embeddings(), base.get_output_embeddings()
    with torch.inference_mode():
        logits = heads(hidden, exact)
        for row in range(4):
            state, token = hidden[row : row + 1], exact[row : row + 1]
            for slot in range(3):
                state = step(state, embed(token), slot)
                torch.testing.assert_close(logits[row, slot], project(state)[0])
                token = project(state).argmax(-1)
        assert torch.equal(heads(hidden), heads(hidden, project(hidden).argmax(-1)))
    assert not any("_target" in name for name, _ in heads.named_parameters())
    assert heads(hidden[0]).shape == (3, VOCAB)


def test_sources_that_do_not_fit_are_refused(tmp_path):
    base = model_of("llama").base
    with pytest.raises(TypeError, match=r"heads is a function; .*CallableHeads\(function, num_slo"):
        BlockwiseLM(base, heads=lambda hidden: hidden)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 48\) .*expected \(1, 3, V\)"):
        BlockwiseLM(base, heads=CallableHeads(lambda hidden: hidden.new_zeros(1, 2, VOCAB), 3))
    with pytest.raises(ValueError, match="vocabulary of 9, the target one of 48"):
        BlockwiseLM(base, heads=CallableHeads(lambda hidden: hidden.new_zeros(1, 3, 9), 3))
    for kind in (CallableHeads, lambda f, n: SequentialHeads(f, n, base)):
        with pytest.raises(ValueError, match="num_slots is 0; expected 1 or more"):
            kind(np.array, 0)
    model = BlockwiseLM(base, heads=CallableHeads(lambda states: states.new_zeros(1, 3, VOCAB), 3))
    with pytest.raises(TypeError, match="CallableHeads, which have no file format"):
        model.save_pretrained(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="the heads are CallableHeads; expected BlockwiseHeads"):
        train_blockwise(model, looping_text(), TrainOptions(steps=1, sequence_length=8))

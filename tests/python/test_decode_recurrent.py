"""Targets that keep recurrent or convolution states: chains, rolled back without extra calls."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.verify import CausalLMTarget, PrefixTree, verify_trees
from lattice_bpd.verify.recurrent_cache import RecurrentCache, find_mixers
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from target_models import COUNT, PROMPTS, RECURRENT, VOCAB, build_target, generated, planted

OPTIONS = {"max_new_tokens": COUNT}
ONE_BY_ONE = {"nemotron_h", "mamba", "jamba"}  # their scans start from an empty state


@pytest.mark.parametrize("kind", RECURRENT)
def test_output_is_that_of_generate(kind):
    model, outputs = build_target(kind), generated(kind)
    for number, drafter in enumerate(planted(kind)):
        greedy = decode(model, PROMPTS[number], NoDrafter(), **OPTIONS)
        assert (greedy.token_ids, greedy.stats.target_calls) == (outputs[number], COUNT)
        result = decode(model, PROMPTS[number], drafter, **OPTIONS)
        assert result.token_ids == outputs[number]
        assert result.stats.target_calls < 0.6 * COUNT
        assert result.notes == []
    assert find_mixers(CausalLMTarget(model)).one_by_one == (kind in ONE_BY_ONE)


@pytest.mark.parametrize("kind", RECURRENT)
def test_states_after_a_rejected_draft_are_those_of_the_accepted_tokens(kind):
    model, (output, *_) = build_target(kind), generated(kind)
    target = CausalLMTarget(model)
    with torch.inference_mode():
        _, cache = target.read_prompts(torch.tensor([PROMPTS[0]]))
        state = RecurrentCache(cache, 13)
        draft = [*output[1:3], (output[3] + 1) % VOCAB, 5]
        tree = PrefixTree.from_drafts(output[0], [draft])
        first = verify_trees(target, state, [tree]).sequences[0]
        assert (first.token_ids, first.accept_length) == (output[1:4], 2)
        assert (state.lengths, state.pending) == ([16], output[1:3])
        ids, positions, _ = state.lay_out([PrefixTree([output[3]], [-1])], target.device)
        second = state.read(target, ids, positions)
        assert state.lengths == [16]
        ids = torch.tensor([[*PROMPTS[0], *output[:4]]])
        wanted, _ = target.read_prompts(ids)
    torch.testing.assert_close(second.logits[:, 2:], wanted.logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(second.hidden[:, 2:], wanted.hidden, rtol=1e-3, atol=1e-3)


def test_what_states_cannot_do_is_refused_with_the_reason():
    model = build_target("qwen3_5")
    with pytest.raises(ValueError, match="keeps a recurrent state, which cannot skip padding"):
        decode(model, PROMPTS, NoDrafter())
    with pytest.raises(ValueError, match=r"'tree' is not possible: .*which cannot branch"):
        decode(model, PROMPTS[0], NoDrafter(), layout="tree")
    with pytest.raises(ValueError, match="Qwen3_5ForCausalLM keeps a recurrent state"):
        DraftModelDrafter(model)


def test_mixers_that_read_wrongly_in_every_way_are_refused(monkeypatch):
    from lattice_bpd.verify import recurrent_cache, rounding

    monkeypatch.setattr(recurrent_cache, "facts_of", lambda _: {})
    monkeypatch.setattr(rounding, "logits_match", lambda *_: False)
    with pytest.raises(ValueError, match="cannot be rolled back: several tokens read in one call"):
        decode(build_target("mamba2"), PROMPTS[0], NoDrafter())


def test_a_mixer_probe_without_memory_is_tried_again(monkeypatch):
    from lattice_bpd.verify import recurrent_cache

    facts = {}
    monkeypatch.setattr(recurrent_cache, "facts_of", lambda _: facts)
    model = build_target("lfm2")
    target, read = CausalLMTarget(model), model.base_model.forward

    def full(*args, input_ids=None, **options):
        if input_ids is not None and input_ids.shape[1] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return read(*args, input_ids=input_ids, **options)

    monkeypatch.setattr(model.base_model, "forward", full)
    with pytest.raises(MemoryError, match=r"no memory to test .*9 GiB.*free some"):
        find_mixers(target)
    monkeypatch.setattr(model.base_model, "forward", read)
    assert not find_mixers(target).one_by_one

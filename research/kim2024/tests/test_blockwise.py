"""BlockwiseLM, its files, and heads that do not fit it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, build_base, looping_text, model_of
from lattice_bpd.decode import generate
from lattice_bpd.models import VocabularyHeads
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_save_and_load_give_the_same_model(kind, tmp_path):
    model = model_of(kind)
    model.save_pretrained(tmp_path / "model")
    loaded = BlockwiseLM.from_pretrained(tmp_path / "model")
    with torch.inference_mode():
        before, after = (one.hidden_states(ids(1, 5)) for one in (model, loaded))
        assert torch.equal(model.output_embedding(before), loaded.output_embedding(after))
        assert torch.equal(model.head_logits(before), loaded.head_logits(after))
    assert not loaded.training
    assert not list((tmp_path / "model").glob(".saving*"))  # temporary files are gone
    model.save_pretrained(tmp_path / "model")  # over what is there


def test_what_cannot_be_attached_is_refused():
    with pytest.raises(ValueError, match=r"shape \(4,\); expected \(batch, tokens\)"):
        model_of("gpt2").hidden_states(ids(4))
    with pytest.raises(TypeError, match="no output embedding"):
        BlockwiseLM(model_of("gpt2").base.transformer)
    encoder_decoder = build_base("llama")
    encoder_decoder.config.is_encoder_decoder = True
    with pytest.raises(TypeError, match="is an encoder-decoder; expected a decoder-only"):
        BlockwiseLM(encoder_decoder)


def test_generate_does_not_leave_out_its_heads():
    model = model_of("llama")
    with pytest.raises(TypeError, match=r"around a LlamaForCausalLM.* or give the inner model"):
        generate(model, [3, 5, 7], max_new_tokens=4)
    assert len(generate(model.base, [3, 5, 7], heads=model.heads, max_new_tokens=4).token_ids) == 4


class ReadMore:
    """Heads that read more than a hidden state."""

    as_draft_heads = None


def test_heads_that_do_not_fit_are_refused():
    base = model_of("llama").base
    heads = VocabularyHeads([3, 40, 7], 32, VOCAB, num_slots=3, inner_size=16)
    model = BlockwiseLM(base, heads=heads)
    assert model.head_logits(torch.ones(2, 32)).shape == (2, 3, VOCAB)
    with pytest.raises(TypeError, match="the heads are VocabularyHeads; expected BlockwiseHeads"):
        train_blockwise(model, looping_text(), TrainOptions(steps=1, sequence_length=8))
    with pytest.raises(TypeError, match="decode with generate"):
        BlockwiseLM(base, heads=ReadMore()).head_logits(torch.ones(2, 32))

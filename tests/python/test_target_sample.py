"""Heads that were trained on the weights of another model of the same sizes give a warning."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM

from blockwise_models import looping_text, random_model, trained_model
from lattice_bpd import FormatError
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseHeads, OtherTargetWarning, load_heads
from lattice_bpd.models.head_files import TargetSample

PROMPT = looping_text(12, seed=5).tolist()


def fine_tuned(base, share: float = 0.05):
    """Every weight moves by a normal number, `share` of the mean size of its matrix."""
    torch.manual_seed(7)
    other = copy.deepcopy(base)
    with torch.no_grad():
        for weight in other.parameters():
            weight += share * weight.abs().mean() * torch.randn_like(weight)
    return other


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`model`: trained; `tuned`: fine-tuned; `heads`: of `model`; `old`: without its sample."""
    path = tmp_path_factory.mktemp("targets")
    model = trained_model()
    model.base.save_pretrained(path / "model")
    fine_tuned(model.base).save_pretrained(path / "tuned")
    named = AutoModelForCausalLM.from_pretrained(path / "model")
    model.heads.save_pretrained(path / "heads", named)
    model.heads.save_pretrained(path / "old")
    return path


def test_a_fine_tuned_model_gives_one_warning_and_its_own_output(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "tuned")
    heads = load_heads(folder / "heads")
    with pytest.warns(OtherTargetWarning) as given:
        results = [generate(model, PROMPT, "bpd", heads=heads, max_new_tokens=20) for _ in range(2)]
    message = str(given[0].message)
    assert len(given) == 1
    assert "decode: the heads were trained on 'model', and the weights of 'tuned'" in message
    assert "The output stays the model's own, but fewer draft tokens are accepted;" in message
    ids = torch.tensor([PROMPT])
    greedy = model.generate(ids, max_new_tokens=20, do_sample=False)[0, len(PROMPT) :]
    assert [result.token_ids for result in results] == [greedy.tolist()] * 2


@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loaded", [torch.float32, torch.bfloat16, torch.float16])
def test_casts_are_no_difference(saved, loaded):
    for base in (trained_model().base, random_model("llama").base):
        sample = TargetSample.of(copy.deepcopy(base).to(saved))
        read = TargetSample.from_json(json.loads(json.dumps(sample.to_json())), Path("x"))
        for history in (loaded, saved):  # cast from the original, or from what was saved
            other = copy.deepcopy(base).to(history).to(loaded)
            assert read.find_differences(other) == []
            assert read.find_differences(other.float()) == []


def test_heads_without_a_sample_and_unreadable_weights_give_no_warning(folder):
    tuned = AutoModelForCausalLM.from_pretrained(folder / "tuned")
    generate(tuned, PROMPT, heads=load_heads(folder / "old"), max_new_tokens=2)
    sample, base = TargetSample.of(trained_model().base), fine_tuned(trained_model().base)
    assert sample.find_differences(base)
    unreadable = copy.deepcopy(base).to(torch.float8_e4m3fn)
    assert TargetSample.of(unreadable) is None
    assert sample.find_differences(unreadable) == []
    base.config.quantization_config = {"quant_method": "awq"}
    assert TargetSample.of(base) is None
    assert sample.find_differences(base) == []


@pytest.mark.parametrize("content", [3, {"name": "a", "weights": {"w": "1 2 3 four"}},
                                     {"name": "a", "weights": {"w": "1 2 3"}}])  # fmt: skip
def test_a_damaged_sample_is_an_error(folder, tmp_path, content):
    load_heads(folder / "heads").save_pretrained(tmp_path)
    path = tmp_path / "blockwise_heads.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "trained_on": content}))
    with pytest.raises(FormatError, match=r"blockwise_heads.json: trained_on is .*expected a name"):
        BlockwiseHeads.from_pretrained(tmp_path)

"""Models that read images: the model reads the prompt itself, what follows is drafted."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd.decode import CustomGenerate, generate
from planted_drafts import PlantedDrafts
from vision_models import IMAGE, KINDS, RECURRENT, VOCAB, build_vision_model, image_inputs

NEW = 20
PROMPTS = [[3, IMAGE, 5, 6, 7], [IMAGE, 9], [1, 2, IMAGE, 4, 11, 12, 13, 14, 15]]


@functools.cache
def vision_model(kind: str):
    return build_vision_model(kind)


def plain(kind: str, inputs: dict) -> list[list[int]]:
    output = vision_model(kind).generate(**inputs, do_sample=False, max_new_tokens=NEW)
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def ours(kind: str, inputs: dict, method: CustomGenerate) -> list[list[int]]:
    output = vision_model(kind).generate(
        **inputs, do_sample=False, max_new_tokens=NEW, custom_generate=method
    )
    return output[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("kind", [*KINDS, RECURRENT])
def test_a_prompt_with_an_image(kind):
    for seed, prompt in enumerate(PROMPTS):
        inputs = image_inputs(kind, [prompt], seed)
        wanted = plain(kind, inputs)
        method = CustomGenerate(drafter=PlantedDrafts(wanted[0], VOCAB))
        assert ours(kind, inputs, method) == wanted
        assert method.results[0].stats.block_efficiency > 2.0
        # text after an image: nothing of it is left
        text = {"input_ids": torch.tensor([[3, 5, 6, 7]])}
        assert ours(kind, text, CustomGenerate(drafter="mixture")) == plain(kind, text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_images_and_of_texts(kind):
    inputs = image_inputs(kind, PROMPTS)
    wanted = plain(kind, inputs)
    assert ours(kind, inputs, CustomGenerate(drafter="mixture")) == wanted
    texts = [[3, 5, 6, 7], [9, 10], [1, 2, 3, 4, 5, 6, 7, 8]]
    if kind == "paligemma":  # its own forward pass differs with padding
        with pytest.raises(ValueError, match="reads a prompt without padding in both directions"):
            generate(vision_model(kind), texts, "mixture", max_new_tokens=NEW)
        texts = [text[:2] for text in texts]
    results = generate(vision_model(kind), texts, "mixture", max_new_tokens=NEW)
    for text, result in zip(texts, results, strict=True):
        assert [result.token_ids] == plain(kind, {"input_ids": torch.tensor([text])})


def test_an_input_that_later_tokens_need_is_refused_by_name():
    model = vision_model("gemma3")
    ids = torch.tensor([[1, 2, 3]])
    method = CustomGenerate(drafter="greedy")
    with pytest.raises(ValueError, match="cannot hand cross_attention_mask to Gemma3"):
        method(
            model, ids, [], [], model.generation_config,
            cross_attention_mask=torch.ones(1, 3),
        )  # fmt: skip


def test_positions_that_differ_among_rows_are_refused():
    inputs = image_inputs("qwen2_vl", [[3, IMAGE, 5], [3, 4, 5, 6, 7, 8]])
    inputs["pixel_values"] = inputs["pixel_values"][:16]
    inputs["image_grid_thw"] = inputs["image_grid_thw"][:1]
    with pytest.raises(ValueError, match="generate them one at a time"):
        ours("qwen2_vl", inputs, CustomGenerate(drafter="greedy"))

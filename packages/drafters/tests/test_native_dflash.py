"""BlockDrafter against the DFlash of transformers, on whole generations.

`generate(assistant_model=.., speculation_type="dflash")` drafts with a random Muse-Glimmer
assistant. A BlockDrafter that was loaded from the assistant's files must draft the same tokens from
the same features. Random drafts are never accepted, so the first tokens of most drafts are replaced
by the target's own before they are verified; then contexts of all lengths are appended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from lattice_bpd.models.forward import read_features
from lattice_bpd_drafters.block_drafter import BlockDrafter

if not hasattr(transformers, "MuseGlimmerAssistantModel"):
    pytest.skip(
        f"transformers {transformers.__version__} has no DFlash; run: make test-native-dflash",
        allow_module_level=True,
    )

from transformers import (
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
)
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

VOCAB, WIDTH, LAYERS, BLOCK, MASK = 60, 32, 4, 5, 57
PROMPT, NEW_TOKENS = [3, 9, 27, 20, 1, 3, 9], 40

ASSISTANTS: dict[str, dict[str, Any]] = {
    "full": {"layer_types": ["full_attention"] * 3},
    "sliding": {"sliding_window": 6},
    "window of one": {"sliding_window": 1},
    "mixed": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
TARGETS = ["llama", "muse_glimmer"]


class Step(NamedTuple):
    """One call of the generator.

    Attributes:
        length: tokens of the text, the anchor included.
        drafts: (H,) int64, what the assistant drafted.
        logits: (H, V) float.
        matches: draft tokens of the previous step that were kept.
    """

    length: int
    drafts: torch.Tensor
    logits: torch.Tensor
    matches: int


def scatter(model: Any, scale: float) -> Any:
    """Random weights that keep outputs diverse; norms are far from 1, so that each matters."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(
                1.0 + 0.3 * noise if "norm" in name and weight.ndim == 1 else scale * noise
            )
    return model.eval()


def build_target(kind: str) -> Any:
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 48,
             "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
             "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
    if kind == "llama":
        return scatter(LlamaForCausalLM(LlamaConfig(**sizes)), 0.4)
    vision = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16,
              "num_attention_heads": 2}  # fmt: skip
    config = MuseGlimmerConfig(
        text_config={**sizes, "head_dim": 8, "sliding_window": 16}, vision_config=vision,
        image_token_id=59, video_token_id=58, out_hidden_size=64, projector_hidden_size=16,
    )  # fmt: skip
    return scatter(MuseGlimmerForConditionalGeneration(config), 0.4)


def build_assistant(**options: Any) -> Any:
    config = MuseGlimmerAssistantConfig(
        hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, block_size=BLOCK, mask_token_id=MASK,
        target_layer_ids=[2, 0, 3], rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **options,
    )  # fmt: skip
    return scatter(MuseGlimmerAssistantModel(config), 0.3)


def generate(target: Any, **options: Any) -> torch.Tensor:
    output: torch.Tensor = target.generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        max_new_tokens=NEW_TOKENS, do_sample=False, **options,
    )  # fmt: skip
    return output


def record_steps(target: Any, assistant: Any, greedy: torch.Tensor, monkeypatch: Any) -> list[Step]:
    """All drafts of an assisted generation, and a check that its output is the greedy one."""
    original, steps = DFlashTokenCandidateGenerator.get_candidates, []

    def get_candidates(self: Any, input_ids: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        candidates, logits = original(self, input_ids, *arguments, **named)
        length = input_ids.shape[1]
        drafts = candidates[0, length:].clone()
        if len(drafts) == 0:
            return candidates, logits
        assert torch.equal(candidates[:, :length], input_ids)
        steps.append(Step(length, drafts, logits[0].clone(), int(named["n_last_matches"])))
        kept = len(steps) % BLOCK  # 1, 2, .., K - 1, 0, 1, ..
        true = greedy[:, length : length + kept]
        candidates[:, length : length + true.shape[1]] = true
        return candidates, logits

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", get_candidates)
    output = generate(target, assistant_model=assistant, speculation_type="dflash")
    assert torch.equal(output, greedy)
    return steps


@pytest.fixture(scope="module", params=TARGETS)
def target(request: Any) -> Any:
    return build_target(request.param)


@pytest.mark.parametrize("name", ASSISTANTS)
def test_drafts_are_those_of_the_native_generator(name, target, tmp_path, monkeypatch):
    assistant = build_assistant(**ASSISTANTS[name])
    greedy = generate(target)
    assert len(set(greedy[0].tolist())) > 10
    steps = record_steps(target, assistant, greedy, monkeypatch)
    assert {step.matches for step in steps} >= set(range(BLOCK))
    assert len({tuple(step.drafts.tolist()) for step in steps}) > 3

    assistant.save_pretrained(tmp_path)
    drafter = BlockDrafter.from_pretrained(tmp_path)
    drafter.attach(target)
    cache = drafter.new_cache(1)
    for step in steps:
        start, end = cache.lengths[0], step.length - 1
        with torch.no_grad():
            output = target(greedy[:, :end], use_cache=False, output_hidden_states=True)
        features = read_features(target, output, drafter.hidden_layers)
        drafter.append(cache, features[:, start:], [end - start])
        states = drafter.draft_states(cache, greedy[:, end])
        logits = drafter.logits(states)[0]
        torch.testing.assert_close(logits, step.logits, rtol=1e-4, atol=1e-4)
        assert logits.argmax(-1)[: len(step.drafts)].tolist() == step.drafts.tolist()


def test_transformers_reads_the_files_that_this_library_writes(tmp_path):
    assistant = build_assistant(**ASSISTANTS["mixed"])
    assistant.save_pretrained(tmp_path / "theirs")
    BlockDrafter.from_pretrained(tmp_path / "theirs").save_pretrained(
        tmp_path / "ours", format="muse-glimmer"
    )
    read = MuseGlimmerAssistantModel.from_pretrained(tmp_path / "ours")
    weights = assistant.state_dict()
    assert read.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[key]) for key, value in read.state_dict().items())
    for key in ("block_size", "mask_token_id", "target_layer_ids", "sliding_window", "layer_types",
                "rope_parameters", "rms_norm_eps", "head_dim", "num_key_value_heads"):  # fmt: skip
        assert getattr(read.config, key) == getattr(assistant.config, key), key

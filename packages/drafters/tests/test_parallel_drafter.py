"""PARD and P-EAGLE: logits against references, decoding, and checkpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from block_drafters import edit
from lattice_bpd import FormatError, NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseLM
from lattice_bpd_drafters.p_eagle import PEagleDrafter
from lattice_bpd_drafters.parallel import PardDrafter
from parallel_drafters import (
    MASK,
    SCALED_ROPE,
    WIDTH,
    build_p_eagle,
    build_pard,
    reference_logits,
    tiny_target,
)
from target_models import COUNT, PROMPTS, VOCAB, build_target, plain_generate

P_EAGLES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"kind": "llama"},
    "residual": {"norm_before_residual": True},
    "norm_before_fc": {"kind": "llama", "norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "one_slot": {"num_slots": 1},
    "draft_vocabulary": {"draft_vocab_size": 20},
}


@functools.cache
def target() -> Any:
    return tiny_target()


@functools.cache
def plain() -> list[list[int]]:
    return [plain_generate(target(), prompt) for prompt in PROMPTS]


@functools.cache
def lm() -> NGramLM:
    texts = [np.array(prompt + new, np.int32) for prompt, new in zip(PROMPTS, plain(), strict=True)]
    return NGramLM.train(texts * 3, 3, vocab_size=VOCAB, smoothing="witten_bell")


def self_pard() -> PardDrafter:
    """A PARD model with the target's weights: its first slot is always right."""
    return PardDrafter(tiny_target(), mask_token_id=MASK, num_slots=4)


HEADS: dict[str, Callable[[], Any]] = {
    "pard": self_pard,
    "pard_qwen2": lambda: build_pard("qwen2"),
    "p_eagle": build_p_eagle,
    "p_eagle_draft_vocabulary": lambda: build_p_eagle("llama", draft_vocab_size=20),
}


def texts_and_features(drafter: Any) -> list[tuple[list[int], torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    texts = [prompt + new for prompt, new in zip(PROMPTS, plain(), strict=True)]
    return [(text, torch.randn(len(text), drafter.feature_size, generator=generator))
            for text in texts]  # fmt: skip


def drafts_in_steps(drafter: Any, parts: Any, counts: list[list[int]]) -> list[torch.Tensor]:
    """Logits (B, H, V) of steps that append so many tokens of each text."""
    cache, ends, outputs = drafter.new_cache(len(parts)), [0] * len(parts), []
    for step in counts:
        longest = max(step)
        tokens = torch.full((len(parts), longest), 5)  # padding, which nothing may read
        features = torch.full((len(parts), longest, drafter.feature_size), 9.0)
        for row, (text, vectors) in enumerate(parts):
            span = slice(ends[row], ends[row] + step[row])
            tokens[row, : step[row]] = torch.tensor(text[span])
            features[row, : step[row]] = vectors[span]
            ends[row] += step[row]
        drafter.append(cache, features, step, tokens)
        anchors = torch.tensor([text[end] for (text, _), end in zip(parts, ends, strict=True)])
        outputs.append(drafter.logits(drafter.draft_states(cache, anchors)))
        assert cache.lengths == ends
    return outputs


STEPS = [[3, 6, 1], [1, 4, 2], [5, 1, 1]]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_pard_gives_the_logits_of_one_call_on_text_and_masks(kind: str) -> None:
    drafter = build_pard(kind)
    parts = texts_and_features(drafter)
    outputs = drafts_in_steps(drafter, parts, STEPS)
    ends = np.cumsum(STEPS, axis=0)
    for output, end in zip(outputs, ends, strict=True):
        for row, (text, _) in enumerate(parts):
            ids = text[: end[row] + 1] + [MASK] * 3
            expected = drafter.model(torch.tensor([ids])).logits[0, -4:]
            torch.testing.assert_close(output[row], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", P_EAGLES)
@torch.inference_mode()
def test_p_eagle_gives_the_logits_of_the_reference(name: str) -> None:
    drafter = build_p_eagle(**P_EAGLES[name])
    parts = texts_and_features(drafter)
    outputs = drafts_in_steps(drafter, parts, STEPS)
    ends = np.cumsum(STEPS, axis=0)
    for output, end in zip(outputs, ends, strict=True):
        for row, (text, features) in enumerate(parts):
            known = features[: end[row]].double().numpy()
            expected = reference_logits(drafter, known, text[: end[row] + 1])
            np.testing.assert_allclose(output[row].numpy(), expected, rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_several_appends_before_a_draft_are_one() -> None:
    for drafter in (build_pard(), build_p_eagle()):
        (text, features), *_ = texts_and_features(drafter)
        cache = drafter.new_cache(1)
        for span in (slice(0, 2), slice(2, 7)):
            drafter.append(cache, features[None, span], [span.stop - span.start],
                           torch.tensor([text[span]]))  # fmt: skip
        several = drafter.logits(drafter.draft_states(cache, torch.tensor([text[7]])))
        once = drafts_in_steps(drafter, [(text, features)], [[7]])[0]
        torch.testing.assert_close(several, once)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("strategy", ["bpd", "tree", "mixture"])
def test_output_is_that_of_generate(name: str, strategy: str) -> None:
    options = {} if strategy == "bpd" else {"top_k": 4, "lm": lm()}
    results = generate(target(), PROMPTS, strategy, heads=HEADS[name](), max_new_tokens=COUNT,
                       **options)  # fmt: skip
    assert [result.token_ids for result in results] == plain()
    if strategy == "bpd" and name == "pard":  # slot 0 is right where a step drafts
        for result in results:
            assert result.stats.accept_lengths
            assert min(result.stats.accept_lengths[:-1]) >= 1
    if strategy == "tree":
        assert sum(sum(result.stats.accept_lengths) for result in results) > 0


def test_a_blockwise_lm_with_a_drafter_decodes_and_is_not_saved(tmp_path: Path) -> None:
    for name in ("pard", "p_eagle"):
        model = BlockwiseLM(target(), heads=HEADS[name]())
        result = generate(model, PROMPTS[0], lm=lm(), max_new_tokens=COUNT)
        assert result.token_ids == plain()[0]
        with pytest.raises(TypeError, match="no function of a hidden state"):
            model.head_logits(torch.zeros(1, WIDTH))
        with pytest.raises(TypeError, match="no file format"):
            model.save_pretrained(tmp_path)


def test_targets_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        generate(target(), PROMPTS[0], heads=build_pard(vocab_size=80))
    with pytest.raises(ValueError, match=r"layers"):
        generate(build_target("llama"), PROMPTS[0], heads=build_p_eagle(hidden_layers=(2,)))
    drafter = build_p_eagle()
    with pytest.raises(ValueError, match="no token since the last call"):
        drafter.draft_states(drafter.new_cache(1), torch.tensor([3]))
    with pytest.raises(ValueError, match=r"append: features has shape"):
        drafter.append(drafter.new_cache(1), torch.zeros(1, 2, 5), [2], torch.zeros(1, 2).long())
    with pytest.raises(ValueError, match=r"lengths is \[3\]; expected 0\.\.2"):
        drafter.append(drafter.new_cache(1), torch.zeros(1, 2, 3 * WIDTH), [3],
                       torch.zeros(1, 2).long())  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_pard_round_trip(kind: str, tmp_path: Path) -> None:
    saved = build_pard(kind)
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pard_token"] == MASK
    loaded = PardDrafter.from_pretrained(tmp_path, num_slots=4)
    assert not loaded.training
    parts = texts_and_features(saved)
    pairs = [drafts_in_steps(one, parts, STEPS) for one in (saved, loaded)]
    assert all(torch.equal(one, other) for one, other in zip(*pairs, strict=True))
    half = PardDrafter.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "options",
    [*P_EAGLES.values(), {"has_own_embedding": False}, {"rope_parameters": SCALED_ROPE,
                                                       "kind": "llama"}],
)  # fmt: skip
def test_p_eagle_round_trip(options: dict[str, Any], tmp_path: Path) -> None:
    saved = build_p_eagle(**options)
    saved.save_pretrained(tmp_path)
    loaded = PEagleDrafter.from_pretrained(tmp_path)
    assert not loaded.training
    assert (loaded.num_slots, loaded.hidden_layers) == (saved.num_slots, saved.hidden_layers)
    for one in (saved, loaded):
        one.attach(target())
    parts = texts_and_features(saved)
    pairs = [drafts_in_steps(one, parts, STEPS) for one in (saved, loaded)]
    assert all(torch.equal(one, other) for one, other in zip(*pairs, strict=True))
    ids = torch.arange(10)
    assert torch.equal(loaded.to_target_ids(ids), saved.to_target_ids(ids))


Damage = Callable[[Path], None]


def changed(tensors: Callable[[Any], Any] | None = None, **options: Any) -> Damage:
    """Options of config.json, `layers__x` of its layers; None removes one."""
    names = {name: name.replace("layers__", "transformer_layer_config.") for name in options}
    return lambda folder: edit(folder, {names[n]: v for n, v in options.items()}, tensors)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


SLIDING = {
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 3,
    "use_sliding_window": True,
}
ERRORS: list[tuple[str, Damage, str]] = [
    ("pard", remove("config.json"), "config.json: cannot be read"),
    ("pard", cut, "cannot be loaded"),
    ("pard", changed(pard_token=VOCAB), f"pard_token is {VOCAB}; expected"),
    ("pard", changed(**SLIDING), "expected full_attention"),
    ("pard", changed(lambda t: t.pop("model.norm.weight")), "lacks model.norm.weight"),
    ("p_eagle", remove("config.json"), "config.json: cannot be read"),
    ("p_eagle", cut, "model.safetensors: cannot be read"),
    ("p_eagle", changed(speculators_model_type="eagle3"), "is 'eagle3'; expected 'peagle'"),
    ("p_eagle", changed(layers__num_hidden_layers=10**6, layers__layer_types=None),
     "expected those of 1000000 layers"),
    ("p_eagle", changed(extra=3), "unknown options extra"),
    ("p_eagle", changed(speculators_config={"default_proposal_method": "greedy"}),
     "or give num_slots"),
    ("p_eagle", changed(lambda t: t.pop("mask_hidden")), "lacks mask_hidden"),
    ("p_eagle", changed(lambda t: t["d2t"].add_(60)), "d2t leads to target ids"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "damage", "message"), ERRORS)
def test_files_that_do_not_fit(kind: str, damage: Damage, message: str, tmp_path: Path) -> None:
    saved: Any = build_pard() if kind == "pard" else build_p_eagle(draft_vocab_size=20)
    saved.save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(FormatError, match=message):
        type(saved).from_pretrained(tmp_path)

"""Checkpoints of block drafters: round trips in three formats, and files that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from block_drafters import edit
from blockwise_models import model_of
from lattice_bpd import FormatError
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import FULL, SLIDING, BlockDrafterConfig
from lattice_bpd_drafters.formats import FORMATS, find_format

VOCAB = 40
FORMAT_NAMES = [name for name in FORMATS if name != "deepspec"]  # which holds DSpark only


def config_of(**changes: Any) -> BlockDrafterConfig:
    base = BlockDrafterConfig(
        hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6,
        intermediate_size=20, vocab_size=VOCAB, target_hidden_size=32, hidden_layers=(0, 1),
        block_size=4, mask_token_id=39, rms_norm_eps=1e-5, rope_theta=500.0,
    )  # fmt: skip
    return replace(base, **changes)


def random_drafter(dtype: torch.dtype = torch.float32, **changes: Any) -> BlockDrafter:
    """Norms and all other tensors are random, so that none can be left out or exchanged."""
    drafter = BlockDrafter(config_of(**changes))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1.0 + 0.3 * noise if "norm" in name else 0.3 * noise)
        if drafter.d2t is not None:  # draft id i is target id 2 i + 1
            drafter.d2t.copy_(torch.arange(len(drafter.d2t)) + 1)
    return drafter.to(dtype).eval()


@torch.no_grad()
def logits_of(drafter: BlockDrafter, target: Any) -> torch.Tensor:
    drafter.attach(target)
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 7, drafter.config.feature_size, generator=generator)
    cache = drafter.new_cache(2)
    drafter.append(cache, features, [7, 4])
    return drafter.logits(drafter.draft_states(cache, torch.tensor([3, 8])))


@pytest.fixture(scope="module")
def target() -> Any:
    base = model_of("llama").base
    embedding: Any = base.get_input_embeddings()
    assert embedding.weight.shape[1] == 32
    return base


COMMON = {
    "plain": {},
    "one layer": {"num_layers": 1, "hidden_layers": (1,)},
    "no grouped heads": {"num_kv_heads": 4},
}
SLIDES = {"layer_types": (SLIDING, FULL), "sliding_window": 3}
OWN = {"has_own_embedding": True, "has_own_output": True}
CASES = {
    **{(name, kind): changes for kind in FORMAT_NAMES for name, changes in COMMON.items()},
    ("layer order", "z-lab"): {"hidden_layers": (1, 0)},
    ("sliding, causal there", "z-lab"): SLIDES,
    ("sliding, bidirectional", "z-lab"): {**SLIDES, "causal": False},
    ("causal", "z-lab"): {"causal": True},
    ("narrower than the target", "z-lab"): {**OWN, "hidden_size": 24},
    ("next token", "z-lab"): {"next_token_layout": True},
    ("own embeddings", "z-lab"): OWN,
    ("draft vocabulary", "z-lab"): {**OWN, "draft_vocab_size": 11},
    ("mask embedding", "z-lab"): {"has_mask_embedding": True},
    ("logit scale", "z-lab"): {"logit_scale": 0.25},
    ("sliding, causal there", "speculators"): SLIDES,
    ("sliding, bidirectional", "speculators"): {**SLIDES, "causal": False},
    ("next token", "speculators"): {"next_token_layout": True},
    ("draft vocabulary", "speculators"): {**OWN, "draft_vocab_size": 11},
    ("sliding", "muse-glimmer"): {**SLIDES, "causal": False},
}


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [(*case, torch.float32) for case in CASES]
    + [("plain", kind, torch.bfloat16) for kind in FORMAT_NAMES],
)
def test_round_trip_gives_equal_logits(name, kind, dtype, target, tmp_path):
    saved = random_drafter(dtype, vocab_size=target.config.vocab_size, **CASES[name, kind])
    saved.save_pretrained(tmp_path, format=kind)
    assert find_format(tmp_path) == kind
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = BlockDrafter.from_pretrained(tmp_path)
    assert loaded.fc.weight.dtype == dtype
    assert not loaded.training
    for key, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    assert torch.equal(logits_of(loaded, target), logits_of(saved, target))
    ids = torch.arange(11)
    assert torch.equal(loaded.to_target_ids(ids), saved.to_target_ids(ids))
    assert loaded.num_slots == saved.num_slots
    kinds = [(one.is_causal(i), one.is_sliding(i)) for one in (loaded.config, saved.config)
             for i in range(one.num_layers)]  # fmt: skip
    assert kinds[: len(kinds) // 2] == kinds[len(kinds) // 2 :]


def test_the_prefix_model_and_shards_are_read(target, tmp_path):
    saved = random_drafter(vocab_size=target.config.vocab_size)
    saved.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[part::2]) for part in (0, 1)]
    weight_map = {}
    for part, half in enumerate(halves):
        file = f"model-{part}.safetensors"
        save_file({f"model.{name}": value for name, value in half.items()}, tmp_path / file)
        weight_map |= {f"model.{name}": file for name in half}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = BlockDrafter.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, target), logits_of(saved, target))


def test_layer_ids_are_those_of_each_format(tmp_path):
    for kind, key in (("z-lab", "dflash_config"), ("speculators", "aux_hidden_state_layer_ids"),
                      ("muse-glimmer", "target_layer_ids")):  # fmt: skip
        random_drafter(hidden_layers=(3, 1)).save_pretrained(tmp_path / kind, format=kind)
        content = json.loads((tmp_path / kind / "config.json").read_text())
        ids = content[key]["target_layer_ids"] if kind == "z-lab" else content[key]
        assert ids == ([4, 2] if kind == "speculators" else [3, 1])
        assert BlockDrafter.from_pretrained(tmp_path / kind).hidden_layers == (3, 1)


def test_sliding_windows_count_the_token_itself_or_not(tmp_path):
    drafter = random_drafter(layer_types=(SLIDING, SLIDING), sliding_window=8, causal=False)
    windows = {"z-lab": 8, "speculators": 8, "muse-glimmer": 7}
    for kind, window in windows.items():
        drafter.save_pretrained(tmp_path / kind, format=kind)
        content = json.loads((tmp_path / kind / "config.json").read_text())
        assert content.get("transformer_layer_config", content)["sliding_window"] == window
        assert BlockDrafter.from_pretrained(tmp_path / kind).config.sliding_window == 8


@pytest.mark.parametrize(
    ("target_layers", "num_layers", "ids"),
    [(36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,)), (24, 5, (1, 6, 11, 16, 21))],
)
def test_default_layers_of_z_lab(target_layers, num_layers, ids, tmp_path):
    drafter = random_drafter(num_layers=num_layers, hidden_layers=tuple(range(num_layers)))
    drafter.save_pretrained(tmp_path)
    edit(tmp_path, {"dflash_config.target_layer_ids": None, "num_target_layers": target_layers})
    assert BlockDrafter.from_pretrained(tmp_path).hidden_layers == ids


def test_a_config_as_specforge_writes_it(tmp_path):
    random_drafter().save_pretrained(tmp_path)
    content = {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 4, "bos_token_id": 1,
        "dflash_config": {"mask_token_id": 39, "target_layer_ids": [0, 1]}, "dtype": "bfloat16",
        "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 32,
        "initializer_range": 0.02, "intermediate_size": 20,
        "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 99,
        "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "num_target_layers": 4,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500, "sliding_window": None,
        "tie_word_embeddings": False, "transformers_version": "5.5.3", "use_cache": True,
        "use_sliding_window": False, "vocab_size": VOCAB,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert BlockDrafter.from_pretrained(tmp_path).config == config_of()
    rope = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "rope_theta": None}
    edit(tmp_path, rope | {"block_size": None, "dflash_config.block_size": 4})
    assert BlockDrafter.from_pretrained(tmp_path).config == config_of()


def test_the_vocabulary_of_a_muse_glimmer_assistant_is_the_targets(target, tmp_path):
    random_drafter().save_pretrained(tmp_path, format="muse-glimmer")
    drafter = BlockDrafter.from_pretrained(tmp_path)
    assert drafter.config.vocab_size is None
    with pytest.raises(ValueError, match="vocabulary is not known; call attach"):
        drafter.save_pretrained(tmp_path / "other")
    drafter.attach(target)
    assert drafter.config.vocab_size == target.config.vocab_size
    drafter.save_pretrained(tmp_path / "other")
    loaded = BlockDrafter.from_pretrained(tmp_path / "other")
    assert torch.equal(logits_of(loaded, target), logits_of(drafter, target))


CANNOT_SAVE = [
    ("speculators", {"causal": True}, "full-attention layers"),
    ("muse-glimmer", {"next_token_layout": True}, "next-token layout"),
    ("z-lab", {"hidden_layers": (-1, 1)}, "no -1"),
    ("pickle", {}, "expected one of z-lab, speculators, muse-glimmer, deepspec"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), CANNOT_SAVE)
def test_what_a_format_cannot_hold_is_not_saved(kind, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        random_drafter(**changes).save_pretrained(tmp_path / "x", format=kind)
    assert not (tmp_path / "x").exists()


BAD_CONFIGS = [
    ("z-lab", {"hidden_size": "32"}, "hidden_size is '32'; expected an integer"),
    ("z-lab", {"head_dim": 5}, "head_dim is 5; expected an even number"),
    ("z-lab", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is .*yarn"),
    ("z-lab", {"attention_bias": True}, "attention_bias is True; expected False"),
    ("z-lab", {"layer_types": ["full_attention"]}, "expected 2 of them"),
    ("z-lab", {"block_size": None}, "block_size is None; expected an integer of 2 or more"),
    ("z-lab", {"dflash_config.mask_token_id": VOCAB}, f"mask_token_id is {VOCAB}; expected 0..39"),
    ("z-lab", {"dflash_config.target_layer_ids": [1, 1]}, "a list of different integers"),
    (
        "z-lab",
        {"dflash_config.target_layer_ids": [0, 1, 2]},
        r"fc.weight has shape \(32, 64\); expected \(32, 96",
    ),
    ("z-lab", {"dflash_config.use_swa": True}, "unknown options dflash_config.use_swa"),
    ("z-lab", {"model_type": "llama"}, "model_type is 'llama'; expected 'qwen3'"),
    (
        "z-lab",
        {"num_hidden_layers": 10**6, "layer_types": None},
        "has 25 tensors; expected those of 1000000 layers",
    ),
    ("speculators", {"draft_vocab_size": 11}, "draft_vocab_size is 11; expected has_own_output"),
    ("speculators", {"loss": "kl"}, "unknown options loss"),
    ("muse-glimmer", {"rope_parameters.rope_type": "yarn"}, "rope_type is 'yarn'"),
    (
        "z-lab",
        {"architectures": ["DCOCODraftModel"]},
        "is a DCOCO drafter .*not been published",
    ),
    ("z-lab", {"dflash_config.projector_type": "domino"}, "is a Domino drafter .*whole prefixes"),
    (
        "z-lab",
        {"architectures": ["LlamaForCausalLM"]},
        r"has architectures \['LlamaFor",
    ),
]


@pytest.mark.parametrize(("kind", "changes", "message"), BAD_CONFIGS)
def test_configs_that_do_not_fit(kind, changes, message, tmp_path):
    random_drafter().save_pretrained(tmp_path, format=kind)
    edit(tmp_path, changes)
    with pytest.raises(FormatError, match=message):
        BlockDrafter.from_pretrained(tmp_path)


BAD_TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda ts: ts.pop("norm.weight"), "lacks norm.weight"),
    "shape": (
        lambda ts: ts.update({"norm.weight": torch.ones(31)}),
        r"norm.weight has shape \(31,\); expected \(32,\)",
    ),
    "integers": (
        lambda ts: ts.update({"norm.weight": torch.ones(32, dtype=torch.int64)}),
        "norm.weight holds torch.int64; expected floats",
    ),
    "twice": (
        lambda ts: ts.update({"model.norm.weight": torch.ones(32)}),
        "has norm.weight with and without the prefix",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_that_do_not_fit(name, tmp_path):
    change, message = BAD_TENSORS[name]
    random_drafter().save_pretrained(tmp_path)
    edit(tmp_path, {}, change)
    with pytest.raises(FormatError, match=message):
        BlockDrafter.from_pretrained(tmp_path)


def test_a_draft_vocabulary_outside_of_the_targets(tmp_path):
    random_drafter(**OWN, draft_vocab_size=11).save_pretrained(tmp_path)
    edit(tmp_path, {}, lambda ts: ts["d2t"].add_(30))
    with pytest.raises(FormatError, match=r"d2t leads to target ids 31\.\.51; expected 0\.\.39"):
        BlockDrafter.from_pretrained(tmp_path)
    edit(tmp_path, {}, lambda ts: ts.update(d2t=ts["d2t"].float()))
    with pytest.raises(FormatError, match=r"d2t holds torch\.float32; expected integers"):
        BlockDrafter.from_pretrained(tmp_path)
    edit(tmp_path, {}, lambda ts: ts.pop("d2t"))
    with pytest.raises(FormatError, match="lacks d2t"):
        BlockDrafter.from_pretrained(tmp_path)


BAD_FILES = [
    ("config.json", None, "config.json: cannot be read"),
    ("model.safetensors", b"\x10", "model.safetensors: cannot be read"),
    ("model.safetensors.index.json", b"{}", "has no weight_map"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_files_that_are_missing_or_damaged(name, content, message, tmp_path):
    random_drafter().save_pretrained(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        BlockDrafter.from_pretrained(tmp_path)

"""Medusa heads and their checkpoints, and files that do not fit."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from blockwise_models import VOCAB, model_of
from lattice_bpd import FormatError, NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseHeads, load_heads
from lattice_bpd.models.checkpoint import save_heads
from lattice_bpd_drafters.medusa import (
    SharedBlocksWarning,
    load_medusa,
    load_medusa_heads,
    save_medusa,
)
from lattice_bpd_drafters.medusa_heads import MedusaHeads

WIDTH = 32
SLOTS = 3


def random_heads(num_layers: int = 2, *, vocab_size: int = VOCAB, width: int = WIDTH):
    heads = MedusaHeads(width, vocab_size, SLOTS, num_layers)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(0.0, 0.3, generator=generator)
    return heads


def write_by_hand(heads: MedusaHeads, directory, prefix: str = "") -> dict[str, torch.Tensor]:
    """The v0.1 files as Medusa's own modules name their tensors."""
    modules = nn.ModuleList(
        nn.Sequential(*(Block() for _ in range(heads.num_layers)), nn.Linear(WIDTH, VOCAB, False))
        for _ in range(SLOTS)
    )
    with torch.no_grad():
        for slot, module in enumerate(modules):
            for layer in range(heads.num_layers):
                module[layer].linear.weight.copy_(heads.block_weight[layer, slot])
                module[layer].linear.bias.copy_(heads.block_bias[layer, slot])
            module[-1].weight.copy_(heads.output_weight[slot])
    state = {prefix + name: tensor for name, tensor in modules.state_dict().items()}
    torch.save(state, directory / "medusa_lm_head.pt")
    config = {"medusa_num_heads": SLOTS, "medusa_num_layers": heads.num_layers}
    (directory / "config.json").write_text(json.dumps(config))
    return state


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


def same(heads: MedusaHeads, other: MedusaHeads) -> bool:
    pairs = zip(heads.parameters(), other.parameters(), strict=True)
    return all(torch.equal(weight, copy) for weight, copy in pairs)


def test_medusa_head_is_its_blocks_and_its_projection():
    heads, hidden = random_heads(), torch.randn(2, 5, WIDTH)
    with torch.inference_mode():
        logits = heads(hidden)
        for slot in range(SLOTS):
            states = hidden[1, 4]
            for layer in range(2):
                inner = heads.block_weight[layer, slot] @ states + heads.block_bias[layer, slot]
                states = states + F.silu(inner)
            expected = heads.output_weight[slot] @ states
            torch.testing.assert_close(logits[1, 4, slot], expected, rtol=1e-4, atol=1e-4)
    assert logits.shape == (2, 5, SLOTS, VOCAB)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_medusa_v01_file_of_medusas_own_modules(tmp_path, num_layers, prefix):
    heads = random_heads(num_layers)
    write_by_hand(heads, tmp_path, prefix)
    assert same(load_medusa_heads(tmp_path), heads)
    base = model_of("llama").base
    target, loaded = load_medusa(tmp_path, base)
    assert target is base
    assert (same(loaded, heads), loaded.num_slots, loaded.training) == (True, SLOTS, False)


def test_medusa_v01_written_and_read_back(tmp_path):
    heads = random_heads()
    target = model_of("gpt2").base
    target.save_pretrained(tmp_path / "target")
    folder = tmp_path / "medusa"
    save_medusa(heads, folder, base_model_name_or_path=str(tmp_path / "target"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "medusa_lm_head.pt"]
    names = set(torch.load(folder / "medusa_lm_head.pt", weights_only=True))
    parts = ("0.linear.weight", "0.linear.bias", "1.linear.weight", "1.linear.bias", "2.weight")
    assert names == {f"{slot}.{part}" for slot in range(SLOTS) for part in parts}
    assert same(load_medusa(folder)[1], heads)
    save_medusa(heads, folder)  # over what is there
    with pytest.raises(ValueError, match=r"has heads only, for the target ''.*give it as base="):
        load_medusa(folder)


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_medusa_v10_written_and_read_back(tmp_path, shard_size, monkeypatch):
    heads, base = random_heads(), model_of("llama").base
    save = type(base).save_pretrained
    monkeypatch.setattr(
        type(base), "save_pretrained", lambda *args: save(*args, max_shard_size=shard_size)
    )
    save_medusa(heads, tmp_path, base=base)
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard_size == "20KB")
    target, loaded = load_medusa(tmp_path)
    assert same(loaded, heads)
    tokens = torch.tensor([[3, 5, 7]])
    with torch.inference_mode():
        assert torch.equal(target(tokens).logits, base(tokens).logits)
    assert not list(tmp_path.glob(".saving*"))


def test_medusa_blocks_that_share_one_weight_are_warned_of(tmp_path):
    heads = random_heads(3)
    with torch.no_grad():
        heads.block_weight[1:] = heads.block_weight[0]
        heads.block_bias[1:] = heads.block_bias[0]
    save_medusa(heads, tmp_path)
    with pytest.warns(SharedBlocksWarning, match="in each head all 3 blocks share one weight"):
        assert same(load_medusa_heads(tmp_path), heads)
    with torch.no_grad():
        heads.block_bias[2, 1, 0] += 1.0  # one number of one head differs: no warning, or an error
    save_medusa(heads, tmp_path)
    load_medusa_heads(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"medusa_num_heads": 5}, r"medusa_lm_head.pt: has 3 heads; expected 5"),
        ({"medusa_num_layers": 3}, r"its heads have \[2\] blocks; config.json has .* 3; expected"),
        ({"vocab_size": 32000}, "the heads have vocab_size 48, .*config.json has 32000"),
    ],
)
def test_medusa_config_that_does_not_fit(tmp_path, change, message):
    save_medusa(random_heads(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError, match=message):
        load_medusa_heads(tmp_path)


def drop(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("1.2.weight"), r"has projections of heads \[0, 2\]; expected heads 0, 1, .. without"),
        (lambda state: {**state, "1.2.weight": torch.ones(9, 32)}, r"shape \(9, 32\), expected"),
        (lambda state: {**state, "run": print}, "cannot be read .*expected the tensors of"),
    ],
)
def test_medusa_file_with_other_tensors(tmp_path, change, message):
    state = write_by_hand(random_heads(), tmp_path)
    torch.save(change(state), tmp_path / "medusa_lm_head.pt")
    with pytest.raises(FormatError, match=message):
        load_medusa_heads(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("version", ["v0.1", "v1.0"])
def test_medusa_file_that_was_cut(tmp_path, version, share):
    save_medusa(
        random_heads(), tmp_path, base=model_of("llama").base if version == "v1.0" else None
    )
    path = tmp_path / ("medusa_lm_head.pt" if version == "v0.1" else "model.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(FormatError, match=f"{path.name}: cannot be read .*copy the file again"):
        load_medusa_heads(tmp_path)


def test_medusa_heads_of_another_target_are_refused(tmp_path):
    base = model_of("llama").base
    save_medusa(random_heads(vocab_size=100), tmp_path)
    with pytest.raises(ValueError, match="vocabulary of 100, the target one of 48; expected the"):
        load_medusa(tmp_path, base)
    save_medusa(random_heads(width=16), tmp_path)
    with pytest.raises(ValueError, match="width 16, the target's output embedding takes 32"):
        load_medusa(tmp_path, base)
    with pytest.raises(ValueError, match="expected 1 or more"):
        MedusaHeads(8, 8, 0)
    heads = BlockwiseHeads(WIDTH, 3, vocab_size=100)
    with pytest.raises(ValueError, match="vocabulary of 100, the target one of 48"):
        generate(base, [1, 2], heads=heads)
    lm = NGramLM.train([[1, 2, 3]], 2, vocab_size=100, smoothing="witten_bell")
    with pytest.raises(ValueError, match="vocabulary of 100, the target one of 48"):
        generate(base, [1, 2], "p_best", heads=random_heads(), lm=lm, top_k=4)


def test_medusa_heads_are_kept_in_safetensors(tmp_path):
    heads = random_heads()
    model_of("gpt2").save_pretrained(tmp_path)  # other heads before: they must not come back
    save_heads(heads, tmp_path)
    loaded = load_heads(tmp_path)
    assert isinstance(loaded, MedusaHeads)
    assert same(loaded, heads)
    model_of("gpt2").save_pretrained(tmp_path)
    assert isinstance(load_heads(tmp_path), BlockwiseHeads)
    random_heads().save_pretrained(tmp_path)
    (tmp_path / "medusa_heads.safetensors").write_bytes(b"no")
    with pytest.raises(FormatError, match="heads' weights cannot be read"):
        MedusaHeads.from_pretrained(tmp_path)


def test_other_heads_on_a_target_that_came_with_medusas(tmp_path):
    save_medusa(random_heads(), tmp_path / "medusa", base=model_of("llama").base)
    base, _ = load_medusa(tmp_path / "medusa")
    assert isinstance(load_heads(tmp_path / "medusa"), MedusaHeads)
    assert base.config.medusa_num_heads == SLOTS  # and so has what is saved now
    base.save_pretrained(tmp_path / "own")
    save_heads(model_of("llama").heads, tmp_path / "own")
    assert isinstance(load_heads(tmp_path / "own"), BlockwiseHeads)

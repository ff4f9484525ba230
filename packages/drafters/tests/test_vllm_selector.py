"""Heads with a trained selector in the vLLM plug-in: the lattices and files of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig, FormatError
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.models.checkpoint import copy_heads, load_heads
from lattice_bpd_drafters.config import SelectorConfig
from lattice_bpd_drafters.extension import SELECTOR_FOLDER
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_drafters.selector import CandidateSelector
from lattice_bpd_vllm.batch import DraftBatch
from lattice_bpd_vllm.drafting import LatticeDrafter
from lattice_bpd_vllm.files import DrafterParts, load_parts
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.slot_sources import make_source
from lattice_bpd_vllm.targets import TargetInfo

WIDTH, VOCAB, SLOTS = 8, 12, 4


def target_of() -> TargetInfo:
    torch.manual_seed(2)
    embedding = torch.nn.Linear(WIDTH, VOCAB, bias=False)
    return TargetInfo(embedding, WIDTH, VOCAB, torch.float32, torch.device("cpu"))


def random_heads() -> BlockwiseHeads:
    torch.manual_seed(0)
    heads = BlockwiseHeads(WIDTH, SLOTS + 1, vocab_size=VOCAB)
    torch.nn.init.normal_(heads.outer_weight)
    return heads.eval()


def random_selector(num_slots: int = SLOTS, vocab_size: int = VOCAB) -> CandidateSelector:
    torch.manual_seed(1)
    selector = CandidateSelector(SelectorConfig(3, 6), vocab_size, WIDTH, num_slots=num_slots)
    with torch.no_grad():
        for weight in selector.parameters():
            weight.normal_()
    return selector.eval()


def parts_of(draft: str = "chain", **values: Any) -> DrafterParts:
    fields = {"heads": random_heads(), "selector": random_selector(), **values}
    return DrafterParts(
        lms=(), config=DraftConfig("chain", top_k=5), draft=draft, vocab_size=VOCAB, **fields
    )


def batch_of(tokens: list[int]) -> DraftBatch:
    count = len(tokens)
    return DraftBatch(list(range(count)), tokens, [SLOTS] * count, [9] * count)


@pytest.mark.parametrize("num_tokens", [2, SLOTS, 9])
@torch.inference_mode()
def test_lattices_have_the_selector_s_transitions(num_tokens: int) -> None:
    target, parts = target_of(), parts_of()
    source = make_source(parts, target, num_tokens)
    hidden, tokens = torch.randn(3, WIDTH), [4, 0, 7]
    lattice = source.read(batch_of(tokens), hidden)
    logits: Any = target.compute_logits(parts.heads(hidden))
    assert parts.selector is not None
    every = parts.selector.lattice_of_heads(logits, hidden, torch.tensor(tokens))
    expected = every.cut(num_tokens, 6)
    assert isinstance(lattice, LatticeInput)
    assert source.num_slots == lattice.num_slots == min(num_tokens, SLOTS)
    assert torch.equal(lattice.token_ids, expected.token_ids)
    for name in ("scores", "start", "transitions"):
        torch.testing.assert_close(getattr(lattice, name), getattr(expected, name))
    chains = LatticeDrafter(None, parts.config).propose(lattice, [[4], [0], [7]], [9, 9, 1])
    assert [len(chain) for chain in chains] == [source.num_slots, source.num_slots, 1]


def test_the_folder_of_heads_may_have_a_selector(tmp_path: Path) -> None:
    random_heads().save_pretrained(tmp_path)
    assert load_parts(DrafterOptions(str(tmp_path))).selector is None
    random_selector().save_pretrained(tmp_path / SELECTOR_FOLDER)
    parts = load_parts(DrafterOptions(str(tmp_path)))
    assert parts.selector is not None
    assert (parts.selector.config.top_k, parts.vocab_size) == (6, VOCAB)
    random_selector(vocab_size=13).save_pretrained(tmp_path / SELECTOR_FOLDER)
    with pytest.raises(ValueError, match="vocabularies differ: the heads 12, the selector 13"):
        load_parts(DrafterOptions(str(tmp_path)))


def test_heads_are_copied_with_their_selector(tmp_path: Path) -> None:
    source, other = tmp_path / "model", tmp_path / "other"
    MedusaHeads(WIDTH, VOCAB, SLOTS).save_pretrained(source)
    random_selector().save_pretrained(source / SELECTOR_FOLDER)
    copy_heads(source, tmp_path / "drafter")
    copied = load_heads(tmp_path / "drafter").selector
    torch.testing.assert_close(copied.slot_gates, random_selector().slot_gates)
    random_heads().save_pretrained(other)
    copy_heads(source, other)  # has heads of its own
    assert not hasattr(load_heads(other), "selector")
    (other / SELECTOR_FOLDER).mkdir()
    with pytest.raises(FormatError):
        load_heads(other)

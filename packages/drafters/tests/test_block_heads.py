"""Decoding with block drafters: the output of generate, and drafts as of one pass over the text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from blockwise_models import build_base
from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeState, DraftingModel, generate
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models import BlockwiseHeads, load_heads
from lattice_bpd.models.checkpoint import load_target, save_heads
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig
from lattice_bpd_drafters.heads import BlockDrafterHeads
from target_models import COUNT, PROMPTS, VOCAB, plain_generate
from transition_drafters import build

LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 96,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


@functools.cache
def target() -> Any:
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, 0.3)
    return model.eval()


@functools.cache
def plain() -> list[list[int]]:
    return [plain_generate(target(), prompt) for prompt in PROMPTS]


def drafter(**options: Any) -> BlockDrafter:
    sizes = {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
        "intermediate_size": 48, "vocab_size": VOCAB, "target_hidden_size": 32,
        "hidden_layers": (1, 3), "block_size": 6, "mask_token_id": 63,
    }  # fmt: skip
    torch.manual_seed(5)
    made = BlockDrafter(BlockDrafterConfig(**{**sizes, **options}))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, 0.2)
    return made.eval()


@functools.cache
def lm() -> NGramLM:
    texts = [np.array(prompt + new, np.int32) for prompt, new in zip(PROMPTS, plain(), strict=True)]
    return NGramLM.train(texts * 3, 3, vocab_size=VOCAB, smoothing="witten_bell")


@pytest.mark.parametrize("strategy", ["bpd", "ngram", "p_best", "chain", "tree", "mixture"])
@pytest.mark.parametrize("count", [1, 3])
def test_output_is_that_of_generate(strategy: str, count: int) -> None:
    model = lm() if strategy != "bpd" else None
    prompts = PROMPTS[:count] if count > 1 else PROMPTS[0]
    config = DraftConfig(strategy, top_k=8, num_drafts=4, max_nodes=12)
    found = generate(target(), prompts, config, heads=drafter(), lm=model, max_new_tokens=COUNT)
    results = found if count > 1 else [found]
    assert [result.token_ids for result in results] == plain()[:count]
    if strategy in ("ngram", "p_best", "tree"):
        assert sum(sum(result.stats.accept_lengths) for result in results) > 0


def scaled_llama() -> Any:
    torch.manual_seed(0)
    base = build_base("llama").eval()
    with torch.no_grad():
        base.get_input_embeddings().weight.mul_(20)
    return base


IN_LOOP: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "fill in": (target, drafter),
    "next token": (target, lambda: drafter(next_token_layout=True, causal=True)),
    **{n: (scaled_llama, partial(build, n)) for n in ("dflash2", "dspark_gated", "lilicorr")},
}


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("name", IN_LOOP)
def test_slots_in_the_loop_are_those_of_the_whole_text(
    monkeypatch: pytest.MonkeyPatch, name: str, layout: str
) -> None:
    """Caches that grow, are joined and lose sequences, against one reading of the whole text."""
    model, made = (make() for make in IN_LOOP[name])
    vocab = model.config.vocab_size
    prompts = [[token % (vocab - 1) for token in prompt] for prompt in PROMPTS]
    expected = [plain_generate(model, prompt) for prompt in prompts]
    texts = [np.array(prompt + new) for prompt, new in zip(prompts, expected, strict=True)]
    lm = NGramLM.train(texts * 3, 3, vocab_size=vocab, smoothing="witten_bell")
    seen: list[tuple[list[int], int, Any]] = []
    read = BlockDrafterHeads.read_states

    def watch(self: BlockDrafterHeads, states: Any) -> Any:
        found = read(self, states)
        seen.extend((list(state.tokens), row, found) for row, state in enumerate(states))
        return found

    monkeypatch.setattr(BlockDrafterHeads, "read_states", watch)
    results = generate(
        model, prompts, "tree", heads=made, lm=lm, top_k=4, max_new_tokens=COUNT, layout=layout
    )
    assert [result.token_ids for result in results] == expected
    assert len(seen) > 12
    for tokens, row, found in seen:
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            states = model(ids[:, :-1], output_hidden_states=True).hidden_states
            chosen = [states[layer + 1] for layer in made.hidden_layers]
            features = torch.cat(chosen, -1) if chosen else torch.empty(*ids[:, :-1].shape, 0)
            cache = made.new_cache(1)
            made.append(cache, features, [len(tokens) - 1], ids[:, :-1])
            slots = made.read_slots(cache, ids[0, -1:], vocab)
        names = ("start", "transitions") if isinstance(slots, LatticeInput) else ()
        pairs = [(getattr(found, one), getattr(slots, one)) for one in names] or [(found, slots)]
        for one, other in pairs:
            torch.testing.assert_close(one[row], other[0], rtol=1e-3, atol=1e-3)


def test_sequences_that_leave_and_rejoin_keep_their_context() -> None:
    """A subset of the batch may draft in a step; the others then continue with their own cache."""
    model = DraftingModel(target(), drafter())
    hidden = torch.zeros(32)
    states = [
        DecodeState(model, list(prompt), len(prompt), hidden, COUNT, DecodeStats())
        for prompt in PROMPTS
    ]

    def feed(chosen: list[int], count: int) -> None:
        for number in chosen:
            state = states[number]
            known = len(state.tokens) - 1 if state.memory is not None or state.features else 0
            text = (PROMPTS[number] + plain()[number])[: len(state.tokens) + count]
            with torch.inference_mode():
                output = target()(torch.tensor([text[:-1]]), output_hidden_states=True)
            rows = torch.cat([output.hidden_states[i + 1][0] for i in (1, 3)], dim=-1)
            state.features.append(rows[known:])
            state.tokens = text

    for chosen in ([0, 1, 2], [0, 2], [1], [2, 1], [0, 1, 2]):
        feed(chosen, 1 + chosen[0])
        with torch.inference_mode():
            together = model.read_heads([states[number] for number in chosen])
        for row, number in enumerate(chosen):
            tokens = states[number].tokens
            with torch.inference_mode():
                output = target()(torch.tensor([tokens[:-1]]), output_hidden_states=True)
                features = torch.cat([output.hidden_states[i + 1] for i in (1, 3)], dim=-1)
                made = model.heads.drafter  # type: ignore[union-attr]
                cache = made.new_cache(1)
                made.append(cache, features, [len(tokens) - 1])
                alone = made.logits(made.draft_states(cache, torch.tensor(tokens[-1:])))
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-4)


def test_reduced_draft_vocabulary() -> None:
    made = drafter(draft_vocab_size=20, has_own_output=True)
    with torch.no_grad():
        made.d2t.copy_(torch.arange(0, 60, 3) - torch.arange(20))  # every third token
    result = generate(target(), PROMPTS[0], "bpd", heads=made, max_new_tokens=COUNT)
    assert result.token_ids == plain()[0]
    tree = generate(target(), PROMPTS[0], heads=made, lm=lm(), max_new_tokens=COUNT, top_k=8)
    assert tree.token_ids == plain()[0]


def test_a_model_folder_with_a_block_drafter(tmp_path: Path) -> None:
    """Saved beside its target, a drafter is loaded as heads are; other heads replace it."""
    target().save_pretrained(tmp_path)
    save_heads(drafter(), tmp_path, target())
    loaded = load_target(tmp_path), load_heads(tmp_path)
    assert isinstance(loaded[1], BlockDrafter)
    found = [
        generate(model, PROMPTS[0], "tree", heads=heads, lm=lm(), max_new_tokens=COUNT)
        for model, heads in ((target(), drafter()), loaded)
    ]
    assert found[0].token_ids == found[1].token_ids == plain()[0]
    assert found[0].stats.accept_lengths == found[1].stats.accept_lengths
    save_heads(BlockwiseHeads(32, 3), tmp_path, target())
    assert not (tmp_path / "block_drafter").exists()
    assert isinstance(load_heads(tmp_path), BlockwiseHeads)

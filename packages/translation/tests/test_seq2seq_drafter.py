"""SpecDrafter: what sees what, memory, files, and its blocks as heads."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig
from lattice_bpd.decode import generate
from lattice_bpd.decode.state.model import DraftHeads
from lattice_bpd_translation.drafter import SpecDrafter, SpecDrafterConfig
from lattice_bpd_translation.heads import SpecDrafterHeads
from lattice_bpd_translation.specdec import SpecDrafterOptions, train_spec_drafter
from lattice_bpd_translation.text import Pair, generate_outputs
from seq2seq_models import (
    VOCAB,
    counting_pairs,
    model_of,
    plain_greedy,
    sources,
    trained_target,
)

SLOTS, WIDTH = 4, 16
OWN = {"encoder_layers": 1}
SHARED = {"source_size": 32, "state_size": 32}
CONFIGS = pytest.mark.parametrize("options", [OWN, SHARED], ids=["own encoder", "target's states"])


def build(options: dict[str, int], seed: int = 0) -> SpecDrafter:
    torch.manual_seed(seed)
    return SpecDrafter(SpecDrafterConfig(VOCAB, SLOTS, WIDTH, 32, 2, decoder_layers=2, **options))


def inputs(options: dict[str, int], seed: int = 1):
    """Source of 5, text of 7 tokens, blocks behind tokens 2 and 4, and hidden states."""
    generator = torch.Generator().manual_seed(seed)
    if options == OWN:
        source = torch.randint(3, VOCAB, (1, 5), generator=generator)
        hidden = None
    else:
        source = torch.randn(1, 5, 32, generator=generator)
        hidden = torch.randn(1, 2, 32, generator=generator)
    tokens = torch.randint(3, VOCAB, (1, 7), generator=generator)
    return source, tokens, torch.tensor([[2, 4]]), hidden


@torch.no_grad()
def guess(drafter, source, tokens, starts, hidden, revealed=None, mask=None):
    return drafter(drafter.read_source(source, mask), mask, tokens, starts, hidden, revealed)


@CONFIGS
def test_a_block_sees_its_prefix_and_nothing_behind_it(options):
    drafter = build(options)
    source, tokens, starts, hidden = inputs(options)
    found = guess(drafter, source, tokens, starts, hidden)
    assert found.shape == (1, 2, SLOTS, VOCAB)
    changed = tokens.clone()
    changed[0, 4] = (tokens[0, 4] + 1) % VOCAB
    again = guess(drafter, source, changed, starts, hidden)
    assert torch.equal(again[0, 0], found[0, 0])
    assert not torch.allclose(again[0, 1], found[0, 1])


@CONFIGS
def test_slots_of_a_block_see_each_other_and_no_other_block(options):
    drafter = build(options)
    source, tokens, starts, hidden = inputs(options)
    found = guess(drafter, source, tokens, starts, hidden)
    revealed = torch.full((1, 2, SLOTS), -1)
    assert torch.equal(guess(drafter, source, tokens, starts, hidden, revealed), found)
    revealed[0, 1, SLOTS - 1] = 9
    told = guess(drafter, source, tokens, starts, hidden, revealed)
    assert torch.equal(told[0, 0], found[0, 0])
    assert not torch.allclose(told[0, 1, 0], found[0, 1, 0])


@CONFIGS
@torch.no_grad()
def test_memory_from_block_to_block_is_reading_anew(options):
    drafter = build(options)
    source, tokens, starts, hidden = inputs(options)
    wanted = guess(drafter, source, tokens, starts, hidden)[0]
    memory = drafter.new_cache(drafter.read_source(source))
    for number, (old, new) in enumerate([(0, 3), (3, 5)]):
        given = None if hidden is None else hidden[0, number]
        found = drafter.draft(memory, tokens[0, old:new], given)
        torch.testing.assert_close(found, wanted[number], atol=1e-5, rtol=1e-5)
    assert memory.length == 5


@CONFIGS
@pytest.mark.parametrize("strategy", ["bpd", "p_best", "tree"])
def test_drafts_of_any_quality_change_no_output(options, strategy):
    heads = SpecDrafterHeads(build(options))
    assert isinstance(heads, DraftHeads)
    for source in sources(3, seed=1):
        config = DraftConfig(strategy, top_k=4)
        found = generate(model_of("marian"), source, config, heads=heads, max_new_tokens=14)
        assert found.token_ids == plain_greedy(model_of("marian"), source, 14)


def test_a_trained_drafter_saves_calls_alone_and_in_batches():
    target = trained_target()
    texts = [pair.source for pair in counting_pairs(100, seed=0)]
    pairs = [Pair(s, o) for s, o in zip(texts, generate_outputs(target, texts, 12), strict=True)]
    drafter = build(SHARED)
    train_spec_drafter(
        target, drafter, pairs, SpecDrafterOptions(steps=60, batch_size=16, warmup=5)
    )
    heads, test = SpecDrafterHeads(drafter), texts[:8]
    greedy = generate_outputs(target, test, 12)
    alone = [generate(target, s, "bpd", heads=heads, max_new_tokens=12) for s in test]
    together = generate(target, test, "bpd", heads=heads, max_new_tokens=12)
    for found in (alone, together):
        assert [one.token_ids for one in found] == greedy
    calls = [sum(one.stats.target_calls for one in found) for found in (alone, together)]
    assert calls[0] == calls[1]
    assert sum(map(len, greedy)) / calls[0] > 1.8


@CONFIGS
def test_padding_of_sources_and_texts_changes_nothing(options):
    drafter = build(options)
    source, tokens, starts, hidden = inputs(options)
    alone = guess(drafter, source, tokens, starts, hidden)
    wide = torch.cat([source, torch.ones_like(source[:, :2])], dim=1)
    mask = torch.tensor([[1] * 5 + [0] * 2])
    long = torch.cat([tokens, torch.zeros_like(tokens)], dim=1)
    padded = guess(drafter, wide, long, starts, hidden, mask=mask)
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)

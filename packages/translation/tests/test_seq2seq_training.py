"""Training on pairs: batches, the target's own outputs, blocks, and that losses fall."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd.decode import generate
from lattice_bpd_translation.drafter import SpecDrafter, SpecDrafterConfig
from lattice_bpd_translation.joint import (
    Seq2SeqOptions,
    read_pairs,
    train_seq2seq,
)
from lattice_bpd_translation.specdec import (
    SpecDrafterOptions,
    block_logits,
    reveal_tokens,
    sample_blocks,
    train_spec_drafter,
)
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import (
    IGNORED,
    collate,
    generate_outputs,
)
from seq2seq_models import VOCAB, build, counting_pairs, model_of, sources, trained_target


def drafter_of(seed: int = 0, slots: int = 3) -> SpecDrafter:
    torch.manual_seed(seed)
    return SpecDrafter(SpecDrafterConfig(VOCAB, slots, 16, 32, 2, source_size=32, state_size=32))


@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_outputs_written_together_are_those_written_alone(kind):
    target, texts = Seq2SeqTarget(model_of(kind)), sources(7, seed=4)
    alone = [generate(target, text, "greedy", max_new_tokens=9).token_ids for text in texts]
    assert generate_outputs(target, texts, 9, batch_size=3) == alone


def test_labels_and_hidden_states_of_blocks():
    target, drafter = trained_target(), drafter_of()
    pairs = counting_pairs(6, seed=2)
    batch = collate(pairs, target.decoder_prompt)
    options = SpecDrafterOptions(blocks=5, soft_weight=0.5)
    found = sample_blocks(target, drafter, batch, options, torch.Generator().manual_seed(0))
    with torch.no_grad():
        output, states = read_pairs(target, batch)
    assert torch.equal(found.source, states)
    for row, pair in enumerate(pairs):
        text = [*target.decoder_prompt, *pair.output]
        for place, start in enumerate(found.starts[row].tolist()):
            assert 1 <= start < len(text) - 1
            behind = (text[start + 1 :] + [IGNORED] * 3)[:3]
            assert found.labels[row, place].tolist() == behind
            assert torch.equal(found.hidden[row, place], output.hidden[row, start - 1])
            logits = output.logits[row, start]  # of the token behind the prefix
            torch.testing.assert_close(found.soft[row, place, 0], logits.log_softmax(dim=-1))


@pytest.mark.parametrize("objective", ["glancing", "masked"])
def test_what_is_told(objective):
    target, drafter = trained_target(), drafter_of(slots=5)
    batch = collate(counting_pairs(20, seed=3), target.decoder_prompt)
    generator = torch.Generator().manual_seed(0)
    found = sample_blocks(target, drafter, batch, SpecDrafterOptions(), generator)
    assert reveal_tokens(drafter, found, objective, 0.0, generator) is None
    told = reveal_tokens(drafter, found, objective, 0.6, generator)
    shown, known = told >= 0, found.labels != IGNORED
    assert torch.equal(told[shown], found.labels[shown])
    assert bool(known[shown].all())
    if objective == "glancing":
        wrong = (block_logits(drafter, found, None).argmax(dim=-1) != found.labels) & known
        assert torch.equal(shown.sum(dim=-1), (wrong.sum(dim=-1) * 0.6).round().long())
    else:
        assert bool((shown.sum(dim=-1) <= (known.sum(dim=-1) * 0.6).round()).all())
    assert 0 < int(shown.sum()) < int(known.sum())


def test_training_is_repeatable_and_leaves_the_target_alone():
    target, pairs = trained_target(), counting_pairs(60, seed=0)
    before = {name: weight.clone() for name, weight in target.base.state_dict().items()}
    drafters = [drafter_of(), drafter_of()]
    steps: list[int] = []
    for drafter in drafters:
        options = SpecDrafterOptions(steps=25, batch_size=16, soft_weight=0.3, warmup=3)
        first = train_spec_drafter(target, drafter_of(), pairs, SpecDrafterOptions(steps=1))
        report = train_spec_drafter(
            target, drafter, pairs, options, lambda report: steps.append(report.step)
        )
        assert sum(report.losses) < 0.8 * sum(first.losses)
        assert not drafter.training
    assert steps == [*range(1, 26)] * 2
    for one, other in zip(*(d.state_dict().values() for d in drafters), strict=True):
        assert torch.equal(one, other)
    for name, weight in target.base.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(weight.grad is None for weight in target.base.parameters())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: train_seq2seq(t, [], Seq2SeqOptions()), "0 pairs"),
        (lambda t: generate_outputs(t, [[]], 5), "1 empty sources"),
    ],
)
def test_refused(call, words):
    target = Seq2SeqTarget(build("marian", seed=4))
    with pytest.raises(ValueError, match=words):
        call(target)

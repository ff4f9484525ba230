"""Stern et al. 2018: merged and unmerged calls, joint training, beam search, the example."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

import numpy as np
import torch

from blockwise_models import model_of as causal_model
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_translation.joint import (
    Seq2SeqOptions,
    train_seq2seq_jointly,
)
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import (
    IGNORED,
    collate,
    generate_outputs,
)
from sentence_pairs import write_sentence_pairs
from seq2seq_models import (
    STOP,
    build,
    counting_pairs,
    model_of,
    plain_greedy,
    sources,
)

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def folder(tmp_path):
    return write_sentence_pairs(tmp_path, train=100, others=4)


@pytest.fixture
def recipe(example):
    """Sizes of a quick run."""
    return replace(
        example.QUICK, vocab_size=40, hidden_size=16, target_steps=12, target_batch=8,
        drafter_batch=8, tune_sentences=2, test_sentences=3, max_new_tokens=8,
    )  # fmt: skip


@pytest.fixture
def example(monkeypatch):
    """The module of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "stern_translation", raising=False)
    import stern_translation

    return stern_translation


@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_unmerged_decoding_gives_the_models_own_output_with_any_heads(kind, example):
    target = Seq2SeqTarget(model_of(kind))
    torch.manual_seed(0)
    heads = BlockwiseHeads(32, 3)
    torch.nn.init.normal_(heads.outer_weight, std=0.5)
    for source in sources(4, seed=8):
        tokens, calls = example.decode_unmerged(
            target, lambda hidden: target.embedding(heads(hidden)), source, 12
        )
        assert tokens == plain_greedy(target.base, source, 12)
        assert 2 * -(-len(tokens) // 3) - 1 <= calls <= 2 * len(tokens)


@torch.no_grad()
def losses_by_hand(target, heads, batch, pairs):
    """Cross entropies of heads 1..k by loops over the pairs, from the model's own forward."""
    totals, counts = [0.0] * heads.num_heads, [0] * heads.num_heads
    for row, pair in enumerate(pairs):
        tokens = torch.tensor([[*target.decoder_prompt, *pair.output[:-1]]])
        found = target.base(
            input_ids=torch.tensor([pair.source]), decoder_input_ids=tokens,
            output_hidden_states=True,
        )  # fmt: skip
        hidden = found.decoder_hidden_states[-1][0]
        drafts = target.embedding(heads(hidden)).log_softmax(dim=-1)
        first = found.logits[0].log_softmax(dim=-1)
        for at in range(len(pair.output)):
            for head in range(heads.num_heads):
                if at + head < len(pair.output):
                    scores = first[at] if head == 0 else drafts[at, head - 1]
                    totals[head] -= float(scores[pair.output[at + head]])
                    counts[head] += 1
        assert batch.labels[row, len(pair.output) :].eq(IGNORED).all()
    return [total / count for total, count in zip(totals, counts, strict=True)]


def test_the_joint_loss_is_the_mean_over_heads_and_positions():
    target = Seq2SeqTarget(build("marian", seed=3, init_std=0.1))
    torch.manual_seed(1)
    heads = BlockwiseHeads(32, 3)
    torch.nn.init.normal_(heads.outer_weight, std=0.2)
    pairs = counting_pairs(4, seed=2)
    expected = losses_by_hand(target, heads, collate(pairs, target.decoder_prompt), pairs)
    options = Seq2SeqOptions(steps=1, batch_size=4, matrix_lr=0.0, other_lr=0.0)
    report = train_seq2seq_jointly(target, heads, pairs, options)
    assert report.losses == pytest.approx(expected, rel=1e-4)
    seen = set()
    for seed in range(12):  # one head per step: each of them, whole
        one = Seq2SeqOptions(
            steps=1, batch_size=4, matrix_lr=0.0, other_lr=0.0, one_head=True, seed=seed
        )
        (loss,) = train_seq2seq_jointly(target, heads, pairs, one).losses
        seen.add(min(range(3), key=lambda head: abs(expected[head] - loss)))
        assert min(abs(loss - value) for value in expected) < 1e-4
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_beam_search_of_many_sources_is_that_of_each_alone(kind):
    target, texts = Seq2SeqTarget(model_of(kind)), sources(5, seed=4)
    outputs = generate_outputs(target, texts, 9, num_beams=4, batch_size=3)
    for source, output in zip(texts, outputs, strict=True):
        alone = target.base.generate(
            torch.tensor([source]), num_beams=4, do_sample=False, max_new_tokens=9
        )[0].tolist()[len(target.decoder_prompt) :]
        stop = alone.index(STOP) + 1 if STOP in alone else len(alone)
        assert output == alone[:stop]
    assert outputs != generate_outputs(target, texts, 9)
    with pytest.raises(ValueError, match="num_beams 0"):
        generate_outputs(target, texts, 9, num_beams=0)


def test_a_wide_beam_search_finds_the_most_probable_text():
    """Brute force over all continuations by two tokens; greedy misses some of them."""
    base = causal_model("gpt2").base
    vocab = base.config.vocab_size
    prompts = np.random.default_rng(0).integers(0, vocab, (12, 5))
    rows = generate_texts(base, prompts, 2, num_beams=vocab, batch_size=5)
    assert np.array_equal(rows[:, :5], prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        with torch.no_grad():
            first = base(torch.tensor(prompt[None])).logits[0, -1].log_softmax(-1)
            texts = torch.tensor([[*prompt, token] for token in range(vocab)])
            second = base(texts).logits[:, -1].log_softmax(-1)
        best = (first[:, None] + second).flatten().argmax()
        assert row[5:].tolist() == [int(best) // vocab, int(best) % vocab]
    assert not np.array_equal(rows, generate_texts(base, prompts, 2))
    with pytest.raises(ValueError, match="num_beams is 2 with temperature 1"):
        generate_texts(base, prompts, 2, num_beams=2, temperature=1.0)


def test_the_example_prints_every_way_and_its_calls(example, folder, recipe, tmp_path, capsys):
    steps = example.Steps((5,), heads=3, finetuning=3, distilled=20)
    arguments = ["--quick", "--data", str(folder), "--json", str(tmp_path / "r.json")]
    rows = example.main([*arguments, "--block-sizes", "2", "3"], recipe, steps)
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == rows
    assert [(row["way"], row["k"]) for row in rows[1:]] == list(
        map(tuple, map(reversed, itertools.product((2, 3), example.WAYS)))
    )
    printed = capsys.readouterr().out
    assert all(way in printed for way in example.WAYS)
    assert rows[0]["merged_calls"] == rows[0]["tokens"]
    for row in rows[1:]:
        assert row["tokens"] / row["k"] <= row["merged_calls"] <= row["unmerged_calls"]
        assert row["unmerged_calls"] <= 2 * row["tokens"]
    (row,) = example.main([*arguments, "--block-sizes", "7", "--ways", "regular"], recipe, steps)[
        1:
    ]
    assert (row["way"], row["k"]) == ("regular", 7)
    with pytest.raises(SystemExit):
        example.main([*arguments, "--block-sizes", "1"], recipe, steps)

"""Acceptance rules as lines of tables: what is counted, what is said, what is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import ArgmaxDrafter
from lattice_bpd.verify import Exact
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd_kim2024.demo.library_text import draw_prompts
from lattice_bpd_kim2024.evaluate import Setting, compare_rules, compare_strategies
from lattice_bpd_kim2024.live.table import footnotes, table_rows
from lattice_bpd_kim2024.replay.strategies import strategy_of

PROMPTS = draw_prompts([looping_text(500, seed=2)], 4, length=10, room=20, seed=0)


def test_acceptance_rules_are_compared_on_the_same_texts():
    model, judged = model_of("trained"), []

    def judge(outputs):
        judged.append(outputs)
        return float(len(judged))

    seen = []
    found = compare_rules(
        model, PROMPTS, [Exact(), TopKMatch(1), TopKMatch(VOCAB)], ArgmaxDrafter, max_new_tokens=20,
        judge=judge, on_text=lambda: seen.append(1),
    )  # fmt: skip
    exact, strict, forced = found
    greedy = [decode(model, prompt, ArgmaxDrafter(), max_new_tokens=20) for prompt in PROMPTS]
    assert exact.outputs == strict.outputs == [result.token_ids for result in greedy]
    assert (exact.same, strict.same, len(seen)) == (4, 4, 12)
    assert exact.stats.target_calls == sum(result.stats.target_calls for result in greedy)
    assert forced.stats.block_efficiency >= 4.0 > exact.stats.block_efficiency
    assert forced.stats.relaxed_tokens > 0 == exact.stats.relaxed_tokens
    assert [result.quality for result in found] == [1.0, 2.0, 3.0]
    assert judged[2] == forced.outputs
    nats = 0.0
    for prompt, output in zip(PROMPTS, forced.outputs, strict=True):
        for place, token in enumerate(output):
            with torch.no_grad():
                logits = model.base(input_ids=torch.tensor([[*prompt, *output[:place]]])).logits
            nats -= float(logits[0, -1].log_softmax(0)[token])
    assert forced.nats == pytest.approx(nats / 80, rel=1e-4)
    line = forced.to_json()
    assert (line["rule"], line["lossless"], line["texts"]) == (f"top_k:{VOCAB}", False, 4)
    assert line["regret_per_token"] == pytest.approx(forced.stats.regret / 80)


def test_acceptance_without_texts_is_refused():
    with pytest.raises(ValueError, match="found 0 prompts and 1 rules; expected one or more"):
        compare_rules(model_of("trained"), [], [Exact()], ArgmaxDrafter)


def test_settings_have_an_acceptance_rule():
    lm = NGramLM.train([looping_text(2000)], 2, vocab_size=VOCAB, smoothing="witten_bell")
    settings = [
        Setting("greedy", "greedy", "greedy"), Setting("bpd", "BPD", "bpd"),
        Setting("forced", "BPD, all drafts", "bpd", acceptance=TopKMatch(VOCAB)),
    ]  # fmt: skip
    found = compare_strategies(
        model_of("trained"), lm, PROMPTS, settings=settings, max_new_tokens=20
    )
    lines = found.to_json()
    assert [line["lossless"] for line in lines] == [True, True, False]
    assert [line["acceptance"] for line in lines] == ["exact", "exact", f"top_k:{VOCAB}"]
    assert lines[2]["regret_per_token"] > 0.0 == lines[1]["regret_per_token"]
    assert lines[2]["relaxed_share"] > 0.0
    assert lines[2]["differences"] == []
    rows = table_rows(found, {})
    assert [row[-1] for row in rows[:2]] == ["yes", "yes"]
    assert rows[2][-1] == f"lossy ({lines[2]['regret_per_token']:.2f} nats)"
    assert footnotes(found)[-1].startswith("lossy: by how many nats per token")
    with pytest.raises(ValueError, match=r"keeps drafts by top_k:.*expected the exact"):
        strategy_of(settings[2])

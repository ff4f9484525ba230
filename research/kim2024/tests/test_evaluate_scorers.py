"""Lines of a table that use LMs, scorers and acceptance rules of their own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, output_of
from lattice_bpd import NGramLM
from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import ArgmaxDrafter, NeuralScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify import Exact
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.demo.library_text import draw_prompts
from lattice_bpd_kim2024.evaluate import (
    STANDARD_SETTINGS,
    Setting,
    compare_rules,
    compare_strategies,
)
from lattice_bpd_kim2024.live.table import footnotes, table_rows
from lattice_bpd_kim2024.replay.strategies import strategy_of

GREEDY = STANDARD_SETTINGS[0]
PROMPTS = draw_prompts([looping_text(500, seed=2)], 4, length=10, room=20, seed=0)
NEURAL = Setting("neural", "neural", "neural", source="rescorer")
OTHER = Setting("other", "another LM", "ngram", source="other")


@pytest.fixture(scope="module")
def lms():
    return [
        NGramLM.train([looping_text(size, seed=1)], 2, vocab_size=VOCAB, smoothing="absolute")
        for size in (2000, 40)
    ]


def test_settings_with_sources_decode_as_their_scorers_do(lms):
    model = model_of("trained")
    sources = {"rescorer": NeuralScorer(model.base), "other": lms[1]}
    settings = [GREEDY, Setting("common", "LM", "ngram", uses_lm=True), OTHER, NEURAL]
    options = {s.name: DraftConfig(top_k=5, alpha=0.4) for s in settings}
    found = compare_strategies(
        model, lms[0], PROMPTS, settings=settings, options=options, sources=sources,
        max_new_tokens=20,
    )  # fmt: skip
    assert all(not result.differing for result in found.results)
    chosen = [r.total().accept_lengths for r in found.results[1:]]
    plain = (("ngram", lms[0]), ("ngram", lms[1]), ("neural", model.base))
    for accepted, (strategy, lm) in zip(chosen, plain, strict=True):
        config = DraftConfig(strategy, top_k=5, alpha=0.4)
        alone = output_of(model, PROMPTS, config, lm=lm, max_new_tokens=20)
        assert accepted == [n for result in alone for n in result.stats.accept_lengths]


def test_settings_beyond_heads_decode_as_their_strategies_do(lms):
    model = model_of("trained")
    settings = [
        GREEDY, Setting("small", "a draft model", "draft_model", source="small"),
        Setting("all", "all", "mixture", uses_lm=True),
    ]  # fmt: skip
    options = {"all": DraftConfig(top_k=5, max_nodes=9)}
    comparison = compare_strategies(
        model, lms[0], PROMPTS[:2], settings=settings, options=options,
        sources={"small": model.base}, max_new_tokens=20,
    )  # fmt: skip
    assert all(not result.differing for result in comparison.results)
    ways = [
        {"drafter": "draft_model", "lm": model.base},
        {"drafter": "mixture", "lm": lms[0], "top_k": 5, "max_nodes": 9},
    ]
    for result, way in zip(comparison.results[1:], ways, strict=True):
        alone = [output_of(model, prompt, max_new_tokens=20, **way) for prompt in PROMPTS[:2]]
        lengths = [n for one in alone for n in one.stats.accept_lengths]
        assert result.total().accept_lengths == lengths


def test_settings_name_a_missing_source_and_an_unknown_strategy(lms):
    with pytest.raises(ValueError, match="uses the source 'rescorer'; expected one of"):
        compare_strategies(
            model_of("trained"), lms[0], PROMPTS, settings=[GREEDY, NEURAL], max_new_tokens=4
        )
    with pytest.raises(ValueError, match="'guess'; expected one of greedy, bpd"):
        Setting("x", "x", "guess").drafter(None, [], DraftConfig())


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
    greedy = decode(to_drafting(model), PROMPTS, ArgmaxDrafter(), max_new_tokens=20)
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

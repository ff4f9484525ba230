"""Lines of a table that use LMs and scorers of their own; training of rescorers."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.decode import PBestDrafter, generate
from lattice_bpd.decode.drafters import ArgmaxDrafter, NeuralScorer, ScorerDrafter
from lattice_bpd.draft import NGramScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.evaluate import STANDARD_SETTINGS, Setting, compare_strategies
from lattice_bpd_kim2024.heads.joint import TrainOptions
from lattice_bpd_kim2024.rescorer import train_rescorer
from lattice_bpd_kim2024.small_models import build_rescorer

GREEDY = STANDARD_SETTINGS[0]
PROMPTS = [looping_text(200, seed=2)[start : start + 8].tolist() for start in (0, 30, 90)]
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
    sources = {"rescorer": NeuralScorer(model), "other": lms[1]}
    settings = [GREEDY, Setting("common", "LM", "ngram", uses_lm=True), OTHER, NEURAL]
    options = {s.name: DraftConfig(top_k=5, alpha=0.4) for s in settings}
    found = compare_strategies(
        model, lms[0], PROMPTS, settings=settings, options=options, sources=sources,
        max_new_tokens=20,
    )  # fmt: skip
    assert all(not result.differing for result in found.results)
    chosen = [r.total().accept_lengths for r in found.results[1:]]
    plain = (("ngram", lms[0]), ("ngram", lms[1]), ("neural", model))
    for accepted, (strategy, lm) in zip(chosen, plain, strict=True):
        config = DraftConfig(strategy, top_k=5, alpha=0.4)
        alone = generate(model, PROMPTS, config, lm=lm, max_new_tokens=20)
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
        {"drafter": "draft_model", "draft_model": model.base},
        {"drafter": "mixture", "lm": lms[0], "top_k": 5, "max_nodes": 9},
    ]
    for result, way in zip(comparison.results[1:], ways, strict=True):
        alone = [generate(model, prompt, max_new_tokens=20, **way) for prompt in PROMPTS[:2]]
        lengths = [n for one in alone for n in one.stats.accept_lengths]
        assert result.total().accept_lengths == lengths


def test_settings_name_a_missing_source_and_an_unknown_strategy(lms):
    with pytest.raises(ValueError, match="uses the source 'rescorer'; expected one of"):
        compare_strategies(
            model_of("trained"), lms[0], PROMPTS, settings=[GREEDY, NEURAL], max_new_tokens=4
        )
    with pytest.raises(ValueError, match="'guess'; expected one of greedy, bpd"):
        Setting("x", "x", "guess").drafter(None, [], DraftConfig())


def test_settings_take_makers_of_ones_own():
    calls = []

    def make(*arguments):
        calls.append(arguments)
        return ArgmaxDrafter()

    config = DraftConfig(top_k=3)
    drafter = Setting("x", "x", "mine", make=make).drafter("source", [7], config)
    assert isinstance(drafter, ArgmaxDrafter)
    assert calls == [("source", [7], config)]


def test_settings_hand_options_on(lms):
    options = DraftConfig(top_k=3, num_drafts=4, alpha=0.7, beam=6)
    drafter = Setting("x", "x", "p_best").drafter(NGramScorer(lms[0]), [], options)
    assert isinstance(drafter, ScorerDrafter)
    config = drafter.config
    assert (config.top_k, drafter.num_drafts, config.alpha, config.beam) == (3, 4, 0.7, 6)
    drafter = NEURAL.drafter(NGramScorer(lms[0]), [], options)
    assert isinstance(drafter, ScorerDrafter)
    assert (drafter.num_drafts, drafter.config.beam) == (1, 6)
    drafter = OTHER.drafter(lms[1], [], options)
    assert isinstance(drafter, PBestDrafter)
    assert (drafter.lm, drafter.num_drafts) == (lms[1], 1)


def test_rescorer_learns_and_is_left_in_evaluation_mode():
    torch.manual_seed(0)
    model = build_rescorer("32M", VOCAB, max_positions=64, num_layers=1, hidden_size=24)
    losses = []
    options = TrainOptions(steps=60, batch_size=8, sequence_length=24, precision="fp32", warmup=3)
    report = train_rescorer(
        model, looping_text(2000), options, lambda report: losses.append(report.losses[0])
    )
    assert report.step == 60
    assert losses[-1] < 0.7 * losses[0]
    assert not model.training
    with pytest.raises(ValueError, match="give more text"):
        train_rescorer(model, np.zeros(10, np.int64), options)

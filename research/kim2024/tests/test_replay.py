"""Replay equals live decoding, call for call; the oracle; drafts of the baselines."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from replays import check_replay

from blockwise_models import VOCAB, looping_text, model_of, output_of, plain_greedy, small_lm
from lattice_bpd import NGramLM
from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import ArgmaxDrafter, NeuralScorer
from lattice_bpd.draft import MixtureScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.evaluate import record
from lattice_bpd_kim2024.live.oracle import OracleDrafter
from lattice_bpd_kim2024.record.suffix_index import SuffixIndex
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.strategies import STRATEGIES

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

NEW_TOKENS = 19
OPTIONS = DraftConfig(top_k=5, num_drafts=4, max_nodes=9, alpha=0.4, temperature=1.5)


@functools.cache
def rescorers() -> Rescorers:
    lm = NGramLM.train([looping_text(2000, seed=1)], 4, vocab_size=VOCAB, smoothing="witten_bell")
    scorer = MixtureScorer([(NeuralScorer(model_of("trained").base), 1.0), (lm, 0.5)])
    return Rescorers(lm, scorer=scorer)


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    text = looping_text(600, seed=seed)
    starts = rng.integers(0, 500, count)
    return [text[start : start + rng.integers(1, 50)].tolist() for start in starts]


@functools.cache
def recorded(kind: str, stops: tuple[int, ...] = ()):
    model = to_drafting(model_of(kind))
    inputs = prompts(12, seed=4)
    outputs = [
        decode(model, prompt, ArgmaxDrafter(), max_new_tokens=NEW_TOKENS, stop_token_ids=stops)
        for prompt in inputs
    ]
    token_ids = [output.token_ids for output in outputs]
    return inputs, record(model, inputs, token_ids, top_k=8, max_new_tokens=NEW_TOKENS)


@pytest.mark.parametrize("stops", [(), (3, 11, 20)])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", ["trained", "gpt2", "llama", "gemma2"])
def test_replay_is_live_decoding_call_for_call(kind, name, stops):
    inputs, recording = recorded(kind, stops)
    model = to_drafting(model_of(kind))
    ends = {"max_new_tokens": NEW_TOKENS, "stop_token_ids": stops}
    check_replay(
        recording, name, rescorers(), OPTIONS,
        lambda number, drafter: decode(model, inputs[number], drafter, **ends),
    )  # fmt: skip


def test_replay_names_what_is_missing_or_out_of_range():
    _, recording = recorded("trained")
    with pytest.raises(ValueError, match=r"strategy tree needs an n-gram LM; .*--lm"):
        recording.replay(STRATEGIES["tree"], Rescorers(), OPTIONS)
    with pytest.raises(ValueError, match=r"strategy mixture needs a scorer, .*--rescorer"):
        recording.replay(STRATEGIES["mixture"], Rescorers(rescorers().lm), OPTIONS)
    with pytest.raises(ValueError, match=r"top_k is 9; expected 1\.\.8, .*record again"):
        recording.replay(STRATEGIES["oracle"], Rescorers(), replace(OPTIONS, top_k=9))
    with pytest.raises(ValueError, match=r"num_drafts is 0; expected 1\.\.4096"):
        recording.replay(STRATEGIES["p_best_ngram"], rescorers(), replace(OPTIONS, num_drafts=0))


def test_replay_prompt_lookup_takes_the_latest_occurrence_of_the_longest_suffix():
    index = SuffixIndex()
    index.extend([1, 2, 3, 9, 2, 3, 7, 1, 2])
    assert index.look_up(3) == [3, 9, 2]  # 1 2 occurred at the start
    index.extend([3])
    assert index.look_up(2) == [9, 2]  # 1 2 3 is longer than 2 3, which occurred later
    index.extend([5])
    assert index.look_up(2) == []
    index.extend([5, 5])
    assert index.look_up(4) == [5, 5, 5, 5]  # the draft repeats itself
    index.extend([1, 2, 3, 1, 2])
    assert index.look_up(5) == [3, 1, 2, 3, 1]


def test_no_path_of_its_lattice_is_better() -> None:
    model, rng, calls = model_of("trained"), np.random.default_rng(5), [0, 0, 0]
    for _ in range(30):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 16)).tolist()
        wanted = plain_greedy(model, prompt, 24)
        results = [
            decode(to_drafting(model), prompt, OracleDrafter(wanted), max_new_tokens=24),
            decode(to_drafting(model), prompt, ArgmaxDrafter(), max_new_tokens=24),
            output_of(model, prompt, "ngram", lm=small_lm(), max_new_tokens=24),
        ]
        assert [one.token_ids for one in results] == [wanted] * 3
        calls = [
            sum(pair)
            for pair in zip(calls, [one.stats.target_calls for one in results], strict=True)
        ]
    assert calls[0] < min(calls[1:])

"""Records of heads that score transitions: a replay from disk equals live decoding."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from replays import check_replay

from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_kim2024.evaluate import Recording
from lattice_bpd_kim2024.record.files import read_record
from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.statistics import measure_calibration
from target_models import COUNT, PROMPTS, build_target, generated
from test_transition_decode import SLOTS, TOP_K, PairHeads, lm

KINDS = [
    {"unary": "included", "normalization": "local"},
    {"unary": "added", "normalization": "global"},
    {"unary": "replaced", "normalization": "local"},
]
NAMES = ["bpd", "ngram_1best", "p_best_0gram", "p_best_ngram", "chain", "tree_0gram", "tree",
         "oracle"]  # fmt: skip
OPTIONS = DraftConfig(top_k=4, num_drafts=3, max_nodes=7, alpha=0.6, temperature=1.4)


@functools.cache
def rescorers() -> Rescorers:
    return Rescorers(lm())


def from_disk(folder: Path, heads: Any, top_k: int = TOP_K) -> Recording:
    prompts = [Prompt(prompt) for prompt in PROMPTS]
    options = RecordOptions(top_k=top_k, max_new_tokens=COUNT, batch_size=2)
    write_record(folder, build_target("llama"), prompts, options, heads=heads)
    return Recording(read_record(folder).texts)


def live(heads: Any) -> Any:
    """Decodes the prompt of a number with a drafter."""
    model = DraftingModel(build_target("llama"), heads)
    return lambda number, drafter: decode(model, PROMPTS[number], drafter, max_new_tokens=COUNT)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_a_replay_from_disk_is_live_decoding_with_transitions(kind, tmp_path):
    recording = from_disk(tmp_path, PairHeads(**kind))
    assert [text.output.tolist() for text in recording.texts] == generated("llama")
    assert recording.transitions is not None
    assert recording.transitions.unary == kind["unary"]
    for name in NAMES:
        for options in (OPTIONS, replace(OPTIONS, top_k=TOP_K, normalization="global")):
            check_replay(recording, name, rescorers(), options, live(PairHeads(**kind)))


def test_a_record_has_the_numbers_of_the_heads(tmp_path):
    recording, heads = from_disk(tmp_path, PairHeads(unary="included")), PairHeads()
    text = recording.texts[1]
    for index in (0, 3):
        tokens = [*PROMPTS[1], *text.output[: index + 1].tolist()]
        token_ids, scores, start, transitions = heads._row(tokens)
        order = np.argsort(-scores, axis=1)
        assert text.token_ids[index].tolist() == np.take_along_axis(token_ids, order, 1).tolist()
        np.testing.assert_array_equal(text.scores[index], np.take_along_axis(scores, order, 1))
        assert text.transitions is not None
        np.testing.assert_array_equal(text.transitions.start[index], start[order[0]])
        for slot in range(SLOTS - 1):
            expected = transitions[slot][np.ix_(order[slot], order[slot + 1])]
            np.testing.assert_array_equal(text.transitions.scores[index, slot], expected)


def test_lattices_without_transitions_keep_their_normalization(tmp_path):
    class LocalHeads(PairHeads):
        def read_states(self, states: Any) -> LatticeInput:
            lattice = super().read_states(states)
            return LatticeInput(lattice.token_ids, lattice.scores, normalization="local")

    recording = from_disk(tmp_path, LocalHeads())
    assert recording.transitions is not None
    assert recording.transitions.scores is None
    check_replay(recording, "tree", rescorers(), OPTIONS, live(LocalHeads()))


def test_statistics_of_trees_use_the_transitions(tmp_path):
    """Prefixes of a tree are as probable as the search says, by its own log probabilities."""
    recording = from_disk(tmp_path, PairHeads(unary="included"))
    replayed = recording.replay(STRATEGIES["tree_0gram"], Rescorers(), OPTIONS)
    result = measure_calibration(recording, Rescorers(), OPTIONS, replayed, bins=2)
    likely = result["bins"][-1]
    assert likely["predicted"] > 0.5
    plain = Recording(replace(text, transitions=None) for text in recording.texts)
    other = measure_calibration(plain, Rescorers(), OPTIONS, replayed, bins=2)
    assert other["bins"] != result["bins"]

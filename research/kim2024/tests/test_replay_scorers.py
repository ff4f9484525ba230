"""Replays of neural rescoring: against all paths scored by the LM's own forward, and live."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from replays import check_replay

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy, random_model
from lattice_bpd import NGramLM
from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import NeuralScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.evaluate import Recording, record
from lattice_bpd_kim2024.lab.lab import Lab, LabOptions
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.scorers import (
    make_scorers,
)
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.replay.sweep import Point, make_grid
from lattice_bpd_kim2024.small_models import build_rescorer

NEW_TOKENS = 19
TOP_K = 3
PROMPTS = [looping_text(300, seed=6)[s : s + n].tolist() for s, n in ((0, 9), (40, 23), (90, 3))]


@functools.cache
def recorded() -> Recording:
    model = model_of("trained")
    outputs = [plain_greedy(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    return record(model, PROMPTS, outputs, top_k=6, max_new_tokens=NEW_TOKENS)


@functools.cache
def rescorer(positions: int = 64) -> torch.nn.Module:
    """A random LM of other sizes, which misleads as often as it helps."""
    torch.manual_seed(3)
    model = build_rescorer("32M", VOCAB, max_positions=positions, num_layers=1, hidden_size=24)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.3)
    return model


def ngram() -> NGramLM:
    return NGramLM.train([looping_text(900, seed=1)], 3, vocab_size=VOCAB, smoothing="witten_bell")


@functools.cache
def score_of(text: tuple[int, ...]) -> np.ndarray:
    """(V,) ln P after a text, by the rescorer's own forward on the whole text."""
    with torch.inference_mode():
        logits = rescorer()(input_ids=torch.tensor([text])).logits[0, -1]
    return logits.double().log_softmax(dim=-1).numpy()


def all_paths(position: int, alpha: float, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (k^h, h) of all paths of a lattice, and scores (k^h, h) of all of their prefixes."""
    recording = recorded()
    number = int(np.searchsorted(recording.starts, position, side="right")) - 1
    text = recording.texts[number]
    done = position - int(recording.starts[number]) + 1
    context = (*text.prompt.tolist(), *text.output[:done].tolist())
    ids = recording.candidates.token_ids[position, :slots, :TOP_K]
    heads = recording.candidates.scores[position, :slots, :TOP_K].astype(np.float64)
    tokens, scores = [], []
    for ranks in itertools.product(range(TOP_K), repeat=slots):
        path = [int(ids[slot, rank]) for slot, rank in enumerate(ranks)]
        terms = [
            heads[slot, rank] + alpha * score_of((*context, *path[:slot]))[path[slot]]
            for slot, rank in enumerate(ranks)
        ]
        tokens.append(path)
        scores.append(np.cumsum(terms))
    return np.array(tokens), np.array(scores)


def algorithm_2(tokens: np.ndarray, scores: np.ndarray) -> list[int]:
    """Of all paths, those with the best first token, of these those with the best second, .."""
    left = np.arange(len(tokens))
    for slot in range(tokens.shape[1]):
        prefix = scores[left, slot]
        left = left[prefix >= prefix.max() - 1e-9]
    assert len(left) == 1
    return tokens[left[0]].tolist()


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_neural_replay_is_brute_force_rescoring(alpha, is_read):
    """Every step of decoding by all k^h paths gives the replay's calls and accepted lengths."""
    recording, scorer = recorded(), NeuralScorer(rescorer())
    used = Rescorers(scorer=scorer)
    if is_read:
        recording = recording.read_with({"small": scorer})
    replayed = recording.replay(STRATEGIES["neural"], used, DraftConfig(top_k=TOP_K, alpha=alpha))
    differs_from_bpd = 0
    for number, text in enumerate(recording.texts):
        output, done, accepted = text.output.tolist(), 1, []
        while done < len(output):
            position = int(recording.starts[number]) + done - 1
            slots = min(recording.num_slots, NEW_TOKENS - done - 1)  # the last token is the bonus
            kept = 0
            if slots > 0:
                draft = algorithm_2(*all_paths(position, alpha, slots))
                pairs = zip(draft, output[done:], strict=False)
                kept = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
                best = recording.candidates.token_ids[position, :slots, 0].tolist()
                differs_from_bpd += draft != best
            accepted.append(kept)
            done += kept + 1
        mine = replayed.texts == number
        assert replayed.accepted[mine].tolist() == accepted
        assert replayed.calls[number] == 1 + len(accepted)
    assert differs_from_bpd > 3  # the rescorer does something
    assert replayed.block_efficiency == replayed.tokens.sum() / replayed.calls.sum()


@pytest.mark.parametrize("name", ["neural", "mixture"])
@pytest.mark.parametrize("kind", ["trained", "gpt2", "gemma2"])
def test_scores_along_the_output_replay_as_whole_drafts_and_live(kind, name):
    recording = recorded()
    neural, lm = {"small": NeuralScorer(random_model(kind, seed=5).base)}, {"3gram": ngram()}
    if kind == "trained":
        neural = {"small": NeuralScorer(model_of("trained").base)}
    scorers = make_scorers(neural, lm)
    group = scorers[name]
    read = recording.read_with(group)
    for scorer_name, alpha in zip(group, (0.2, 0.7, 3.0), strict=False):
        options = DraftConfig(top_k=5, alpha=alpha)
        point = Point(STRATEGIES[name], options, "3gram", scorer_name)
        used = point.rescorers(Rescorers(), lm, scorers)
        positions = np.arange(len(recording))
        whole = recording.draft(STRATEGIES[name], used, options, positions)
        along = read.draft(STRATEGIES[name], used, options, positions)
        np.testing.assert_array_equal(whole, along)
        check_replay(read, name, used, options, live)


def live(number, drafter):
    model = to_drafting(model_of("trained"))
    result = decode(model, PROMPTS[number], drafter, max_new_tokens=NEW_TOKENS)
    assert result.stats.draft_failures == {}
    return result


@pytest.mark.filterwarnings("ignore::lattice_bpd.decode.drafters.DraftWarning")
def test_a_rescorer_with_fewer_positions_replays_its_failures():
    """Where a history does not fit, decoding drafts nothing, and so does the replay."""
    recording, scorer = recorded(), NeuralScorer(rescorer(28))
    model, failures = to_drafting(model_of("trained")), []

    def failing(number, drafter):
        result = decode(model, PROMPTS[number], drafter, max_new_tokens=NEW_TOKENS)
        failures.extend(result.stats.draft_failures.values())
        return result

    for read in (recording, recording.read_with({"few": scorer})):
        options = DraftConfig(top_k=5, alpha=2.0)
        check_replay(read, "neural", Rescorers(scorer=scorer), options, failing)
    assert sum(failures) > 3


def test_mixtures_are_points_of_a_grid_by_their_parts():
    neural, lm = NeuralScorer(rescorer()), ngram()
    lms = {"3gram": lm, "2gram": lm}
    scorers = make_scorers({"small": neural, "other": neural}, lms, (0.5,))
    assert list(scorers["mixture"]) == ["small + 0.5 3gram"]
    grid = make_grid([STRATEGIES["neural"], STRATEGIES["mixture"]], {"alpha": [1.0, 2.0]},
                     list(lms), scorers)  # fmt: skip
    assert [(point.scorer, point.lm, point.options.alpha) for point in grid] == [
        ("small", "", 1.0), ("small", "", 2.0), ("other", "", 1.0), ("other", "", 2.0),
        ("small + 0.5 3gram", "3gram", 1.0), ("small + 0.5 3gram", "3gram", 2.0),
    ]  # fmt: skip


def test_lab_tunes_alpha_of_each_scorer_on_held_out_texts():
    """The weights of the table are those that decode held-out texts in the fewest calls."""
    neural, lms = {"small": NeuralScorer(model_of("trained").base)}, {"3gram": ngram()}
    options = LabOptions(
        strategies=("neural", "mixture"), options=DraftConfig(top_k=6), held_out=1,
        scorer_alphas=(0.1, 1.0, 8.0), top_ks=(1,), num_drafts=(1,), max_nodes=(4,), workers=1,
    )  # fmt: skip
    lab = Lab(lms, neural, options=options)
    results = lab.evaluate(recorded())
    lines = {line["name"]: line for line in results["strategies"]}
    assert list(lines) == ["bpd", "neural", "mixture"]
    assert lines["mixture"]["label"] == "neural + 3-gram BPD"
    for name in ("neural", "mixture"):
        tried = results["block_efficiency_by_weights"][name]
        assert len(tried) == 3 * len(lab.scorers[name])
        best = max(tried, key=lambda row: row["block_efficiency"])
        assert results["tuned"][name]["alpha"] == best["alpha"]
        assert lines[name]["options"]["scorer"] == best["scorer"]
    assert set(results["wins_and_losses"]["neural"]) >= {"wins", "ties", "losses", "win_repair"}
    assert set(results["repetition"]) == {"bpd", "neural", "mixture"}

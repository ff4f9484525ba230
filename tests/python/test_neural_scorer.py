"""Neural rescoring: against algorithm 2 without any cache, batches, and scorers that fail."""

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import (
    VOCAB,
    looping_text,
    model_of,
    plain_greedy,
    random_model,
    trained_model,
)
from lattice_bpd.decode import decode, generate
from lattice_bpd.decode.drafters import DraftWarning, NeuralScorer, ScorerDrafter
from lattice_bpd.draft import MixtureScorer, TransitionScorer
from lattice_bpd_kim2024.small_models import build_rescorer

PROMPT = looping_text(20)[3:15].tolist()


class PlainScorer(TransitionScorer):
    """The whole text is read for every score: no cache, one row at a time."""

    vocab_size = VOCAB

    def __init__(self, model):
        self.model = model

    def start(self, contexts):
        return [list(context) for context in contexts]

    def score(self, state, candidates):
        with torch.inference_mode():
            rows = [self.model(input_ids=torch.tensor([text])).logits[0, -1] for text in state]
        log_probs = torch.stack(rows).log_softmax(dim=-1).numpy()
        return np.take_along_axis(log_probs, candidates.astype(np.int64), axis=1)

    def advance(self, state, rows, token_ids):
        return [[*state[row], int(token)] for row, token in zip(rows, token_ids, strict=True)]


class Recording(TransitionScorer):
    """Passes everything on, and compares each answer with that of another scorer."""

    def __init__(self, scorer, reference):
        self.parts, self.vocab_size = (scorer, reference), VOCAB

    def start(self, contexts):
        return [part.start(contexts) for part in self.parts]

    def score(self, state, candidates):
        log_probs, expected = (
            part.score(own, candidates) for part, own in zip(self.parts, state, strict=True)
        )
        np.testing.assert_allclose(log_probs, expected, atol=2e-4)
        return expected

    def advance(self, state, rows, token_ids):
        return [
            part.advance(own, rows, token_ids) for part, own in zip(self.parts, state, strict=True)
        ]


def rescorer(kind="llama"):
    return (model_of(kind) if kind == "trained" else random_model(kind, seed=5)).base


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma2"])
def test_neural_scores_are_those_of_reading_the_whole_text(kind):
    """In decoding, with drafts accepted and rejected; a difference would end up as a failure."""
    model, prompts = trained_model(), [PROMPT, looping_text(60)[20:23].tolist(), [5]]
    scorer = Recording(NeuralScorer(rescorer(kind)), PlainScorer(rescorer(kind)))
    drafter = ScorerDrafter(scorer, top_k=4, alpha=2.0)  # misleads at times
    for texts in (prompts[:1], prompts):
        results = decode(model.base, texts, drafter, heads=model.heads, max_new_tokens=25)
        for prompt, result in zip(texts, results, strict=True):
            assert result.token_ids == plain_greedy(model, prompt, 25)
            assert result.stats.draft_failures == {}
    assert len(set(results[0].stats.accept_lengths)) > 2


class Failing(TransitionScorer):
    """A scorer with a fault every other step."""

    def __init__(self, fault):
        self.fault, self.steps = fault, 0

    def start(self, _contexts):
        self.steps += 1

    def score(self, _state, candidates):
        if self.steps % 2:
            return np.zeros(candidates.shape)
        if self.fault == "error":
            raise RuntimeError("no memory")
        return np.full(candidates.shape, np.nan) if self.fault == "nan" else np.zeros((1, 1, 1))

    def advance(self, _state, _rows, _token_ids):
        return None


@pytest.mark.parametrize("fault", ["nan", "shape", "error"])
def test_scorer_failures_are_counted_and_lossless(fault):
    model, drafter = trained_model(), ScorerDrafter(Failing(fault), top_k=4)
    with pytest.warns(DraftWarning, match=f"drafted nothing .{fault}: .* of Failing: ") as caught:
        result = decode(model.base, PROMPT, drafter, heads=model.heads, max_new_tokens=25)
    assert len(caught) == 1
    assert result.token_ids == plain_greedy(model, PROMPT, 25)
    steps = result.stats.target_calls - 1
    assert result.stats.draft_failures[fault] in (steps // 2, steps // 2 - 1)


def test_scorers_that_do_not_fit_are_refused():
    model, heads = trained_model().base, trained_model().heads
    other = build_rescorer("32M", 3 * VOCAB, hidden_size=24, num_layers=1)
    for scorer in (other, MixtureScorer([(NeuralScorer(other), 1.0)])):
        with pytest.raises(ValueError, match=f"vocabulary of {3 * VOCAB}, the target one of"):
            decode(model, PROMPT, ScorerDrafter(scorer), heads=heads)
    with pytest.raises(ValueError, match=r"'neural' needs an LM; .* or a TransitionScorer"):
        generate(model, PROMPT, "neural", heads=heads)
    with pytest.raises(TypeError, match=r"lm is a GPT2LMHeadModel; expected an NGramLM.*'neural'"):
        generate(model, PROMPT, "tree", heads=heads, lm=model)
    with pytest.raises(TypeError, match="NGramLM or a TransitionScorer"):
        ScorerDrafter(42)


def test_neural_rescorer_reads_the_prompt_once_and_a_token_of_each_draft_a_call():
    model = trained_model()
    small = copy.deepcopy(model.base)  # the target: its drafts are accepted but for the top k
    calls: list[int] = []
    small.register_forward_pre_hook(
        lambda _module, _args, given: calls.append(given["input_ids"].numel()), with_kwargs=True
    )
    scorer = NeuralScorer(small)
    drafter = ScorerDrafter(scorer, top_k=8, alpha=5.0)
    result = decode(model.base, PROMPT, drafter, heads=model.heads, max_new_tokens=40)
    steps = result.stats.target_calls - 1
    assert len(calls) <= model.num_slots * steps
    # Each step's draft but its last token, the exact token, and a last one where it was kept.
    most = len(PROMPT) + steps * (model.num_slots + 1)
    assert sum(calls) <= most
    assert result.stats.block_efficiency > 3

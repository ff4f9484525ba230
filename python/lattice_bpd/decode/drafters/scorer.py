"""Drafts with any transition scorer.

A wrong score costs time but does not change the output. A step in which the scorer raises, or
returns NaN or another shape, decodes one token; see `DraftError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits, find_candidates
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.drafters.proposals import DraftError, failure_kind
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig, check_used
from lattice_bpd.draft.scorers.greedy import rescore_greedily
from lattice_bpd.draft.scorers.ngram import as_scorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer, vocab_size_of
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.vocabulary import check_same_ids


class ScorerDrafter(Drafter):
    """One draft: the path through the top-k lattice under heads + alpha * scorer, slot by slot.

    With a neural LM: local rescoring, paper algorithm 2. For an n-gram LM alone `PBestDrafter` is
    exact and faster.

    Args:
        scorer: a TransitionScorer, an NGramLM, or a causal LM of `transformers`.
        config: options; None: the defaults.
        options: by name, instead of the config's: top_k, alpha; see `DraftConfig`.

    Raises:
        TypeError: scorer is not one of these.
        ValueError: options out of range, or of other strategies.
    """

    def __init__(self, scorer: Any, config: DraftConfig | None = None, **options: Any) -> None:
        self.scorer = _to_scorer(scorer)
        self.config = DraftConfig.make("ScorerDrafter", config, options)
        check_used("ScorerDrafter", "neural", options)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state.

        Raises:
            DraftError: the scorer failed.
            ValueError: the scorer's vocabulary is not the target's, or top_k exceeds it.
        """
        size = vocab_size_of(self.scorer)
        if size is not None:
            check_same_ids("ScorerDrafter", "scorer", size, states[0].model.vocab_size)
        logits = batch_head_logits(states)
        with states[0].stats.stage("top_k"):
            candidates, _ = find_candidates(states, logits, self.config.top_k, "ScorerDrafter")
        contexts = [state.tokens for state in states]
        with states[0].stats.stage("rescore"):
            try:
                drafts = rescore_greedily(
                    candidates, contexts, self.scorer, alpha=self.config.alpha
                )
            except Exception as error:  # any error of a scorer: drafts do not affect the output
                name, kind = type(self.scorer).__name__, failure_kind(error) or "error"
                message = f"{type(error).__name__} of {name}: {error}"
                raise DraftError(kind, message) from error
            return [
                PrefixTree.from_drafts(state.tokens[-1], draft[None, : state.max_draft_length])
                for state, draft in zip(states, drafts, strict=True)
            ]


def _to_scorer(scorer: Any) -> TransitionScorer:
    if isinstance(scorer, PreTrainedModel):
        return NeuralScorer(scorer)
    return as_scorer(scorer)

"""Scorers of transitions: any LM that tells how likely tokens are behind a history.

TransitionScorer   what a search asks for; write one in Python
NGramScorer        an NGramLM
KenlmScorer        a KenLM binary or ARPA file, through the kenlm module
MixtureScorer      several scorers with weights

A neural LM is one more: `lattice_bpd.decode.drafters.NeuralScorer`, which needs torch.
"""

from lattice_bpd.draft.scorers.beam import ScorerError, search_drafts
from lattice_bpd.draft.scorers.kenlm import KenlmScorer
from lattice_bpd.draft.scorers.mixture import MixtureScorer
from lattice_bpd.draft.scorers.ngram import NGramScorer, as_scorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer

__all__ = [
    "KenlmScorer",
    "MixtureScorer",
    "NGramScorer",
    "ScorerError",
    "TransitionScorer",
    "as_scorer",
    "search_drafts",
]

"""Transition scorers: LMs of any kind that score tokens after a history.

TransitionScorer   the interface; implement it for an LM of your own
NGramScorer        an NGramLM
KenlmScorer        a KenLM binary or ARPA file, through the kenlm module
MixtureScorer      several scorers with weights

For neural LMs see `lattice_bpd.decode.drafters.NeuralScorer`, which needs torch.
"""

from lattice_bpd.draft.scorers.greedy import rescore_greedily
from lattice_bpd.draft.scorers.kenlm import KenlmScorer
from lattice_bpd.draft.scorers.mixture import MixtureScorer
from lattice_bpd.draft.scorers.ngram import NGramScorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer

__all__ = [
    "KenlmScorer",
    "MixtureScorer",
    "NGramScorer",
    "TransitionScorer",
    "rescore_greedily",
]

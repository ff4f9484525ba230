"""Lattice rescoring for draft-and-verify decoding.

Keeps the top k tokens of every prediction head as a sausage lattice, scores all paths jointly
with a Katz-backoff n-gram LM and returns the best drafts for one batched verification:

    from lattice_bpd import NGramLM, rescore_lattice

    lm = NGramLM.load("corpus.lm")
    drafts = rescore_lattice(head_logits, context, lm, top_k=16, num_drafts=16, alpha=0.5)

Importing this package imports neither torch nor pywrapfst.
"""

from lattice_bpd._core import FormatError
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.draft.rescore_fst import rescore_fst
from lattice_bpd.draft.sampled_tree import SampledTree, sample_tree
from lattice_bpd.lattice.sausage import SausageLattice
from lattice_bpd.lm.ngram import NGramLM

__version__ = "0.2.0"

__all__ = [
    "DraftConfig",
    "DraftTree",
    "Drafts",
    "FormatError",
    "NGramLM",
    "SampledTree",
    "SausageLattice",
    "__version__",
    "rescore_fst",
    "rescore_lattice",
    "rescore_tree",
    "sample_tree",
]

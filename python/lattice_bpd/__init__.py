"""Lattice rescoring for draft-and-verify decoding.

Keeps the top k tokens of every prediction head as a sausage lattice, scores all paths jointly
with a Katz-backoff n-gram LM and returns the best drafts for one batched verification:

    from lattice_bpd import NGramLM, rescore_lattice

    lm = NGramLM.load("corpus.lm")
    drafts = rescore_lattice(head_logits, context, lm, top_k=16, num_drafts=16, alpha=0.5)

Importing this package imports neither torch nor pywrapfst.
"""

from lattice_bpd._core import FormatError
from lattice_bpd.draft import (
    Drafts,
    DraftTree,
    DrawnTree,
    TargetNoise,
    draw_tree,
    rescore_fst,
    rescore_lattice,
    rescore_tree,
)
from lattice_bpd.lattice import SausageLattice
from lattice_bpd.lm import ContextNGram, NGramLM

__version__ = "0.1.0"

__all__ = [
    "ContextNGram",
    "DraftTree",
    "Drafts",
    "DrawnTree",
    "FormatError",
    "NGramLM",
    "SausageLattice",
    "TargetNoise",
    "__version__",
    "draw_tree",
    "rescore_fst",
    "rescore_lattice",
    "rescore_tree",
]

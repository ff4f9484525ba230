"""Smaller n-gram LMs by rounding their numbers to few values."""

from __future__ import annotations

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM, core_of


def quantise(lm: NGramLM, bits: int = 8) -> NGramLM:
    """Rounds log probabilities and backoffs to 2**bits values for each order.

    The values are found by k-means in one dimension. Backoffs of 0 and the costs that stand for
    unseen and never stay exact. Queries work as before; :func:`lattice_bpd.lm.info.describe_lm`
    tells the largest error.

    Args:
        lm: The LM; it is not changed.
        bits: 8 (about 4.2 bytes for each n-gram), 12 or 16 (about 5.8, the error of a rounding).

    Raises:
        ValueError: bits is none of these.

    Source: Lloyd 1982, "Least squares quantization in PCM".
    """
    return NGramLM(_core.quantise(core_of("quantise", lm), bits))

"""Drafts from any acyclic acceptor, such as a lattice intersected with a grammar."""

from __future__ import annotations

from typing import Any

from lattice_bpd import _core
from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.search import MAX_DRAFTS, context_of
from lattice_bpd.lm.ngram import NGramLM, core_of

_WHERE, _HINT = "rescore_fst", " (SausageLattice.to_pywrapfst returns an FST)"


def rescore_fst(
    acceptor: Any,
    lm: NGramLM | None,
    num_drafts: int = DraftConfig.num_drafts,
    context: Any = (),
    alpha: float = DraftConfig.alpha,
    bos: bool = True,
    *,
    engine: str = "auto",
) -> Drafts:
    """Finds the best token sequences of an acyclic weighted acceptor.

        score(w) = -(cost of w's best path) + alpha * sum_j ln P(w_j | context, w_1 .. w_{j-1})

    Sequences may differ in length; scores are not normalized by length. A sequence accepted by
    several paths is returned once, at the cost of the best of them. Epsilon arcs add their weight
    and no token. Ties are broken by the smaller token id at the first differing position, a draft
    before a longer one that begins with it.

    Args:
        acceptor: A ``pywrapfst`` FST over standard arcs, or the bytes that ``write_to_string`` of a
            VectorFst returns. Labels are token id + 1, 0 is epsilon; weights are costs
            (:meth:`SausageLattice.to_pywrapfst` returns such an FST).
        lm: The n-gram LM, or None to rank by the acceptor alone.
        num_drafts: p, 1..4096.
        context: (T,) token ids before the lattice.
        alpha: Weight of the LM's natural log probabilities, any sign.
        bos: Whether the context starts with ``<s>``.
        engine: ``"auto"`` uses the fused engine if the acceptor is a sausage, otherwise the OpenFst
            engine; or ``"openfst"`` or ``"fused"``.

    Returns:
        :class:`Drafts` with B = 1 and H the length of the longest draft. Shorter drafts end in -1;
        ``lengths`` has their lengths. No draft if the acceptor has no path.

    Raises:
        TypeError: Arguments of the wrong kind.
        ValueError: Bytes that are no FST, another arc type, a transducer, a cycle, NaN or -inf
            weights, token ids outside the LM's vocabulary, or options out of range.

    Source: Kim et al. 2024, section 7.2; Mohri 1997 for making acceptors deterministic.
    """
    core_lm = None if lm is None else core_of(_WHERE, lm)
    history = context_of(_WHERE, context, None if lm is None else lm.vocab_size)
    number = check_int(f"{_WHERE}: num_drafts", num_drafts, 1, MAX_DRAFTS)
    weight = check_number(f"{_WHERE}: alpha", alpha)
    arrays = _core.rescore_fst(
        acceptor_bytes(_WHERE, acceptor, _HINT), core_lm, history, bool(bos), number, weight,
        str(engine),
    )  # fmt: skip
    return Drafts(*arrays)


def acceptor_bytes(where: str, acceptor: Any, hint: str = "") -> bytes:
    """The FST in OpenFst's own format; FSTs cross to the core as bytes, never as pointers.

    Args:
        where: of the caller, for error messages.
        acceptor: a ``pywrapfst`` FST, or the bytes of one.
        hint: end of the error message.

    Raises:
        TypeError: neither of them.
    """
    if isinstance(acceptor, bytes):
        return acceptor
    if not hasattr(acceptor, "write_to_string"):
        raise TypeError(
            f"{where}: acceptor is a {type(acceptor).__name__}; expected a pywrapfst FST, or the "
            f"bytes of one{hint}"
        )
    if acceptor.arc_type() == "standard" and acceptor.fst_type() != "vector":
        import pywrapfst

        acceptor = pywrapfst.convert(acceptor, "vector")
    return bytes(acceptor.write_to_string())

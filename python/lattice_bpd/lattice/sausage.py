"""SausageLattice: candidate tokens of each slot, as an immutable value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Float32Array, Int32Array, check_shape, select_top_k
from lattice_bpd.token_ids import check_has_values, to_token_ids
from lattice_bpd.vocabulary import Vocab, read_words

_SHOWN = 4  # slots and candidates that repr prints


class SausageLattice:
    """Candidate tokens with head scores for each of H slots; a path has one from every slot.

    Also called a confusion network. Candidates of a slot are distinct and sorted by descending
    score, ties by ascending token id. Masked tokens (-inf) are left out. If all tokens of a slot
    are masked, the lattice ends before that slot. A lattice without slots has no path.

    Args:
        slots: Pairs of token ids (k_j,) and scores (k_j,), in any order; widths may differ.
        transitions: For each slot but the first (k_{j-1}, k_j) scores of its candidates after those
            of the slot before, in the order of `slots`; None: the slots are independent.

    Raises:
        TypeError: Token ids that are not integers, or masked arrays.
        ValueError: A slot without candidates, a duplicate or negative token id, NaN or +inf; or
            transitions of another shape, or that are not finite.

    Source: Kim et al. 2024, section 6.3.
    """

    def __init__(
        self,
        slots: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
        transitions: Iterable[npt.ArrayLike] | None = None,
    ) -> None:
        """Builds the lattice from candidates; see the class."""
        self._core = _core.Sausage()
        pairs = None if transitions is None else iter(transitions)
        for number, (token_ids, scores) in enumerate(slots):
            check_has_values(scores, f"slot {number}: scores")
            values = np.ascontiguousarray(scores, dtype=np.float32).reshape(-1)
            ids = to_token_ids(token_ids, f"slot {number}")
            if pairs is None or number == 0:
                self._core.add_slot(ids, values)
            else:
                self._core.add_slot(ids, values, _next_transitions(pairs, number, len(ids)))
        if pairs is not None and next(pairs, None) is not None:
            raise ValueError(
                "transitions: more than slots; expected one (k, k) array less than slots"
            )

    @classmethod
    def from_logits(
        cls, head_logits: Any, top_k: int = 16, *, log_softmax: bool = False
    ) -> SausageLattice:
        """Keeps the top k tokens of each head.

        Args:
            head_logits: (H, V) float32, float16 or bfloat16; numpy array or torch tensor on any
                device. -inf marks a masked token.
            top_k: k, 1..V.
            log_softmax: Scores are log probabilities over the vocabulary, else raw logits.

        Returns:
            A lattice of H slots, or fewer if one is completely masked.

        Raises:
            TypeError: Not an array, or of another element type.
            ValueError: Wrong shape, top_k out of range, NaN or +inf logits.
        """
        where = "SausageLattice.from_logits"
        check_shape(head_logits, where, dimensions=(2,))
        best = select_top_k(head_logits, top_k, log_softmax=log_softmax, where=where)
        return cls(zip(best.token_ids[0], best.scores[0], strict=True))

    @classmethod
    def from_input(cls, lattice: LatticeInput, row: int = 0) -> SausageLattice:
        """One lattice of a batch of candidates with transition scores.

        Scores are the ones that paths add up: those of `start` are in slot 0, and unary scores that
        are included in the transitions or replaced by them are 0. `normalization` is not kept: a
        search of this lattice is global.

        Args:
            lattice: The batch.
            row: 0..B-1.

        Raises:
            TypeError: As `rescore_lattice`.
            ValueError: As `rescore_lattice`.
            IndexError: A row out of range.
        """
        made = cls([])
        made._core = lattice.to_sausages("SausageLattice.from_input")[row]
        return made

    @property
    def transitions(self) -> list[Float32Array] | None:
        """For each slot but the first (k_{j-1}, k_j) float32, best candidates first; or None."""
        if not self._core.has_transitions:
            return None
        return [self._core.transitions(slot) for slot in range(1, self.num_slots)]

    @property
    def num_slots(self) -> int:
        """H, the number of slots."""
        return self._core.num_slots

    @property
    def token_ids(self) -> list[Int32Array]:
        """For each slot (k_j,) int32, best first."""
        return [self._core.token_ids(slot) for slot in range(self.num_slots)]

    @property
    def scores(self) -> list[Float32Array]:
        """For each slot (k_j,) float32, best first."""
        return [self._core.scores(slot) for slot in range(self.num_slots)]

    @property
    def widths(self) -> list[int]:
        """The number of candidates of each slot."""
        return [len(ids) for ids in self.token_ids]

    @property
    def num_paths(self) -> int:
        """The number of paths: the product of the widths, or 0 without slots."""
        return math.prod(self.widths) if self.num_slots else 0

    def to_pywrapfst(self) -> Any:
        """The lattice as a ``pywrapfst.VectorFst`` over standard arcs.

        States 0..H form a chain, state H is final; labels are token id + 1, weights are -score.
        With transitions each candidate of a slot but the last has a state of its own, and an arc
        to a candidate has the cost of its score and of its transition. Without slots there are no
        states.

        Raises:
            ImportError: pywrapfst is not installed (extra ``openfst``).
        """
        pywrapfst = require("pywrapfst", "openfst")
        return pywrapfst.Fst.read_from_string(self._core.to_fst_bytes())

    def to_dot(self, vocab: Vocab | None = None) -> str:
        """The lattice as Graphviz text, for ``dot -Tsvg``, laid out from left to right.

        Args:
            vocab: The word of each token id, see :func:`lattice_bpd.lm.read_words`; default:
                token ids.
        """
        words = None if vocab is None else read_words(vocab)
        lines = ["digraph lattice {", "  rankdir=LR; node [shape=circle];"]
        transitions = self.transitions
        for slot, (ids, scores) in enumerate(zip(self.token_ids, self.scores, strict=True)):
            table = scores[None]  # (states before the slot, candidates)
            if transitions is not None and slot > 0:
                table = scores + transitions[slot - 1]
            for state, row in enumerate(table):
                for rank, (token_id, score) in enumerate(zip(ids, row, strict=True)):
                    text = str(token_id) if words is None else words[token_id]
                    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
                    style = ", style=bold" if rank == row.argmax() else ""
                    arc = f"{self._state(slot, state)} -> {self._state(slot + 1, rank)}"
                    lines.append(f'  {arc} [label="{text} {float(score):.2f}"{style}];')
        lines += [f"  {self.num_slots} [shape=doublecircle];", "}"]
        return "\n".join(lines) + "\n"

    def _state(self, slot: int, rank: int) -> str:
        """The name of the state before a slot, after a candidate of the slot before."""
        one = slot in (0, self.num_slots) or not self._core.has_transitions
        return str(slot) if one else f'"{slot}.{rank}"'

    def __copy__(self) -> SausageLattice:
        """The lattice itself, since it is immutable."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SausageLattice:
        """The lattice itself, since it is immutable."""
        return self

    def __reduce__(self) -> tuple[type[SausageLattice], tuple[Any, ...]]:
        """Pickles hold the slots and transitions."""
        slots = list(zip(self.token_ids, self.scores, strict=True))
        return type(self), (slots, self.transitions)

    def __repr__(self) -> str:
        """Slots with their best candidates, one per line."""
        pairs = ", transitions" if self._core.has_transitions else ""
        lines = [f"SausageLattice({self.num_slots} slots, {self.num_paths:,} paths{pairs})"]
        for slot, (ids, scores) in enumerate(zip(self.token_ids, self.scores, strict=True)):
            if slot == _SHOWN and self.num_slots > _SHOWN + 1:
                lines.append(f"  .. {self.num_slots - _SHOWN} more slots")
                break
            shown = zip(ids[:_SHOWN], scores[:_SHOWN], strict=True)
            text = ", ".join(f"{token_id}: {float(score):.3f}" for token_id, score in shown)
            more = f", .. {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
            lines.append(f"  slot {slot}: {text}{more}")
        return "\n".join(lines)


def _next_transitions(pairs: Iterator[npt.ArrayLike], slot: int, width: int) -> Float32Array:
    """The transitions to a slot of so many candidates, flat."""
    given = next(pairs, None)
    if given is None:
        raise ValueError(
            f"transitions: none to slot {slot}; expected a (k, k) array for each slot but the first"
        )
    check_has_values(given, f"transitions to slot {slot}")
    values = np.ascontiguousarray(given, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] != width:
        raise ValueError(
            f"transitions to slot {slot} have shape {values.shape}; expected (candidates of slot "
            f"{slot - 1}, {width})"
        )
    return values

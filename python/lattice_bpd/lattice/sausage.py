"""SausageLattice: candidate tokens of each slot, as an immutable value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd.lattice.logits import Float32Array, Int32Array, check_shape, select_top_k
from lattice_bpd.token_ids import check_has_values, to_token_ids

_SHOWN = 4  # slots and candidates that repr prints


class SausageLattice:
    """Candidate tokens with head scores for each of H slots; a path has one from every slot.

    Also called a confusion network. Candidates of a slot are distinct and sorted by descending
    score, ties by ascending token id. Masked tokens (-inf) are left out. If all tokens of a slot
    are masked, the lattice ends before that slot. A lattice without slots has no path.

    Args:
        slots: Pairs of token ids (k_j,) and scores (k_j,), in any order; widths may differ.

    Raises:
        TypeError: Token ids that are not integers, or masked arrays.
        ValueError: A slot without candidates, a duplicate or negative token id, NaN or +inf.

    Source: Kim et al. 2024, section 6.3.
    """

    def __init__(self, slots: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Builds the lattice from candidates; see the class."""
        self._core = _core.Sausage()
        for number, (token_ids, scores) in enumerate(slots):
            check_has_values(scores, f"slot {number}: scores")
            values = np.ascontiguousarray(scores, dtype=np.float32).reshape(-1)
            self._core.add_slot(to_token_ids(token_ids, f"slot {number}"), values)

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
        Without slots there are no states. Its method ``draw`` writes Graphviz text.

        Raises:
            ImportError: pywrapfst is not installed (extra ``openfst``).
        """
        pywrapfst = require("pywrapfst", "openfst")
        return pywrapfst.Fst.read_from_string(self._core.to_fst_bytes())

    def __repr__(self) -> str:
        """Slots with their best candidates, one per line."""
        lines = [f"SausageLattice({self.num_slots} slots, {self.num_paths:,} paths)"]
        for slot, (ids, scores) in enumerate(zip(self.token_ids, self.scores, strict=True)):
            if slot == _SHOWN and self.num_slots > _SHOWN + 1:
                lines.append(f"  .. {self.num_slots - _SHOWN} more slots")
                break
            shown = zip(ids[:_SHOWN], scores[:_SHOWN], strict=True)
            text = ", ".join(f"{token_id}: {float(score):.3f}" for token_id, score in shown)
            more = f", .. {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
            lines.append(f"  slot {slot}: {text}{more}")
        return "\n".join(lines)

"""One recorded text: a greedy output, and the heads' candidates at every position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.lattice.lattice_input import Normalization, UnaryScores
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_kim2024.record.suffix_index import SuffixIndex

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


class Transitions(NamedTuple):
    """What heads that give a `LatticeInput` score besides single candidates, at m positions.

    Attributes:
        start: (m, k) float32, scores of slot 0 after the exact token; None: no transitions.
        scores: (m, H - 1, k, k) float32, see `LatticeInput.transitions`; None together with start.
        unary: see `LatticeInput`.
        normalization: see `LatticeInput`.
    """

    start: Float32Array | None
    scores: Float32Array | None
    unary: UnaryScores
    normalization: Normalization

    def cut(self, num_slots: int, top_k: int) -> Transitions:
        """Those of the first slots, and of the top_k best candidates of each."""
        if self.start is None or self.scores is None:
            return self
        scores = self.scores[:, : num_slots - 1, :top_k, :top_k]
        return self._replace(start=self.start[:, :top_k], scores=scores)

    def take(self, positions: Int64Array) -> Transitions:
        """Those of some of the positions."""
        if self.start is None or self.scores is None:
            return self
        return self._replace(start=self.start[positions], scores=self.scores[positions])

    @classmethod
    def join(cls, parts: Sequence[Transitions | None]) -> Transitions | None:
        """Those of several texts, one after the other.

        Raises:
            ValueError: texts of different heads.
        """
        kinds = {part and (part.start is None, part.unary, part.normalization) for part in parts}
        if len(kinds) > 1:
            raise ValueError(
                "Recording: texts with and without transition scores, or of different kinds; "
                "expected texts that were all recorded with the same heads"
            )
        found = [part for part in parts if part is not None and part.start is not None]
        if not found:
            return parts[0]
        start, scores = (
            np.concatenate([getattr(part, name) for part in found]) for name in ("start", "scores")
        )
        return found[0]._replace(start=start, scores=scores)


@dataclass(frozen=True)
class RecordedText:
    """A prompt, greedy's output of m tokens, and the heads at its m positions.

    Position i is that of output[i], the exact token of a call; its candidates start from the
    hidden state that gave this token and predict output[i + 1], output[i + 2], ...

    Attributes:
        prompt: (T,) int32.
        output: (m,) int32.
        limit: maximum length of the output; m, unless a stop token ended it.
        token_ids: (m, H, k) int32, the k best tokens of each head, best first.
        scores: (m, H, k) float32, their raw logits.
        entropies: (m, H + 1) float32, of each head over the whole vocabulary, in nats; the target's
            own head comes first.
        margins: (m,) float32, the target's logit of output[i] minus the best other one. Below 0
            where the calls that decode and record round a tie differently.
        finish: why the text ended: "stop_token", "length" or "positions".
        task: name of its task, with "/category" if it has one; may be empty.
        name: its id within the task, such as "HumanEval/3"; may be empty.
        references: texts that the output is judged by.
        transitions: of heads that give candidates rather than logits; else None.
        rescored: (m, H, k) float64 by TransitionScorer: its log probability of each candidate
            after the output before the candidate's slot; see `evaluate.replay.scorers`. Not stored
            on disk.
        source: (S,) int32, what an encoder-decoder read, whose `prompt` is the decoder's; else
            None.
    """

    prompt: Int32Array
    output: Int32Array
    limit: int
    token_ids: Int32Array
    scores: Float32Array
    entropies: Float32Array
    margins: Float32Array
    finish: str = "length"
    task: str = ""
    name: str = ""
    references: tuple[str, ...] = field(default=())
    transitions: Transitions | None = None
    rescored: Mapping[Any, Float64Array] = field(default_factory=dict)
    source: Int32Array | None = None

    @property
    def model_input(self) -> list[int]:
        """What decoding is given: the prompt, or the source of an encoder-decoder."""
        ids: list[int] = (self.prompt if self.source is None else self.source).tolist()
        return ids

    @property
    def num_slots(self) -> int:
        """H."""
        return int(self.token_ids.shape[1])

    @property
    def top_k(self) -> int:
        """k."""
        return int(self.token_ids.shape[2])

    def cut(self, num_slots: int, top_k: int) -> RecordedText:
        """The same with the first slots and the top_k best candidates of each."""
        if (num_slots, top_k) == (self.num_slots, self.top_k):
            return self
        kept = np.s_[:, :num_slots, :top_k]
        return replace(
            self, token_ids=self.token_ids[kept], scores=self.scores[kept],
            entropies=self.entropies[:, : num_slots + 1],
            transitions=self.transitions and self.transitions.cut(num_slots, top_k),
            rescored={scorer: scores[kept] for scorer, scores in self.rescored.items()},
        )  # fmt: skip

    def context(self, position: int) -> list[int]:
        """All tokens up to and including a position's exact token."""
        return [*self.prompt.tolist(), *self.output[: position + 1].tolist()]

    def contexts(self, most: int) -> Iterator[Int32Array]:
        """At most `most` tokens up to and including each position's exact token, int32."""
        tokens = np.concatenate([self.prompt[-most:], self.output]).astype(np.int32, copy=False)
        for end in range(len(tokens) - len(self.output) + 1, len(tokens) + 1):
            yield tokens[max(0, end - most) : end]

    def wanted(self) -> Int32Array:
        """(m, H) int32, the output after each position; -1 after its end."""
        padded = np.concatenate([self.output[1:], np.full(self.num_slots, -1)]).astype(np.int32)
        return np.lib.stride_tricks.sliding_window_view(padded, self.num_slots)[: len(self.output)]

    @cached_property
    def lookups(self) -> Int32Array:
        """(m, H) int32, the drafts of prompt lookup at each position; -1 after their end."""
        index, drafts = SuffixIndex(), np.full((len(self.output), self.num_slots), -1, np.int32)
        index.extend(self.prompt.tolist())
        for position, token in enumerate(self.output.tolist()):
            index.extend([token])
            draft = index.look_up(self.num_slots)
            drafts[position, : len(draft)] = draft
        return drafts

    def usable_slots(self) -> Int64Array:
        """(m,) int64: number of slots, 0..H, whose tokens fit before the limit."""
        left = self.limit - 2 - np.arange(len(self.output))
        return np.clip(left, 0, self.num_slots).astype(np.int64)

"""Record once, replay often: what decoding with a strategy does, without calling the target again.

What a drafter proposes at a position depends on the text so far and on the heads there, and since
decoding is lossless the text is always the greedy output. So the heads' candidates are recorded at
every position of that output, and a replay walks along: it drafts at the current position, compares
with the output and continues after the accepted tokens. All texts walk together, so that a call
rescores one position of each; only positions where decoding stops are rescored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.scorers.protocol import TransitionScorer
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.record.heads import record_text
from lattice_bpd_kim2024.record.texts import RecordedText, Transitions
from lattice_bpd_kim2024.replay.positions import PositionBatch, Rescorers
from lattice_bpd_kim2024.replay.scorers import read_with
from lattice_bpd_kim2024.replay.strategies import Setting, Strategy, strategy_of

_CONTEXT = 8  # tokens kept before a lattice: more than any LM's history
_CHUNK = 4096  # positions drafted for at once, so that memory stays small


@dataclass(frozen=True)
class Replayed:
    """What decoding with one strategy does on N texts, in S verifying calls.

    Attributes:
        tokens: (N,) int64, decoded tokens of each text.
        calls: (N,) int64, target calls of each, with the one that reads the prompt.
        texts: (S,) int64, the text of each verifying call, in order of texts.
        places: (S,) int64, the recorded position of its exact token, 0..P-1.
        slots: (S,) int64, slots that its drafts could use.
        accepted: (S,) int64, draft tokens kept.
        nodes: (S,) int64, draft tokens verified, shared prefixes counted once.
    """

    tokens: Int64Array
    calls: Int64Array
    texts: Int64Array
    places: Int64Array
    slots: Int64Array
    accepted: Int64Array
    nodes: Int64Array

    @property
    def block_efficiency(self) -> float:
        """Decoded tokens / target calls, exact tokens counted (Kim et al. 2024, section 5)."""
        return float(self.tokens.sum() / self.calls.sum()) if len(self.calls) else 0.0

    @property
    def nodes_per_call(self) -> float:
        """Draft tokens verified for each verifying call."""
        return float(self.nodes.mean()) if len(self.nodes) else 0.0

    def of(self, texts: Sequence[int]) -> float:
        """Block efficiency on some of the texts; 0 where there are none."""
        chosen = np.asarray(texts, np.int64)
        calls = self.calls[chosen].sum()
        return float(self.tokens[chosen].sum() / calls) if calls else 0.0


class Recording:
    """Greedy outputs of N texts with the heads' candidates at all P positions.

    Args:
        texts: what was recorded, all with the same number of heads; those that hold more
            candidates than others are cut to the fewest.

    Attributes:
        texts: the same.
        candidates: (P, H, k); those at a position start from the state that gave its exact token.
        contexts: P contexts, each ending in the exact token of its position.
        transitions: those at all positions, of heads that give candidates; else None.
        rescored: (P, H, k) float64 by each scorer that has read all texts.
        wanted: (P, H) int32, the greedy output after each exact token; -1 after its end.
        slots: (P,) int64, slots that decoding can use there; the end of the output bounds them.
        starts: (N + 1,) int64, the positions of text i are starts[i]..starts[i + 1] - 1.

    Raises:
        ValueError: no text, or texts of different heads.
    """

    def __init__(self, texts: Iterable[RecordedText]) -> None:
        self.texts = list(texts)
        shapes = {text.num_slots for text in self.texts}
        if len(shapes) != 1:
            raise ValueError(
                f"Recording: texts with {sorted(shapes) or 'no'} slots; expected one text or more, "
                "all recorded with the same heads"
            )
        (self.num_slots,) = shapes
        self.top_k = min(text.top_k for text in self.texts)
        cut = [text.cut(self.num_slots, self.top_k) for text in self.texts]
        self.candidates = Candidates(
            np.concatenate([text.token_ids for text in cut]),
            np.concatenate([text.scores for text in cut]),
        )
        self.transitions = Transitions.join([text.transitions for text in cut])
        self.rescored = {
            scorer: np.concatenate([text.rescored[scorer] for text in cut])
            for scorer in cut[0].rescored
            if all(scorer in text.rescored for text in cut)
        }
        self.lengths = [len(text.output) for text in self.texts]
        self.starts: Int64Array = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self.contexts = [context for text in self.texts for context in text.contexts(_CONTEXT)]
        self.wanted = np.concatenate([text.wanted() for text in self.texts])
        self.slots: Int64Array = np.concatenate([text.usable_slots() for text in self.texts])

    def __len__(self) -> int:
        """P, the positions recorded."""
        return int(self.starts[-1])

    @property
    def token_ids(self) -> Int32Array:
        """(P,) int32, the exact token of each position: all outputs, one after the other."""
        return np.concatenate([text.output for text in self.texts])

    def select(self, texts: Sequence[int]) -> Recording:
        """A recording of some of the texts."""
        return Recording([self.texts[number] for number in texts])

    def read_with(
        self, scorers: Mapping[str, TransitionScorer], on_text: Callable[[], None] | None = None
    ) -> Recording:
        """The same with the scorers' log probabilities in `rescored`; see `scorers.read_with`."""
        return Recording(read_with(self.texts, scorers, on_text))

    def with_slots(self, num_slots: int) -> Recording:
        """The same as if there were only the first num_slots slots, 1..H (paper table 10)."""
        return Recording(text.cut(num_slots, text.top_k) for text in self.texts)

    def block_efficiency(self, setting: Setting, source: Any, options: DraftConfig) -> float:
        """Decoded tokens / target calls that decoding with this setting has.

        Args:
            setting: a line of the table.
            source: n-gram LM, or the TransitionScorer of a neural setting; where the setting names
                a source, that one.
            options: of the setting; top_k at most that of the recording.

        Raises:
            ValueError: a strategy that is not replayed, options out of range, or an LM of another
                vocabulary.
        """
        strategy = strategy_of(setting)
        rescorers = Rescorers(scorer=source) if strategy.uses_scorer else Rescorers(source)
        return self.replay(strategy, rescorers, options).block_efficiency

    def replay(self, strategy: Strategy, rescorers: Rescorers, options: DraftConfig) -> Replayed:
        """Walk along all texts as decoding would.

        Args:
            strategy: how drafts are made.
            rescorers: what it may use.
            options: its numbers; top_k at most that of the recording.

        Returns:
            Replayed, equal to live decoding call for call.

        Raises:
            ValueError: options out of range, or something that the strategy needs is missing.
        """
        strategy.check(rescorers, options, self.top_k)
        ends = self.starts[1:] - 1
        place, texts = self.starts[:-1].copy(), np.arange(len(self.texts))
        steps: list[tuple[Int64Array, ...]] = []
        while len(texts := texts[place[texts] < ends[texts]]):
            at = place[texts]
            accepted, nodes = self.draft(strategy, rescorers, options, at)
            steps.append((texts, at, self.slots[at], accepted, nodes))
            place[texts] += accepted + 1
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        columns = columns or [np.zeros(0, np.int64)] * 5
        order = np.lexsort((columns[1], columns[0]))
        texts, *rest = (column[order] for column in columns)
        calls = 1 + np.bincount(texts, minlength=len(self.texts)).astype(np.int64)
        return Replayed(np.array(self.lengths, np.int64), calls, texts, *rest)

    def draft(
        self,
        strategy: Strategy,
        rescorers: Rescorers,
        options: DraftConfig,
        places: npt.NDArray[np.int64] | None = None,
    ) -> tuple[Int64Array, Int64Array]:
        """Draft at some positions, whether decoding stops there or not.

        Args:
            strategy: how drafts are made.
            rescorers: what it may use.
            options: its numbers.
            places: (n,) int64, positions 0..P-1; all when None.

        Returns:
            (n,) int64 draft tokens that are accepted, and (n,) int64 draft tokens verified.
        """
        places = np.arange(len(self)) if places is None else places
        accepted, nodes = np.zeros_like(places), np.zeros_like(places)
        for chosen, batch in self.batches(places):
            proposal = strategy.propose(batch, rescorers, options)
            accepted[chosen] = batch.accept_lengths(proposal.paths)
            nodes[chosen] = proposal.node_counts
        return accepted, nodes

    def batches(
        self, places: npt.NDArray[np.int64]
    ) -> Iterable[tuple[npt.NDArray[np.int64], PositionBatch]]:
        """The positions that can draft, in groups of as many slots.

        Yields:
            Indices of positions, and the batch of those positions.
        """
        usable = self.slots[places]
        for slots in np.unique(usable[usable > 0]):
            members = np.flatnonzero(usable == slots)
            for start in range(0, len(members), _CHUNK):
                chosen = members[start : start + _CHUNK]
                yield chosen, self._batch(places[chosen], int(slots))

    def _batch(self, at: npt.NDArray[np.int64], slots: int) -> PositionBatch:
        found = Candidates(
            np.ascontiguousarray(self.candidates.token_ids[at, :slots]),
            np.ascontiguousarray(self.candidates.scores[at, :slots]),
        )
        contexts = [self.contexts[place] for place in at.tolist()]
        numbers = np.searchsorted(self.starts, at, side="right") - 1
        transitions = self.transitions
        return PositionBatch(
            found, contexts, self.wanted[at, :slots], self.texts, numbers,
            at - self.starts[numbers],
            transitions and transitions.take(at).cut(slots, self.top_k),
            {scorer: scores[at, :slots] for scorer, scores in self.rescored.items()},
        )  # fmt: skip


def record(
    model: BlockwiseLM,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    top_k: int = 16,
    max_new_tokens: int | None = None,
    heads: Any = None,
) -> Recording:
    """Read greedy's outputs once and keep the heads' candidates.

    Args:
        model: target and heads.
        prompts: token ids.
        outputs: greedy's output after each prompt, one token or more.
        top_k: k, the most that a replay may use.
        max_new_tokens: what decoding was limited to, which bounds its last drafts; None: where
            each output ends.
        heads: instead of the model's own; see `lattice_bpd.decode.state.model.DraftHeads`.

    Returns:
        Recording.

    Raises:
        ValueError: an empty output, or top_k outside 1..V.
    """
    drafting = to_drafting(model, heads)
    drafting.require_causal("record")
    return Recording(
        record_text(drafting, prompt, output, top_k=top_k, max_new_tokens=max_new_tokens)
        for prompt, output in zip(prompts, outputs, strict=True)
    )

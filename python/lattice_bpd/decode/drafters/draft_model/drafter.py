"""A small causal LM drafts for a large one.

chain    what it would write: its most likely token at each slot          one path
lattice  its top k at each slot of that path, rescored with an n-gram LM  the p best paths
tree     the same lattice, rescored                                       the N best prefixes
beam     its own most probable prefixes, behind the tokens they follow    a tree of N nodes
drawn    children drawn from its distribution, without replacement        a tree of draws

Leviathan et al. 2023 and Chen et al. 2023 (chains, sampling), Miao et al. 2024 (trees); the lattice
along the greedy path and its rescoring take Kim et al. 2024 from heads to draft models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.decode.drafters.basic import Drafter, Proposal
from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import draw, probabilities
from lattice_bpd.decode.drafters.draft_model.growing import grow_best, grow_drawn
from lattice_bpd.decode.drafters.draft_model.options import check_options
from lattice_bpd.decode.drafters.draft_model.rollout import Path, roll_out
from lattice_bpd.decode.drafters.failures import note_failure
from lattice_bpd.decode.drafters.per_sequence import BySequence
from lattice_bpd.decode.drafters.proposals import row_of
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.growing_tree import Growth, Nodes, build_draft_tree
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.draft.sampled_nodes import DrawnNodes
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM


class DraftModelDrafter(Drafter):
    """Drafts of a small causal LM with the target's tokenizer.

    It has a KV cache of its own for the sequences it serves, kept over the steps and rolled back to
    what was accepted; a batch is read in one call a slot. Where its positions end, it drafts
    nothing. Not safe for threads; serves one call of `decode_batch` at a time.

    Args:
        model: any causal LM of `transformers`, or a BlockwiseLM (its heads are not used).
        num_slots: longest draft, 1 or more.
        shape: one of SHAPES; see the module.
        lm: n-gram LM over the target's token ids, of "lattice" and "tree"; None: the draft model
            alone.
        top_k: k, candidates of a slot, children of a node of "beam", tokens that "drawn" draws from
            (their probabilities made to sum to 1); at most V.
        num_drafts: p of "lattice".
        max_nodes: N of "tree" and "beam".
        alpha: weight of the LM's log probabilities.
        temperature: divides the draft model's logits (and alpha) in "tree", "beam" and "drawn".
        draws: of "drawn", how many children the exact token gets, how many each of these, and so
            on; None: one each, num_slots deep, the chain of speculative sampling.
        seed: of "drawn"; each sequence has a generator of its own.

    Attributes:
        reader: the draft model; `reader.calls` and `reader.tokens_read` count its work.

    Raises:
        TypeError: no decoder-only causal LM.
        ValueError: options out of range or without effect, a recurrent model, or one that takes no
            tree where the shape needs one.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int = 5,
        shape: str = "chain",
        lm: NGramLM | None = None,
        top_k: int = 16,
        num_drafts: int = 16,
        max_nodes: int = 36,
        alpha: float = 0.5,
        temperature: float = 1.0,
        draws: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        self.shape, self.lm, self.alpha, self.temperature = shape, lm, alpha, temperature
        self.num_drafts, self.max_nodes = num_drafts, max_nodes
        self.draws = list(draws) if draws is not None else [1] * num_slots
        self.num_slots = len(self.draws) if shape == "drawn" else num_slots
        self.reader = CachedReader(model, "DraftModelDrafter")
        self.top_k = 1 if shape == "chain" else top_k
        check_options(self, draws)
        if shape == "chain":
            self.max_nodes = self.num_slots
        elif shape == "lattice":
            self.max_nodes = self.num_slots * num_drafts
        elif shape == "drawn":
            self.max_nodes = sum(math.prod(self.draws[: n + 1]) for n in range(len(self.draws)))
        self._kept: ReadTexts | None = None
        self._seeds = np.random.SeedSequence(seed)
        self._generators = BySequence(self._new_generator)

    def _new_generator(self, _state: DecodeState) -> np.random.Generator:
        return np.random.default_rng(self._seeds.spawn(1)[0])

    @property
    def grows(self) -> bool:
        """Whether the draft model reads trees, level by level."""
        return self.shape == "beam" or (self.shape == "drawn" and max(self.draws) > 1)

    def propose(self, state: DecodeState) -> Proposal:
        """Drafts of (1, p, num_slots), a DraftTree of (1, N) nodes, or a DrawnNodes.

        Raises:
            ValueError: the draft model's or the LM's vocabulary is not the target's.
        """
        return self.propose_batch([state])[0]

    @torch.inference_mode()
    def propose_batch(self, states: Sequence[DecodeState]) -> list[Proposal]:
        """A proposal for each state; None where the draft model's positions end, or it fails."""
        self._check_vocabulary(states[0].model.vocab_size)
        found: list[Proposal] = [None] * len(states)
        depths = [self._depth(state) for state in states]
        rows = [row for row, depth in enumerate(depths) if depth > 0]
        if not rows:
            return found
        chosen, chosen_depths = [states[row] for row in rows], [depths[row] for row in rows]
        with states[0].stats.stage("draft_model"):
            kept, self._kept = self._kept, None  # an error on the way leaves nothing behind
            texts, logits = self.reader.go_on(kept, [state.tokens for state in chosen])
            proposals = self._draft(chosen, texts, logits, chosen_depths)
            self._kept = texts
        for row, proposal in zip(rows, proposals, strict=True):
            found[row] = proposal
        return found

    def _depth(self, state: DecodeState) -> int:
        """Slots to draft: the last token drafted need not be read, so it needs no position."""
        depth, positions = min(self.num_slots, state.room), self.reader.model.max_positions
        return depth if positions is None else min(depth, positions - len(state.tokens) + 1)

    def _draft(
        self, states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[Proposal]:
        if self.grows:
            trees = self._grow(states, texts, logits, depths)
            self._count_failures(states, [tree.failed for tree in trees])
            make = _drawn_nodes if self.shape == "drawn" else _draft_tree
            return [None if tree.failed else make(tree) for tree in trees]
        choose = self._choose_by(states) if self.shape == "drawn" else None
        paths = roll_out(self.reader, texts, logits, depths, self.top_k, choose)
        self._count_failures(states, [path.failed for path in paths])
        if self.shape in ("lattice", "tree"):
            return self._rescore(states, paths)
        make_one = _chain if self.shape == "chain" else self._drawn_chain
        return [None if path.failed else make_one(path) for path in paths]

    def _grow(
        self, states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[Growth]:
        if self.shape == "beam":
            return grow_best(
                self.reader, texts, logits, depths, top_k=self.top_k, max_nodes=self.max_nodes,
                temperature=self.temperature,
            )  # fmt: skip
        return grow_drawn(
            self.reader, texts, logits, depths, top_k=self.top_k, draws=self.draws,
            temperature=self.temperature, generators=[self._generators.of(s) for s in states],
        )  # fmt: skip

    def _rescore(self, states: list[DecodeState], paths: list[Path]) -> list[Proposal]:
        """The lattices along the paths; those of equal depth in one search."""
        found: list[Proposal] = [None] * len(paths)
        by_depth: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            if not path.failed:
                by_depth.setdefault(len(path.chosen), []).append(row)
        for rows in by_depth.values():
            scores = np.stack([np.stack(paths[row].scores) for row in rows])
            token_ids = np.stack([np.stack(paths[row].token_ids) for row in rows])
            reach = 1 if self.lm is None else self.lm.order
            contexts = [states[row].tokens[-reach:] for row in rows]
            proposal: Any
            if self.shape == "lattice":
                proposal = rescore_lattice(
                    Candidates(token_ids, scores), contexts, self.lm, num_drafts=self.num_drafts,
                    alpha=self.alpha,
                )  # fmt: skip
            else:
                cooled = Candidates(token_ids, scores).at_temperature(self.temperature)
                proposal = rescore_tree(
                    cooled, contexts, self.lm, max_nodes=self.max_nodes,
                    alpha=self.alpha / self.temperature,
                )  # fmt: skip
            for place, row in enumerate(rows):
                found[row] = row_of(proposal, place)
        return found

    def _choose_by(self, states: list[DecodeState]) -> Callable[[int, Any], int]:
        generators = [self._generators.of(state) for state in states]

        def choose(row: int, scores: Any) -> int:
            return int(draw(probabilities(scores, self.temperature), 1, generators[row])[0])

        return choose

    def _drawn_chain(self, path: Path) -> DrawnNodes:
        drawn: list[Any] = [
            (ids, probabilities(scores, self.temperature))
            for ids, scores in zip(path.token_ids, path.scores, strict=True)
        ]
        parents = np.arange(-1, len(path.chosen) - 1, dtype=np.int32)
        return DrawnNodes(np.array(path.tokens, np.int32), parents, [*drawn, None])

    def _count_failures(self, states: list[DecodeState], failed: list[bool]) -> None:
        wrong = [state for state, one in zip(states, failed, strict=True) if one]
        if wrong:
            reason = f"{type(self.reader.model.base).__name__} gives logits that are no numbers"
            note_failure(self, wrong, "nan", reason)

    def _check_vocabulary(self, wanted: int) -> None:
        sizes = {"draft model": self.reader.model.vocab_size}
        if self.lm is not None:
            sizes["LM"] = self.lm.vocab_size
        for name, size in sizes.items():
            if size != wanted:
                raise ValueError(
                    f"DraftModelDrafter: the {name} has a vocabulary of {size}, the target one of "
                    f"{wanted}; expected the same; use one with the target's tokenizer"
                )


def _chain(path: Path) -> Drafts:
    token_ids: Any = np.array(path.tokens, np.int32)[None, None]
    score: Any = np.array([[sum(float(scores[0]) for scores in path.scores)]], np.float32)
    return Drafts(token_ids, score, np.ones(1, np.int32))


def _draft_tree(tree: Growth) -> Proposal:
    return build_draft_tree([Nodes(tree.token_ids, tree.parents, tree.log_probs)])


def _drawn_nodes(tree: Growth) -> Proposal:
    token_ids, parents = np.array(tree.token_ids, np.int32), np.array(tree.parents, np.int32)
    return DrawnNodes(token_ids, parents, tree.drawn_from)

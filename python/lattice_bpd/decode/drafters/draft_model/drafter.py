"""Drafts of a small causal LM for a large one.

chain    its greedy continuation: its most likely token at each slot          one path
lattice  its top k at each slot of that path, rescored with an n-gram LM  the p best paths
tree     the same lattice, rescored                                       the N best prefixes
beam     its own most probable prefixes, each token after its own prefix    a tree of N nodes
sampled  children sampled from its distribution, without replacement      a sampled tree

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

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import draw, probabilities
from lattice_bpd.decode.drafters.draft_model.growing import grow_best, grow_sampled
from lattice_bpd.decode.drafters.draft_model.options import DEFAULT_LENGTH, check_options
from lattice_bpd.decode.drafters.draft_model.rollout import Path, roll_out
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.failures import note_failure
from lattice_bpd.decode.drafters.growing_tree import Distribution, GrowingTree
from lattice_bpd.decode.drafters.per_sequence import PerSequence
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_drafts, search_trees


class DraftModelDrafter(Drafter):
    """Drafts of a small causal LM with the target's tokenizer.

    It has a KV cache of its own for the sequences it serves, kept over the steps and rolled back to
    what was accepted; a batch is read in one call a slot. Where its positions end, it drafts
    nothing. Not safe for threads; serves one call of `decode` at a time.

    Args:
        model: any causal LM of `transformers`, or a BlockwiseLM (its heads are not used).
        config: options; None: the defaults.
        shape: one of SHAPES; see the module.
        lm: n-gram LM over the target's token ids, of "lattice" and "tree"; None: the draft model
            alone.
        draws: of "sampled", how many children the exact token gets, how many each of these, and so
            on; None: one each, num_slots deep, the chain of speculative sampling.
        seed: of "sampled"; each sequence has a generator of its own.
        options: by name, instead of the config's; see `DraftConfig`: draft_length (None: 5); top_k,
            candidates of a slot, children of a node of "beam", tokens that "sampled" samples from
            (their probabilities made to sum to 1); num_drafts of "lattice"; max_nodes of "tree" and
            "beam"; alpha; temperature of "tree", "beam" and "sampled".

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
        config: DraftConfig | None = None,
        *,
        shape: str = "chain",
        lm: NGramLM | None = None,
        draws: Sequence[int] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        config = DraftConfig.make("DraftModelDrafter", config, options)
        self.config, self.shape, self.lm = config, shape, lm
        length = DEFAULT_LENGTH if config.draft_length is None else config.draft_length
        self.draws = list(draws) if draws is not None else [1] * length
        self.num_slots = len(self.draws) if shape == "sampled" else length
        self.max_nodes = config.max_nodes
        self.reader = CachedReader(model, "DraftModelDrafter")
        self.top_k = 1 if shape == "chain" else config.top_k
        check_options(self, draws)
        if shape == "chain":
            self.max_nodes = self.num_slots
        elif shape == "lattice":
            self.max_nodes = self.num_slots * config.num_drafts
        elif shape == "sampled":
            self.max_nodes = sum(math.prod(self.draws[: n + 1]) for n in range(len(self.draws)))
        self._kept: ReadTexts | None = None
        self._seeds = np.random.SeedSequence(seed)
        self._generators = PerSequence(self._new_generator)

    def _new_generator(self, _state: DecodeState) -> np.random.Generator:
        return np.random.default_rng(self._seeds.spawn(1)[0])

    @property
    def grows(self) -> bool:
        """Whether the draft model reads trees, level by level."""
        return self.shape == "beam" or (self.shape == "sampled" and max(self.draws) > 1)

    @torch.inference_mode()
    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A tree for each state; None where the draft model's positions end, or it fails.

        Raises:
            ValueError: the draft model's or the LM's vocabulary is not the target's.
        """
        self._check_vocabulary(states[0].model.vocab_size)
        trees: list[PrefixTree | None] = [None] * len(states)
        depths = [self._depth(state) for state in states]
        rows = [row for row, depth in enumerate(depths) if depth > 0]
        if not rows:
            return trees
        chosen, chosen_depths = [states[row] for row in rows], [depths[row] for row in rows]
        with states[0].stats.stage("draft_model"):
            kept, self._kept = self._kept, None  # an error on the way leaves nothing behind
            texts, logits = self.reader.go_on(kept, [state.tokens for state in chosen])
            proposals = self._draft(chosen, texts, logits, chosen_depths)
            self._kept = texts
        for row, tree in zip(rows, proposals, strict=True):
            trees[row] = tree
        return trees

    def _depth(self, state: DecodeState) -> int:
        """Slots to draft: the last token drafted need not be read, so it needs no position."""
        depth, positions = (
            min(self.num_slots, state.max_draft_length),
            self.reader.model.max_positions,
        )
        return depth if positions is None else min(depth, positions - len(state.tokens) + 1)

    def _draft(
        self, states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[PrefixTree | None]:
        exact = [state.tokens[-1] for state in states]
        if self.grows:
            grown = self._grow(states, texts, logits, depths)
            self._count_failures(states, [tree.failed for tree in grown])
            build = GrowingTree.to_sampled_tree if self.shape == "sampled" else GrowingTree.to_tree
            return [
                None if tree.failed else build(tree, token)
                for tree, token in zip(grown, exact, strict=True)
            ]
        choose = self._choose_by(states) if self.shape == "sampled" else None
        paths = roll_out(self.reader, texts, logits, depths, self.top_k, choose)
        self._count_failures(states, [path.failed for path in paths])
        if self.shape in ("lattice", "tree"):
            return self._rescore(states, paths)
        return [
            None if path.failed else self._build_chain(path, token)
            for path, token in zip(paths, exact, strict=True)
        ]

    def _grow(
        self, states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[GrowingTree]:
        if self.shape == "beam":
            return grow_best(
                self.reader, texts, logits, depths, top_k=self.top_k, max_nodes=self.max_nodes,
                temperature=self.config.temperature,
            )  # fmt: skip
        return grow_sampled(
            self.reader, texts, logits, depths, top_k=self.top_k, draws=self.draws,
            temperature=self.config.temperature,
            generators=[self._generators.of(state) for state in states],
        )  # fmt: skip

    def _rescore(self, states: list[DecodeState], paths: list[Path]) -> list[PrefixTree | None]:
        """The lattices along the paths; those of equal depth in one search."""
        trees: list[PrefixTree | None] = [None] * len(paths)
        by_depth: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            if not path.failed:
                by_depth.setdefault(len(path.chosen), []).append(row)
        for depth, rows in by_depth.items():
            scores = np.stack([np.stack(paths[row].scores) for row in rows])
            token_ids = np.stack([np.stack(paths[row].token_ids) for row in rows])
            reach = 1 if self.lm is None else self.lm.order
            contexts = [states[row].tokens[-reach:] for row in rows]
            candidates, depths = Candidates(token_ids, scores), [depth] * len(rows)
            if self.shape == "lattice":
                drafted = search_drafts(
                    candidates, contexts, self.lm, depths, num_drafts=self.config.num_drafts,
                    alpha=self.config.alpha,
                )  # fmt: skip
            else:
                drafted = search_trees(
                    candidates.at_temperature(self.config.temperature), contexts, self.lm, depths,
                    max_nodes=self.max_nodes, alpha=self.config.alpha / self.config.temperature,
                )  # fmt: skip
            for row, tree in zip(rows, drafted, strict=True):
                trees[row] = tree
        return trees

    def _choose_by(self, states: list[DecodeState]) -> Callable[[int, Any], int]:
        generators = [self._generators.of(state) for state in states]

        def choose(row: int, scores: Any) -> int:
            return int(draw(probabilities(scores, self.config.temperature), 1, generators[row])[0])

        return choose

    def _build_chain(self, path: Path, exact_token: int) -> PrefixTree:
        tree = PrefixTree.from_drafts(exact_token, [path.tokens])
        if self.shape == "sampled":
            distributions: list[Distribution | None] = [
                (ids, probabilities(scores, self.config.temperature))
                for ids, scores in zip(path.token_ids, path.scores, strict=True)
            ]
            tree.sampled_from = [*distributions, None].__getitem__
        return tree

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

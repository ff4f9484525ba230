"""Drafts of a small causal LM for a large one.

chain         its greedy continuation: its most likely token after each prefix      one path
beam          its own most probable prefixes                                      a tree of N nodes
sampled       a sample of its own; with `draws` several children of a node        a chain or tree
sampled_tree  the same, with numbers of children chosen for N nodes               a tree

Leviathan et al. 2023 and Chen et al. 2023 (chains, sampling), Miao et al. 2024 (trees).
"""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import ReadTexts
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.proposals import note_failure
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import MAX_NODES, DraftConfig
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.vocabulary import check_same_ids, read_ids
from lattice_bpd_drafters.draft_model_samples import make_samplers, prefers_samples
from lattice_bpd_drafters.draft_model_trees import (
    DraftReader,
    GrowingTree,
    grow_best,
    grow_sampled,
    plan_draws,
    roll_out,
    sample_chains,
)

SHAPES = ("chain", "beam", "sampled", "sampled_tree")
_WHERE = "DraftModelDrafter"
DEFAULT_LENGTH = 5


def check_options(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    """Raise ValueError for options out of range or without effect.

    Args:
        drafter: with its config, shape and reader.
        draws: as they were given.
    """
    shape = drafter.shape
    if shape not in (None, *SHAPES):
        raise ValueError(f"{_WHERE}: shape is {shape!r}; expected one of {', '.join(SHAPES)}")
    vocab_size, top_k = drafter.reader.model.vocab_size, drafter.config.top_k
    has_nodes = shape is None and drafter.config.max_nodes != "auto"
    if (shape == "beam" or has_nodes) and top_k > vocab_size:
        raise ValueError(f"{_WHERE}: top_k is {top_k}; expected 1..{vocab_size}")
    _check_draws(shape, draws)
    branches = shape in ("beam", "sampled_tree") or max(draws or (1,)) > 1
    refusal = drafter.reader.model.refuses_tree() if branches else None
    if refusal is not None:
        raise ValueError(
            f"{_WHERE}: shape {shape!r} reads trees with the draft model: {refusal}; leave shape "
            "and draws out"
        )


def _check_draws(shape: str | None, draws: Sequence[int] | None) -> None:
    if draws is None:
        return
    if shape != "sampled" or min(draws, default=0) < 1:
        raise ValueError(
            f"{_WHERE}: draws is {list(draws)} with shape {shape!r}; expected counts of 1 or more "
            "with shape 'sampled'"
        )
    if math.prod(draws) > MAX_NODES:
        raise ValueError(
            f"{_WHERE}: draws {list(draws)} make {math.prod(draws)} paths; expected {MAX_NODES} at "
            "most"
        )


_FILE = "tokenizer.json"


def check_same_tokens(where: str, draft_model: Any, target: Any) -> None:
    """Raise ValueError if the tokenizers differ, by the files that the models were loaded with.

    A few differing tokens, such as renamed special tokens, are allowed.

    Args:
        where: name of the caller, for the message.
        draft_model: model of `transformers`.
        target: likewise.
    """
    files = [_tokenizer_file(model) for model in (draft_model, target)]
    if files[0] is None or files[1] is None or files[0] == files[1]:
        return
    differing, shared, example = _compare(files[0], files[1])
    if differing * 100 > shared:
        raise ValueError(
            f"{where}: the tokenizers of the draft model and the target differ in {differing:,} of "
            f"{shared:,} token ids, such as {example}; expected the same tokenizer "
            f"({files[0]}, {files[1]})"
        )


def _tokenizer_file(model: Any) -> str | None:
    """The tokenizer.json of the folder or hub name that a model was loaded from, if it is here."""
    name = str(getattr(model.config, "_name_or_path", None) or "")
    file = Path(name) / _FILE
    if name and file.is_file():
        return os.fspath(file.resolve())
    try:
        cached = try_to_load_from_cache(name, _FILE) if name else None
    except ValueError:  # the name of no repository
        return None
    return cached if isinstance(cached, str) else None


@functools.lru_cache(maxsize=32)
def _compare(first: str, second: str) -> tuple[int, int, str]:
    """Token ids with different words, those that both have, and an example."""
    try:
        words, others = (
            {token_id: word for word, token_id in read_ids(file).items()}
            for file in (first, second)
        )
    except (OSError, ValueError):  # unknown, then
        return 0, 0, ""
    shared = words.keys() & others.keys()
    differing = [token_id for token_id in shared if words[token_id] != others[token_id]]
    example = "" if not differing else (
        f"{min(differing)} ({words[min(differing)]!r} and {others[min(differing)]!r})"
    )  # fmt: skip
    return len(differing), len(shared), example


class DraftModelDrafter(Drafter):
    """Drafts of a small causal LM with the target's tokenizer.

    It has a KV cache of its own for the sequences it serves, kept over the steps and rolled back to
    what was accepted; a batch is read in one call a slot. Where its positions end, it drafts
    nothing. Not safe for threads; serves one call of `decode` at a time.

    Args:
        model: any causal LM of `transformers`. Of a larger or smaller vocabulary than the target's,
            such as another padding of the embeddings, the ids are used that both have.
        config: options; None: the defaults.
        shape: one of SHAPES, see the module; None: "chain", with a number as max_nodes "beam", and
            where the target samples "sampled" and "sampled_tree". Draft models that do not read
            trees then draft chains.
        draws: of "sampled", how many children the exact token gets, how many each of these, and so
            on; None: one each, num_slots deep, the chain of speculative sampling.
        options: by name, instead of the config's; see `DraftConfig`: draft_length (None: 5); top_k,
            children of a node of "beam", tokens that a sampled tree samples from (a sampled chain
            samples from all); max_nodes of "beam" and "sampled_tree" ("auto": 36); temperature of
            trees and samples.

    Samples follow temperature, top-k, top-p and min-p of the rule, and are exact with any options;
    see `lattice_bpd_drafters.draft_model_samples`.

    Attributes:
        reader: the draft model.

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
        shape: str | None = None,
        draws: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        config = DraftConfig.make("DraftModelDrafter", config, options)
        self.config, self.shape = config, shape
        self.reader = DraftReader(model, "DraftModelDrafter")
        check_options(self, draws)
        length = DEFAULT_LENGTH if config.draft_length is None else config.draft_length
        self.num_slots = length if draws is None else len(draws)
        self._given_draws = draws
        self._kept: ReadTexts | None = None
        self._target: weakref.ref[DraftingModel] | None = None  # that it drafted for last

    @property
    def max_nodes(self) -> int:
        """Most draft tokens of a tree."""
        if self._given_draws is not None:
            return sum(math.prod(self.draws[: n + 1]) for n in range(self.num_slots))
        is_tree = self._drafts_trees or self.shape in ("beam", "sampled_tree")
        return max(self.num_slots, self.config.tree_nodes) if is_tree else self.num_slots

    @cached_property
    def _drafts_trees(self) -> bool:
        """Whether the shape follows from max_nodes, and is a tree."""
        asks = self.shape is None and self.config.max_nodes != "auto"
        return asks and self.reader.model.refuses_tree() is None

    @cached_property
    def draws(self) -> list[int]:
        """Sampled children of the exact token, of each of these, and so on."""
        if self._given_draws is not None:
            return list(self._given_draws)
        if self._drafts_trees or self.shape == "sampled_tree":
            return plan_draws(self.config.tree_nodes, self.num_slots)
        return [1] * self.num_slots

    def _shape_for(self, states: Sequence[DecodeState]) -> str:
        """The shape of this step's drafts."""
        if self.shape is not None:
            return "sampled" if self.shape == "sampled_tree" else self.shape
        if prefers_samples(states):
            return "sampled"
        return "beam" if self._drafts_trees else "chain"

    @torch.inference_mode()
    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A tree for each state; None where the draft model's positions end, or it fails.

        Raises:
            ValueError: the draft model is of another tokenizer than the target.
        """
        self._fit_vocabulary(states[0].model)
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
        shape, exact = self._shape_for(states), [state.tokens[-1] for state in states]
        if shape in ("beam", "sampled"):
            grow = self._grow_best if shape == "beam" else self._grow_sampled
            grown = grow(states, texts, logits, depths)
            self._count_failures(states, [tree.failed for tree in grown])
            build = GrowingTree.to_tree if shape == "beam" else GrowingTree.to_sampled_tree
            return [
                None if tree.failed else build(tree, token)
                for tree, token in zip(grown, exact, strict=True)
            ]
        paths, failed = roll_out(self.reader, texts, logits, depths)
        self._count_failures(states, failed)
        return [
            None if has_failed else PrefixTree.from_drafts(token, [path])
            for path, has_failed, token in zip(paths, failed, exact, strict=True)
        ]

    def _grow_best(
        self, _states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[GrowingTree]:
        return grow_best(
            self.reader, texts, logits, depths, top_k=self.config.top_k,
            max_nodes=self.config.tree_nodes, temperature=self.config.temperature,
        )  # fmt: skip

    def _grow_sampled(
        self, states: list[DecodeState], texts: ReadTexts, logits: Tensor, depths: list[int]
    ) -> list[GrowingTree]:
        samplers = make_samplers(states, self.config.temperature)
        depths = [min(depth, len(self.draws)) for depth in depths]
        if max(self.draws) == 1:
            return sample_chains(self.reader, texts, logits, depths, samplers)
        return grow_sampled(
            self.reader, texts, logits, depths, top_k=self.config.top_k, draws=self.draws,
            samplers=samplers,
        )  # fmt: skip

    def _count_failures(self, states: list[DecodeState], failed: list[bool]) -> None:
        wrong = [state for state, one in zip(states, failed, strict=True) if one]
        if wrong:
            reason = f"{type(self.reader.model.base).__name__} gives logits that are no numbers"
            note_failure(self, wrong, "nan", reason)

    def _fit_vocabulary(self, target: DraftingModel) -> None:
        """Draft in the token ids that both models have."""
        if self._target is not None and self._target() is target:
            return
        own, wanted = self.reader.model.vocab_size, target.vocab_size
        check_same_ids(_WHERE, "draft model", own, wanted)
        check_same_tokens(_WHERE, self.reader.model.base, target.target.base)
        self.reader.vocab_size = min(own, wanted)
        self._target = weakref.ref(target)

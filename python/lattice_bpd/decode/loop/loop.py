"""The decoding loop that all strategies share.

Prediction and verification are merged: the call that verifies a draft also returns the next exact
token and the hidden state for the next draft, so a text of m tokens with k tokens per step takes
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this loop with empty drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lattice_bpd.decode.certificate.certificate import CallShape
from lattice_bpd.decode.drafters.drafter import Drafter, ModelSizes, NoDrafter
from lattice_bpd.decode.drafters.proposals import correct_tree, drop_failed, refuse_proposal
from lattice_bpd.decode.loop.arguments import Options
from lattice_bpd.decode.loop.prompts import Prompts, read_prompts
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.greedy import Verification
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import verify_trees


@dataclass
class _Run:
    """The active sequences and their shared state."""

    model: DraftingModel
    options: Options
    drafters: list[Drafter]
    states: list[DecodeState]
    cache: Rows | RecurrentCache
    seconds: dict[str, float]
    active: list[int] = field(default_factory=list)
    shapes: set[CallShape] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Set up the drafters that observe decoded tokens."""
        observers = [getattr(drafter, "observe", None) for drafter in self.drafters]
        self.observers = [  # None if observing is a no-op
            None if getattr(observe, "__func__", None) is Drafter.observe else observe
            for observe in observers
        ]
        self.num_predictions = max(getattr(one, "num_predictions", 0) for one in self.drafters)

    def step(self) -> None:
        """Draft and verify for all active sequences, in one call of the target."""
        options, states = self.options, [self.states[number] for number in self.active]
        if len(states[0].tokens) == options.reread_length:
            self.reread()
            return
        trees = propose_trees([self.drafters[number] for number in self.active], states)
        selectors, start = options.selectors, time.perf_counter()
        verified = verify_trees(
            self.model.target,
            self.cache,
            trees,
            layout="auto" if options.layout == "chain" else options.layout,
            selectors=None if selectors is None else [selectors[n] for n in self.active],
            num_predictions=self.num_predictions,
        )
        own_seconds = time.perf_counter() - start - verified.target_seconds
        own_seconds -= verified.predict_seconds
        self.seconds["target"] += verified.target_seconds
        self.seconds["verify"] += own_seconds
        self.seconds["predict"] += verified.predict_seconds
        self.shapes.add((verified.layout, *verified.shape))
        for number, verification in zip(self.active, verified.sequences, strict=True):
            self.states[number].stats.target_calls += 1
            self.append(number, verification)
        self.drop_finished()

    def reread(self) -> None:
        """Read the whole text again, without a draft, as the target's own `generate` does here."""
        (number,) = self.active
        state = self.states[number]
        options = replace(self.options, streamer=None, prefill=None)
        (verified,), self.cache = read_prompts(self.model, Prompts([list(state.tokens)]), options)
        if verified.features is not None:
            verified.features = verified.features[-1:]  # the heads have those before
        state.stats.target_calls += 1
        self.append(number, verified)
        self.drop_finished()

    def append(self, number: int, verified: Verification, *, is_prompt: bool = False) -> None:
        """Append verified tokens to one sequence, up to a stop token, and set its finish reason."""
        state, options, stats = self.states[number], self.options, self.states[number].stats
        new, stops = verified.token_ids, options.stop_token_ids
        ends = [index for index, token in enumerate(new) if token in stops]
        if ends:
            new = new[: ends[0] + 1]  # a stop token is kept
        if verified.predictions is not None:
            state.predictions.append((len(state.tokens), verified.predictions))
        state.tokens += new
        state.hidden = verified.hidden
        if verified.features is not None:
            state.features.append(verified.features)
        stats.tokens += len(new)
        if not is_prompt:
            stats.accept_lengths.append(min(verified.accept_length, len(new)))
        selectors = [state.selector, *(options.selectors or ())[number : number + 1]]
        if ends:
            state.finish = "stop_token"
        elif state.constrained is not None and state.constrained.is_complete:
            state.finish = "constraint"
        elif stats.tokens >= state.limit:
            state.finish = "positions" if options.limited_by_positions[number] else "length"
        elif any(getattr(one, "ended", False) for one in selectors):
            state.finish = "criterion"
        observe = self.observers[number]
        if observe is not None:
            observe(state, new)
        if options.streamer is not None:
            for token in new:  # one at a time, as `model.generate` does
                options.streamer.put(torch.tensor([token], device="cpu"))

    def drop_finished(self) -> None:
        """Remove finished sequences from the batch and the KV cache."""
        if self.options.caches is not None:
            for row, number in enumerate(self.active):
                if self.states[number].finish is not None:
                    text = self.states[number].tokens
                    self.options.caches.keep(number, self.cache, row, text)
        kept = [row for row, n in enumerate(self.active) if self.states[n].finish is None]
        if 0 < len(kept) < len(self.active) and isinstance(self.cache, Rows):
            self.cache.keep_sequences(kept)
        self.active = [self.active[row] for row in kept]


def propose_trees(drafters: Sequence[Drafter], states: Sequence[DecodeState]) -> list[PrefixTree]:
    """The drafts of a step; a drafter is called once with all of its sequences.

    Args:
        drafters: one for each state, possibly the same.
        states: active sequences.

    Returns:
        A tree below each exact token; only node 0 if nothing was drafted or drafting failed, which
        is counted (`proposals.failure_kind`).

    Raises:
        TypeError: a drafter returned anything but a tree or None for each sequence.
        ValueError: a drafter proposed token ids outside the vocabulary, or was tuned for another
            model.
    """
    groups: dict[int, list[int]] = {}  # sequences of each drafter
    for number, state in enumerate(states):
        state.update_limits()
        if state.max_draft_length > 0:
            groups.setdefault(id(drafters[number]), []).append(number)
    trees: list[PrefixTree | None] = [None] * len(states)
    for group in groups.values():
        drafter, members = drafters[group[0]], [states[number] for number in group]
        sizes: ModelSizes | None = getattr(drafter, "model_sizes", None)
        if sizes is not None:
            sizes.check(members[0].model)
        try:
            proposed: Any = drafter.propose(members)
        except Exception as error:
            drop_failed(drafter, members, error)
            continue
        if not isinstance(proposed, (list, tuple)) or len(proposed) != len(members):
            raise refuse_proposal(drafter, members, proposed)
        for number, tree in zip(group, proposed, strict=True):
            trees[number] = tree
    return [
        _finish(tree, state, drafter)
        for tree, state, drafter in zip(trees, states, drafters, strict=True)
    ]


def _finish(tree: PrefixTree | None, state: DecodeState, drafter: Drafter) -> PrefixTree:
    """The tree that is verified: checked, and cut to what constraint and target can read."""
    is_valid = False
    if isinstance(tree, PrefixTree):
        lowest, highest = tree.token_range
        is_valid = tree.exact_token == state.tokens[-1] and tree.max_depth <= state.max_draft_length
        is_valid = is_valid and lowest >= 0 and highest < state.model.vocab_size
    if tree is not None and not is_valid:
        tree = correct_tree(tree, state, drafter)
    if tree is None:
        tree = PrefixTree(state.tokens[-1:], [-1])
    if state.constrained is not None and not isinstance(drafter, NoDrafter):
        with state.stats.stage("constraint"):
            tree = state.constrained.constrain(tree, state.max_draft_length)
    target = state.model.target
    if state.is_chain and tree.max_depth + 1 < len(tree):
        tree = tree.best_chain()
        state.stats.flattened_trees += target.is_recurrent
    if target.limits.capacity is not None:
        tree = target.limits.cut(tree)
    state.stats.verified_tokens += len(tree) - 1
    return tree

"""The engine: texts in the rows of a KV cache, and one call of the target a step for all of them.

Prediction and verification are merged: the call that verifies a draft also returns the next exact
token and the hidden state for the next draft, so a text of m tokens with k tokens per step takes
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this with empty drafts.

Who uses it adds the texts that it has read, steps, and takes those that have ended; `decode` does
so for all texts at once, `generate_responses` refills the rows that become free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.decode.certificate.certificate import CallShape
from lattice_bpd.decode.drafters.drafter import Drafter, ModelSizes, NoDrafter
from lattice_bpd.decode.drafters.proposals import correct_tree, drop_failed, refuse_proposal
from lattice_bpd.decode.loop.arguments import Options
from lattice_bpd.decode.loop.prompts import Prompts, read_prompts
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.greedy import TokenSelector, Verification
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import verify_trees


@dataclass(eq=False)
class Request:
    """One text to decode.

    Attributes:
        state: its tokens, limits and statistics, which drafters read.
        drafter: of its drafts.
        selector: selects its tokens; None: argmax. All texts of an engine have one, or none has.
        limited_by_positions: whether its limit is the target's positions.
        number: of its prompt.
        hidden: (n, D) float each, the hidden states that predicted its tokens, where they are kept.
    """

    state: DecodeState
    drafter: Drafter
    selector: TokenSelector | None = None
    limited_by_positions: bool = False
    number: int = 0
    hidden: list[Tensor] = field(default_factory=list)


class Engine:
    """Texts that are decoded together.

    Args:
        model: target and heads.
        options: of all texts; see Options.
        cache: has read all but the last token of each text.
        seconds: to which those of calls and other stages are added.
        keep_hidden: whether `Request.hidden` is filled.

    Attributes:
        requests: of the texts that have not ended; row b of the cache is that of the b-th.
        shapes: of the calls so far.
    """

    def __init__(
        self, model: DraftingModel, options: Options, cache: Rows | RecurrentCache,
        seconds: dict[str, float], *, keep_hidden: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.options, self.cache, self.seconds = model, options, cache, seconds
        self.requests: list[Request] = []
        self.shapes: set[CallShape] = set()
        self._keep_hidden = keep_hidden

    def step(self) -> None:
        """Draft and verify for all texts, in one call of the target."""
        requests, states = self.requests, [one.state for one in self.requests]
        if len(states[0].tokens) == self.options.reread_length:
            self._reread()
            return
        drafters = [one.drafter for one in requests]
        trees = propose_trees(drafters, states)
        selectors, start = [one.selector for one in requests], time.perf_counter()
        verified = verify_trees(
            self.model.target,
            self.cache,
            trees,
            layout="auto" if self.options.layout == "chain" else self.options.layout,
            selectors=None if selectors[0] is None else selectors,  # type: ignore[arg-type]
            num_predictions=max(getattr(one, "num_predictions", 0) for one in drafters),
            keep_hidden=self._keep_hidden,
        )
        own_seconds = time.perf_counter() - start - verified.target_seconds
        self.seconds["target"] += verified.target_seconds
        self.seconds["verify"] += own_seconds - verified.predict_seconds
        self.seconds["predict"] += verified.predict_seconds
        self.shapes.add((verified.layout, *verified.shape))
        for request, verification in zip(requests, verified.sequences, strict=True):
            request.state.stats.target_calls += 1
            self.append(request, verification)

    def _reread(self) -> None:
        """Read the whole text again, without a draft, as the target's own `generate` does here."""
        (request,) = self.requests
        state = request.state
        options = replace(self.options, streamer=None, prefill=None)
        text = Prompts([list(state.tokens)])
        (verified,), self.cache = read_prompts(self.model, text, [request.selector], options)
        if verified.features is not None:
            verified.features = verified.features[-1:]  # the heads have those before
        state.stats.target_calls += 1
        self.append(request, verified)

    def append(self, request: Request, verified: Verification, *, is_prompt: bool = False) -> None:
        """Append verified tokens to a text, up to a stop token, and set its finish reason."""
        state, stats = request.state, request.state.stats
        new, stops = verified.token_ids, self.options.stop_token_ids
        ends = [index for index, token in enumerate(new) if token in stops]
        if ends:
            new = new[: ends[0] + 1]  # a stop token is kept
        if verified.predictions is not None:
            state.predictions.append((len(state.tokens), verified.predictions))
        state.tokens += new
        state.hidden = verified.hidden
        if verified.features is not None:
            state.features.append(verified.features)
        if verified.states is not None:
            request.hidden.append(verified.states[: len(new)])
        stats.tokens += len(new)
        if not is_prompt:
            stats.accept_lengths.append(min(verified.accept_length, len(new)))
        state.finish = "stop_token" if ends else self._find_finish(request)
        observe = getattr(request.drafter, "observe", None)
        if observe is not None:
            observe(state, new)
        if self.options.streamer is not None:
            for token in new:  # one at a time, as `model.generate` does
                self.options.streamer.put(torch.tensor([token], device="cpu"))

    def _find_finish(self, request: Request) -> str | None:
        """Why a text without a stop token ends, or None."""
        state = request.state
        if state.constrained is not None and state.constrained.is_complete:
            return "constraint"
        if state.stats.tokens >= state.limit:
            return "positions" if request.limited_by_positions else "length"
        if any(getattr(one, "ended", False) for one in (state.selector, request.selector)):
            return "criterion"
        return None

    @property
    def ended(self) -> list[int]:
        """Rows of the texts that have ended."""
        return [row for row, one in enumerate(self.requests) if one.state.finish is not None]

    def drop_ended(self) -> None:
        """Remove the texts that have ended; the last ones take their rows."""
        ended = self.ended
        if not ended:
            return
        count = len(self.requests) - len(ended)
        last = [row for row in range(count, len(self.requests)) if row not in ended]
        rows = [last.pop() if row in ended else row for row in range(count)]
        if rows and isinstance(self.cache, Rows):
            self.cache.keep_sequences(rows)
        self.requests = [self.requests[row] for row in rows]


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

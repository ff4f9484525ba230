"""The engine: texts in the rows of a KV cache, and one call of the target a step for all of them.

Prediction and verification are merged: the call that verifies a draft also returns the next exact
token and the hidden state for the next draft, so a text of m tokens with k tokens per step takes
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this with empty drafts.

Who uses it adds texts, and takes those that have ended from `run`; more can be added meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from lattice_bpd.decode.certificate.certificate import CallShape
from lattice_bpd.decode.drafters.drafter import Drafter, ModelSizes, NoDrafter
from lattice_bpd.decode.drafters.proposals import correct_tree, drop_failed, refuse_proposal
from lattice_bpd.decode.loop.arguments import Options
from lattice_bpd.decode.loop.request import Request, Start
from lattice_bpd.decode.loop.waiting import Group, Waiting, count_positions
from lattice_bpd.decode.state.model import DraftingModel, HiddenStateHeads
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.models.forward import LMOutput, check_hidden
from lattice_bpd.verify.cache import fill_cache
from lattice_bpd.verify.cudnn import WITHOUT_CUDNN_ATTENTION
from lattice_bpd.verify.graphs import lend_rows
from lattice_bpd.verify.greedy import Verification, run_selectors
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.reading import read_texts
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import follow_greedy, verify_trees

_GROWTH = 1.25  # of cache positions beyond those that the next text needs
_MOST_FREE = 512  # positions of a new cache after its texts; it can grow


class Engine:
    """Texts that are decoded together; as some end, others take their rows.

    Args:
        model: target and heads.
        options: of all texts; see Options.
        seconds: to which those of calls and other stages are added.
        most_rows: texts at once.
        has_all: whether all of them are decoded at once, whatever memory they take.
        keep_hidden: whether `Request.hidden` is filled.

    Attributes:
        requests: of the texts that have not ended; row b of the cache is that of the b-th.
        waiting: the others.
        cache: has read all but the last token of each text; None: no text was read.
        shapes: of the calls so far.
    """

    def __init__(
        self, model: DraftingModel, options: Options, seconds: dict[str, float], *,
        most_rows: int = 1, has_all: bool = False, keep_hidden: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.options, self.seconds = model, options, seconds
        self.requests: list[Request] = []
        self.cache: Any = None
        self.shapes: set[CallShape] = set()
        self.waiting = Waiting(model.target, most_rows, options.max_draft_nodes)
        self._last, self._has_all, self._keep_hidden = Start([]), has_all, keep_hidden

    def run(self) -> Iterator[tuple[int, Request]]:
        """Decode all texts; row and request of each that has ended, before it leaves."""
        while True:
            for row, request in enumerate(self.requests):
                if request.state.finish is not None:
                    self._last = Start(request.state.tokens[:-1], row)
                    yield row, request
            self._drop_ended()
            group = self.waiting.next(self.requests, self._last)
            if group is None and not self.requests:
                return
            with WITHOUT_CUDNN_ATTENTION:
                if group is not None:
                    self._read(group)
                else:
                    self.step()

    def _read(self, group: Group, *, again: bool = False) -> None:
        """Read texts into the rows after those of others; or a text again, which is decoded."""
        begin, target, cache = time.perf_counter(), self.model.target, self.cache
        first, start, source = len(self.requests), group.start, group.source
        texts = [one.state.tokens[start:] for one in group.requests]
        if cache is not None:
            num_rows, positions = cache.shape
            if group.num_rows > num_rows or group.positions > positions:
                cache.reserve(group.num_rows, int(_GROWTH * group.positions))
            rows = range(first, first + len(texts)) if start else ()
            if source.saved is None:
                cache.copy([(source.row, row, 0, start) for row in rows])
            else:
                for row in rows:
                    cache.load(source.saved, row, start)
        elif source.saved is not None and start:
            known = fill_cache(target.new_cache(), source.saved, start)
            cache = Rows.from_cache(known, num_free=group.positions - start)
        longest = max(map(len, texts))
        output, cache = read_texts(
            target, texts, cache, first=first, start=start,
            num_free=min(_MOST_FREE, group.positions - longest),
        )  # fmt: skip
        if self.cache is None:
            everyone = [*group.requests, *self.waiting.requests]
            cache = lend_rows(target, cache, group.num_rows, self._find_end(everyone))
            if not self._has_all:
                self.waiting.most_positions = count_positions(cache, target.device)
        self.cache = cache
        self.requests += group.requests
        self.shapes.add(("prompt", len(texts), longest))
        parts = [slice(len(text) - 1 if again else 0, len(text)) for text in texts]
        self._begin(group.requests, output, parts, again=again)
        self.seconds["prompt"] += time.perf_counter() - begin

    def _find_end(self, requests: Sequence[Request]) -> int:
        """Positions of the longest text with its new tokens and drafts."""
        longest = max(len(one.state.tokens) + one.state.limit for one in requests)
        return longest + self.options.max_draft_nodes + 1

    def _begin(
        self, requests: Sequence[Request], output: LMOutput, parts: Sequence[slice], *,
        again: bool = False,
    ) -> None:  # fmt: skip
        """Append the tokens after texts that were read, and the features of parts of them."""
        model = self.model
        if isinstance(model.heads, HiddenStateHeads):
            check_hidden(model.target.base, output.hidden)
        selectors: Any = [one.selector for one in requests]  # None for all of them: argmax
        follow = follow_greedy if selectors[0] is None else partial(run_selectors, selectors)
        trees = [PrefixTree(one.state.tokens[-1:], [-1]) for one in requests]
        tokens = [new for _, new, _ in follow(trees, output.logits[:, -1:], None)]
        for number, request in enumerate(requests):
            hidden = output.hidden[number, -1]
            verified = Verification(tokens[number], 0, hidden)
            if self._keep_hidden:
                verified.states = hidden[None].clone()
            if output.features is not None:
                verified.features = output.features[number, parts[number]]
            request.state.stats.target_calls += 1
            self.append(request, verified, is_prompt=not again)

    def begin(self, output: LMOutput, cache: Any) -> None:
        """Begin all waiting texts, in the order of their numbers, in a cache that has read them.

        Args:
            output: of the call that read them, padded on the left.
            cache: one of transformers, Rows or a RecurrentCache.
        """
        self.requests = sorted(self.waiting.requests, key=lambda one: one.number)
        self.waiting.requests = []
        lengths = [len(one.state.tokens) for one in self.requests]
        if not isinstance(cache, RecurrentCache):
            end = self._find_end(self.requests)
            rows = Rows.from_cache(cache, lengths, min(_MOST_FREE, end - max(lengths)))
            cache = lend_rows(self.model.target, rows, len(lengths), end)
        self.cache = cache
        self.shapes.add(("prompt", len(lengths), max(lengths)))
        for row, request in enumerate(self.requests):
            request.state.source = cache.source_of(row)
        self._begin(self.requests, output, [slice(-length, None) for length in lengths])

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
            heads=getattr(self.model.heads, "in_call", None),
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
        self.model.target.reset_frequencies()
        requests, self.requests, self.cache = self.requests, [], None
        self._read(Group(requests, Start([]), 0, 1, self._find_end(requests)), again=True)

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
        state.hidden, state.candidates = verified.hidden, verified.candidates
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

    def _drop_ended(self) -> None:
        """Remove the texts that have ended; the last ones take their rows."""
        requests = self.requests
        ended = [row for row, one in enumerate(requests) if one.state.finish is not None]
        if not ended:
            return
        count = len(requests) - len(ended)
        last = [row for row in range(count, len(requests)) if row not in ended]
        rows = [last.pop() if row in ended else row for row in range(count)]
        if rows and isinstance(self.cache, Rows):
            self.cache.keep_sequences(rows)
        self.requests = [requests[row] for row in rows]


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

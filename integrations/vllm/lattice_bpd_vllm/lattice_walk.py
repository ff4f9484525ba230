"""Walks through lattices of candidates with an n-gram LM, on the device (Triton).

For drafters whose candidates have dense transition scores, DFlash2 and LiLiCorr: their scores never
leave the device, and neither does the text. Imported only where such a drafter is served.

The LM is the automaton that `NGramLM` exports: a state for each history, an arc for each n-gram
that extends it, and a failure arc to the shorter history, which pays the backoff weight. Arcs are
in one open-addressing hash table, whose keys are (state, token) in 64 bits. Keys are exact, so that
no collision has to be detected; of a history a path carries its state only.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lattice_bpd.lm.ngram import NGramLM, core_of

_UNKNOWN = tl.constexpr(-1000.0)  # ln P of a token id that the LM lacks
_LEAST = tl.constexpr(1e-37)  # P of a token that neither LM nor text expect; normal in float32
_BLOCK = tl.constexpr(32)
_WINDOW = 1024  # last tokens of a text that are searched for its n-grams


@triton.jit
def _hash(key):
    """(..) int64, of numpy or Triton."""
    key = key * -7046029254386353131
    key = (key ^ (key >> 32)) * -4417276706812531889
    return key ^ (key >> 29)


@triton.jit
def _advance(lm, state, token, mask, ORDER: tl.constexpr, SIZE: tl.constexpr, PROBES: tl.constexpr):
    """ln P of tokens after states and the states after them, all of one shape."""
    keys, log_probs, next_states, failures, backoffs = lm
    total = tl.zeros(state.shape, tl.float32)
    found = tl.full(state.shape, -1, tl.int64)
    waits = mask
    for _ in range(ORDER):
        key = (state.to(tl.int64) << 32) | token
        position = _hash(key)
        step = (position >> 40) | 1
        probes = waits
        for _ in range(PROBES):
            position = position & (SIZE - 1)
            entry = tl.load(keys + position, mask=probes, other=-1)
            found = tl.where(probes & (entry == key), position, found)
            probes = probes & (found < 0) & (entry >= 0)
            position = position + step
        waits = waits & (found < 0)
        total += tl.load(backoffs + state, mask=waits, other=0.0)
        state = tl.where(waits, tl.load(failures + state, mask=waits, other=0), state)
    hits = mask & (found >= 0)
    total += tl.load(log_probs + found, mask=hits, other=0.0)
    following = tl.load(next_states + found, mask=hits, other=0)
    return tl.where(hits, total, _UNKNOWN), following


@triton.jit
def _take(values, index):
    """(K,) values at (K,) indices."""
    lanes = tl.arange(0, values.shape[0])
    return tl.sum(tl.where(lanes[:, None] == index[None, :], values[:, None], 0), axis=0)


@triton.jit
def _count(text, length, last, earlier, token):
    """P(token | the last tokens of a history) in a text, (K, K), and whether it has the last."""
    WIDTH: tl.constexpr = token.shape[0]
    one = tl.zeros([WIDTH, WIDTH], tl.float32)
    two = tl.zeros([WIDTH, WIDTH], tl.float32)
    num_one = tl.zeros([WIDTH], tl.float32)
    num_two = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, length - 1, _BLOCK):
        position = begin + tl.arange(0, _BLOCK)
        known = position + 1 < length
        before = tl.load(text + position - 1, mask=known & (position > 0), other=-2)
        now = tl.load(text + position, mask=known, other=-2)
        after = tl.load(text + position + 1, mask=known, other=-2)
        is_one = (now[None, :] == last[:, None]) & known[None, :]
        is_two = is_one & (before[None, :] == earlier[:, None])
        is_next = after[None, :] == token[:, None]
        num_one += tl.sum(is_one.to(tl.float32), axis=1)
        num_two += tl.sum(is_two.to(tl.float32), axis=1)
        one += tl.sum((is_one[:, None, :] & is_next[None, :, :]).to(tl.float32), axis=2)
        two += tl.sum((is_two[:, None, :] & is_next[None, :, :]).to(tl.float32), axis=2)
    shares = tl.where(
        num_two[:, None] > 0,
        two / tl.maximum(num_two, 1.0)[:, None],
        one / tl.maximum(num_one, 1.0)[:, None],
    )
    return shares, num_one > 0


@triton.jit
def _walk_kernel(
    candidates, scores, lengths, rows, texts,
    keys, log_probs, next_states, failures, backoffs, start_state, alpha, cache,
    combined, predecessors, tokens,
    STEPS: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    ORDER: tl.constexpr, SIZE: tl.constexpr, PROBES: tl.constexpr, IS_BEST: tl.constexpr,
    HAS_CACHE: tl.constexpr,
):  # fmt: skip
    """One program for each request; see `walk`."""
    lm = (keys, log_probs, next_states, failures, backoffs)
    request = tl.program_id(0)
    lanes = tl.arange(0, WIDTH)
    row = tl.load(rows + request)
    valid = row + lanes * 0 >= 0
    length = tl.minimum(tl.load(lengths + request).to(tl.int32), WINDOW)
    text = texts + (request + 1) * WINDOW - length

    # The state after the text, the same in all lanes. After n - 1 tokens <s> has no effect.
    states = tl.zeros([WIDTH], tl.int32) + start_state
    for i in range(ORDER - 1):
        position = lanes * 0 + length - (ORDER - 1) + i
        known = valid & (position >= 0)
        token = tl.load(text + position, mask=known, other=0).to(tl.int64)
        _, following = _advance(lm, states, token, known, ORDER, SIZE, PROBES)
        states = tl.where(known, following, states)
    if HAS_CACHE:
        position = lanes * 0 + length - 1
        last = tl.load(text + position, mask=valid & (position >= 0), other=-1).to(tl.int64)
        earlier = tl.load(text + position - 1, mask=valid & (position > 0), other=-1).to(tl.int64)

    totals = tl.where(lanes == 0, 0.0, -float("inf"))  # row 0 is that of the text's last token
    for step in range(STEPS):
        base = (request * STEPS + step) * K
        inside = (lanes < K) & valid
        mask = inside[:, None] & inside[None, :]
        token = tl.load(candidates + base + lanes, mask=inside, other=0).to(tl.int64)
        offsets = (base + lanes[:, None]) * K + lanes[None, :]
        row_scores = tl.load(scores + offsets, mask=mask, other=-float("inf")).to(tl.float32)
        term, following = _advance(
            lm, states[:, None] + lanes[None, :] * 0, lanes[:, None] * 0 + token[None, :], mask,
            ORDER, SIZE, PROBES,
        )  # fmt: skip
        if HAS_CACHE:
            shares, is_known = _count(text, length, last, earlier, token)
            weight = tl.where(is_known, cache, 0.0)[:, None]
            term = tl.log(tl.maximum((1.0 - weight) * tl.exp(term) + weight * shares, _LEAST))
        row_scores += alpha * term
        tl.store(combined + offsets, row_scores, mask=mask)
        if IS_BEST:  # of log probabilities: a row of large scores must not attract the path
            top = tl.max(row_scores, axis=1)
            top = tl.where(top == -float("inf"), 0.0, top)
            mass = tl.sum(tl.exp(row_scores - top[:, None]), axis=1)
            row_scores -= (top + tl.log(tl.where(mass > 0.0, mass, 1.0)))[:, None]
        paths = totals[:, None] + row_scores
        totals, index = tl.max(paths, axis=0, return_indices=True)
        tl.store(predecessors + base + lanes, index, mask=inside)
        states = tl.sum(tl.where(lanes[:, None] == index[None, :], following, 0), axis=0)
        if HAS_CACHE:
            earlier = _take(last, index)
            last = token
        if not IS_BEST:
            totals = tl.where(lanes == tl.argmax(totals, axis=0), 0.0, -float("inf"))

    tl.debug_barrier()  # predecessors were stored by other threads
    chosen = tl.argmax(totals, axis=0)
    for i in range(STEPS):
        flat = request * STEPS + STEPS - 1 - i
        token = tl.load(candidates + flat * K + chosen, mask=row >= 0, other=0)
        tl.store(tokens + flat, token, mask=row >= 0)
        chosen = tl.load(predecessors + flat * K + chosen, mask=row >= 0, other=0)


@dataclass(frozen=True)
class DeviceLM:
    """An n-gram LM as a hash table on a device.

    Attributes:
        keys: (size,) int64, `state << 32 | token` of each arc; -1: empty. size is a power of 2.
        log_probs: (size,) float32, natural logs.
        next_states: (size,) int32.
        failures: (states,) int32, the state of the shorter history; state 0 is the empty one.
        backoffs: (states,) float32, natural logs of the backoff weights.
        start_state: of ``<s>``.
        order: n.
        num_probes: positions after which an arc is found, or is not there.
    """

    keys: Tensor
    log_probs: Tensor
    next_states: Tensor
    failures: Tensor
    backoffs: Tensor
    start_state: int
    order: int
    num_probes: int

    @classmethod
    def of(cls, lm: NGramLM, device: Any = "cpu") -> DeviceLM:
        """Copies an LM to a device: 32 to 64 bytes for each n-gram.

        Raises:
            TypeError: not an NGramLM.
        """
        data = core_of("DeviceLM.of", lm).to_fst_bytes(
            np.zeros(0, np.int32), True, False, False, const_fst=True
        )
        # An OpenFst ConstFst: the header ends in start state and numbers of states and arcs.
        start, num_states, num_arcs = np.frombuffer(data, "<i8", 3, 41).tolist()
        state_type = np.dtype(
            [("final", "<f4"), ("begin", "<u4"), ("arcs", "<u4"), ("rest", "<u8")]
        )
        arc_type = np.dtype([("label", "<i4"), ("out", "<i4"), ("cost", "<f4"), ("next", "<i4")])
        states = np.frombuffer(data, state_type, num_states, 65)
        arcs = np.frombuffer(data, arc_type, num_arcs, 65 + states.nbytes)
        owners = np.repeat(np.arange(num_states), states["arcs"])
        fails = arcs["label"] == lm.failure_label
        failures, backoffs = np.zeros(num_states, np.int32), np.zeros(num_states, np.float32)
        failures[owners[fails]] = arcs["next"][fails]
        backoffs[owners[fails]] = -arcs["cost"][fails]
        arcs, owners = arcs[~fails], owners[~fails]
        keys = (owners << 32) | (arcs["label"].astype(np.int64) - 1)
        positions, size, num_probes = _insert(keys)

        def spread(values: Any, empty: int) -> Tensor:
            column = np.full(size, empty, values.dtype.newbyteorder("="))
            column[positions] = values
            return torch.from_numpy(column).to(device)

        return cls(
            spread(keys, -1), spread(-arcs["cost"], 0), spread(arcs["next"], 0),
            torch.from_numpy(failures).to(device), torch.from_numpy(backoffs).to(device),
            int(start), lm.order, num_probes,
        )  # fmt: skip


def _insert(keys: Any) -> tuple[Any, int, int]:
    """The position of each key, the size of the table, and the most probes."""
    size = 1 << max(2 * len(keys) - 1, 1).bit_length()
    with np.errstate(over="ignore"):
        hashes = _hash.fn(keys)
    positions, steps = hashes & (size - 1), (hashes >> 40) | 1
    table, waiting, num_probes = np.full(size, -1, np.int64), np.arange(len(keys)), 0
    while len(waiting):
        num_probes += 1
        at = positions[waiting]
        free = table[at] == -1
        table[at[free]] = keys[waiting[free]]  # one of those that try the same position
        waiting = waiting[table[at] != keys[waiting]]
        positions[waiting] = (positions[waiting] + steps[waiting]) & (size - 1)
    return positions, size, num_probes


def walk(
    lm: DeviceLM, candidates: Tensor, scores: Tensor, token_ids: Tensor, rows: Tensor,
    lengths: Tensor, *, alpha: float = 1.0, cache: float = 0.0, is_best: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Adds the LM's term to the scores of a lattice, and finds a path.

    The score of candidate b of a slot after candidate a of the slot before it is

        scores[.., a, b] + alpha ln ((1 - cache) P_lm(b | history of a) + cache P_text(b | ..))

    The history of a is the text and the path to a: the greedy path to the slot before it, or with
    `is_best` the best path to a. P_text is the share of b among the tokens that follow the last two
    tokens of the history in the last 1024 of the text, of the last one where they do not occur
    together; where neither does, `cache` is 0.

    Args:
        lm: on the device of the tensors.
        candidates: (B, S, K) int64 token ids; of those that the LM lacks ln P_lm is -1000.
        scores: (B, S, K, K) float; of slot 0 row 0 is used. -inf masks a transition.
        token_ids: (R, positions) ints, texts.
        rows: (B,) ints, the row of each request in `token_ids`; negative: no request.
        lengths: (B,) ints, tokens of its text, 0 to `positions`.
        alpha: weight of the term.
        cache: weight of the text so far, 0 to 1 (excluded).
        is_best: the path of greatest probability, where the scores of each row are made a
            distribution by softmax; for an LM of order 3 or above, of those paths that extend the
            best one to each candidate. Else the best candidate of each slot after that of the slot
            before it.

    Returns:
        (B, S, K, K) float32, the scores with the term, and (B, S) int64, the path. Of rows without
        a request neither is written.
    """
    batch, steps, k = candidates.shape
    window = max(_WINDOW if cache > 0.0 else 1, lm.order - 1)
    # One copy: vLLM keeps texts in memory of the host, which kernels read slowly.
    positions = lengths[:, None] + torch.arange(-window, 0, device=lengths.device)
    positions = positions.clamp(0, token_ids.shape[1] - 1)
    texts = token_ids[rows.clamp_min(0)[:, None].long(), positions.long()]
    combined = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    predecessors = torch.empty((batch, steps, k), dtype=torch.int32, device=scores.device)
    tokens = torch.zeros((batch, steps), dtype=torch.int64, device=scores.device)
    _walk_kernel[(batch,)](
        candidates.contiguous(), scores.contiguous(), lengths.contiguous(), rows.contiguous(),
        texts,
        lm.keys, lm.log_probs, lm.next_states, lm.failures, lm.backoffs, lm.start_state,
        float(alpha), float(cache), combined, predecessors, tokens,
        STEPS=steps, K=k, WIDTH=triton.next_power_of_2(k), WINDOW=window, ORDER=lm.order,
        SIZE=len(lm.keys), PROBES=lm.num_probes, IS_BEST=is_best, HAS_CACHE=cache > 0.0,
        num_warps=4,
    )  # fmt: skip
    return combined, tokens

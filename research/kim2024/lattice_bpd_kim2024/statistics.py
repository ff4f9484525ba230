"""Statistics of replays: tables and figures of Kim et al. 2024.

Functions that fill a part of results.json return it as plain dicts, with the keys of
evaluate.md. Small models repeat themselves, and repetition inflates the gains of every
drafter, so looping positions (whose last 8 tokens occurred earlier) are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_tree
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.replay.strategies import STRATEGIES, Strategy

CALIBRATION_BINS = 10
LOOP_EDGES = (0.0, 0.25, 0.5, 1.0)
Row = dict[str, Any]


def accept_histogram(replayed: Replayed, num_slots: int) -> list[int]:
    """Number of verifying calls that accepted 0, 1, .. num_slots draft tokens."""
    counts: list[int] = np.bincount(replayed.accepted, minlength=num_slots + 1).tolist()
    return counts


def acceptance_by_slot(replayed: Replayed, num_slots: int) -> list[Row]:
    """Acceptance of each slot that some call can use.

    Returns:
        {slot: 0..H-1, calls: that can use it, accepted: share of these that accept a token there,
        accepted_if_reached: the same share among calls that accept all slots before it, or None}.
    """
    rows = []
    for slot in range(num_slots):
        usable = replayed.accepted[replayed.slots > slot]
        if len(usable):
            reached, accepted = int((usable >= slot).sum()), int((usable > slot).sum())
            rows.append(
                {
                    "slot": slot,
                    "calls": len(usable),
                    "accepted": accepted / len(usable),
                    "accepted_if_reached": accepted / reached if reached else None,
                }
            )
    return rows


def measure_calibration(
    recording: Recording,
    rescorers: Rescorers,
    options: DraftConfig,
    replayed: Replayed,
    bins: int = CALIBRATION_BINS,
) -> Row:
    """How often prefixes of a tree are accepted, by their probability among the lattice's paths.

    Args:
        recording: positions.
        rescorers: with or without an LM.
        options: of the strategy "tree".
        replayed: gives the positions of verifying calls; no other prefixes are ever drafted.
        bins: number of bins between 0 and 1.

    Returns:
        {bins: those with prefixes, [{low, high, prefixes: how many, predicted: mean probability,
        accepted: share that agrees with the output}], error: expected calibration error}.
    """
    predicted, accepted = [], []
    for _, batch in recording.batches(replayed.places):
        tree = rescore_tree(
            batch.lattice(options).at_temperature(options.temperature), batch.contexts,
            rescorers.lm, max_nodes=options.tree_nodes, alpha=options.alpha / options.temperature,
            threads=rescorers.threads,
        )  # fmt: skip
        wanted = np.take_along_axis(batch.wanted, tree.depths, axis=1)
        right = tree.token_ids == wanted
        rows = np.arange(len(right))
        for node in range(right.shape[1]):  # a prefix is right if all of its tokens are
            parent = tree.parents[:, node]
            right[:, node] &= np.where(parent >= 0, right[rows, np.maximum(parent, 0)], True)
        known = (tree.token_ids >= 0) & (wanted >= 0)  # nothing is known after the output's end
        predicted.append(np.exp(tree.log_probs[known]))
        accepted.append(right[known])
    return _to_bins(np.concatenate(predicted or [[]]), np.concatenate(accepted or [[]]), bins)


def _to_bins(predicted: Any, accepted: Any, count: int) -> Row:
    indices = np.minimum((predicted * count).astype(int), count - 1)
    rows = []
    for index in np.unique(indices).tolist():
        inside = indices == index
        rows.append(
            {
                "low": index / count,
                "high": (index + 1) / count,
                "prefixes": int(inside.sum()),
                "predicted": float(predicted[inside].mean()),
                "accepted": float(accepted[inside].mean()),
            }
        )
    error = sum(row["prefixes"] * abs(row["predicted"] - row["accepted"]) for row in rows)
    return {"bins": rows, "error": error / max(1, len(indices))}


def looping_shares(recording: Recording) -> list[float]:
    """For each text the share of output positions that loop; see `statistics.loops`."""
    return [
        count_looping(text.prompt.tolist(), text.output.tolist()) / len(text.output)
        for text in recording.texts
    ]


def gains_by_loops(shares: Sequence[float], replayed: Replayed, baseline: Replayed) -> list[Row]:
    """Gains by share of looping output; groups without a text are left out.

    Args:
        shares: of each text, from `looping_shares`.
        replayed: the strategy.
        baseline: what it is compared with, on the same texts.

    Returns:
        {low, high: the texts' shares are above low and at most high (both 0: exactly 0), texts:
        how many, block_efficiency: of the strategy, gain: relative to the baseline}.
    """
    values = np.asarray(shares)
    rows = []
    for low, high in zip((0.0, *LOOP_EDGES[:-1]), LOOP_EDGES, strict=True):
        texts = np.flatnonzero((values <= high) & ((values > low) if high else (values == 0.0)))
        if len(texts):
            value, other = replayed.of(texts.tolist()), baseline.of(texts.tolist())
            row = {"low": low, "high": high, "texts": len(texts), "block_efficiency": value}
            rows.append({**row, "gain": value / other - 1.0})
    return rows


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FirstDrafts:
    """The best draft at P positions.

    Attributes:
        tokens: (P, 1 + H) int32, the exact token and the draft; negative after its end.
        accepted: (P,) int64, accepted draft tokens.
    """

    tokens: Int32Array
    accepted: Int64Array

    @property
    def repeats(self) -> Mask:
        """(P, H) whether a token equals the one before it."""
        return np.asarray((self.tokens[:, 1:] == self.tokens[:, :-1]) & (self.tokens[:, 1:] >= 0))


def first_drafts(
    recording: Recording, strategy: Strategy, rescorers: Rescorers, options: DraftConfig
) -> FirstDrafts:
    """The first draft of a strategy at all positions that can use a slot.

    Args:
        recording: positions.
        strategy: any that drafts a list.
        rescorers: what it may use.
        options: its options.
    """
    strategy.check(rescorers, options, recording.top_k)
    positions = np.flatnonzero(recording.slots > 0)
    tokens = np.full((len(positions), 1 + recording.num_slots), -1, np.int32)
    tokens[:, 0] = recording.token_ids[positions]
    accepted = np.zeros(len(positions), np.int64)
    for chosen, batch in recording.batches(positions):
        first = strategy.draft(batch, rescorers, options).paths[:, :1]
        tokens[chosen, 1 : 1 + first.shape[2]] = first[:, 0]
        accepted[chosen] = batch.accept_lengths(first)
    return FirstDrafts(tokens, accepted)


def argmax_drafts(recording: Recording, options: DraftConfig) -> FirstDrafts:
    """The argmax of the heads at all positions that can use a slot."""
    return first_drafts(recording, STRATEGIES["bpd"], Rescorers(), options)


def measure_repetition(drafts: FirstDrafts) -> dict[str, float]:
    """Repetition of drafts, exact token included (table 3); all zeros without drafts.

    Returns:
        {consecutive: share of neighboring tokens that are equal, 0..1, longest_run: mean length of
        the longest run of one token, 1 without repetition, drafts: how many}.
    """
    if not len(drafts.tokens):
        return {"consecutive": 0.0, "longest_run": 0.0, "drafts": 0}
    repeats = drafts.repeats
    run: npt.NDArray[np.int64] = np.ones(len(repeats), np.int64)
    longest = run
    for column in repeats.T:
        run = np.where(column, run + 1, 1)
        longest = np.maximum(longest, run)
    pairs = (drafts.tokens[:, 1:] >= 0).sum()
    share = float(repeats.sum() / pairs) if pairs else 0.0
    return {
        "consecutive": share, "longest_run": float(longest.mean()), "drafts": len(repeats),
    }  # fmt: skip


def compare_drafts(before: FirstDrafts, after: FirstDrafts) -> dict[str, float]:
    """Rescored drafts against the argmax of the heads, position by position (table 5).

    Returns:
        {ties, wins, losses: positions where the rescored draft is accepted equally far, further,
        and less far; win_repair, loss_repair: share of them, 0..1, where rescoring eliminates
        repetition (the argmax repeats a token, the rescored draft none); win_regress, loss_regress:
        share where it introduces repetition (the other way round)}.
    """
    wins, losses = after.accepted > before.accepted, after.accepted < before.accepted
    repeated: Mask = np.any(before.repeats, axis=1)
    repeats: Mask = np.any(after.repeats, axis=1)
    repaired, regressed = repeated & ~repeats, ~repeated & repeats
    return {
        "ties": int((~wins & ~losses).sum()),
        "wins": int(wins.sum()),
        "losses": int(losses.sum()),
        "win_repair": _share(repaired, wins),
        "win_regress": _share(regressed, wins),
        "loss_repair": _share(repaired, losses),
        "loss_regress": _share(regressed, losses),
    }


def _share(part: Mask, whole: Mask) -> float:
    return float((part & whole).sum() / whole.sum()) if whole.any() else 0.0


BINS = 32


def measure_entropies(recording: Recording, bins: int = BINS) -> dict[str, Any]:
    """Entropies of heads 1..h at all recorded positions, in nats; head 1 is the target's own.

    Returns:
        {means: of each head, h_max, edges: of the bins, the same for all heads, histograms: for
        each head the share of positions in each bin}.
    """
    entropies = np.concatenate([text.entropies for text in recording.texts])  # (P, h)
    edges = np.linspace(0.0, max(float(entropies.max()), 1e-6), bins + 1)
    means = entropies.mean(axis=0, dtype=np.float64).tolist()
    shares = [np.histogram(head, edges)[0] / len(entropies) for head in entropies.T]
    histograms = [share.tolist() for share in shares]
    return {
        "means": means, "h_max": h_max(means), "edges": edges.tolist(), "histograms": histograms,
    }  # fmt: skip


def h_max(means: Sequence[float]) -> int:
    """The head up to which mean entropies never fall, heads counted from 1.

    The largest k with H[i] <= H[i + 1] for all i < k. Means 1 2 3 2: 3. Means 2 1: 1.
    """
    head = 1
    while head < len(means) and means[head - 1] <= means[head]:
        head += 1
    return head


def correlate(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs, or where one side is constant."""
    if len(first) != len(second):
        raise ValueError(f"correlate: {len(first)} and {len(second)} numbers; expected as many")
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Slope and intercept of the least-squares line (figure 3b); None where `correlate` is."""
    if correlate(xs, ys) is None:
        return None
    slope, intercept = np.polyfit(xs, ys, 1)
    return float(slope), float(intercept)


LOOP_WINDOW = 8


def count_looping(prompt: Sequence[int], output: Sequence[int], window: int = LOOP_WINDOW) -> int:
    """Positions of the output that loop.

    Args:
        prompt: (T,) ints; windows may begin in it.
        output: (m,) ints.
        window: number of tokens that must have occurred before.

    Returns:
        0..m. Window 2, prompt 1 2, output 3 1 2 3: the last two positions, so 2.
    """
    return sum(find_repeats([*prompt, *output], window)[len(prompt) :])


def find_repeats(tokens: Sequence[int], window: int) -> list[bool]:
    """For each of T positions, whether the window that ends there occurred earlier in the text."""
    seen: set[tuple[int, ...]] = set()
    repeats = [False] * len(tokens)
    for end in range(window, len(tokens) + 1):
        last = tuple(tokens[end - window : end])
        repeats[end - 1] = last in seen
        seen.add(last)
    return repeats


def loop_share(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], window: int = LOOP_WINDOW
) -> float:
    """Share of all output positions that loop, 0..1; 0 without output."""
    total = sum(map(len, outputs))
    pairs = zip(prompts, outputs, strict=True)
    looping = sum(count_looping(prompt, output, window) for prompt, output in pairs)
    return looping / total if total else 0.0

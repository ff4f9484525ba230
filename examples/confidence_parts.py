"""What confidence_head.py counts with: lattices of greedy texts, and drafts cut in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from stories260k_parts import BEGIN, Prepared
from transition_parts import RecordingDrafter

from lattice_bpd import rescore_tree
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.models import BlockDrafter

MOST_NODES = 128  # of the trees that a threshold chooses from
TOP_K = 16
Counts = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, calls, draft tokens by text


@dataclass
class Texts:
    """Greedy outputs, with the walk and the tree at each of their N positions.

    Attributes:
        position: (N,) int64 in the output, by text one after another.
        text: (N,) int64, number of the text.
        lengths: tokens of each output.
        following: (N, H) int64, the output after the position's token; -1 after its end.
        walk: (N, H) int64 tokens of the greedy walk.
        own: (N, H) float64, probabilities of the walk's tokens after those before them.
        confidences: (N, H) float64.
        depth: (N, M) int64, of the nodes of the tree of the M most probable prefixes.
        probability: (N, M) float64, of the prefix by the drafter's rows.
        is_true: (N, M) bool, whether the prefix is what follows.
        parent: (N, M) int64, -1 for the root.
    """

    position: np.ndarray
    text: np.ndarray
    lengths: list[int]
    following: np.ndarray
    walk: np.ndarray
    own: np.ndarray
    confidences: np.ndarray
    depth: np.ndarray
    probability: np.ndarray
    is_true: np.ndarray
    parent: np.ndarray

    def corrected(self) -> np.ndarray:
        """(N, M) probabilities of the nodes with the confidences in place of the walk's own."""
        ratios = np.cumprod(self.confidences / self.own, axis=1)
        found = self.probability * np.take_along_axis(ratios, self.depth - 1, axis=1)
        for node in range(found.shape[1]):  # parents come before their children
            parent = self.parent[:, node]
            above = np.where(parent < 0, 1.0, found[np.arange(len(found)), np.maximum(parent, 0)])
            found[:, node] = np.minimum(found[:, node], above)
        return found


def read_texts(drafter: BlockDrafter, made: Prepared, prompts: list[list[int]], new: int) -> Texts:
    """Decode greedily and keep what the drafter gives at each position."""
    recorder = RecordingDrafter(TOP_K)
    results = decode(
        DraftingModel(made.base, drafter), prompts, recorder, max_new_tokens=new,
        stop_token_ids=[BEGIN],
    )  # fmt: skip
    lattice, slots = recorder.joined(), drafter.num_slots
    numbers, positions, following = [], [], []
    texts = [prompt + result.token_ids for prompt, result in zip(prompts, results, strict=True)]
    by_prompt = {tuple(prompt): number for number, prompt in enumerate(prompts)}
    length = len(prompts[0])
    for context in recorder.contexts:
        number = by_prompt[tuple(context[:length])]
        rest = texts[number][len(context) : len(context) + slots]
        numbers.append(number)
        positions.append(len(context) - length - 1)
        following.append(rest + [-1] * (slots - len(rest)))
    recent = [context[-1:] for context in recorder.contexts]
    walks = rescore_lattice(lattice, recent, None, num_drafts=1, objective="greedy_walk")
    steps = np.diff(np.asarray(walks.prefix_log_probs)[:, 0], axis=1, prepend=0.0)
    tree = rescore_tree(lattice, recent, None, max_nodes=MOST_NODES)
    true = np.array(following)
    parents = np.asarray(tree.parents).astype(np.int64)
    tokens, depth = np.asarray(tree.token_ids), np.asarray(tree.depths).astype(np.int64) + 1
    is_true = np.zeros(tokens.shape, bool)
    rows = np.arange(len(tokens))
    for node in range(tokens.shape[1]):
        parent = parents[:, node]
        above = (parent < 0) | is_true[rows, np.maximum(parent, 0)]
        wanted = true[rows, depth[:, node] - 1]
        is_true[:, node] = above & (tokens[:, node] == wanted) & (tokens[:, node] >= 0)
    return Texts(
        np.array(positions), np.array(numbers), [len(one.token_ids) for one in results], true,
        np.asarray(walks.token_ids)[:, 0].astype(np.int64), np.exp(steps.astype(np.float64)),
        np.asarray(lattice.confidences, np.float64), depth,
        np.exp(np.asarray(tree.log_probs, np.float64)), is_true, parents,
    )  # fmt: skip


def count_calls(texts: Texts, accepted: np.ndarray, verified: np.ndarray) -> Counts:
    """Tokens, calls and draft tokens of each text, if these drafts are verified.

    Args:
        texts: of N positions.
        accepted: (N,) draft tokens that are kept at each position.
        verified: (N,) draft tokens that are verified there.
    """
    counts = []
    for number, length in enumerate(texts.lengths):
        of_text = np.flatnonzero(texts.text == number)
        index = dict(zip(texts.position[of_text].tolist(), of_text.tolist(), strict=True))
        calls, drafted, at = 1, 0, 0  # the prompt's call gives position 0
        while at < length - 1:
            calls, here = calls + 1, index.get(at)
            if here is None:  # the last token but one, after which nothing is drafted
                at += 1
                continue
            drafted += int(verified[here])
            at += int(accepted[here]) + 1
        counts.append((length, calls, drafted))
    tokens, calls, drafted = np.array(counts, np.float64).T
    return tokens, calls, drafted


def chain_counts(texts: Texts, lengths: np.ndarray) -> Counts:
    """See count_calls; of the first `lengths` (N,) tokens of the walks."""
    right = np.cumprod(texts.walk == texts.following, axis=1).sum(axis=1)
    return count_calls(texts, np.minimum(right, lengths), lengths)


def tree_counts(texts: Texts, is_kept: np.ndarray) -> Counts:
    """See count_calls; of the nodes (N, M) that are kept."""
    accepted = np.where(texts.is_true & is_kept, texts.depth, 0).max(axis=1)
    return count_calls(texts, accepted, is_kept.sum(axis=1))


def most_probable(scores: np.ndarray, count: int) -> np.ndarray:
    """(N, M) bool, the `count` greatest of each row; earlier ones first among equals."""
    order = np.argsort(-scores, axis=1, kind="stable")
    kept = np.zeros(scores.shape, bool)
    np.put_along_axis(kept, order[:, :count], True, axis=1)
    return kept & (scores > 0.0)


def threshold_for(texts: Texts, kind: str, wanted: float, nodes: int = 0) -> float:
    """The threshold at which a way verifies `wanted` draft tokens per call on these texts."""
    low, high = -30.0, 0.0
    for _ in range(30):
        middle = (low + high) / 2
        _, calls, drafted = counts_of(texts, kind, middle, nodes)
        low, high = (middle, high) if drafted.sum() / calls.sum() > wanted else (low, middle)
    return high


def counts_of(texts: Texts, kind: str, threshold: float, nodes: int = 0) -> Counts:
    """See count_calls; of a way, with a threshold as a natural logarithm."""
    least = np.exp(threshold)
    products = np.cumprod(texts.confidences, axis=1)
    if kind == "chain/probability":
        return chain_counts(texts, (np.cumprod(texts.own, axis=1) >= least).sum(axis=1))
    if kind == "chain/confidence":
        return chain_counts(texts, (products >= least).sum(axis=1))
    if kind == "tree/probability":
        return tree_counts(texts, texts.probability >= least)
    if kind == "tree/confidence":
        return tree_counts(texts, (texts.corrected() >= least) & (texts.probability > 0.0))
    slots = np.maximum((products >= least).sum(axis=1), 1)
    within = np.where(texts.depth <= slots[:, None], texts.probability, 0.0)
    return tree_counts(texts, most_probable(within, nodes))


def fixed_counts(texts: Texts, kind: str, size: int) -> Counts:
    """See count_calls; of chains or trees of one size."""
    if kind == "chain":
        return chain_counts(texts, np.full(len(texts.text), size))
    return tree_counts(texts, most_probable(texts.probability, size))


def best_depth(texts: Texts, nodes: int) -> float:
    """The threshold on the product of confidences that gives most tokens per call."""
    tried = np.log([1e-9, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3])
    calls = [counts_of(texts, "tree/depth", value, nodes)[1].sum() for value in tried]
    return float(tried[int(np.argmin(calls))])


def calibration(texts: Texts) -> dict[str, Any]:
    """Log loss and mean of both estimates against what is accepted, where the prefix is."""
    right = texts.walk == texts.following
    reached = np.cumprod(np.pad(right, ((0, 0), (1, 0)), constant_values=True), axis=1)[:, :-1]
    asked = (reached > 0) & (texts.following >= 0)
    found: dict[str, Any] = {"accepted": float(right[asked].mean()), "slots": int(asked.sum())}
    for name, values in (("own", texts.own), ("confidence", texts.confidences)):
        p = np.clip(values[asked], 1e-6, 1 - 1e-6)
        losses = np.where(right[asked], -np.log(p), -np.log(1 - p))
        found[name] = {"mean": float(p.mean()), "log_loss": float(losses.mean())}
    return found

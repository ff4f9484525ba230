"""The mixture of cpp/lattice_bpd/mixture in plain Python: enumerated prefixes and dictionaries."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from oracles import ArpaOracle

ORDER = 6  # n-grams of texts
MOST = 16  # tokens that an LM or a text proposes
SCANNED = 32
PREDICTIONS = 8


def lm_proposals(lm: ArpaOracle, history):
    """token -> P, the length of the match, and its greatest P."""
    known = history if len(history) >= lm.order - 1 else ["<s>", *history]
    suffix = tuple(known[max(0, len(known) - (lm.order - 1)) :])
    while suffix and suffix not in lm.log_probs:
        suffix = suffix[1:]
    found, matched, backoff = {}, None, 0.0
    while len(found) < MOST:
        children = [(p, key[-1]) for key, p in lm.log_probs.items()
                    if key[:-1] == suffix and isinstance(key[-1], int)]  # fmt: skip
        best = sorted(children, key=lambda one: (-one[0], one[1]))[:MOST]
        for log_prob, token in best:
            if token not in found and len(found) < MOST:
                found[token] = math.exp(log_prob + backoff)
                matched = len(suffix) if matched is None else matched
        if not suffix:
            break
        backoff += lm.backoffs.get(suffix, 0.0)
        suffix = suffix[1:]
    return found, matched or 0, max(found.values(), default=0.0)


def successors(text, suffix):
    """The tokens that followed a suffix in a text, in order."""
    n = len(suffix)
    return [text[i + n] for i in range(len(text) - n) if text[i : i + n] == list(suffix)]


def longest_match(text, history):
    """Tokens of the longest suffix of a history, below ORDER, that a token follows in the text."""
    length = 0
    while (length + 1 < ORDER and length < len(history)
           and successors(text, history[len(history) - length - 1 :])):  # fmt: skip
        length += 1
    return length


def text_proposals(text, history):
    """token -> P, match length, its count, its greatest P."""
    length = longest_match(text, history)
    suffixes = {m: history[len(history) - m :] for m in range(1, length + 1)}
    found = []
    for m in range(length, 0, -1):
        followed = successors(text, suffixes[m])
        latest = list(dict.fromkeys(reversed(followed)))[:SCANNED]
        counts = Counter(followed)
        for token in sorted(latest, key=lambda one: -counts[one]):
            if token not in found and len(found) < MOST:
                found.append(token)
    probs = {}
    for token in found:
        prob = 0.0
        for m in range(1, length + 1):
            followed = successors(text, suffixes[m])
            weight = len(followed) / (len(followed) + len(set(followed)))
            prob = (1.0 - weight) * prob + weight * followed.count(token) / len(followed)
        probs[token] = prob
    count = len(successors(text, suffixes[length])) if length else 0
    return probs, length, count, max(probs.values(), default=0.0)


def target_table(predictions):
    """Of each history's last 1 and 2 tokens: token -> P, the mean of what was there and the new."""
    table = {}
    for history, probs in predictions:
        for length in (1, 2):
            if len(history) < length:
                continue
            key = tuple(history[len(history) - length :])
            old = table.get(key)
            if old is None:
                table[key] = dict(probs)
                continue
            both = {token: 0.5 * probs.get(token, 0.0) + 0.5 * old.get(token, 0.0)
                    for token in [*probs, *(t for t in old if t not in probs)]}  # fmt: skip
            best = sorted(both, key=lambda token: -both[token])[:PREDICTIONS]
            table[key] = {token: both[token] for token in best}
    return table


def target_proposals(table, history):
    """token -> P, the length of the longest key, and its greatest P."""
    keys = [tuple(history[len(history) - m :]) for m in (1, 2) if len(history) >= m]
    known = [key for key in keys if key in table]
    tokens = [token for key in reversed(known) for token in table[key]]
    probs = dict.fromkeys(list(dict.fromkeys(tokens))[:PREDICTIONS], 0.0)
    for number, key in enumerate(known):
        share = 1.0 if number == 0 else 0.7
        for token in probs:
            probs[token] = (1.0 - share) * probs[token] + share * table[key].get(token, 0.0)
    return probs, len(known[-1]) if known else 0, max(probs.values(), default=0.0)


def bin_of(value, bounds):
    return sum(value >= bound for bound in bounds)


def top_bin(top):
    return bin_of(top, (0.101, 0.307, 0.613, 0.907))


class OracleMixture:
    """q of any prefix.

    Args:
        text: tokens.
        weights: (S + 1, bins), the last row of the tokens that no source proposes.
        lms: n-gram LMs.
        heads: (token ids (H, k), log probabilities (H, k)), or None if heads are no source.
        store: tokens of other texts joined by -2; None: no source.
        predictions: of the target: (history, {token: P}) in order; None: no source.
    """

    def __init__(
        self, text, weights, lms=(), heads=None, has_text=True, store=None, predictions=None
    ):
        self.text, self.weights, self.lms = list(text), np.asarray(weights), lms
        self.heads, self.has_text, self.store = heads, has_text, store
        self.table = None if predictions is None else target_table(predictions)

    def proposals(self, path):
        """Of each source: (token -> P, bins)."""
        history = self.text + path
        parts = []
        if self.heads is not None:
            probs = {}
            if len(path) < len(self.heads[0]):
                ids, log_probs = self.heads[0][len(path)], self.heads[1][len(path)]
                probs = {int(i): math.exp(p) for i, p in zip(ids, log_probs, strict=True)}
            parts.append((probs, [1 + top_bin(max(probs.values())) if probs else 0], 6))
        for lm in self.lms:
            probs, length, top = lm_proposals(lm, history)
            parts.append((probs, [min(length, 6), 7 + top_bin(top)], 12))
        if self.has_text:
            parts.append(self._counts(self.text, history))
        if self.store is not None:
            parts.append(self._counts(self.store, history))
        if self.table is not None:
            probs, length, top = target_proposals(self.table, history)
            parts.append((probs, [length, 7 + top_bin(top)], 12))
        others = [probs for probs, *_ in parts[self.heads is not None :] if probs]
        if self.heads is not None and parts[0][0] and others:
            heads = parts[0][0]
            scaled = {
                token: p
                * math.sqrt(sum(one.get(token, 0.0) for one in others) / len(others) + 3e-3)
                for token, p in heads.items()
            }
            scale = sum(heads.values()) / sum(scaled.values())
            probs = {token: scale * p for token, p in scaled.items()}
            parts[0] = (probs, [1 + top_bin(max(probs.values()))], 6)
        return parts

    @staticmethod
    def _counts(text, history):
        probs, length, count, top = text_proposals(text, history)
        probs = {token: p for token, p in probs.items() if token >= 0}
        return probs, [length, 7 + bin_of(count, (2, 3, 5)), 11 + top_bin(top)], 16

    def distribution(self, path):
        """token -> q after a path."""
        parts = self.proposals(path)
        bins, first = [min(len(path), 7)], 8
        for _, local, size in parts:
            bins += [first + one for one in local]
            first += size
        scores = [sum(self.weights[s][b] for b in bins) if probs else -math.inf
                  for s, (probs, _, _) in enumerate(parts)]  # fmt: skip
        if max(scores) == -math.inf:
            return {}
        scores.append(sum(self.weights[-1][b] for b in bins))
        gates = [math.exp(score - max(scores)) for score in scores]
        q: dict[int, float] = {}
        for gate, (probs, _, _) in zip(gates[:-1], parts, strict=True):
            for token, prob in probs.items():
                q[token] = q.get(token, 0.0) + gate / sum(gates) * prob
        return q

    def best_prefixes(self, max_nodes, max_depth, is_chain=False):
        """The most probable prefixes with their probabilities, by descending probability."""
        waiting, found = [], []

        def extend(path, prob):
            if is_chain:
                waiting.clear()
            if len(path) < max_depth:
                for token, q in self.distribution(list(path)).items():
                    waiting.append((prob * q, (*path, token)))

        extend((), 1.0)
        while waiting and len(found) < max_nodes:
            order = {path: number for number, (path, _) in enumerate(found)}
            best = min(waiting, key=lambda one: (-one[0], order.get(one[1][:-1], -1), one[1][-1]))
            waiting.remove(best)
            prob, path = best
            found.append((path, prob))
            extend(path, prob)
        return found

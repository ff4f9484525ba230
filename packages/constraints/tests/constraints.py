"""Constraints for tests, and decoding under them in the plainest way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from blockwise_models import VOCAB
from lattice_bpd_constraints import Constraint, FstConstraint
from lattice_bpd_constraints.fst import write_acceptor

LETTERS = b'abcdefghijklmnopqrstuvwxyz0123456789{}":, []'
END = 0
TOKENS = [b"<end>", *(bytes([letter]) for letter in LETTERS), b"ab", b"abc", b"12"][:VOCAB]
REGEXES = (
    "[a-z]{3,12}",
    "(ab|cd[0-9]{2})*k",
    "[a-z0-9]*",
    "abc[0-9]+xyz",
    '"[a-z ]*": [0-9]{1,3}(, "[a-z]*": [0-9])*',
)


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKENS[token] for token in token_ids if token != END).decode()


def constrained_greedy(
    model: Any, prompt: list[int], constraint: Constraint, count: int, stops: tuple[int, ...] = ()
) -> list[int]:
    """The argmax of masked logits, token by token; the whole text is read each time."""
    ends = set(stops) | constraint.end_token_ids
    state: Any = constraint.start()
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        mask = state.allowed_tokens().copy()
        for token in ends:
            mask[token] = state.accepting
        if not mask.any():
            assert state.accepting
            break
        with torch.inference_mode():
            logits = model.base(input_ids=torch.tensor([tokens])).logits[0, -1].numpy()
        tokens.append(int(np.where(mask, logits, -np.inf).argmax()))
        if tokens[-1] in ends:
            break
        state = state.advance(tokens[-1])
    return tokens[len(prompt) :]


def acceptor_of(
    arcs: list[tuple[int, int, int]], final: set[int], *, vocab_size: int = VOCAB, **options: Any
) -> FstConstraint:
    """The constraint of arcs (state, label, next state); state 0 is the start."""
    return FstConstraint(bytes_of(arcs, final), vocab_size, **options)


def bytes_of(arcs: list[tuple[int, int, int]], final: set[int]) -> bytes:
    count = 1 + max([0, *final, *(max(source, target) for source, _, target in arcs)])
    rows: list[list[tuple[int, float, int]]] = [[] for _ in range(count)]
    for source, label, target in arcs:
        rows[source].append((label, 0.0, target))
    costs: Any = np.array([0.0 if s in final else np.inf for s in range(count)], np.float32)
    return write_acceptor(costs, rows)


def language_of(
    arcs: list[tuple[int, int, int]], final: set[int], longest: int
) -> set[tuple[int, ...]]:
    """All token sequences up to a length that an acceptor accepts, by trying every path."""
    texts, seen = set(), {(0, ())}
    stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while stack:
        state, text = stack.pop()
        if state in final:
            texts.add(text)
        for source, label, target in arcs:
            longer = text if label == 0 else (*text, label - 1)
            if source == state and len(longer) <= longest and (target, longer) not in seen:
                seen.add((target, longer))
                stack.append((target, longer))
    return texts


def random_acceptor(rng: np.random.Generator) -> tuple[list[tuple[int, int, int]], set[int]]:
    """Six states, cycles, epsilon arcs and several arcs of one label, over five tokens."""
    arcs = [(0, 0, 1), (1, 0, 0), (0, 1, 2), (0, 1, 3), (5, 2, 5)]
    for _ in range(9):
        source, label, target = rng.integers(0, 6), rng.integers(0, 6), rng.integers(0, 6)
        arcs.append((int(source), int(label), int(target)))
    return arcs, {3, int(rng.integers(0, 5))}

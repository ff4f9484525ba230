"""Constraints by themselves: what they allow, against enumeration, and what they refuse."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from constraints import END, REGEXES, TOKENS, acceptor_of, bytes_of, language_of, random_acceptor
from lattice_bpd import _core
from lattice_bpd.verify import PrefixTree
from lattice_bpd.verify.greedy import DraftCandidates
from lattice_bpd_constraints import FstConstraint, GuidanceConstraint
from lattice_bpd_constraints.automaton_state import AutomatonState, MergedStates
from lattice_bpd_constraints.search import intersect
from lattice_bpd_constraints.selector import ConstrainedSelector
from lattice_bpd_constraints.trees import constrain_tree

ABC = ([(0, 1, 1), (0, 2, 2), (1, 2, 3), (1, 3, 3), (2, 2, 4), (3, 1, 5), (4, 1, 5)], {5})
NO_CANDIDATES = DraftCandidates((), 0)


def guidance(regex: str, **options: Any) -> GuidanceConstraint:
    pytest.importorskip("llguidance")
    return GuidanceConstraint.from_regex(regex, TOKENS, end_token_ids=[END], **options)


def walk(constraint: Any, longest: int) -> set[tuple[int, ...]]:
    """All accepted sequences up to a length, by masks and steps."""
    texts, level = set(), {(): constraint.start()}
    for _ in range(longest + 1):
        texts |= {text for text, state in level.items() if state.accepting}
        level = {
            (*text, int(token)): state.advance(int(token))
            for text, state in level.items()
            for token in np.flatnonzero(state.allowed_tokens())
        }
        assert None not in level.values()
    return texts


@pytest.mark.parametrize("number", range(8))
def test_grammar_fst_walks_the_language_of_its_acceptor(number: int, seed: int) -> None:
    arcs, final = random_acceptor(np.random.default_rng([seed, number]))
    texts = language_of(arcs, final, 4)
    assert walk(acceptor_of(arcs, final), 4) == texts
    assert texts


def test_grammar_of_listed_arcs() -> None:
    arcs = [(0, 3, 1), (1, None, 2), (2, 4, 0)]
    constraint = FstConstraint.from_arcs(arcs, {2}, 6)
    assert walk(constraint, 3) == {(3,), (3, 4, 3)}
    with pytest.raises(ValueError, match="found state -1"):
        FstConstraint.from_arcs([(0, 3, -1)], {0}, 6)


def test_grammar_fst_bytes_are_those_of_pywrapfst() -> None:
    fst = pytest.importorskip("pywrapfst")
    built = fst.VectorFst.read_from_string(bytes_of(*ABC))
    assert built.num_states() == 6
    assert sum(built.num_arcs(state) for state in built.states()) == len(ABC[0])
    again = _core.read_acceptor(built.write_to_string())
    first = _core.read_acceptor(bytes_of(*ABC))
    assert again[0] == first[0] == 0
    assert [part.tolist() for part in again[1:]] == [part.tolist() for part in first[1:]]
    table = fst.SymbolTable()
    built.set_input_symbols(table)
    const = fst.convert(built, "const")
    assert walk(FstConstraint(const, 48), 4) == language_of(*ABC, 4)


@pytest.mark.parametrize("regex", REGEXES)
def test_grammar_allows_what_the_regex_matches(regex: str, rng: np.random.Generator) -> None:
    constraint = guidance(regex)
    for _ in range(30):
        state: Any = constraint.start()
        text = b""
        for _ in range(12):
            assert state.accepting == bool(re.fullmatch(regex, text.decode()))
            allowed = np.flatnonzero(state.allowed_tokens())
            assert END not in allowed
            if len(allowed) == 0:
                break
            wrong = set(range(len(TOKENS))) - set(allowed.tolist())
            assert state.advance(int(rng.choice(sorted(wrong)))) is None
            token = int(rng.choice(allowed))
            text, state = text + TOKENS[token], state.advance(token)


def test_grammar_over_a_padded_vocabulary() -> None:
    mask = guidance("a*", vocab_size=64).start().allowed_tokens()
    assert mask.shape == (64,)
    assert not mask[len(TOKENS) :].any()
    assert guidance("a*", vocab_size=64).start().advance(60) is None


def paths_of(intersection: Any, start: AutomatonState) -> dict[tuple[int, ...], float]:
    """Texts and scores of an intersection, along its arcs."""
    level, paths = {(): (start, 0.0)}, {}
    for arcs in intersection.slots:
        longer: dict[Any, Any] = {}
        for text, (state, score) in level.items():
            for arc in (arc for arc in arcs if arc.source == state):
                longer[(*text, arc.token_id)] = (arc.next_state, score + arc.log_prob)
            if state.count == 0:
                paths[text] = score
        level = longer
    return paths | {text: score for text, (_, score) in level.items()}


@pytest.mark.parametrize("number", range(6))
def test_grammar_and_lattice_intersect_as_enumerated(number: int, seed: int) -> None:
    rng = np.random.default_rng([seed, number])
    arcs, final = random_acceptor(rng)
    constraint = acceptor_of(arcs, final, vocab_size=8, end_token_ids=[7])
    logits = rng.normal(size=(3, 8)).astype(np.float32)
    state = AutomatonState(constraint.start(), constraint.end_token_ids)
    paths = paths_of(intersect(state, MergedStates(), logits, 8, "test"), state)
    level: dict[tuple[int, ...], tuple[AutomatonState, float]] = {(): (state, 0.0)}
    wanted = {}
    for row in logits:  # every legal text of three tokens, or shorter where it is over
        longer = {}
        for text, (here, score) in level.items():
            ids = here.token_ids
            if len(ids) == 0:
                wanted[text] = score
                continue
            shares = row[ids] - np.log(np.exp(row[ids].astype(np.float64)).sum())
            for token, share in zip(ids.tolist(), shares, strict=True):
                after = here.advance(token)
                assert after is not None
                longer[(*text, token)] = (after, score + share)
        level = longer
    wanted |= {text: score for text, (_, score) in level.items()}
    assert set(paths) == set(wanted)
    assert all(abs(paths[text] - wanted[text]) < 1e-4 for text in wanted)


@pytest.mark.parametrize("share", [0.005, 0.02, 0.5, 0.98])
def test_grammar_candidates_are_the_best_allowed(share: float, rng: np.random.Generator) -> None:
    allowed = rng.permutation(700)[: max(1, int(700 * share))]
    logits = rng.integers(0, 90, (1, 700)).astype(np.float32)  # with ties
    logits[0, allowed] -= 60.0 if share == 0.5 else 0.0  # all below those that are not allowed
    constraint = FstConstraint.from_arcs([(0, int(token), 1) for token in allowed], {1}, 700)
    intersection = intersect(
        AutomatonState(constraint.start(), ()), MergedStates(), logits, 9, "test"
    )
    ranked = sorted(allowed.tolist(), key=lambda token: (-logits[0, token], token))
    assert [arc.token_id for arc in intersection.slots[0]] == ranked[:9]


def test_grammar_slot_that_the_head_masks_keeps_a_token() -> None:
    constraint = acceptor_of([(0, 3, 1), (0, 5, 1)], {1}, vocab_size=6)
    logits = np.full((1, 6), -np.inf, np.float32)
    logits[0, 0] = 1.0
    intersection = intersect(
        AutomatonState(constraint.start(), ()), MergedStates(), logits, 3, "test"
    )
    assert [arc.token_id for arc in intersection.slots[0]] == [2]


#  9 --a0-- 1 --b1-- 2       below the exact token 9, under the acceptor ABC: a(b|c)a | bba
#    |       `- a0-- 3
#    `-b1-- 4
def test_grammar_cuts_trees_and_adds_what_must_come() -> None:
    constraint = acceptor_of(*ABC, vocab_size=10, end_token_ids=[8])
    state = AutomatonState(constraint.start(), constraint.end_token_ids)
    tree = PrefixTree.from_drafts(9, [[0, 1], [0, 0], [1]])
    cut = constrain_tree(tree, state, 10, extend=False)
    assert (cut.token_ids, cut.parents) == ([9, 0, 1, 1], [-1, 0, 1, 0])
    grown = constrain_tree(tree, state, 10)
    paths = [[grown.token_ids[node] for node in path[1:]] for path in grown.list_paths()]
    assert sorted(paths) == [[0, 1, 0, 8], [1, 1, 0, 8]]
    short = constrain_tree(tree, state, 3)
    assert short.max_depth == 3
    sampled = PrefixTree.from_drafts(9, [[5]])
    sampled.sampled_from = lambda _node: None
    assert constrain_tree(sampled, state, 10) is sampled


def test_grammar_without_a_legal_continuation() -> None:
    selector = ConstrainedSelector(guidance("ab!"))
    logits = torch.zeros(len(TOKENS))
    assert selector.choose(logits, NO_CANDIDATES) == TOKENS.index(b"ab")
    with pytest.raises(ValueError, match=r"no legal continuation after 'ab' .*tokenizer"):
        selector.choose(logits, NO_CANDIDATES)
    with pytest.raises(ValueError, match="some text obeys"):
        guidance("!")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: guidance("a("), "no such grammar: .*unclosed group"),
        (lambda: GuidanceConstraint.from_json_schema("{", TOKENS), "no JSON schema"),
        (lambda: GuidanceConstraint.from_regex("a", TOKENS), "names no token that ends a text"),
        (lambda: acceptor_of([(0, 1, 1)], set()), "accepts no text"),
        (lambda: acceptor_of([(0, 60, 1)], {1}), r"label 60; expected .*1\.\.48"),
        (lambda: FstConstraint(bytes_of(*ABC)[:-5], 48), "is cut or altered"),
        (
            lambda: FstConstraint(bytes_of([(0, 1, 0)], {0})[:-4] + b"\x07\0\0\0", 48),
            "arc from state 0 to state 7",
        ),
    ],
)
def test_grammar_of_bad_input(make: Any, message: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match=message):
        make()


def test_grammar_without_llguidance_names_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match="pip install lattice-bpd-constraints"):
        GuidanceConstraint.from_regex("a", TOKENS, end_token_ids=[END])

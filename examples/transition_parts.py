"""What transition_scores.py tunes with: recorded lattices, their searches, greedy walks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from stories260k_parts import Recipe

from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeState, Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify import PrefixTree

SCORES = {
    ("unary", False): "unary", ("unary", True): "ngram",
    ("pairs", False): "pairs", ("pairs", True): "pairs_ngram",
}  # fmt: skip
SEARCHES = {
    "argmax": "bpd", "greedy_walk": "p_best", "best_path": "p_best", "expected_length": "chain",
    "p_best": "p_best", "tree18": "tree", "tree36": "tree",
}  # fmt: skip
_STRATEGIES = {**SEARCHES, "mass_walk": "chain"}  # transition_chains.py alone has the last one


class WalkDrafter(Drafter):
    """The greedy walk: in each slot the candidate of the greatest score after the one before."""

    def __init__(self, lm: NGramLM | None, config: DraftConfig) -> None:
        self.lm, self.config = lm, config

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        found, contexts, _ = prepare_rescoring(self.config, self.lm, states, "WalkDrafter")
        drafts = rescore_lattice(
            found, contexts, self.lm, num_drafts=1, objective="greedy_walk", alpha=self.config.alpha
        )
        rows = zip(states, np.asarray(drafts.token_ids), strict=True)
        return [PrefixTree.from_drafts(state.tokens[-1], row) for state, row in rows]


class MassWalkDrafter(Drafter):
    """The walk over exact prefix masses; see `walk_masses`."""

    def __init__(self, lm: NGramLM | None, config: DraftConfig) -> None:
        self.lm, self.config = lm, config

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        found, contexts, _ = prepare_rescoring(self.config, self.lm, states, "MassWalkDrafter")
        lattice = LatticeInput(found.token_ids, found.scores).end_after(
            [state.max_draft_length for state in states]
        )
        token_ids, _ = walk_masses(
            lattice, contexts, self.lm, alpha=self.config.alpha, temperature=self.config.temperature
        )
        rows = zip(states, token_ids, strict=True)
        return [PrefixTree.from_drafts(state.tokens[-1], row[None]) for state, row in rows]


class RecordingDrafter(Drafter):
    """Drafts nothing, and keeps the lattice of every step.

    Args:
        top_k: k, where the heads give logits.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.lattices: list[LatticeInput] = []
        self.contexts: list[list[int]] = []

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """None for each state."""
        found = states[0].model.read_heads(states)
        if not isinstance(found, LatticeInput):
            found = LatticeInput.from_logits(found, self.top_k)
        self.lattices.append(found)
        self.contexts += [list(state.tokens) for state in states]
        return [None] * len(states)

    def joined(self) -> LatticeInput:
        """All lattices as one batch."""
        parts = {
            name: [torch.as_tensor(getattr(one, name)) for one in self.lattices]
            for name in ("token_ids", "scores", "start", "transitions")
            if getattr(self.lattices[0], name) is not None
        }
        return replace(self.lattices[0], **{name: torch.cat(part) for name, part in parts.items()})


def config_of(search: str, recipe: Recipe) -> DraftConfig:
    """The sizes of a search."""
    return DraftConfig(
        _STRATEGIES[search], top_k=recipe.top_k, alpha=0.0,
        num_drafts=recipe.num_drafts if search == "p_best" else 1,
        max_nodes=18 if search == "tree18" else 36,
    )  # fmt: skip


def tune_search(
    recorder: RecordingDrafter, texts: list[list[int]], search: str, lm: NGramLM | None,
    recipe: Recipe, *, has_pairs: bool,
) -> DraftConfig:  # fmt: skip
    """The best alpha, temperature and normalization on recorded lattices.

    Pairs keep the normalization that they were trained with.
    """
    plain = config_of(search, recipe)
    if search == "argmax":
        return plain
    has_temperature = search in ("expected_length", "mass_walk", "tree18", "tree36")
    grid = itertools.product(
        [0.0] if lm is None else recipe.alphas,
        recipe.temperatures if has_temperature else (1.0,),
        (None,) if has_pairs or lm is None or search == "mass_walk" else ("global", "local"),
    )
    tried = [
        replace(plain, alpha=alpha, temperature=temperature, normalization=normalization)
        for alpha, temperature, normalization in grid
    ]
    if len(tried) == 1:
        return tried[0]
    lattice = recorder.joined()
    efficiencies = [
        simulate(search_all(lattice, recorder.contexts, search, lm, one), recorder.contexts, texts)
        for one in tried
    ]
    return tried[int(np.argmax(efficiencies))]


def search_all(
    lattice: LatticeInput, contexts: list[list[int]], search: str, lm: NGramLM | None,
    config: DraftConfig,
) -> Any:  # fmt: skip
    """(N, p, H) int paths of all lattices; negative tokens end a path."""
    if config.normalization is not None:
        lattice = replace(lattice, normalization=config.normalization)
    recent = [context[-8:] for context in contexts]
    options = {"alpha": config.alpha, "temperature": config.temperature}
    if config.strategy == "tree":
        tree = rescore_tree(lattice, recent, lm, max_nodes=config.max_nodes, **options)
        nodes, token_ids = np.asarray(tree.leaf_paths), np.asarray(tree.token_ids)
        tokens = np.take_along_axis(token_ids[:, None], np.maximum(nodes, 0), axis=-1)
        return np.where(nodes >= 0, tokens, -1)
    if search == "mass_walk":
        return walk_masses(lattice, recent, lm, **options)[0][:, None]
    objectives = {"greedy_walk": "greedy_walk", "expected_length": "accept_length"}
    drafts = rescore_lattice(
        lattice, recent, lm, num_drafts=config.num_drafts,
        objective=objectives.get(search, "score"), **options,
    )  # fmt: skip
    return np.asarray(drafts.token_ids)


def walk_masses(
    lattice: LatticeInput, contexts: list[list[int]], lm: NGramLM | None, *, alpha: float,
    temperature: float,
) -> tuple[Any, Any]:  # fmt: skip
    """The walk over exact prefix masses: from the root always the most probable next token.

    Args:
        lattice: of N positions, without transitions and with normalization "global".
        contexts: the tokens before each of them.
        lm: n-gram LM, or None.
        alpha: its weight.
        temperature: divides all scores.

    Returns:
        (N, H) int tokens, -1 after the last unmasked slot, and (N, H) float64 ln probabilities of
        the prefixes that they end, -inf there.
    """
    if lattice.transitions is not None or lattice.normalization != "global":
        raise ValueError("walk_masses: expected slots without transitions, normalization global")
    shape = (len(contexts), lattice.num_slots)
    token_ids, log_probs = np.full(shape, -1), np.full(shape, -np.inf)
    paths = [list(context) for context in contexts]
    for slot in range(shape[1]):
        later = replace(
            lattice, token_ids=lattice.token_ids[:, slot:], scores=lattice.scores[:, slot:]
        )
        # The most probable prefix has one token. Its mass counts all completions, given the path.
        tree = rescore_tree(later, paths, lm, max_nodes=1, alpha=alpha, temperature=temperature)
        token_ids[:, slot] = np.where(
            np.asarray(tree.counts) > 0, np.asarray(tree.token_ids)[:, 0], -1
        )
        log_probs[:, slot] = np.asarray(tree.log_probs)[:, 0]
        for path, token in zip(paths, token_ids[:, slot], strict=True):
            path += [int(token)] if token >= 0 else []
    return token_ids, np.where(token_ids >= 0, np.cumsum(log_probs, axis=1), -np.inf)


def simulate(paths: Any, contexts: list[list[int]], texts: list[list[int]]) -> float:
    """Tokens per call, if these drafts had been verified along the recorded texts.

    Args:
        paths: (N, p, H) of the recorded positions.
        contexts: tokens before each of them.
        texts: prompt and output of each sequence.
    """
    texts = [list(text) for text in dict.fromkeys(map(tuple, texts))]
    tokens, calls = count_calls(count_accepted(paths, contexts, texts), contexts, texts)
    return sum(tokens) / sum(calls)


def count_accepted(paths: Any, contexts: list[list[int]], texts: list[list[int]]) -> list[int]:
    """How many tokens of the best draft of each position are those of its text.

    Args:
        paths: (N, p, H), as for `simulate`.
        contexts: tokens before each position.
        texts: prompt and output of each sequence, no two alike.
    """
    accepted = []
    for (number, length), drafts in zip(positions_of(contexts, texts), paths, strict=True):
        following = np.array(texts[number][length : length + drafts.shape[1]])
        agrees = np.cumprod(drafts[:, : len(following)] == following, axis=1)
        accepted.append(int(agrees.sum(axis=1).max()) if len(following) else 0)
    return accepted


def positions_of(contexts: list[list[int]], texts: list[list[int]]) -> list[tuple[int, int]]:
    """The text of each recorded position, and the number of its tokens before the position."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        alike[tuple(text[:16])].append(number)
    found = []
    for context in contexts:
        numbers = alike[tuple(context[:16])]
        number = next(one for one in numbers if texts[one][: len(context)] == context)
        found.append((number, len(context)))
    return found


def count_calls(
    accepted: list[int], contexts: list[list[int]], texts: list[list[int]]
) -> tuple[list[int], list[int]]:
    """Decoded tokens and calls of each text, whose drafts may reach beyond the last token."""
    by_position = dict(zip(positions_of(contexts, texts), accepted, strict=True))
    firsts: dict[int, int] = {}
    for number, length in by_position:
        firsts[number] = min(length, firsts.get(number, length))
    tokens, calls = [0] * len(texts), [0] * len(texts)
    for number, length in firsts.items():
        end = len(texts[number])
        tokens[number], calls[number] = end - length + 1, 1  # the prompt's call
        while length < end:
            length += by_position.get((number, length), 0) + 1
            calls[number] += 1
    return tokens, calls

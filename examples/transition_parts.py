"""What transition_scores.py tunes with: recorded lattices, their searches, the greedy walk."""

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


class WalkDrafter(Drafter):
    """The greedy walk: in each slot the candidate of the greatest score after the one before."""

    def __init__(self, lm: NGramLM | None, config: DraftConfig) -> None:
        self.lm, self.config = lm, config

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        found, contexts, _ = prepare_rescoring(self.config, self.lm, states, None, "WalkDrafter")
        drafts = rescore_lattice(
            found, contexts, self.lm, num_drafts=1, objective="greedy_walk", alpha=self.config.alpha
        )
        rows = zip(states, np.asarray(drafts.token_ids), strict=True)
        return [PrefixTree.from_drafts(state.tokens[-1], row) for state, row in rows]


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
            for name in ("token_ids", "scores", "start", "transitions", "confidences")
            if getattr(self.lattices[0], name) is not None
        }
        return replace(self.lattices[0], **{name: torch.cat(part) for name, part in parts.items()})


def config_of(search: str, recipe: Recipe) -> DraftConfig:
    """The sizes of a search."""
    return DraftConfig(
        SEARCHES[search], top_k=recipe.top_k, alpha=0.0,
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
    has_temperature = search in ("expected_length", "tree18", "tree36")
    grid = itertools.product(
        [0.0] if lm is None else recipe.alphas,
        recipe.temperatures if has_temperature else (1.0,),
        (None,) if has_pairs or lm is None else ("global", "local"),
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
    objectives = {"greedy_walk": "greedy_walk", "expected_length": "accept_length"}
    drafts = rescore_lattice(
        lattice, recent, lm, num_drafts=config.num_drafts,
        objective=objectives.get(search, "score"), **options,
    )  # fmt: skip
    return np.asarray(drafts.token_ids)


def simulate(paths: Any, contexts: list[list[int]], texts: list[list[int]]) -> float:
    """Tokens per call, if these drafts had been verified along the recorded texts.

    Args:
        paths: (N, p, H) of the recorded positions.
        contexts: tokens before each of them.
        texts: prompt and output of each sequence.
    """
    texts = [list(text) for text in dict.fromkeys(map(tuple, texts))]
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        alike[tuple(text[:16])].append(number)
    accepted: dict[tuple[int, int], int] = {}
    for context, drafts in zip(contexts, paths, strict=True):
        numbers = alike[tuple(context[:16])]
        number = next(one for one in numbers if texts[one][: len(context)] == context)
        following = np.array(texts[number][len(context) : len(context) + drafts.shape[1]])
        agrees = np.cumprod(drafts[:, : len(following)] == following, axis=1)
        accepted[number, len(context)] = int(agrees.sum(axis=1).max()) if len(following) else 0
    calls = tokens = 0
    for number, text in enumerate(texts):
        positions = sorted(length for one, length in accepted if one == number)
        length = positions[0]
        calls, tokens = calls + 1, tokens + 1  # the prompt's call
        while length < len(text):
            step = accepted.get((number, length), 0) + 1
            calls, tokens = calls + 1, tokens + min(step, len(text) - length)
            length += step
    return tokens / calls

"""The lines of bench_peers.py: each a way of decoding, from transformers, rebuilt, or ours."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from peer_drafters import (
    CallCounter,
    FixedTreeDrafter,
    SlotTreeDrafter,
    SuffixAutomatonDrafter,
    generate_with_transformers,
)
from peer_targets import MAX_NODES, TOP_K, Fit, Target
from peer_trees import best_first_tree, eagle2_tree, medusa_tree

import lattice_bpd.decode.drafters as ld
from lattice_bpd.decode import DraftSources, decode, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_drafters.draft_model import DraftModelDrafter

BEAM = 10  # EAGLE-2's k
DRAFT_LENGTH, LOOKUP_LENGTH, LOOKUP_NGRAM = 8, 10, 3
OURS, REBUILT, THEIRS = "lattice-bpd", "rebuilt", "transformers"


class Run(NamedTuple):
    """One prompt decoded once.

    Attributes:
        seconds: wall time.
        calls: of the target, counted from outside.
        own_calls: the same as the loop counted them, or None.
        draft_positions: positions of draft tokens that these calls read.
    """

    seconds: float
    calls: int
    own_calls: int | None
    draft_positions: int


@dataclass
class Line:
    """One way of decoding, and what was measured of it.

    Attributes:
        name: key in the results.
        label: in tables.
        group: OURS, REBUILT (a peer's drafts, our loop) or THEIRS (transformers' loop).
        decode: decodes a prompt; returns the output, and the calls that the loop itself counted.
        rounds: runs by prompt: of all prompts, then those of each timed round.
    """

    name: str
    label: str
    group: str
    decode: Callable[[list[int]], tuple[list[int], int | None]]
    rounds: list[list[Run]] = field(default_factory=list)

    @property
    def greedy(self) -> str:
        """The line that decodes greedily in the same loop."""
        return "transformers_greedy" if self.group == THEIRS else "greedy"

    def run(self, prompt: list[int], counter: CallCounter) -> tuple[list[int], Run]:
        """The output of a prompt, and what it took."""
        counter.reset()
        start = time.perf_counter()
        output, own_calls = self.decode(prompt)
        seconds = time.perf_counter() - start
        return output, Run(seconds, counter.calls, own_calls, counter.draft_positions)

    def seconds_by_round(self) -> npt.NDArray[np.float64]:
        """(R,) float64, seconds of each timed round."""
        return np.array([sum(run.seconds for run in runs) for runs in self.rounds[1:]])


def make_lines(target: Target, found: Fit) -> list[Line]:
    """All lines of a target."""
    lm, options = target.lm, found.options
    drafters: dict[str, tuple[str, str, Any]] = {
        "greedy": ("greedy", OURS, ld.NoDrafter()),
        **{
            name: (f"{label}, {MAX_NODES} nodes", REBUILT, drafter)
            for name, (label, drafter) in make_peer_trees(found, MAX_NODES).items()
        },
        "bpd": ("argmax of the slots (BPD)", OURS, ld.ArgmaxDrafter()),
        "p_best": ("16 best paths, 4-gram", OURS, ld.PBestDrafter(lm, options["p_best"])),
        "chain": ("chain of greatest expected length, 4-gram", OURS,
                  ld.ChainDrafter(lm, options["chain"])),
        "tree_0gram": (f"tree of {MAX_NODES} nodes, no LM", OURS,
                       ld.TreeDrafter(None, options["tree_0gram"])),
        "tree": (f"tree of {MAX_NODES} nodes, 4-gram", OURS, ld.TreeDrafter(lm, options["tree"])),
        "mixture": ("`mixture`: heads, 4-gram and text, any size", OURS,
                    make_drafter(DraftConfig(), DraftSources(lm))),
    }  # fmt: skip
    drafters |= make_text_drafters(target)
    own = [own_line(target, name, *parts) for name, parts in drafters.items()]
    return [*make_transformers_lines(target), *own]


def make_peer_trees(found: Fit, max_nodes: int) -> dict[str, tuple[str, Any]]:
    """Labels and drafters of the peers' trees."""
    medusa = medusa_tree(found.accuracies, max_nodes)
    eagle2 = partial(eagle2_tree, max_nodes=max_nodes, beam=BEAM)
    heap = partial(best_first_tree, max_nodes=max_nodes)
    return {
        "medusa": ("Medusa's fixed tree", FixedTreeDrafter(medusa, TOP_K)),
        "eagle2": ("EAGLE-2's dynamic tree", SlotTreeDrafter(eagle2, BEAM, max_nodes)),
        "ddtree": ("DDTree's heap", SlotTreeDrafter(heap, max_nodes, max_nodes)),
    }


def make_text_drafters(target: Target) -> dict[str, tuple[str, str, Any]]:
    """Drafters that read the text instead of heads."""
    beam = DraftModelDrafter(
        target.draft_model, shape="beam", draft_length=DRAFT_LENGTH, max_nodes=MAX_NODES
    )
    return {
        "suffix_automaton": (f"suffix automaton, {LOOKUP_LENGTH} tokens", REBUILT,
                             SuffixAutomatonDrafter(LOOKUP_LENGTH)),
        "draft_model": (f"draft model, chain of {DRAFT_LENGTH}", OURS,
                        DraftModelDrafter(target.draft_model, draft_length=DRAFT_LENGTH)),
        "draft_model_tree": (f"draft model, its own tree of {MAX_NODES} nodes", OURS, beam),
    }  # fmt: skip


def own_line(target: Target, name: str, label: str, group: str, drafter: Any) -> Line:
    """A drafter in our loop."""

    def decode_prompt(prompt: list[int]) -> tuple[list[int], int | None]:
        result = decode(target.model, prompt, drafter, **target.limits)
        return result.token_ids, result.stats.target_calls

    return Line(name, label, group, decode_prompt)


def make_transformers_lines(target: Target) -> list[Line]:
    """What `generate` of transformers has itself."""
    fixed = copy.deepcopy(target.draft_model)
    fixed.generation_config.num_assistant_tokens = DRAFT_LENGTH
    fixed.generation_config.num_assistant_tokens_schedule = "constant"
    fixed.generation_config.assistant_confidence_threshold = 0.0
    lines: dict[str, tuple[str, dict[str, Any]]] = {
        "transformers_greedy": ("greedy", {}),
        "assisted": (
            "assisted generation, default settings", {"assistant_model": target.draft_model},
        ),
        "assisted_fixed": (
            f"assisted generation, {DRAFT_LENGTH} tokens", {"assistant_model": fixed},
        ),
        "prompt_lookup": (
            f"prompt lookup, {LOOKUP_LENGTH} tokens",
            {"prompt_lookup_num_tokens": LOOKUP_LENGTH, "max_matching_ngram_size": LOOKUP_NGRAM},
        ),
    }  # fmt: skip

    def line(name: str, label: str, options: dict[str, Any]) -> Line:
        def decode_prompt(prompt: list[int]) -> tuple[list[int], int | None]:
            output = generate_with_transformers(
                target.base, prompt, target.max_new_tokens, target.stop_token_ids, **options
            )
            return output, None

        return Line(name, label, THEIRS, decode_prompt)

    return [line(name, *parts) for name, parts in lines.items()]

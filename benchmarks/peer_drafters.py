"""Peers' drafters for our decoding loop, the loop of transformers, and a count of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from peer_trees import FloatArray, SlotTree, SuffixAutomaton

from lattice_bpd.decode import DecodeState, Drafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.verify import PrefixTree


class FixedTreeDrafter(Drafter):
    """The same tree at every step, filled with the best guesses of each slot.

    Args:
        tree: nodes.
        top_k: guesses of each slot, more than the tree's ranks.
    """

    def __init__(self, tree: SlotTree, top_k: int) -> None:
        self.tree, self.top_k, self.max_nodes = tree, top_k, len(tree.slots)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """The tree for each state, cut to its remaining length."""
        with states[0].stats.stage("heads"):
            guesses = batch_head_logits(states, all_slots=True).topk(self.top_k).indices.numpy()
        return [_fill(self.tree, guesses[row], state) for row, state in enumerate(states)]


class SlotTreeDrafter(Drafter):
    """A new tree at every step, by the slots' probabilities over the whole vocabulary.

    Args:
        build: log probabilities (H, k), each row in falling order -> nodes.
        top_k: k.
        max_nodes: the most that `build` returns.
    """

    def __init__(self, build: Callable[[FloatArray], SlotTree], top_k: int, max_nodes: int) -> None:
        self.build, self.top_k, self.max_nodes = build, top_k, max_nodes

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A tree for each state."""
        logits = batch_head_logits(states)
        best = logits.double().log_softmax(dim=-1).topk(min(self.top_k, logits.shape[-1]))
        log_probs, guesses = best.values.numpy(), best.indices.numpy()
        return [
            _fill(self.build(log_probs[row]), guesses[row], state)
            for row, state in enumerate(states)
        ]


def _fill(tree: SlotTree, guesses: Any, state: DecodeState) -> PrefixTree:
    """The tree of tokens below the exact token, from guesses (H, k)."""
    tokens = guesses[tree.slots, tree.ranks]
    return PrefixTree.from_nodes(state.tokens[-1], tokens, tree.parents, state.max_draft_length)


class SuffixAutomatonDrafter(Drafter):
    """What followed the first occurrence of the longest repeated suffix of prompt and output.

    Args:
        draft_length: tokens of a draft.
    """

    def __init__(self, draft_length: int) -> None:
        self.max_nodes = draft_length
        self._automata: WeakKeyDictionary[DecodeState, SuffixAutomaton] = WeakKeyDictionary()

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A chain for each state; None where its last token is new."""
        return [self._propose(state) for state in states]

    def _propose(self, state: DecodeState) -> PrefixTree | None:
        automaton = self._automata.setdefault(state, SuffixAutomaton())
        for token in state.tokens[len(automaton.text) :]:
            automaton.append(token)
        draft = automaton.continuation(min(self.max_nodes, state.max_draft_length))
        return PrefixTree.from_drafts(state.tokens[-1], [draft]) if draft else None


@torch.inference_mode()
def generate_with_transformers(
    base: Any, prompt: Sequence[int], max_new_tokens: int, stop_token_ids: Sequence[int],
    **options: Any,
) -> list[int]:  # fmt: skip
    """The output of `base.generate(do_sample=False)`, without the prompt.

    Args:
        base: a causal LM of `transformers`.
        prompt: token ids.
        max_new_tokens: most tokens to decode.
        stop_token_ids: decoding ends after the first of these.
        options: more arguments of `generate`, such as assistant_model.
    """
    ids = torch.tensor([list(prompt)], device=base.device)
    output = base.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
        max_new_tokens=max_new_tokens, eos_token_id=list(stop_token_ids) or None,
        pad_token_id=stop_token_ids[0] if stop_token_ids else 0, **options,
    )  # fmt: skip
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


class CallCounter:
    """Counts the calls of a model from outside, by a hook on its decoder.

    The decoder is called once for each call of the model, whoever calls it: `forward`, which
    transformers uses, or the decoder itself, to which our loop adds the output embedding. The hook
    is there from the beginning to the end of a `with` block.

    Args:
        base: a causal LM of `transformers`.

    Attributes:
        calls: since the last reset.
        draft_positions: positions of draft tokens that these calls read, padding included: all
            but one of each call after the first, which reads the prompt.
    """

    def __init__(self, base: Any) -> None:
        self._decoder = base.base_model
        self.reset()

    def __enter__(self) -> CallCounter:
        self._handle = self._decoder.register_forward_hook(self._count)
        return self

    def __exit__(self, *_error: object) -> None:
        self._handle.remove()

    def reset(self) -> None:
        """Begin at 0."""
        self.calls = self.draft_positions = 0

    def _count(self, _module: Any, _arguments: Any, output: Any) -> None:
        rows, length = output[0].shape[:2]
        if self.calls > 0:
            self.draft_positions += rows * length - 1
        self.calls += 1

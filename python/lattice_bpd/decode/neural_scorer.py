"""A small causal LM as a scorer of transitions, with a KV cache of its own (paper 7.1).

The cache outlives a step: `start` finds for each context the row that shares most of it, forgets
what does not belong to it (rejected drafts), and reads what is new, in one call for all contexts.
So a prompt is read once and a step of greedy rescoring feeds one token a call. Nobody has to tell
the scorer what was accepted or which sequences have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.drafter.scorers.protocol import Int32Array, Int64Array, TransitionScorer
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.verify import BatchCache, CausalLMTarget, PrefixTree, StackedCache, check_cache
from lattice_bpd.verify.layout import lay_out_rows

_ROOM = 256  # free slots behind the prompts
_MOST_NEW = 64  # more new tokens than this and than old ones are a prompt, which is read anew


@dataclass
class NeuralState:
    """R histories that the model has read.

    Attributes:
        cache: covers all tokens of each.
        tokens: the tokens of each.
        log_probs: (R, V) float, ln P of the next token behind each.
        base: the state whose cache this one's was copied from, and that `start` goes on with; None
            where this one is it.
    """

    cache: BatchCache
    tokens: list[list[int]]
    log_probs: Tensor
    base: NeuralState | None = None


class NeuralScorer(TransitionScorer):
    """ln P of a causal LM over the target's token ids.

    Not safe for threads; several sequences of one decoding run may share it.

    Args:
        model: any causal LM of `transformers`, or a BlockwiseLM (its heads are not used).

    Attributes:
        vocab_size: V of its output embedding.
        tokens_read: tokens that all rows have read so far.
        calls: of the model so far.

    Raises:
        TypeError: no decoder-only causal LM.
        ValueError: a model with a recurrent state, which cannot be rolled back.

    Source: Kim et al. 2024, section 7.1 and algorithm 2.
    """

    def __init__(self, model: PreTrainedModel | BlockwiseLM) -> None:
        self._model = CausalLMTarget(model)
        self.vocab_size = self._model.vocab_size
        self.tokens_read = self.calls = 0
        self._kept: NeuralState | None = None

    @torch.inference_mode()
    def start(self, contexts: Sequence[Sequence[int]]) -> NeuralState:
        """See TransitionScorer; contexts of one token or more.

        Raises:
            ValueError: an empty context, or one longer than the model's positions.
        """
        texts = [list(context) for context in contexts]
        self._check(texts)
        kept, self._kept = self._kept, None  # an error on the way leaves nothing behind
        found = None if kept is None else _match(kept.tokens, texts)
        if kept is None or found is None:
            state = self._read_prompts(texts)
        else:
            rows, lengths = found
            if rows != list(range(len(kept.tokens))):
                kept.cache.keep_sequences(rows)
            if lengths != kept.cache.lengths:
                kept.cache.roll_back(lengths)
            new = [text[length:] for text, length in zip(texts, lengths, strict=True)]
            state = NeuralState(kept.cache, texts, self._read(kept.cache, new))
        self._kept = state
        return state

    def score(self, state: NeuralState, candidates: Int32Array) -> npt.NDArray[np.float32]:
        """See TransitionScorer; (R, k) float32."""
        index = torch.from_numpy(np.asarray(candidates, np.int64)).to(state.log_probs.device)
        found: npt.NDArray[np.float32] = state.log_probs.gather(1, index).cpu().numpy()
        return found

    @torch.inference_mode()
    def advance(self, state: NeuralState, rows: Int64Array, token_ids: Int32Array) -> NeuralState:
        """See TransitionScorer; one call of the model with a token for each row.

        Raises:
            ValueError: a history longer than the model's positions.
        """
        chosen = rows.tolist()
        pairs = zip(chosen, token_ids.tolist(), strict=True)
        tokens = [[*state.tokens[row], token] for row, token in pairs]
        self._check(tokens)
        self._kept = None
        cache, base = state.cache, state.base
        if chosen != list(range(len(state.tokens))):
            cache, base = _branch(state, chosen)
        log_probs = self._read(cache, [[token] for token in token_ids.tolist()])
        found = NeuralState(cache, tokens, log_probs, base)
        self._kept = found if base is None else base
        return found

    def _check(self, texts: list[list[int]]) -> None:
        longest, limit = max(map(len, texts)), self._model.max_positions
        if min(map(len, texts)) == 0:
            raise ValueError("NeuralScorer: a context is empty; expected one token or more")
        if limit is not None and longest > limit:
            raise ValueError(
                f"NeuralScorer: a text has {longest} tokens; the model has positions for {limit}; "
                "use a rescorer with as many positions as the target"
            )

    def _read_prompts(self, texts: list[list[int]]) -> NeuralState:
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
        mask = places = None
        if min(lengths) < longest:
            padding = longest - torch.tensor(lengths)[:, None]
            steps = torch.arange(longest).expand(len(texts), -1)
            mask = (steps >= padding).long().to(self._model.device)
            places = (steps - padding).clamp(min=0).to(self._model.device)
        output, cache = self._model.read_prompts(ids.to(self._model.device), mask, places)
        check_cache(cache)
        self._count(sum(lengths))
        kept: Any = StackedCache.from_cache(cache, _ROOM) or cache
        log_probs = output.logits[:, -1].float().log_softmax(dim=-1)
        return NeuralState(BatchCache(kept, lengths), texts, log_probs)

    def _read(self, cache: BatchCache, new: list[list[int]]) -> Tensor:
        """(R, V) log probabilities behind one new token or more of each row."""
        trees = [PrefixTree.from_drafts(tokens[0], [tokens[1:]]) for tokens in new]
        call = lay_out_rows(self._model, cache, trees)
        output = self._model(
            call.input_ids,
            cache.cache,
            attention_mask=call.attention_mask,
            windowed_mask=call.windowed_mask,
            position_ids=call.position_ids,
        )
        counts = [len(tokens) for tokens in new]
        size = call.input_ids.shape[1]
        cache.keep_rows(cache.cache, list(range(len(new))), counts, size, repeats=False)
        self._count(sum(counts))
        last = torch.tensor(counts, device=output.logits.device) - 1
        logits = output.logits[torch.arange(len(new), device=last.device), last]
        return logits.float().log_softmax(dim=-1)

    def _count(self, tokens: int) -> None:
        self.tokens_read += tokens
        self.calls += 1


def _branch(state: NeuralState, rows: list[int]) -> tuple[BatchCache, NeuralState | None]:
    """A cache whose row r is that of the state's row rows[r], and the base of its state."""
    old = state.cache
    if state.base is not None or not isinstance(old.cache, StackedCache):  # others cannot be copied
        old.keep_sequences(rows)
        return old, state.base
    index = torch.tensor(rows, device=old.cache.keys.device)
    copied = BatchCache(
        old.cache.repeat_sequences(index, _ROOM), [old.lengths[row] for row in rows]
    )
    copied.positions = None if old.positions is None else old.positions[rows]
    return copied, state


def _match(kept: list[list[int]], texts: list[list[int]]) -> tuple[list[int], list[int]] | None:
    """For each text the row that shares most of it, and how much to keep; None: too little."""
    rows, lengths = [], []
    for number, text in enumerate(texts):
        order = [number, *range(len(kept))] if number < len(kept) else range(len(kept))
        shared, row = max(
            ((_count_shared(kept[row], text), row) for row in order), key=lambda pair: pair[0]
        )
        rows.append(row)
        lengths.append(min(shared, len(text) - 1))  # the last token is read for what follows it
    for text, length in zip(texts, lengths, strict=True):
        if length == 0 or len(text) - length > max(_MOST_NEW, length):
            return None
    return rows, lengths


def _count_shared(a: list[int], b: list[int]) -> int:
    """Tokens that both begin with."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low + 1 < high:  # they agree up to low and differ below high
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

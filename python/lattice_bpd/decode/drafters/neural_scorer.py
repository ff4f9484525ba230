"""A small causal LM as a transition scorer, with a KV cache of its own (paper 7.1).

The cache is kept between steps (see `cached_reader`): a prompt is read once, and greedy rescoring
reads one token per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.draft.scorers.protocol import Int32Array, Int64Array, TransitionScorer

_UNSEEN = -1000.0  # ln P of token ids that only the target has, as of n-gram LMs


@dataclass
class NeuralState(ReadTexts):
    """Histories that the model has read; log_probs (R, V) float: ln P of the token after each."""

    log_probs: Tensor


class NeuralScorer(TransitionScorer):
    """ln P of a causal LM over the target's token ids.

    Not thread-safe; several sequences of one decoding run may share it.

    Args:
        model: any causal LM of `transformers`.

    Attributes:
        reader: of the model.
        vocab_size: V of its output embedding.

    Raises:
        TypeError: no decoder-only causal LM.
        ValueError: a model with a recurrent state, which cannot be rolled back.

    Source: Kim et al. 2024, section 7.1 and algorithm 2.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.reader = CachedReader(model, "NeuralScorer")
        self.vocab_size = self.reader.model.vocab_size
        self._kept: NeuralState | None = None

    @torch.inference_mode()
    def start(self, contexts: Sequence[Sequence[int]]) -> NeuralState:
        """See TransitionScorer; contexts of one token or more.

        Raises:
            ValueError: an empty context, or one longer than the model's positions.
        """
        kept, self._kept = self._kept, None  # after an error no state is kept
        texts, logits = self.reader.go_on(kept, contexts)
        self._kept = NeuralState(texts.cache, texts.tokens, _log_probs(logits))
        return self._kept

    def score(self, state: NeuralState, candidates: Int32Array) -> npt.NDArray[np.float32]:
        """See TransitionScorer; (R, k) float32."""
        size = state.log_probs.shape[1]
        known = np.minimum(np.asarray(candidates, np.int64), size - 1)
        index = torch.from_numpy(known).to(state.log_probs.device)
        log_probs: npt.NDArray[np.float32] = state.log_probs.gather(1, index).cpu().numpy()
        log_probs[candidates >= size] = _UNSEEN
        return log_probs

    @torch.inference_mode()
    def advance(self, state: NeuralState, rows: Int64Array, token_ids: Int32Array) -> NeuralState:
        """See TransitionScorer; one call of the model with a token for each row.

        Raises:
            ValueError: a history longer than the model's positions.
        """
        chosen = rows.tolist()
        pairs = zip(chosen, token_ids.tolist(), strict=True)
        tokens = [[*state.tokens[row], token] for row, token in pairs]
        self.reader.check(tokens)
        self._kept = None
        if chosen != list(range(len(state.tokens))):
            state.cache.keep_sequences(chosen)
        new = self.reader.known([[token] for token in token_ids.tolist()])
        logits = self.reader.read(state.cache, new)
        self._kept = NeuralState(state.cache, tokens, _log_probs(logits))
        return self._kept


def _log_probs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)

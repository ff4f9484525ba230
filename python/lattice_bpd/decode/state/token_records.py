"""What the tokens of a text were selected from: logits, processed scores, log probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lattice_bpd.verify.verification import DraftCandidates, TokenSelector

if TYPE_CHECKING:
    from lattice_bpd.decode.state.text_rules import ProcessedSelector


class TokenRecords:
    """Records of one text, filled while it is decoded.

    Args:
        logits: whether to record the target's logits.
        scores: whether to record the logits after processors.
        logprobs: k, the most likely tokens whose log probabilities are recorded; None: none are.

    Attributes:
        logits: (V,) float32 for each token; None: not recorded.
        scores: the same.
        logprobs: for each token {token id: log probability}, the k most likely tokens, best first,
            and the decoded token; None: not recorded.
        selector: selects the tokens; set when decoding starts.
    """

    def __init__(
        self, *, logits: bool = False, scores: bool = False, logprobs: int | None = None
    ) -> None:
        self.logits: list[Tensor] | None = [] if logits else None
        self.scores: list[Tensor] | None = [] if scores else None
        self.logprobs: list[dict[int, float]] | None = None if logprobs is None else []
        self.selector: ProcessedSelector | None = None
        self._count = logprobs or 0

    def add_logits(self, logits: Tensor) -> None:
        """Record (V,) logits of the target, before a constraint and processors."""
        if self.logits is not None:
            self.logits.append(logits.to(torch.float32, copy=True))

    def add(self, scores: Tensor, token: int, rule: Any = None) -> None:
        """Record what a token was selected from.

        Args:
            scores: (V,) float32, processed logits.
            token: the selected token.
            rule: selector of the acceptance rule, which may change their distribution.
        """
        if self.scores is not None:
            self.scores.append(scores)
        if self.logprobs is None:
            return
        distribution = getattr(rule, "distribution", None)
        if distribution is not None:
            scores = torch.from_numpy(distribution(scores))
        every = scores.float().log_softmax(dim=-1)
        best = every.topk(self._count)
        row = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        row.setdefault(token, float(every[token]))
        self.logprobs.append(row)


class RecordingSelector:
    """Records the target's logits for each token that another selector selects.

    Args:
        inner: the selector.
        records: of its text.

    Attributes:
        ended: whether the last selected token ended the text.
    """

    def __init__(self, inner: TokenSelector, records: TokenRecords) -> None:
        self._inner, self._records, self.ended = inner, records, inner.ended

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        """See TokenSelector."""
        token = self._inner.choose(logits, candidates)
        self.ended = self._inner.ended
        if token is not None:
            self._records.add_logits(logits)
        return token

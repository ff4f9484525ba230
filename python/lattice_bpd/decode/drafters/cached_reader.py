"""A small causal LM that reads the target's texts, with its own KV cache.

The cache is kept between steps: for each text `go_on` selects the row with the longest common
prefix, drops the rest of the row (rejected drafts), and reads the new tokens of all texts in one
call. So a prompt is read once, and callers need not report accepted tokens or finished sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.cpu_kernels import lend_kernels
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.probes import find_batch_refusal
from lattice_bpd.verify.reading import read_texts
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.target import CausalLMTarget
from lattice_bpd.verify.verification import lay_out_rows

NUM_FREE = 256  # cache positions allocated after the prompts
_MOST_NEW = 64  # more new tokens than this and than old ones: the text is read as a new prompt


@dataclass
class ReadTexts:
    """R texts that the model has read.

    Attributes:
        cache: covers all tokens of each.
        tokens: the tokens of each.
    """

    cache: Rows
    tokens: list[list[int]]


class CachedReader:
    """Reads texts with a causal LM.

    Args:
        model: any causal LM of `transformers`.
        where: the reader's name in error messages.

    Attributes:
        model: as a target.
        vocab_size: V of the logits, set to the target's where that is smaller.

    Raises:
        TypeError: no decoder-only causal LM.
        ValueError: a model with a recurrent state, which cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, where: str) -> None:
        self.model, self.where = CausalLMTarget(model), where
        if self.model.is_recurrent:
            raise ValueError(
                f"{where}: {type(self.model.base).__name__} keeps a recurrent state, which cannot "
                "drop rejected drafts; expected attention in every layer; use another model"
            )
        self.vocab_size = self.model.vocab_size

    def known(self, texts: list[list[int]]) -> list[list[int]]:
        """The texts with token 0 for ids that only the target has, if its vocabulary is larger."""
        size = self.model.vocab_size
        if all(max(text, default=0) < size for text in texts):
            return texts
        return [[token if token < size else 0 for token in text] for text in texts]

    def check(self, texts: list[list[int]]) -> None:
        """Raise ValueError for an empty text, or one longer than the model's positions."""
        longest, limit = max(map(len, texts)), self.model.max_positions
        if min(map(len, texts)) == 0:
            raise ValueError(f"{self.where}: a context is empty; expected one token or more")
        if limit is not None and longest > limit:
            raise ValueError(
                f"{self.where}: a text has {longest} tokens; the model has positions for {limit}; "
                "use a model with as many positions as the target"
            )

    def go_on(
        self, kept: ReadTexts | None, contexts: Sequence[Sequence[int]]
    ) -> tuple[ReadTexts, Tensor]:
        """Read the new tokens of each text.

        Args:
            kept: the texts read before; must not be used afterwards. None: nothing was read.
            contexts: R whole texts of one token or more.

        Returns:
            The texts as read, and (R, V) logits of the token after each.

        Raises:
            ValueError: an empty text, one longer than the model's positions, or several for a model
                that takes no position ids.
        """
        lend_kernels(self.model.base)
        texts = self.known([list(context) for context in contexts])
        self.check(texts)
        refusal = self.refuses_batch() if len(texts) > 1 else None
        if refusal is not None:
            raise ValueError(
                f"{self.where}: cannot read {len(texts)} texts at once: {refusal}; decode one at a "
                "time"
            )
        match = None if kept is None else match_texts(kept.tokens, texts)
        if kept is None or match is None:
            return self._read_prompts(texts)
        rows, lengths = match
        if rows != list(range(len(kept.tokens))):
            kept.cache.keep_sequences(rows)
        if lengths != kept.cache.lengths:
            kept.cache.roll_back(lengths)
        new = [text[length:] for text, length in zip(texts, lengths, strict=True)]
        return ReadTexts(kept.cache, texts), self.read(kept.cache, new)

    def refuses_batch(self) -> str | None:
        """Why several texts cannot be read in one call; None where they can."""
        return find_batch_refusal(self.model)

    def read(self, cache: Rows, new: list[list[int]]) -> Tensor:
        """Read one new token or more of each row of a cache.

        Returns:
            (R, V) logits of the token after each.
        """
        trees = [PrefixTree.from_drafts(tokens[0], [tokens[1:]]) for tokens in new]
        call = lay_out_rows(self.model, cache, trees)
        output = call.run(self.model, cache)
        counts = [len(tokens) for tokens in new]
        cache.keep_rows(range(len(new)), counts)
        last = torch.tensor(counts, device=output.logits.device) - 1
        return output.logits[torch.arange(len(new), device=last.device), last, : self.vocab_size]

    def _read_prompts(self, texts: list[list[int]]) -> tuple[ReadTexts, Tensor]:
        output, rows = read_texts(self.model, texts, num_free=NUM_FREE)
        return ReadTexts(rows, texts), output.logits[:, -1, : self.vocab_size]


def match_texts(
    kept: list[list[int]], texts: list[list[int]]
) -> tuple[list[int], list[int]] | None:
    """For each text the row with the longest common prefix and the length to keep.

    None if too little is shared, so that all texts are read as prompts.
    """
    rows, lengths = [], []
    for number, text in enumerate(texts):
        order = [number, *range(len(kept))] if number < len(kept) else range(len(kept))
        shared, row = max(
            ((count_shared(kept[row], text), row) for row in order), key=lambda pair: pair[0]
        )
        rows.append(row)
        lengths.append(min(shared, len(text) - 1))  # the last token is read for its logits
    for text, length in zip(texts, lengths, strict=True):
        if length == 0 or len(text) - length > max(_MOST_NEW, length):
            return None
    return rows, lengths

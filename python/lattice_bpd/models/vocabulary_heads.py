"""Draft heads that know the exact token and draft within the target's most frequent tokens.

Slot j adds a feed-forward network on [norm(hidden state), norm(embedding of the exact token)] to
the hidden state, and projects the sum by the output embedding's rows of the draft vocabulary, a
fraction of the cost of a whole vocabulary, in training and in decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd import _core
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models.head_files import HeadFiles, SavedHeads
from lattice_bpd.models.hooks import loaded
from lattice_bpd.models.linear import VECTOR, linear
from lattice_bpd.models.model_facts import version_of

VOCABULARY_FILES = HeadFiles(
    "heads",
    {"num_slots": 1, "hidden_size": 1, "inner_size": 1, "draft_vocab_size": 1, "vocab_size": 1},
)


class VocabularyHeads(SavedHeads):
    """H feed-forward heads over a draft vocabulary.

    Args:
        token_ids: (K,) ints, the draft vocabulary: token ids of the target, each once.
        hidden_size: D, the width of the target's last hidden state.
        vocab_size: V of the target.
        num_slots: H; slot 0 predicts the token after the exact one.
        inner_size: F, the width of each network's hidden layer.

    Attributes:
        trained_on: a sample of the weights of the target that they were trained on, if known.

    Raises:
        ValueError: a size below 1, or token ids that are outside 0..V-1 or occur twice.
    """

    files = VOCABULARY_FILES

    def __init__(
        self,
        token_ids: Sequence[int] | Tensor,
        hidden_size: int,
        vocab_size: int,
        *,
        num_slots: int = 5,
        inner_size: int = 1024,
    ) -> None:
        super().__init__()
        self.token_ids: Tensor
        self.register_buffer("token_ids", torch.as_tensor(token_ids, dtype=torch.int64))
        sizes = (len(self.token_ids), hidden_size, vocab_size, num_slots, inner_size)
        if min(sizes) < 1:
            raise ValueError(f"VocabularyHeads: sizes are {sizes}; expected 1 or more of each")
        self.hidden_size, self.vocab_size, self.num_slots = hidden_size, vocab_size, num_slots
        self.inner_size = inner_size
        self.inner = nn.Linear(2 * hidden_size, num_slots * inner_size)
        # Zero: each head starts as a copy of the target's own prediction.
        self.outer_weight = nn.Parameter(torch.zeros(num_slots * hidden_size, inner_size))
        self.outer_bias = nn.Parameter(torch.zeros(num_slots, hidden_size))
        self._target: tuple[Any, Any, Tensor, Tensor | None] | None = None
        self._versions: list[Any] = []  # of the target's weights, when they were taken
        self._packed: tuple[Any, ...] = ()
        if not self.token_ids.is_meta:
            self._check_tensors()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": ()}  # what copies make anew

    def attach(self, base: Any) -> None:
        """Use the embeddings of a target, which are not copied but for the draft vocabulary's rows.

        Args:
            base: a causal LM of transformers, on the heads' device.

        Raises:
            ValueError: another width or vocabulary.
        """
        output = base.get_output_embeddings()
        found, expected = tuple(output.weight.shape), (self.vocab_size, self.hidden_size)
        if found != expected:
            raise ValueError(
                f"VocabularyHeads: the heads are for an output embedding of shape {expected}, the "
                f"target has one of {found}; use heads that were trained on this target"
            )
        bias = getattr(output, "bias", None)
        versions = [version_of(one) for one in (output.weight, bias) if one is not None]
        if self._target is not None and versions == self._versions and not output.weight.is_meta:
            rows = self._target[2:]
        else:
            rows = take_rows(output, self.token_ids)
        self._target, self._versions = (base.get_input_embeddings(), output, *rows), versions

    def draft_states(self, hidden: Tensor, exact_tokens: Tensor) -> Tensor:
        """States whose products with the output embedding are the logits.

        Args:
            hidden: (N, D) float, the states that predicted the exact tokens.
            exact_tokens: (N,) int64.

        Returns:
            (N, H, D) float.
        """
        if self._target is None:
            raise ValueError("VocabularyHeads: no target; call attach(model) first")
        inputs = F.rms_norm(hidden, (self.hidden_size,))
        with torch.no_grad():
            embedded = F.rms_norm(self._target[0](exact_tokens), (self.hidden_size,)).to(inputs)
        inputs = torch.cat([inputs, embedded], dim=-1)
        inner = F.silu(linear(inputs, self.inner.weight, self.inner.bias))
        if hidden.device.type == "cpu":
            slots = inner.chunk(self.num_slots, -1), self.outer_weight.chunk(self.num_slots)
            change = torch.stack(list(map(linear, *slots)), dim=1)  # (N, H, D)
        else:
            inner = inner.view(len(hidden), self.num_slots, -1).transpose(0, 1)
            weight = self.outer_weight.view(self.num_slots, self.hidden_size, -1).transpose(1, 2)
            change = torch.bmm(inner, weight).transpose(0, 1)
        return hidden.unsqueeze(1) + self.outer_bias + change

    def output_rows(self) -> tuple[Tensor, Tensor | None]:
        """(K, D) rows and (K,) bias of the target's output embedding; after `attach`."""
        assert self._target is not None
        embed, output, rows, bias = self._target
        if rows.device != (device := self.outer_bias.device):  # both were moved
            rows, bias = rows.to(device), None if bias is None else bias.to(device)
            self._target = embed, output, rows, bias
        return rows, bias

    @property
    def tensors(self) -> list[Tensor]:
        """All that `lattice_on_device` reads, after `attach`."""
        assert self._target is not None
        rows = [one for one in self.output_rows() if one is not None]
        return [*self.parameters(), self.token_ids, *self._target[0].parameters(), *rows]

    def draft_logits(self, hidden: Tensor, exact_tokens: Tensor) -> Tensor:
        """(N, H, K) logits over the draft vocabulary; see `draft_states`."""
        rows, bias = self.output_rows()
        return linear(self.draft_states(hidden, exact_tokens).to(rows.dtype), rows, bias)

    def lattice(self, hidden: Tensor, exact_tokens: Tensor, top_k: int = 64) -> LatticeInput:
        """The best candidates of each slot, with log probabilities over the draft vocabulary.

        Args:
            hidden: (N, D) float.
            exact_tokens: (N,) int64.
            top_k: candidates of a slot, 1 or more; the draft vocabulary if that has fewer.

        Returns:
            Token ids (N, H, k) int64 and scores (N, H, k) float32, best first.
        """
        # One state on a CPU: reading the weights takes the time.
        is_one = len(hidden) == 1 and hidden.device.type == "cpu" and not torch.is_grad_enabled()
        if is_one and self.hidden_size % VECTOR == self.inner_size % VECTOR == 0:
            return self._packed_lattice(hidden, exact_tokens, min(top_k, self.draft_vocab_size))
        return self.lattice_on_device(hidden, exact_tokens, top_k)

    def lattice_on_device(
        self, hidden: Tensor, exact_tokens: Tensor, top_k: int = 64
    ) -> LatticeInput:
        """`lattice` by torch, without values from the host."""
        top_k = min(top_k, self.draft_vocab_size)
        log_probs = self.draft_logits(hidden, exact_tokens).float().log_softmax(dim=-1)
        best = log_probs.topk(top_k, dim=-1)
        return LatticeInput(self.token_ids[best.indices], best.values, are_log_probs=True)

    def _packed_lattice(self, hidden: Tensor, exact_tokens: Tensor, top_k: int) -> LatticeInput:
        """The same of a single state by the core, with weights of 8 bits."""
        assert self._target is not None
        (embed, output), (rows, bias) = self._target[:2], self.output_rows()
        weights = self.inner.weight, self.outer_weight, output.weight
        versions = [version_of(one) for one in weights]
        if self._packed[:1] != (versions,):
            use_torch_threads()
            arrays = (
                self.inner.weight, self.inner.bias, self.outer_weight, self.outer_bias, rows,
                torch.zeros(0, device="cpu") if bias is None else bias, self.token_ids.int(),
            )  # fmt: skip
            sizes = self.num_slots, self.hidden_size, self.inner_size
            packed = _core.PackedHeads(*sizes, *map(_to_array, arrays))
            self._packed = versions, packed, weights  # kept, so that no other one has their id
        ids, scores = self._packed[1].candidates(
            _to_array(hidden), _to_array(embed(exact_tokens)), top_k, torch.get_num_threads()
        )
        tensors = torch.from_numpy(ids[None]).long(), torch.from_numpy(scores[None])
        return LatticeInput(*tensors, are_log_probs=True)

    def forward(self, hidden: Tensor, exact_tokens: Tensor) -> Tensor:
        """(..., H, V) logits, -inf outside the draft vocabulary; see `draft_states`."""
        logits = self.draft_logits(hidden.reshape(-1, self.hidden_size), exact_tokens.reshape(-1))
        whole = logits.new_full((*logits.shape[:2], self.vocab_size), float("-inf"))
        whole.index_copy_(2, self.token_ids, logits)
        return whole.view(*hidden.shape[:-1], self.num_slots, self.vocab_size)

    @property
    def draft_vocab_size(self) -> int:
        """K, tokens of the draft vocabulary."""
        return len(self.token_ids)

    @classmethod
    def _from_sizes(cls, sizes: dict[str, Any]) -> VocabularyHeads:
        size = sizes.pop("draft_vocab_size")
        return cls(torch.empty(size, dtype=torch.int64, device="meta"), **sizes)

    def _check_tensors(self) -> None:
        ids = self.token_ids.tolist()
        low, high, distinct = min(ids), max(ids), len(set(ids))
        if low < 0 or high >= self.vocab_size or distinct != len(ids):
            raise ValueError(
                f"VocabularyHeads: the draft vocabulary has token ids {low}..{high}, {distinct} of "
                f"{len(ids)} distinct; expected distinct ids in 0..{self.vocab_size - 1}"
            )


def take_rows(output: Any, token_ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """(K, D) rows and (K,) bias, or None, of K tokens of an output embedding."""
    with loaded(output):
        bias = getattr(output, "bias", None)
        rows: Tensor = output.weight.detach()[token_ids]
        return rows, None if bias is None else bias.detach()[token_ids]


def _to_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A flat array on the host; of floats, float32."""
    flat = tensor.detach().flatten()
    return (flat.float() if flat.is_floating_point() else flat).cpu().numpy()

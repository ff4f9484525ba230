"""Draft heads on the target's last hidden state.

Head 1 is the target's own output embedding. `BlockwiseHeads` are heads 2..h: each is a feed-forward
network with one hidden layer and a residual connection; its output goes through the target's output
embedding, so no head has a V-sized matrix (Stern et al. 2018, section 6; Kim et al. 2024, section
4). `VocabularyHeads` know the exact token and draft within the target's most frequent tokens: slot
j adds a feed-forward network on [norm(hidden state), norm(embedding of the exact token)] to the
hidden state, and projects the sum by the output embedding's rows of the draft vocabulary, a
fraction of the cost of a whole vocabulary, in training and in decoding.

The paper's models have a network on head 1 too. Its `FirstHead` replaces the target's output
embedding, so the target's own `forward` and `generate` compute head 1 with its network, and
everything that decodes or verifies needs no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd import _core
from lattice_bpd._core import FormatError
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models.head_files import HeadFiles, SavedHeads
from lattice_bpd.models.hooks import device_of, loaded
from lattice_bpd.models.linear import VECTOR, CpuLinear, linear
from lattice_bpd.models.model_facts import version_of

BLOCKWISE_FILES = HeadFiles(
    "blockwise_heads", {"num_heads": 2, "hidden_size": 1, "inner_size": 1}, {"vocab_size": None}
)


class BlockwiseHeads(SavedHeads):
    """Feed-forward heads 2..h on one hidden state, evaluated together.

    The heads' matrices are stacked in two 2-D parameters, so that h-1 heads take two matrix
    products rather than 2(h-1) small ones, and `torch.optim.Muon` can train them.

    Args:
        hidden_size: D, the width of the target's last hidden state.
        num_heads: h, head 1 (the target's own) included; at least 2.
        inner_size: F, the width of each head's hidden layer; D when None.
        vocab_size: V of the target that they are trained on, if known: `BlockwiseLM` refuses a
            target with another vocabulary.

    Attributes:
        trained_on: a sample of the weights of the target that they were trained on, if it was
            saved with them.

    Raises:
        ValueError: num_heads below 2 or a size below 1.
    """

    files = BLOCKWISE_FILES

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        inner_size: int | None = None,
        *,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        inner_size = hidden_size if inner_size is None else inner_size
        if num_heads < 2:
            raise ValueError(
                f"BlockwiseHeads: num_heads is {num_heads}; expected 2 or more, since head 1 is "
                "the target's own; decode greedily if there is nothing to draft"
            )
        if hidden_size < 1 or inner_size < 1:
            raise ValueError(
                f"BlockwiseHeads: hidden_size {hidden_size} and inner_size {inner_size}; "
                "expected both to be 1 or more"
            )
        self.hidden_size, self.num_heads, self.inner_size = hidden_size, num_heads, inner_size
        self.vocab_size = vocab_size
        self.inner = nn.Linear(hidden_size, (num_heads - 1) * inner_size)
        # Zero: every head starts as a copy of head 1 (the residual alone), which trains stably.
        self.outer_weight = nn.Parameter(torch.zeros((num_heads - 1) * hidden_size, inner_size))
        self.outer_bias = nn.Parameter(torch.zeros(num_heads - 1, hidden_size))

    @property
    def num_slots(self) -> int:
        """H = h-1: the slots of the lattice that these heads fill."""
        return self.num_heads - 1

    def forward(self, hidden: Tensor, slots: Sequence[int] | None = None) -> Tensor:
        """Head states of every position.

        Args:
            hidden: (..., D) float, the target's hidden states that enter its output embedding.
            slots: the slots to compute, 0..H-1 in order; None: all H. Their weights are copied
                unless they are the first S.

        Returns:
            (..., S, D) float for S slots, contiguous; row j goes through the output embedding to
            give the logits of offset slots[j]+2 (the token after next is slot 0).
        """
        rows = hidden.reshape(-1, self.hidden_size)  # (N, D)
        inner_weight, inner_bias, weight, bias = self._weights_of(slots)
        inner = linear(rows, inner_weight, inner_bias)  # (N, S*F)
        inner = F.silu(inner, inplace=not torch.is_grad_enabled())
        inner = inner.view(len(rows), -1, self.inner_size).transpose(0, 1)  # (S, N, F)
        change = torch.bmm(inner, weight.transpose(1, 2).to(inner.dtype))  # (S, N, D)
        states = rows.unsqueeze(1) + bias.to(inner.dtype)  # (N, S, D)
        states += change.transpose(0, 1)  # in place: the result is contiguous
        return states.reshape(*hidden.shape[:-1], -1, self.hidden_size)

    def _weights_of(self, slots: Sequence[int] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights (S*F, D), (S, D, F) and biases (S*F,), (S, D) of both layers, for S slots."""
        inner_weight: Tensor = self.inner.weight
        inner_bias: Tensor = self.inner.bias
        weight: Tensor = self.outer_weight
        bias: Tensor = self.outer_bias
        width, size = self.hidden_size, self.inner_size
        count = self.num_slots if slots is None else len(slots)
        if slots is not None and list(slots) != list(range(count)):
            index = torch.tensor(list(slots), device=bias.device)
            inner_weight = inner_weight.view(-1, size, width)[index].flatten(0, 1)
            inner_bias = inner_bias.view(-1, size)[index].flatten()
            return inner_weight, inner_bias, weight.view(-1, width, size)[index], bias[index]
        if count < self.num_slots:  # views
            inner_weight, inner_bias = inner_weight[: count * size], inner_bias[: count * size]
            weight, bias = weight[: count * width], bias[:count]
        return inner_weight, inner_bias, weight.view(-1, width, size), bias


VOCABULARY_FILES = HeadFiles(
    "heads",
    {"num_slots": 1, "hidden_size": 1, "inner_size": 1, "draft_vocab_size": 1, "vocab_size": 1},
    {"reads_exact_token": True},
)


class VocabularyHeads(SavedHeads):
    """H feed-forward heads over a draft vocabulary.

    Args:
        token_ids: (K,) ints, the draft vocabulary: token ids of the target, each once.
        hidden_size: D, the width of the target's last hidden state.
        vocab_size: V of the target.
        num_slots: H; slot 0 predicts the token after the exact one.
        inner_size: F, the width of each network's hidden layer.
        reads_exact_token: whether the networks read the exact token; False: the hidden state
            alone, as in Kim et al. 2024.

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
        reads_exact_token: bool = True,
    ) -> None:
        super().__init__()
        self.token_ids: Tensor
        self.register_buffer("token_ids", torch.as_tensor(token_ids, dtype=torch.int64))
        sizes = (len(self.token_ids), hidden_size, vocab_size, num_slots, inner_size)
        if min(sizes) < 1:
            raise ValueError(f"VocabularyHeads: sizes are {sizes}; expected 1 or more of each")
        self.hidden_size, self.vocab_size, self.num_slots = hidden_size, vocab_size, num_slots
        self.inner_size, self.reads_exact_token = inner_size, reads_exact_token
        self.inner = nn.Linear(hidden_size * (1 + reads_exact_token), num_slots * inner_size)
        # Zero: each head starts as a copy of the target's own prediction.
        self.outer_weight = nn.Parameter(torch.zeros(num_slots * hidden_size, inner_size))
        self.outer_bias = nn.Parameter(torch.zeros(num_slots, hidden_size))
        self._target: tuple[Any, Any, Tensor, Tensor | None] | None = None
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
        self._target = base.get_input_embeddings(), output, *take_rows(output, self.token_ids)

    def draft_states(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
        """States whose products with the output embedding are the logits.

        Args:
            hidden: (N, D) float, the states that predicted the exact tokens.
            exact_tokens: (N,) int64; None: the target's argmax.

        Returns:
            (N, H, D) float.
        """
        if self._target is None:
            raise ValueError("VocabularyHeads: no target; call attach(model) first")
        embed, output = self._target[:2]
        inputs = F.rms_norm(hidden, (self.hidden_size,))
        if self.reads_exact_token:
            with torch.no_grad():
                if exact_tokens is None:
                    exact_tokens = output(hidden).argmax(dim=-1)
                embedded = F.rms_norm(embed(exact_tokens), (self.hidden_size,)).to(inputs)
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

    def draft_logits(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
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
        top_k = min(top_k, self.draft_vocab_size)
        # One state on a CPU: reading the weights takes the time.
        is_one = len(hidden) == 1 and hidden.device.type == "cpu" and not torch.is_grad_enabled()
        if is_one and self.hidden_size % VECTOR == self.inner_size % VECTOR == 0:
            return self._packed_lattice(hidden, exact_tokens, top_k)
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
        embedding = embed(exact_tokens) if self.reads_exact_token else torch.zeros(0, device="cpu")
        ids, scores = self._packed[1].candidates(
            _to_array(hidden), _to_array(embedding), top_k, torch.get_num_threads()
        )
        tensors = torch.from_numpy(ids[None]).long(), torch.from_numpy(scores[None])
        return LatticeInput(*tensors, are_log_probs=True)

    def forward(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
        """See HeadSource: (..., H, V) logits, -inf outside the draft vocabulary."""
        rows = hidden.reshape(-1, self.hidden_size)
        tokens = None if exact_tokens is None else exact_tokens.reshape(-1)
        logits = self.draft_logits(rows, tokens)
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


FIRST_HEAD_FILES = HeadFiles("first_head", {"hidden_size": 1, "inner_size": 1})


class HeadNetwork(nn.Module):
    """A feed-forward network with one hidden layer and a residual connection.

    It starts as the identity, since its outer layer is zero.

    Args:
        hidden_size: D.
        inner_size: F, the width of the hidden layer.
    """

    def __init__(self, hidden_size: int, inner_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, inner_size)
        self.outer = nn.Linear(inner_size, hidden_size)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) float from hidden states (..., D)."""
        return hidden + cast(Tensor, self.outer(F.silu(self.inner(hidden))))


class FirstHead(nn.Linear):
    """An output embedding that applies head 1's network first.

    Args:
        projection: the target's output embedding, (V, D); its weights are shared, not copied.
        network: head 1's.

    Raises:
        TypeError: an output embedding with another forward than nn.Linear.
    """

    def __init__(self, projection: nn.Module, network: HeadNetwork) -> None:
        nn.Module.__init__(self)  # nn.Linear's would allocate another (V, D) matrix
        if type(projection).forward not in (nn.Linear.forward, CpuLinear.forward):
            raise TypeError(
                f"FirstHead: the target's output embedding is a {type(projection).__name__}; "
                "expected nn.Linear; load the target without quantization or adapters"
            )
        layer = cast(nn.Linear, projection)
        self.out_features, self.in_features = layer.weight.shape
        self.weight, self.bias = layer.weight, layer.bias
        self.network = network.to(device=device_of(layer), dtype=layer.weight.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., V) float logits of head 1 from hidden states (..., D)."""
        return linear(self.network(hidden), self.weight, self.bias)


def project_states(embedding: nn.Module, states: Tensor) -> Tensor:
    """(..., V) float logits of head states (..., D), without head 1's network."""
    if isinstance(embedding, FirstHead):
        with loaded(embedding):
            return linear(states, embedding.weight, embedding.bias)
    return cast(Tensor, embedding(states))


def save_first_head(base: PreTrainedModel, directory: Path) -> None:
    """Write first_head.safetensors and first_head.json, or remove them if head 1 has no network.

    Raises:
        OSError: the directory cannot be written.
    """
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(embedding, FirstHead):
        inner: nn.Linear = embedding.network.inner
        sizes = {"hidden_size": inner.in_features, "inner_size": inner.out_features}
        FIRST_HEAD_FILES.write(directory, sizes, embedding.network)
        return
    for stale in (FIRST_HEAD_FILES.config_name, FIRST_HEAD_FILES.weights_name):
        (directory / stale).unlink(missing_ok=True)


def load_first_head(base: PreTrainedModel, directory: Path) -> None:
    """Attach what `save_first_head` wrote; nothing where the directory has no such file.

    Raises:
        FormatError: a file is missing, cut, altered, of another format version or width.
    """
    if not (directory / FIRST_HEAD_FILES.config_name).is_file():
        return
    sizes = FIRST_HEAD_FILES.read_config(directory)
    network = FIRST_HEAD_FILES.read_heads(
        directory, lambda: HeadNetwork(sizes["hidden_size"], sizes["inner_size"])
    )
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if sizes["hidden_size"] != embedding.weight.shape[1]:
        raise FormatError(
            f"{directory / FIRST_HEAD_FILES.config_name}: hidden_size is {sizes['hidden_size']}, "
            f"the target's is {embedding.weight.shape[1]}; expected the files of one model; save "
            "or train it again"
        )
    base.set_output_embeddings(FirstHead(embedding, network))  # type: ignore[no-untyped-call]


@contextmanager
def plain_output_embedding(base: PreTrainedModel) -> Iterator[None]:
    """Inside, the target has its output embedding without head 1's network, for writing it."""
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(embedding, FirstHead):
        yield
        return
    with torch.device("meta"):
        plain = nn.Linear(embedding.in_features, embedding.out_features)
    plain.weight, plain.bias = embedding.weight, embedding.bias
    base.set_output_embeddings(plain)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        base.set_output_embeddings(embedding)  # type: ignore[no-untyped-call]

"""BlockwiseLM: a causal LM (the target) with heads for the next h tokens, as one module.

    y_1 .. y_t  ->  target  ->  hidden state x_t  -> output embedding -> y_{t+1}     (head 1, exact)
                                      |-> head 2  -> output embedding -> y_{t+2}     (drafts)
                                      |-> ...
                                      `-> head h  -> output embedding -> y_{t+h}

Kim et al. 2024, section 4; Stern et al. 2018, section 4.

It is saved as a plain `transformers` checkpoint of the target, plus those of the heads:

    config.json, model.safetensors, ...          the target, as `PreTrainedModel` writes it
    first_head.safetensors, first_head.json      head 1's own network, if any (`first_head`)
    blockwise_heads.safetensors, ..heads.json    the heads; other kinds have other names

The target is written first, and the heads' JSON last, each renamed from a temporary name, so a
directory with that JSON is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.checkpoint import load_heads, load_target, save_heads
from lattice_bpd.models.head_files import staged_folder, warn_of_other_target
from lattice_bpd.models.heads import BlockwiseHeads, check_heads
from lattice_bpd.models.hooks import device_of, loaded
from lattice_bpd.models.lm_call import find_max_positions, unwrap_model
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd.pretrained import Pretrained, find_pretrained
from lattice_bpd.train.head_states import read_hidden
from lattice_bpd_kim2024.heads.first_head import (
    plain_output_embedding,
    project_states,
    save_first_head,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class BlockwiseLM(nn.Module):
    """A decoder-only LM of `transformers` with h-1 extra prediction heads.

    Head 1 is the target's output embedding, with a network of its own before it
    if it is a `FirstHead`. To decode: `generate(model.base, .., heads=model.heads)`.

    Args:
        base: the target; any `...ForCausalLM` with an output embedding, or a wrapper such as
            `torch.compile(model)`. It is not copied.
        num_heads: h, the target's own head included.
        inner_size: width of each head's hidden layer; the target's hidden size when None.
        heads: existing heads, of any kind that `load_heads` reads. num_heads and inner_size are
            then ignored. An OtherTargetWarning says that saved heads were trained on other weights
            than those of `base`.

    Raises:
        TypeError: base is an encoder-decoder or has no output embedding.
        ValueError: heads of other sizes, or num_heads below 2.
    """

    heads: Any

    def __init__(
        self,
        base: PreTrainedModel,
        num_heads: int = 9,
        inner_size: int | None = None,
        *,
        heads: Any = None,
    ) -> None:
        super().__init__()
        base = unwrap_model(base)
        vocab_size, hidden_size = _output_shape(base)
        if heads is None:
            heads = BlockwiseHeads(hidden_size, num_heads, inner_size, vocab_size=vocab_size)
        self.base = base
        self.heads = heads
        if hasattr(heads, "as_draft_heads"):  # to the target when it decodes
            if hasattr(heads, "attach"):
                heads.attach(base)
            return
        heads.to(device=device_of(base), dtype=base.dtype)
        if isinstance(heads, VocabularyHeads):
            heads.attach(base)
        with loaded(self.output_embedding):
            check_heads(heads, self.output_embedding.weight)
        warn_of_other_target(heads, base, "BlockwiseLM")

    @property
    def num_heads(self) -> int:
        """h: tokens predicted from one position, the exact one included."""
        return self.num_slots + 1

    @property
    def num_slots(self) -> int:
        """H = h-1: slots of the lattice after the exact next token."""
        return int(self.heads.num_slots)

    @property
    def vocab_size(self) -> int:
        """V: columns of the logits."""
        return int(self.output_embedding.weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """The target's maximum input length in tokens, or None if its config has no limit."""
        return find_max_positions(self.base.config)

    @property
    def device(self) -> torch.device:
        """The device of inputs."""
        return device_of(self.base)

    @property
    def output_embedding(self) -> nn.Linear:
        """The target's own projection (D -> V), shared by all heads."""
        return cast(nn.Linear, self.base.get_output_embeddings())  # type: ignore[no-untyped-call]

    def hidden_states(self, input_ids: Tensor) -> Tensor:
        """The states of whole texts, (B, T, D) float, for (B, T) int64; see `read_hidden`.

        Raises:
            ValueError: input_ids is not (B, T) or is empty.
        """
        if input_ids.ndim != 2 or input_ids.shape[1] == 0:
            raise ValueError(
                f"BlockwiseLM: input_ids has shape {tuple(input_ids.shape)}; expected (batch, "
                "tokens) with one token or more; add the batch axis or give a prompt"
            )
        return read_hidden(self.base, input_ids)

    def head_logits(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
        """Logits of heads 2..h.

        Args:
            hidden: (..., D) float, rows of `hidden_states`.
            exact_tokens: (...) int64, the exact tokens after them, for heads that read them; None:
                the target's argmax.

        Returns:
            (..., H, V) float; slot j predicts the token j+2 positions after the hidden state's.

        Raises:
            TypeError: the heads read more than a hidden state.
        """
        if hasattr(self.heads, "as_draft_heads"):
            raise TypeError(
                f"BlockwiseLM.head_logits: the heads are {type(self.heads).__name__}, which are no "
                "function of a hidden state; expected heads on one; decode with generate"
            )
        if isinstance(self.heads, BlockwiseHeads):
            return project_states(self.output_embedding, self.heads(hidden))
        if exact_tokens is None and isinstance(self.heads, VocabularyHeads):
            exact_tokens = self.output_embedding(hidden).argmax(-1)
        logits: Tensor = self.heads(hidden, exact_tokens)
        return logits

    def forward(self, input_ids: Tensor) -> Tensor:
        """`head_logits` of whole texts: so `generate` does not take this for a plain wrapper."""
        return self.head_logits(self.hidden_states(input_ids))

    def save_pretrained(self, directory: str | Path) -> None:
        """Write target and heads into a directory, which is created if missing.

        Raises:
            OSError: the directory cannot be written.
        """
        directory = Path(directory)
        with staged_folder(directory) as folder, plain_output_embedding(self.base):
            self.base.save_pretrained(folder)
        save_first_head(self.base, directory)
        save_heads(self.heads, directory, self.base)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path | Pretrained,
        heads_directory: str | Path | None = None,
        **options: Any,
    ) -> Self:
        """Read what `save_pretrained` wrote, in evaluation mode, on the CPU.

        Args:
            directory: a blockwise model, as `find_pretrained` takes and returns it.
            heads_directory: folder of the heads, if they are not in `directory`.
            options: passed to `AutoModelForCausalLM.from_pretrained`, such as dtype or
                attn_implementation.

        Raises:
            FormatError: a file is missing, cut, altered or of another format version.
        """
        found = find_pretrained(directory, options.pop("trust_remote_code", False))
        heads = load_heads(found.folder if heads_directory is None else heads_directory)
        model = cls(load_target(found, **options), heads=heads)
        model.eval()
        return model


def to_drafting(model: Any, heads: Any = None) -> DraftingModel:
    """Target and heads of a BlockwiseLM, or of a model and its heads, to decode with.

    Args:
        model: a BlockwiseLM; a causal LM or an encoder-decoder of `transformers`; a target; or a
            DraftingModel, which is returned.
        heads: see `lattice_bpd.decode.generate`; None: those of `model`.
    """
    if isinstance(model, DraftingModel):
        return model
    if isinstance(model, BlockwiseLM):
        return DraftingModel(model.base, model.heads if heads is None else heads)
    return DraftingModel(model, heads)


def _output_shape(base: PreTrainedModel) -> tuple[int, int]:
    """(V, D) of the target's output embedding; TypeError if heads cannot be attached."""
    name = type(base).__name__
    if getattr(base.config, "is_encoder_decoder", False):
        raise TypeError(
            f"BlockwiseLM: {name} is an encoder-decoder; expected a decoder-only causal LM"
        )
    embedding = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if getattr(embedding, "weight", None) is None:
        raise TypeError(
            f"BlockwiseLM: {name} has no output embedding; load the model with AutoModelForCausalLM"
        )
    vocab_size, hidden_size = embedding.weight.shape
    return int(vocab_size), int(hidden_size)

"""PEagleDrafter: an EAGLE-3 head that drafts all slots in one forward (P-EAGLE).

    row of position i:  embedding of token i + 1,  fc(features of position i)
    masks:              embedding of the mask,     fc(mask_hidden)

    first layer: attention over [input_layernorm(embedding) ; hidden_norm(fc)] -> + fc -> MLP
    other layers as in Llama or Qwen3;   norm -> output embedding

EAGLE-3: Li et al. 2025, arXiv 2503.01840. P-EAGLE: arXiv 2602.01469.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from lattice_bpd.models.lm_call import pass_cache
from lattice_bpd.models.parallel_drafter.base import ParallelDrafter
from lattice_bpd.models.parallel_drafter.cache import LayerCache, Unread
from lattice_bpd.models.parallel_drafter.p_eagle_files import read_p_eagle, save_p_eagle


@dataclass(frozen=True)
class PEagleConfig:
    """Sizes and conventions of a PEagleDrafter.

    Attributes:
        layers: a LlamaConfig or Qwen3Config; its vocabulary and width are the
            target's.
        hidden_layers: the target's layers that are read; see BlockDrafterConfig.
        mask_token_id: the token of the rows after the last exact token.
        num_slots: H.
        draft_vocab_size: rows of the output embedding where these are fewer than the vocabulary's;
            their target ids come from the tensor `d2t`. None: the vocabulary's.
        norm_before_residual: the residual of the first layer is hidden_norm(fc), not fc.
        norm_before_fc: a norm over a whole feature precedes fc.
        fc_norm: a norm for each of a feature's layers precedes fc.
        has_own_embedding: it has an input embedding; otherwise it uses the target's.
    """

    layers: PretrainedConfig
    hidden_layers: tuple[int, ...]
    mask_token_id: int
    num_slots: int
    draft_vocab_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    has_own_embedding: bool = True


class PEagleDrafter(ParallelDrafter):
    """Drafts the tokens after an anchor from the target's features, with causal mask rows.

    The parameters have the names of the speculators format.

    Args:
        config: sizes and conventions.

    Raises:
        ValueError: a config whose values do not fit together.
    """

    first_token = 1
    mask_hidden: Tensor

    def __init__(self, config: PEagleConfig) -> None:
        layers = config.layers
        super().__init__(
            layers, mask_token_id=config.mask_token_id, num_slots=config.num_slots,
            hidden_layers=config.hidden_layers,
        )  # fmt: skip
        if not config.hidden_layers or min(config.hidden_layers) < -1:
            raise ValueError(
                f"PEagleDrafter: hidden_layers is {config.hidden_layers}; expected one layer or "
                "more, from 0 or -1"
            )
        if config.norm_before_fc and config.fc_norm:
            raise ValueError(
                "PEagleDrafter: norm_before_fc and fc_norm are set; expected one of them at most"
            )
        self.config = config
        build: Any = AutoModel.from_config
        decoder = build(layers, attn_implementation="sdpa")
        self.layers, self.norm, self.rotary_emb = decoder.layers, decoder.norm, decoder.rotary_emb
        self.embed_tokens = decoder.embed_tokens if config.has_own_embedding else None
        size, eps = layers.hidden_size, layers.rms_norm_eps
        _widen_first_layer(self.layers[0], size, eps)
        self.fc = nn.Linear(self.feature_size, size, bias=False)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, self.feature_size))
        self.input_norm = nn.RMSNorm(self.feature_size, eps=eps) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(size, eps=eps) for _ in config.hidden_layers)
            if config.fc_norm else None
        )  # fmt: skip
        rows = config.draft_vocab_size or layers.vocab_size
        self.lm_head = nn.Linear(size, rows, bias=False)
        reduced = config.draft_vocab_size is not None
        self.register_buffer("d2t", torch.zeros(rows, dtype=torch.int64) if reduced else None)
        self._shared: tuple[nn.Module, ...] = ()  # a tuple, so that it is no submodule

    def attach(self, target: PreTrainedModel) -> None:
        """Use the input embedding of the target, unless there is one of its own.

        Raises:
            ValueError: a target of another vocabulary or width, or with too few layers.
        """
        embedding: Any = target.get_input_embeddings()
        self._check_vocabulary(embedding.weight.shape[0])
        text = target.config.get_text_config()
        width, depth = int(text.hidden_size), int(text.num_hidden_layers)
        if width != self.layer_config.hidden_size or max(self.hidden_layers) >= depth:
            raise ValueError(
                f"PEagleDrafter: reads the target's layers {self.hidden_layers} of width "
                f"{self.layer_config.hidden_size}; the target has {depth} layers of width {width}; "
                "give the target that it was trained for"
            )
        self._shared = (embedding,)

    def read(
        self,
        tokens: Tensor,
        unread: Sequence[Unread | None],
        positions: Tensor,
        attention_mask: Tensor,
        cache: LayerCache,
    ) -> Tensor:
        """See ParallelDrafter."""
        states = self._project(self._features(unread, tokens.shape[1]))
        options = {
            "attention_mask": attention_mask, **pass_cache(self.layers[0], cache),
            "position_embeddings": self.rotary_emb(states, positions),
        }  # fmt: skip
        first: Any = self.layers[0]
        normed = first.hidden_norm(states)
        residual = normed if self.config.norm_before_residual else states
        embedded = first.input_layernorm(self._embed(tokens).to(states.dtype))
        mixed = first.self_attn(torch.cat([embedded, normed], dim=-1), **options)[0]
        states = residual + mixed
        states = states + first.mlp(first.post_attention_layernorm(states))
        for layer in list(self.layers)[1:]:
            states = layer(states, position_ids=positions, **options)
        normed = self.norm(states)
        return cast(Tensor, normed)

    def logits(self, states: Tensor) -> Tensor:
        """(.., V) or (.., draft V) logits of states (.., D)."""
        logits: Tensor = self.lm_head(states)
        return logits

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        num_slots: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> PEagleDrafter:
        """Read a checkpoint of the speculators format, on the CPU, in evaluation mode.

        Args:
            directory: of the checkpoint.
            num_slots: H; None: the number of speculative tokens in config.json.
            dtype: of the parameters; None: that of the file's `fc.weight`.

        Raises:
            FormatError: files that are missing, damaged, of another format, or do not fit each
                other.
            ValueError: num_slots below 1.
        """
        files = read_p_eagle(Path(directory), num_slots)
        config = PEagleConfig(**files.fields)
        with torch.device("meta"):  # allocates nothing
            state = cls(config).state_dict()
        files.check({name: tuple(value.shape) for name, value in state.items()})
        drafter = cls(config)
        drafter.load_state_dict(files.tensors)
        return drafter.to(dtype or files.tensors["fc.weight"].dtype).eval()

    def save_pretrained(self, directory: str | Path, *, verifier: str | None = None) -> None:
        """Write a checkpoint of the speculators format; the target's embedding is not in it.

        Args:
            directory: made where it is missing.
            verifier: name or path of the target, which servers of the format look up.

        Raises:
            OSError: the directory cannot be written.
        """
        save_p_eagle(self.config, self.state_dict(), Path(directory), verifier)

    def _features(self, unread: Sequence[Unread | None], size: int) -> Tensor:
        """(B, m, n*D_target) features of the exact rows, and mask_hidden in all others."""
        parts = [part.features.to(self.mask_hidden) for part in unread if part is not None]
        known = pad_sequence(parts, batch_first=True)
        counts = torch.tensor([len(part) for part in parts], device=known.device)
        is_exact = torch.arange(size, device=known.device) < counts[:, None]
        padded = nn.functional.pad(known, (0, 0, 0, size - known.shape[1]))
        return torch.where(is_exact.unsqueeze(-1), padded, self.mask_hidden)

    def _project(self, features: Tensor) -> Tensor:
        """(B, m, D) of features (B, m, n*D_target)."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        projected: Tensor = self.fc(features)
        return projected

    def _embed(self, tokens: Tensor) -> Tensor:
        """(B, m, D) of tokens (B, m)."""
        if self.embed_tokens is None and not self._shared:
            raise RuntimeError(
                "PEagleDrafter: has no target whose embedding it could use; call attach(target)"
            )
        embedding = self._shared[0] if self.embed_tokens is None else self.embed_tokens
        embedded: Tensor = embedding(tokens)
        return embedded


def _widen_first_layer(layer: Any, size: int, eps: float) -> None:
    """Make a layer attend over embedding and feature, with a norm of the feature."""
    layer.hidden_norm = nn.RMSNorm(size, eps=eps)
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(layer.self_attn, name)
        wide = nn.Linear(2 * size, old.out_features, bias=old.bias is not None)
        setattr(layer.self_attn, name, wide)

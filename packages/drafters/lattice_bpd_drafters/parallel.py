"""What PARD and P-EAGLE share, and PARD: new tokens, then masks, are read in one causal forward.

    positions   p-2      p-1      p     p+1    p+2
    PARD        token    token    anchor  mask  mask       -> slots 0, 1, 2 of the last three rows
    P-EAGLE     token    anchor   mask    mask             -> slots 0, 1, 2 of the last three rows
                feature  feature  (row i: feature of position i, token of position i + 1)

Keys and values of exact tokens are kept; those of masks, and of PARD's anchor, are not.

PARD, An et al. 2025, arXiv 2504.18583: an ordinary LM with embeddings of its own, which is trained
to predict the next tokens after mask tokens too. Its config.json has the mask's id as `pard_token`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import staged_folder
from lattice_bpd.models.lm_call import pass_cache
from lattice_bpd_drafters.cache import BlockCache, LayerCache, ParallelCache, Unread
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
)
from lattice_bpd_drafters.heads import OnePassHeads
from lattice_bpd_drafters.layers import visible_in_cache

MODEL_TYPES = ("llama", "qwen2", "qwen3")


def check_layers(config: PretrainedConfig) -> None:
    """Raise ValueError for layers that do not attend to all earlier positions.

    Args:
        config: of the layers.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type is {config.model_type!r}; expected one of {', '.join(MODEL_TYPES)}"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"layer_types has {', '.join(sorted(kinds))}; expected full_attention")


def cache_sizes(config: PretrainedConfig) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and width of a head."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads, width


class ParallelDrafter(OnePassHeads, nn.Module):
    """Base class; a OnePassDrafter.

    Args:
        layers: config of its layers, of `transformers`.
        mask_token_id: the token of the rows after the last exact token.
        num_slots: H; a forward reads H - 1 masks.
        hidden_layers: the target's layers that are read; see BlockDrafterConfig.

    Raises:
        ValueError: other layers, or values that do not fit together.
    """

    first_token = 0
    """Index of the token that is read with the first feature."""

    def __init__(
        self,
        layers: PretrainedConfig,
        *,
        mask_token_id: int,
        num_slots: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        try:
            check_layers(layers)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None
        self.layer_config, self.mask_token_id = layers, mask_token_id
        self.num_slots, self.hidden_layers = num_slots, hidden_layers
        self.d2t: Tensor | None
        if not 0 <= mask_token_id < layers.vocab_size:
            raise ValueError(
                f"{type(self).__name__}: mask_token_id is {mask_token_id}; expected "
                f"0..{layers.vocab_size - 1}"
            )
        if num_slots < 1:
            raise ValueError(f"{type(self).__name__}: num_slots is {num_slots}; expected 1 or more")

    @property
    def feature_size(self) -> int:
        """Width of a feature; 0 if it reads tokens only."""
        return len(self.hidden_layers) * int(self.layer_config.hidden_size)

    def new_cache(self, batch: int) -> ParallelCache:
        """The cache of `batch` empty sequences."""
        weight = next(self.parameters())
        layers, kv_heads, head_dim = cache_sizes(self.layer_config)
        return ParallelCache(
            layers, batch, kv_heads, head_dim, dtype=weight.dtype, device=weight.device
        )

    def append(
        self, cache: BlockCache, features: Tensor, lengths: Sequence[int], token_ids: Tensor
    ) -> None:
        """Add exact tokens that the target has read; `draft_states` reads them.

        Args:
            cache: of the B sequences.
            features: (B, m, n*D_target) float, padded on the right.
            lengths: valid positions of each sequence, 0..m.
            token_ids: (B, m) int64, the tokens themselves, padded likewise.

        Raises:
            ValueError: other shapes.
        """
        expected = (cache.batch, token_ids.shape[-1], self.feature_size)
        fits = tuple(features.shape) == expected and tuple(token_ids.shape) == expected[:2]
        if not fits or len(lengths) != cache.batch:
            raise ValueError(
                f"{type(self).__name__}.append: features has shape {tuple(features.shape)}, "
                f"token_ids {tuple(token_ids.shape)} and lengths {len(lengths)} numbers; expected "
                f"{expected}, {expected[:2]} and {cache.batch}"
            )
        if not all(0 <= length <= expected[1] for length in lengths):
            raise ValueError(
                f"{type(self).__name__}.append: lengths is {list(lengths)}; expected "
                f"0..{expected[1]}"
            )
        cast(ParallelCache, cache).add_unread(token_ids, features, lengths)

    @torch.no_grad()
    def draft_states(self, cache: BlockCache, anchors: Tensor) -> Tensor:
        """The states that predict the tokens after the anchors.

        Args:
            cache: of the B sequences, up to the token before the anchor.
            anchors: (B,) int64, the last exact tokens, which the target has not read.

        Returns:
            (B, H, D) float, for `logits`.

        Raises:
            RuntimeError: the target's embedding is needed and `attach` was not called.
            ValueError: a drafter that reads features has no new ones.
        """
        cache = cast(ParallelCache, cache)
        texts = [
            torch.cat([*([] if part is None else [part.token_ids]), anchor[None]])[
                self.first_token :
            ]
            for part, anchor in zip(cache.unread, anchors, strict=True)
        ]
        counts = torch.tensor([len(text) for text in texts], device="cpu")
        if counts.min() < 1:
            raise ValueError(
                f"{type(self).__name__}.draft_states: a sequence has no token since the last call; "
                "expected one or more; call append first"
            )
        tokens = pad_sequence(texts, batch_first=True, padding_value=self.mask_token_id)
        masks = tokens.new_full((len(texts), self.num_slots - 1), self.mask_token_id)
        tokens = torch.cat([tokens, masks], dim=1)  # (B, m)
        size, device = tokens.shape[1], tokens.device
        steps = torch.arange(size, device="cpu")
        positions = torch.tensor(cache.lengths, device="cpu")[:, None] + steps
        positions = positions.to(device)
        cache.reserve(max(cache.lengths) + size)
        visible = visible_in_cache(
            positions, cache.visible_positions(size), causal=True, window=None
        )
        mask = torch.zeros(visible.shape, dtype=cache.keys.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        states = self.read(tokens, cache.unread, positions, mask, LayerCache(cache, positions))
        cache.mark_read()
        rows = (counts[:, None] - 1 + torch.arange(self.num_slots, device="cpu")).to(device)
        return states.gather(1, rows.unsqueeze(-1).expand(-1, -1, states.shape[-1]))

    def read(
        self,
        tokens: Tensor,
        unread: Sequence[Unread | None],
        positions: Tensor,
        attention_mask: Tensor,
        cache: LayerCache,
    ) -> Tensor:
        """One forward.

        Args:
            tokens: (B, m) int64, new tokens and masks.
            unread: whose features are read.
            positions: (B, m) int64.
            attention_mask: (B, 1, m, S) float, added to attention scores.
            cache: the layers' KV cache.

        Returns:
            (B, m, D) float, after the final norm.
        """
        raise NotImplementedError

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of indices into `logits`, of any shape, int64."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    def _check_vocabulary(self, rows: int) -> None:
        """Raise ValueError unless the target's vocabulary has the size of this one's."""
        if rows != self.layer_config.vocab_size:
            raise ValueError(
                f"{type(self).__name__}: has a vocabulary of {self.layer_config.vocab_size:,} "
                f"tokens and the target's embedding {rows:,} rows; give the target that it was "
                "trained for"
            )


_NUM_SLOTS = 8  # depths that the authors train


class PardDrafter(ParallelDrafter):
    """Drafts the tokens after an anchor with a small LM that reads anchor and masks.

    Args:
        model: a Llama, Qwen2 or Qwen3 with the target's vocabulary and full attention.
        mask_token_id: the mask's token, `pard_token` in config.json.
        num_slots: H. Files do not say it; the authors train 8 and draft up to 12.

    Raises:
        ValueError: another model, or values out of range.
    """

    def __init__(
        self, model: PreTrainedModel, *, mask_token_id: int, num_slots: int = _NUM_SLOTS
    ) -> None:
        super().__init__(model.config, mask_token_id=mask_token_id, num_slots=num_slots)
        self.model = model
        self.d2t = None

    def attach(self, target: PreTrainedModel) -> None:
        """Check the target's vocabulary.

        Raises:
            ValueError: a target of another vocabulary.
        """
        embedding: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._check_vocabulary(embedding.weight.shape[0])

    def read(
        self,
        tokens: Tensor,
        unread: Sequence[Unread | None],  # noqa: ARG002
        positions: Tensor,
        attention_mask: Tensor,
        cache: LayerCache,
    ) -> Tensor:
        """See ParallelDrafter."""
        output: Any = self.model.base_model(
            input_ids=tokens, attention_mask=attention_mask, position_ids=positions,
            use_cache=True, **pass_cache(self.model.base_model, cache),
        )  # fmt: skip
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, states: Tensor) -> Tensor:
        """(.., V) logits of states (.., D)."""
        output: Any = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        logits: Tensor = output(states)
        return logits

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        num_slots: int = _NUM_SLOTS,
        dtype: torch.dtype | None = None,
    ) -> PardDrafter:
        """Read a checkpoint of a PARD model, on the CPU, in evaluation mode.

        Args:
            directory: of the checkpoint.
            num_slots: H.
            dtype: of the parameters; None: that of the file.

        Raises:
            FormatError: files that are missing, damaged, of another kind of model, or do not fit
                each other.
            ValueError: num_slots below 1.
        """
        directory = Path(directory)
        reader = ConfigReader(directory / CONFIG_NAME, read_config_json(directory))
        model_type = reader.get("model_type")
        if model_type not in MODEL_TYPES:
            reader.fail("model_type", model_type, f"one of {', '.join(MODEL_TYPES)}")
        mask = reader.integer("pard_token", minimum=0)
        if mask >= reader.integer("vocab_size"):
            reader.fail("pard_token", mask, f"an integer below {reader.get('vocab_size')}")
        model = _load_model(directory, dtype)
        try:
            return cls(model, mask_token_id=mask, num_slots=num_slots).eval()
        except ValueError as error:
            if num_slots < 1:
                raise
            raise FormatError(f"{reader.path}: {error}; this checkpoint cannot be loaded") from None

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the model, with `pard_token` in its config.json.

        Raises:
            OSError: the directory cannot be written.
        """
        self.model.config.pard_token = self.mask_token_id
        with staged_folder(Path(directory), last=CONFIG_NAME) as folder:
            self.model.save_pretrained(folder)


def _load_model(directory: Path, dtype: torch.dtype | None) -> PreTrainedModel:
    """The LM, if the files have all of its tensors and no others.

    Raises:
        FormatError: otherwise.
    """
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, output_loading_info=True, dtype=dtype or "auto",
            attn_implementation="sdpa",
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise FormatError(f"{directory}: cannot be loaded ({error}); copy it again") from error
    model: PreTrainedModel
    model, report = loaded
    for key, verb in (("missing_keys", "lacks"), ("unexpected_keys", "has unknown tensors")):
        if names := sorted(report[key]):
            raise FormatError(
                f"{directory}: {verb} {', '.join(names[:3])}; expected the tensors of the model in "
                f"{CONFIG_NAME}; copy the checkpoint again"
            )
    return model

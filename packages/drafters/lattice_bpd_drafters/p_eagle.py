"""PEagleDrafter: an EAGLE-3 head that drafts all slots in one forward (P-EAGLE).

    row of position i:  embedding of token i + 1,  fc(features of position i)
    masks:              embedding of the mask,     fc(mask_hidden)

    first layer: attention over [input_layernorm(embedding) ; hidden_norm(fc)] -> + fc -> MLP
    other layers as in Llama or Qwen3;   norm -> output embedding

EAGLE-3: Li et al. 2025, arXiv 2503.01840. P-EAGLE: arXiv 2602.01469.

Files are those of vLLM's speculators library. config.json has `speculators_model_type` "peagle",
the config of the layers in `transformer_layer_config` without the defaults of its class, and
`eagle_aux_hidden_state_layer_ids`, in which 0 is the output of the embedding: greater by one than
layer ids elsewhere. Its number of slots is that of its proposal method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.lm_call import pass_cache
from lattice_bpd_drafters.cache import LayerCache, Unread
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    ConfigReader,
    check_tensors,
    read_config_json,
    read_tensors,
    write_checkpoint,
)
from lattice_bpd_drafters.parallel import ParallelDrafter, check_layers


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


_KIND = "peagle"
_MODEL_TYPES = ("llama", "qwen3")
_UNUSED_TENSORS = frozenset({"t2d", "verifier_lm_head.weight", "verifier_norm.weight"})
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm")
# Older spellings that `transformers` translates, and bookkeeping.
_LAYER_OPTIONS = frozenset({
    "model_type", "rope_theta", "rope_scaling", "torch_dtype", "_name_or_path", "auto_map",
    "transformers_version",
})  # fmt: skip


class PEagleFiles(NamedTuple):
    """A checkpoint.

    Attributes:
        path: of the tensors, for messages.
        fields: of PEagleConfig.
        tensors: by the names of the state dict.
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Tensor]

    def check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise FormatError unless the tensors have the shapes of a drafter's state dict."""
        check_tensors(self.path, self.tensors, shapes)
        _check_d2t(self.path, self.tensors.get("d2t"), self.fields["layers"].vocab_size)


def read_p_eagle(directory: Path, num_slots: int | None) -> PEagleFiles:
    """Read the files of a checkpoint; `PEagleFiles.check` completes the checks.

    Raises:
        FormatError: files that are missing, damaged or of another format.
    """
    content = read_config_json(directory)
    reader = ConfigReader(directory / CONFIG_NAME, content)
    if reader.get("speculators_model_type", None) != _KIND:
        reader.fail("speculators_model_type", content.get("speculators_model_type"), repr(_KIND))
    layers = _read_layers(reader)
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden_layers": tuple(
            one - 1 for one in reader.integers("eagle_aux_hidden_state_layer_ids")
        ),
        "mask_token_id": reader.integer("mask_token_id", minimum=0),
        "num_slots": _read_num_slots(reader) if num_slots is None else num_slots,
        "draft_vocab_size": reader.integer("draft_vocab_size"),
        **{name: reader.boolean(name, False) for name in _FLAGS},
    }
    reader.require("target_hidden_size", [layers.hidden_size])
    # norm_output: of steps that read the states of earlier steps, which P-EAGLE does not have.
    reader.ignore("norm_output", "embed_requires_grad", "speculators_version", "speculators_config")
    reader.finish()
    if fields["mask_token_id"] >= layers.vocab_size:
        reader.fail("mask_token_id", fields["mask_token_id"], f"0..{layers.vocab_size - 1}")
    if fields["norm_before_fc"] and fields["fc_norm"]:
        reader.fail("fc_norm", True, "false, as norm_before_fc is true")
    if fields["draft_vocab_size"] == layers.vocab_size:
        fields["draft_vocab_size"] = None
    path, stored = read_tensors(directory)
    tensors = {name: value for name, value in stored.items() if name not in _UNUSED_TENSORS}
    if fields["draft_vocab_size"] is None:
        tensors.pop("d2t", None)
    fields["has_own_embedding"] = "embed_tokens.weight" in tensors
    if layers.num_hidden_layers > len(tensors):  # before layers of that number are built
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected those of {layers.num_hidden_layers} "
            f"layers, as {CONFIG_NAME} says; copy the checkpoint again"
        )
    return PEagleFiles(path, fields, tensors)


def save_p_eagle(
    config: PEagleConfig, tensors: dict[str, Tensor], directory: Path, verifier: str | None
) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
    """
    layers = config.layers
    stored = dict(tensors)
    if "d2t" in stored:
        d2t = stored["d2t"].cpu()
        stored["t2d"] = torch.zeros(layers.vocab_size, dtype=torch.bool, device="cpu")
        stored["t2d"][d2t + torch.arange(len(d2t), device=d2t.device)] = True
    method = {"proposal_type": "greedy", "speculative_tokens": config.num_slots}
    content: dict[str, Any] = {
        "architectures": ["PEagleSpeculator"], "speculators_model_type": _KIND,
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": _KIND, "proposal_methods": [method], "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": {**layers.to_diff_dict(), "model_type": layers.model_type},
        "draft_vocab_size": config.draft_vocab_size or layers.vocab_size,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.hidden_layers],
        "mask_token_id": config.mask_token_id,
        **{name: getattr(config, name) for name in _FLAGS},
        "tie_word_embeddings": False,
        "dtype": str(tensors["fc.weight"].dtype).removeprefix("torch."),
    }  # fmt: skip
    write_checkpoint(directory, content, stored)


def _read_layers(reader: ConfigReader) -> PretrainedConfig:
    """The config in `transformer_layer_config`."""
    nested = reader.nested("transformer_layer_config")
    kind = nested.get("model_type")
    if kind not in _MODEL_TYPES:
        nested.fail("model_type", kind, " or ".join(map(repr, _MODEL_TYPES)))
    options = {key: value for key, value in nested.content.items() if key != "model_type"}
    try:
        config: PretrainedConfig = AutoConfig.for_model(kind, **options)
        check_layers(config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{reader.path}: transformer_layer_config: {error}; this checkpoint cannot be loaded"
        ) from error
    nested.ignore(*type(config)().to_dict(), *_LAYER_OPTIONS)
    nested.finish()
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                 "num_key_value_heads", "intermediate_size"):  # fmt: skip
        nested.integer(name, getattr(config, name))
    return config


def _read_num_slots(reader: ConfigReader) -> int:
    """`speculative_tokens` of the default proposal method."""
    nested = reader.nested("speculators_config")
    name, methods = nested.get("default_proposal_method", None), nested.get("proposal_methods", [])
    for method in methods if isinstance(methods, list) else []:
        part = ConfigReader(reader.path, method, "speculators_config.proposal_methods.")
        if part.get("proposal_type", None) == name:
            count: int = part.integer("speculative_tokens")
            return count
    return nested.fail("proposal_methods", methods, f"a method {name!r}; or give num_slots")


def _check_d2t(path: Path, d2t: Tensor | None, vocab_size: int) -> None:
    """Raise FormatError if a draft id's target id is outside of the vocabulary."""
    if d2t is None:
        return
    targets = d2t + torch.arange(len(d2t), device=d2t.device)
    if targets.min() < 0 or targets.max() >= vocab_size:
        raise FormatError(
            f"{path}: d2t leads to target ids {int(targets.min())}..{int(targets.max())}; expected "
            f"0..{vocab_size - 1} (target id = draft id + d2t[draft id])"
        )

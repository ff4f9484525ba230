"""BlockDrafter: drafts a block of tokens in one pass from the target's hidden states.

    features of positions 0 .. p-1   -> fc, hidden_norm -> keys and values of the context
    block  [anchor at p] [mask] .. [mask]               -> queries, keys and values of the block

    layer: block attends to context and block -> MLP;   norm -> output embedding of the target

The context's vectors are the same in all layers and skip `input_layernorm`. Its keys and values are
functions of exact tokens, so they are kept (`cache`); those of the block are not. Positions are
absolute, the anchor's is that of its token.

DFlash (Chen et al. 2026, arXiv 2602.06036) with bidirectional blocks, and the causal and next-token
variants of JetSpec (arXiv 2606.18394) and DSpark (arXiv 2607.05147). With a scorer (`scorers`),
`lattice` gives candidates with transition scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.cache import BlockCache
from lattice_bpd_drafters.config import BlockDrafterConfig, checked_embeddings
from lattice_bpd_drafters.formats import FORMATS, find_format
from lattice_bpd_drafters.heads import OnePassHeads
from lattice_bpd_drafters.layers import (
    BlockDrafterLayer,
    RMSNorm,
    rotary,
    visible_in_cache,
)
from lattice_bpd_drafters.lilicorr import LiLiCorrScorer
from lattice_bpd_drafters.scorers import MarkovHead, add_scorer, block_lattice
from lattice_bpd_drafters.selector import CandidateSelector


class BlockDrafter(OnePassHeads, nn.Module):
    """Drafts the tokens after an anchor, the last exact token, in one pass.

    The parameters have the names of the z-lab format. The target's embeddings are used, not owned:
    `attach` gives them.

    Args:
        config: sizes and conventions.

    Raises:
        ValueError: a config whose values do not fit together.
    """

    def __init__(self, config: BlockDrafterConfig) -> None:
        super().__init__()
        config.check()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(config.feature_size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps=eps)
        self.layers = nn.ModuleList(BlockDrafterLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(size, eps=eps)
        vocab_size = config.vocab_size or 0  # of its own embeddings, which need one
        draft_size = config.draft_vocab_size or vocab_size
        self.embed_tokens = nn.Embedding(vocab_size, size) if config.has_own_embedding else None
        self.lm_head = nn.Linear(size, draft_size, bias=False) if config.has_own_output else None
        self.mask_embedding = nn.Parameter(torch.zeros(size)) if config.has_mask_embedding else None
        self.d2t: Tensor | None
        reduced = config.draft_vocab_size is not None
        self.register_buffer("d2t", torch.zeros(draft_size, dtype=torch.int64) if reduced else None)
        self.candidate_selector: CandidateSelector | None
        self.markov_head: MarkovHead | None
        self.lilicorr: LiLiCorrScorer | None
        add_scorer(self, config)
        self._shared: tuple[nn.Module, ...] = ()  # a tuple, so that they are no submodules

    @property
    def num_slots(self) -> int:
        """H, predicted positions of a block."""
        return self.config.num_slots

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The target's layers whose outputs are read; see BlockDrafterConfig."""
        return self.config.hidden_layers

    @property
    def scores_transitions(self) -> bool:
        """Whether the slots are a lattice with transition scores."""
        return self.config.scorer is not None

    def attach(self, target: PreTrainedModel) -> None:
        """Use the input and output embeddings of the target.

        Raises:
            ValueError: a target of another vocabulary or width, or with too few layers.
        """
        self._shared = checked_embeddings(target, self.config)
        if self.config.vocab_size is None:
            rows = cast(Tensor, self._shared[0].weight).shape[0]
            self.config = replace(self.config, vocab_size=rows)
            self.config.check()

    def new_cache(self, batch: int, *, capacity: int | None = None) -> BlockCache:
        """The cache of `batch` empty sequences.

        Args:
            batch: sequences.
            capacity: positions of each, a block included, of a static cache; None: it grows.
        """
        config, weight = self.config, self.fc.weight
        return BlockCache(
            config.num_layers, batch, config.num_kv_heads, config.head_dim,
            capacity=capacity, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip

    def cache_of(self, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> BlockCache:
        """A cache over keys and values that are kept elsewhere; see `BlockCache.of`."""
        return BlockCache.of(keys, values, lengths)

    @torch.no_grad()
    def append(
        self,
        cache: BlockCache,
        features: Tensor,
        lengths: Sequence[int],
        token_ids: Tensor | None = None,  # noqa: ARG002
    ) -> None:
        """Add the context of exact tokens that the target has read.

        Args:
            cache: of the B sequences; grows by `lengths`.
            features: (B, m, n*D_target) float, the target's hidden states at the positions
                after those in the cache, padded on the right.
            lengths: valid rows of each sequence, 0..m.
            token_ids: of those positions, for drafters that read tokens; not used here.

        Raises:
            ValueError: other shapes, or a static cache that is full.
        """
        expected = (cache.batch, features.shape[1], self.config.feature_size)
        if tuple(features.shape) != expected or len(lengths) != cache.batch:
            raise ValueError(
                f"BlockDrafter.append: features has shape {tuple(features.shape)} and lengths "
                f"{len(lengths)} numbers; expected {expected} and {cache.batch}, for the layers "
                f"{self.hidden_layers}"
            )
        if not all(0 <= length <= features.shape[1] for length in lengths):
            raise ValueError(
                f"BlockDrafter.append: lengths is {list(lengths)}; expected 0..{features.shape[1]}"
            )
        device = self.fc.weight.device
        starts = torch.tensor(cache.lengths, device=device)[:, None]
        positions = starts + torch.arange(features.shape[1], device=device)
        context, keys, values = self.read_context(features, positions)
        cache.append(keys, values, lengths)
        if self.lilicorr is not None:
            cache.keep_newest(context, lengths)

    @torch.no_grad()
    def read_context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the cache keeps of exact tokens, for callers with a cache of their own.

        Args:
            features: (B, m, n*D_target) float, see `append`.
            positions: (B, m) int64, of the tokens in their texts.

        Returns:
            The context vectors (B, m, D), and keys and values of all layers, each (layers, B,
            kv_heads, m, head_dim).
        """
        context = self._context(features)
        angles = rotary(positions, self.config, context.dtype)
        pairs = [layer.context(context, angles) for layer in self._layers()]
        keys, values = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        return context, keys, values

    @torch.no_grad()
    def draft_states(self, cache: BlockCache, anchors: Tensor) -> Tensor:
        """The states that predict the tokens after the anchors.

        Args:
            cache: of the B sequences, up to the token before the anchor; not changed.
            anchors: (B,) int64, the last exact tokens, which the target has not read.

        Returns:
            (B, H, D) float, for `logits`.

        Raises:
            RuntimeError: `attach` was not called.
            ValueError: a static cache without positions for a block.
        """
        size = self.config.block_size
        states = self._embed(anchors)
        starts = torch.tensor(cache.lengths, device=states.device)[:, None]
        positions = starts + torch.arange(size, device=states.device)
        cache.reserve(max(cache.lengths, default=0) + size)
        end = cache.visible_positions(size)
        angles = rotary(positions, self.config, states.dtype)
        # Sequences of one length fill what is read; then bidirectional layers need no mask.
        is_filled = not cache.is_static and len(set(cache.lengths)) <= 1
        masks: dict[tuple[bool, int | None], Tensor | None] = {}
        if is_filled:
            masks[False, None] = None
        for number, layer in enumerate(self._layers()):
            kind = self._kind(number)
            if kind not in masks:
                masks[kind] = visible_in_cache(positions, end, causal=kind[0], window=kind[1])
            queries, keys, values = layer.project(states, angles)
            keys, values = cache.with_block(number, keys, values, positions)
            states = layer.finish(states, queries, keys, values, masks[kind])
        return self._slots(states)

    @property
    def output_embedding(self) -> nn.Module:
        """Its own output embedding or the target's, without `logit_scale`.

        Raises:
            RuntimeError: the target's is needed and `attach` was not called.
        """
        return self.lm_head if self.lm_head is not None else self._target_embedding(1)

    def logits(self, states: Tensor) -> Tensor:
        """(.., V) or (.., draft V) logits of states (.., D), by the output embedding.

        Raises:
            RuntimeError: the target's is needed and `attach` was not called.
        """
        output = self.output_embedding
        logits: Tensor = output(states.to(cast(Tensor, output.weight).dtype))
        scale, cap = self.config.logit_scale, self.config.logit_softcap
        logits = logits if scale == 1.0 else logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @torch.no_grad()
    def lattice(
        self, cache: BlockCache, anchors: Tensor, *, top_k: int | None = None
    ) -> LatticeInput:
        """Candidates of the slots after the anchors, with transition scores.

        Args:
            cache: of the B sequences, up to the token before the anchor; not changed.
            anchors: (B,) int64, the last exact tokens, which the target has not read.
            top_k: k, candidates of a slot; None: as the config says.

        Returns:
            Tensors on the drafter's device, scores float32.

        Raises:
            RuntimeError: `attach` was not called.
            ValueError: a drafter without a scorer, or top_k out of range.
        """
        return block_lattice(self, cache, anchors, top_k)

    def embed_candidates(self, token_ids: Tensor) -> Tensor:
        """(.., D) float, the target's input embeddings of tokens."""
        return _look_up(self._target_embedding(0), token_ids)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of indices into `logits`, of any shape, int64."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    @classmethod
    def from_pretrained(
        cls, directory: str | Path, *, dtype: torch.dtype | None = None
    ) -> BlockDrafter:
        """Read a checkpoint of any format of `formats`, on the CPU, in evaluation mode.

        Args:
            directory: of the checkpoint.
            dtype: of the parameters; None: that of the file's `fc.weight`.

        Raises:
            FormatError: files that are missing, damaged, of another format or kind of drafter, or
                do not fit each other.
        """
        checkpoint = FORMATS[find_format(directory)].read(directory)
        with torch.device("meta"):  # allocates nothing
            drafter = cls(checkpoint.config)
        drafter.load_state_dict(checkpoint.tensors, assign=True)
        return drafter.to(dtype or checkpoint.tensors["fc.weight"].dtype).eval()

    def save_pretrained(self, directory: str | Path, *, format: str = "z-lab") -> None:  # noqa: A002
        """Write a checkpoint; the target's embeddings are not in it.

        Args:
            directory: made where it is missing.
            format: "z-lab", "speculators", "deepspec" or "muse-glimmer".

        Raises:
            OSError: the directory cannot be written.
            ValueError: an unknown format, or a drafter that the format cannot hold.
        """
        if format not in FORMATS:
            raise ValueError(
                f"BlockDrafter.save_pretrained: format is {format!r}; expected one of "
                f"{', '.join(FORMATS)}"
            )
        FORMATS[format].save(self, directory)

    def _context(self, features: Tensor) -> Tensor:
        """(B, m, D) context vectors of features (B, m, n*D_target)."""
        context: Tensor = self.hidden_norm(self.fc(features.to(self.fc.weight)))
        return context

    def _embed(self, anchors: Tensor) -> Tensor:
        """(B, K, D) block inputs after anchor tokens (B,): anchor, masks."""
        own, masks = self.embed_tokens, self.config.block_size - 1
        embedding = own if own is not None else self._target_embedding(0)
        embedded = _look_up(embedding, anchors).to(self.fc.weight).unsqueeze(1)
        mask: Tensor | None = self.mask_embedding
        if mask is None:
            mask_id = anchors.new_tensor(self.config.mask_token_id)
            mask = _look_up(embedding, mask_id).to(self.fc.weight)
        block = torch.cat([embedded, mask.expand(len(anchors), masks, -1)], dim=1)
        scale = self.config.embedding_scale
        return block if scale == 1.0 else block * scale

    def _slots(self, states: Tensor) -> Tensor:
        """The states that predict, (B, H, D), after the final norm.

        In the fill-in layout the anchor's output predicts nothing.
        """
        normed: Tensor = self.norm(states[:, states.shape[1] - self.num_slots :])
        return normed

    def _kind(self, layer: int) -> tuple[bool, int | None]:
        """Causality and window of a layer: layers of one kind have one mask."""
        window = self.config.sliding_window if self.config.is_sliding(layer) else None
        return self.config.is_causal(layer), window

    def _layers(self) -> Iterator[BlockDrafterLayer]:
        return cast("Iterator[BlockDrafterLayer]", iter(self.layers))

    def _target_embedding(self, number: int) -> nn.Module:
        """The target's input (0) or output (1) embedding."""
        if not self._shared:
            raise RuntimeError(
                "BlockDrafter: has no target whose embeddings it could use; call attach(target)"
            )
        return self._shared[number]


def _look_up(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    """Embeddings of tokens, without the norm that some targets have in their embedding.

    Drafters are trained without it (`embed_norm` of Muse-Glimmer); scales are applied.
    """
    if hasattr(embedding, "embed_norm"):
        return F.embedding(token_ids, cast(Tensor, embedding.weight))
    embedded: Tensor = embedding(token_ids)
    return embedded

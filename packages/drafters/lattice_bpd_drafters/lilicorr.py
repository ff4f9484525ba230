"""LiLiCorr: cosines of vectors that attention over all candidates of a block computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.config import LiLiCorrConfig
from lattice_bpd_drafters.selector import SlotCandidates


class CandidateMLP(nn.Module):
    """Two linear layers with SiLU between them.

    Args:
        size: of the input.
        inner_size: between the layers.
        output_size: of the output.
    """

    def __init__(self, size: int, inner_size: int, output_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(size, inner_size)
        self.down_proj = nn.Linear(inner_size, output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """(.., output_size) of (.., size)."""
        output: Tensor = self.down_proj(F.silu(self.up_proj(inputs)))
        return output


class CandidateAttention(nn.Module):
    """Bidirectional attention with a bias per head; its parameters are named as torch's.

    Args:
        size: w.
        num_heads: attention heads.
    """

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, nodes: Tensor, bias: Tensor) -> Tensor:
        """(B, N, w) of nodes (B, N, w) and biases (heads, N, N)."""
        batch, count, width = nodes.shape
        joined = F.linear(nodes, self.in_proj_weight, self.in_proj_bias)
        queries, keys, values = (
            part.view(batch, count, self.num_heads, -1).transpose(1, 2)
            for part in joined.chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(batch, count, width))
        return output


class CandidateLayer(nn.Module):
    """Attention and MLP, each after an RMSNorm and with a residual connection.

    Args:
        config: sizes.
        rms_norm_eps: of both norms.
    """

    def __init__(self, config: LiLiCorrConfig, rms_norm_eps: float) -> None:
        super().__init__()
        size = config.hidden_size
        self.attn_norm = nn.RMSNorm(size, eps=rms_norm_eps)
        self.attn = CandidateAttention(size, config.num_heads)
        self.mlp_norm = nn.RMSNorm(size, eps=rms_norm_eps)
        self.mlp = CandidateMLP(size, config.inner_size, size)

    def forward(self, nodes: Tensor, bias: Tensor) -> Tensor:
        """(B, N, w) of nodes (B, N, w); see CandidateAttention for the bias."""
        nodes = nodes + self.attn(self.attn_norm(nodes), bias)
        output: Tensor = nodes + self.mlp(self.mlp_norm(nodes))
        return output


NUM_FEATURES = 5  # of a candidate


class LiLiCorrScorer(nn.Module):
    """Scores of candidate j of slot s + 1 after candidate i of slot s, lambda * <out[s,i], in[..]>.

        x = token_proj(E) + pass_hidden_proj(h) + f + slot_embedding + rank_embedding -> layers
        a = anchor_norm(context_proj(g)), g the context vector of the token before the anchor
        z = SiLU(factor_input_proj([x; a; x * a]))
        out, in = unit(out_head z), unit(in_head z);  before slot 0: out = unit(anchor_out_head a)

    f is a function of a candidate's log probability over the whole vocabulary and of its rank. The
    log probability is not added to the scores. At the start of a text there is no g and a is 0.
    All norms but `feature_norm` (a LayerNorm with eps 1e-5) are RMSNorms with the drafter's eps.

    Args:
        config: sizes, lambda and the eps of unit vectors.
        hidden_size: D of drafter and target.
        block_size: K, with K - 1 slots.
        rms_norm_eps: of the drafter.

    Source: LiLiCorr (arXiv 2608.20530), vLLM `lilicorr.py`, Model-Optimizer.
    """

    def __init__(
        self, config: LiLiCorrConfig, hidden_size: int, block_size: int, rms_norm_eps: float
    ) -> None:
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, rms_norm_eps
        is_same = width == hidden_size
        self.token_proj = nn.Identity() if is_same else nn.Linear(hidden_size, width)
        self.pass_hidden_proj = nn.Linear(hidden_size, width)
        self.context_proj = nn.Linear(hidden_size, width)
        self.feature_norm = nn.LayerNorm(NUM_FEATURES)
        self.feature_mlp = CandidateMLP(NUM_FEATURES, width, width)
        self.slot_embedding = nn.Parameter(torch.zeros(1, 1, block_size - 1, 1, width))
        self.rank_embedding = nn.Parameter(torch.zeros(1, 1, 1, config.top_k, width))
        self.relative_slot_bias = nn.Parameter(torch.zeros(config.num_heads, 2 * block_size - 1))
        self.same_slot_bias = nn.Parameter(torch.zeros(config.num_heads))
        self.layers = nn.ModuleList(CandidateLayer(config, eps) for _ in range(config.num_layers))
        self.output_norm = nn.RMSNorm(width, eps=eps)
        self.anchor_norm = nn.RMSNorm(width, eps=eps)
        self.factor_input_proj = nn.Linear(3 * width, width)
        self.out_head = nn.Linear(width, config.factor_size)
        self.in_head = nn.Linear(width, config.factor_size)
        self.anchor_out_head = nn.Linear(width, config.factor_size)
        for head in (self.out_head, self.in_head, self.anchor_out_head):
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)

    def forward(
        self, slots: SlotCandidates, embeddings: Tensor, context: Tensor, has_context: Tensor
    ) -> LatticeInput:
        """The lattice of B blocks, locally normalized; see LatticeInput.

        Args:
            slots: at most `top_k` candidates each.
            embeddings: (B, H, k, D) float, the target's of the candidates.
            context: (B, D) float, g.
            has_context: (B,) bool, False where there is no g.
        """
        log_probs = slots.logits - slots.log_total
        nodes = self._contextual(slots, embeddings, log_probs)  # (B, H, k, w)
        anchor = self.anchor_norm(self.context_proj(context.to(nodes.dtype)))
        anchor = anchor * has_context.unsqueeze(-1)
        wide = anchor[:, None, None].expand_as(nodes)
        hidden = F.silu(self.factor_input_proj(torch.cat([nodes, wide, nodes * wide], dim=-1)))
        outgoing, incoming = self._unit(self.out_head(hidden)), self._unit(self.in_head(hidden))
        first = self._unit(self.anchor_out_head(anchor))
        scale = self.config.logit_scale
        start = scale * (incoming[:, 0] @ first.unsqueeze(-1)).squeeze(-1)
        transitions = scale * (outgoing[:, :-1] @ incoming[:, 1:].transpose(-1, -2))
        return LatticeInput(
            slots.token_ids, log_probs, start, transitions, unary="replaced", normalization="local"
        )

    def _contextual(self, slots: SlotCandidates, embeddings: Tensor, log_probs: Tensor) -> Tensor:
        """x of all candidates after the layers, (B, H, k, w)."""
        num_slots, top_k = log_probs.shape[1:]
        dtype = self.pass_hidden_proj.weight.dtype
        nodes = self.token_proj(embeddings.to(dtype))
        nodes = nodes + self.pass_hidden_proj(slots.states.to(dtype)).unsqueeze(2)
        features = self.feature_norm(candidate_features(log_probs).to(dtype))
        nodes = nodes + self.feature_mlp(features)
        nodes = (
            nodes + self.slot_embedding[0, :, :num_slots] + self.rank_embedding[0, ..., :top_k, :]
        )
        bias = self._attention_bias(num_slots, top_k)
        flat = nodes.flatten(1, 2)
        for layer in self.layers:
            flat = layer(flat, bias)
        output: Tensor = self.output_norm(flat).view(nodes.shape)
        return output

    def _attention_bias(self, num_slots: int, top_k: int) -> Tensor:
        """(heads, H*k, H*k), added to the attention scores of queries (rows) and keys."""
        slots = torch.arange(num_slots, device=self.same_slot_bias.device)
        distance = slots[:, None] - slots
        zero = self.relative_slot_bias.shape[1] // 2  # K - 1
        bias = self.relative_slot_bias[:, distance + zero]
        bias = bias + self.same_slot_bias[:, None, None] * (distance == 0)
        return bias.repeat_interleave(top_k, dim=1).repeat_interleave(top_k, dim=2)

    def _unit(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors.float(), dim=-1, eps=self.config.vector_eps)


def candidate_features(log_probs: Tensor) -> Tensor:
    """(B, H, k, 5) float32 of log probabilities (B, H, k), best first.

    They are log p, p, log p - the slot's greatest log p, rank / (k - 1), and 1 for rank 0.
    """
    top_k = log_probs.shape[-1]
    ranks = torch.arange(top_k, device=log_probs.device).expand_as(log_probs)
    best = log_probs.amax(dim=-1, keepdim=True)
    return torch.stack(
        [log_probs, log_probs.exp(), log_probs - best, ranks / max(top_k - 1, 1), ranks == 0],
        dim=-1,
    )

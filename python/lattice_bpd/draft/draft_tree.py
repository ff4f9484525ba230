"""Drafts as one tree: every prefix once, for a single row of tree attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DraftTree:
    """The N most probable prefixes of each lattice of a batch, as trees.

    A path w has probability P(w) = exp(score(w)) / Z, where Z sums over all paths of the lattice;
    the probability of a prefix is the sum over all paths that begin with it. Nodes are sorted by
    descending probability, ties by the smaller token id at the first differing position. So
    parents precede their children, the first n nodes are the tree for ``max_nodes=n``, and no
    other tree of N nodes has more probability: ``exp(log_probs).sum()`` is the expected number of
    tokens that the tree shares with a path sampled from P.

    Arrays are numpy arrays for numpy logits, and torch tensors on the logits' device for torch
    logits. Row b has ``counts[b]`` nodes; other entries are padding.

    Attributes:
        token_ids: (B, N) int32, a node's last token; -1 (``DraftTree.PAD_TOKEN``) in the padding.
        parents: (B, N) int32, the node of the prefix without its last token; -1 for the first
            tokens and in the padding.
        depths: (B, N) int32, the slot of a node's token, 0..H-1; slot 0 is the position after the
            context. 0 in the padding.
        log_probs: (B, N) float32, natural log of a node's probability; -inf in the padding.
        counts: (B,) int32, the number of nodes: min(N, number of prefixes). 0 if all tokens of the
            first slot are masked.
        attention_mask: (B, N, N) bool, whether node i attends to node k: k is i or its ancestor.
            Padding attends to itself only. All nodes attend to the whole context.
        leaf_paths: (B, L, H) int32, the nodes from a first token to each leaf, sorted by leaf; -1
            after a path's end and after the last leaf.
    """

    token_ids: Any
    parents: Any
    depths: Any
    log_probs: Any
    counts: Any
    attention_mask: Any
    leaf_paths: Any

    PAD_TOKEN = -1

    def __repr__(self) -> str:
        """Shape, and the tree of the first lattice, a line for each of its best leaves."""
        batch, max_nodes = self.token_ids.shape
        lines = [f"DraftTree(batch {batch}, up to {max_nodes} nodes)"]
        for path in self.leaf_paths[0].tolist()[:4] if batch else ():
            nodes = [node for node in path if node >= 0]
            tokens = [int(self.token_ids[0, node]) for node in nodes]
            if tokens:
                log_prob = float(self.log_probs[0, nodes[-1]])
                lines.append(f"  {tokens}, log probability {log_prob:.4f}")
        return "\n".join(lines)

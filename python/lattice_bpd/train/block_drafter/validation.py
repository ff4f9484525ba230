"""Block efficiency of a block drafter's most likely tokens, by simulation on greedy text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.features import read_features
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.train.block_drafter.losses import take_labels
from lattice_bpd.train.block_drafter.texts import BlockTexts

_BLOCKS = 256  # blocks per pass


class BlockScores(NamedTuple):
    """Scores on texts that the target generated.

    Attributes:
        block_efficiency: tokens per call of the target when the most likely token of each slot is
            drafted.
        accuracies: share of correct tokens of each slot, 1..H, at all positions.
        positions: number of anchors.
    """

    block_efficiency: float
    accuracies: list[float]
    positions: int

    def for_log(self) -> dict[str, Any]:
        """For the loss log, with accuracies by slot."""
        accuracies = {str(slot): share for slot, share in enumerate(self.accuracies, 1)}
        return {
            "block_efficiency": self.block_efficiency,
            "accuracies": accuracies,
            "positions": self.positions,
        }


@torch.no_grad()
def measure_drafter(
    drafter: BlockDrafter, target: PreTrainedModel, texts: BlockTexts, length: int
) -> BlockScores:
    """Simulates greedy decoding of texts.

    Args:
        drafter: attached to the target; its mode is restored.
        target: in evaluation mode.
        texts: greedy text of the target after `first_position`.
        length: tokens of each text that are read at most.
    """
    was_training = drafter.training
    drafter.eval()
    calls = tokens = 0
    matches = []
    for start, size in zip(texts.starts, np.minimum(texts.lengths, length), strict=True):
        ids = torch.as_tensor(texts.token_ids[start : start + size].astype(np.int64))[None]
        is_match = find_matches(drafter, target, ids.to(target.device), texts.first_position)
        steps = simulate(is_match)
        calls, tokens = calls + len(steps), tokens + sum(steps)
        matches.append(is_match)
    drafter.train(was_training)
    joined = np.concatenate(matches)
    return BlockScores(tokens / calls, joined.mean(0).tolist(), len(joined))


def simulate(is_match: npt.NDArray[np.bool_]) -> list[int]:
    """Tokens of each decoding step.

    Args:
        is_match: (N, H) bool, correct slots of the blocks at consecutive anchors.
    """
    steps, anchor = [], 0
    accepted = is_match.cumprod(axis=1).sum(axis=1)
    while anchor < len(accepted):
        steps.append(int(accepted[anchor]) + 1)
        anchor += steps[-1]
    return steps


def find_matches(
    drafter: BlockDrafter, target: PreTrainedModel, ids: Tensor, first: int
) -> npt.NDArray[np.bool_]:
    """Which slots are correct at consecutive anchors.

    Args:
        drafter: attached to the target.
        target: in evaluation mode.
        ids: (1, T) int64, a text of the target.
        first: the first anchor; the last is followed by H tokens.

    Returns:
        (N, H) bool.
    """
    features = read_features(target, ids, drafter.hidden_layers).features
    anchors = torch.arange(first, ids.shape[1] - drafter.num_slots, device=ids.device)[None]
    parts = []
    for part in torch.split(anchors, _BLOCKS, dim=1):
        logits = drafter.logits(drafter.train_states(features, ids, part))
        drafts = drafter.to_target_ids(logits.argmax(-1))
        parts.append(drafts == take_labels(ids, part, drafter.num_slots))
    matches: npt.NDArray[np.bool_] = torch.cat(parts, dim=1)[0].cpu().numpy()
    return matches

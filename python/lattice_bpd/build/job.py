"""What `lattice-bpd build` is to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lattice_bpd.build.bootstrap import FEWEST_TEXTS

FEWEST_CHATS = 3  # one each to train on, to fit the gates to and to measure
_HELD_OUT = 0.1  # of the conversations, to measure; as many to fit the gates


@dataclass(frozen=True)
class BuildJob:
    """Inputs and options of `build_drafter`.

    Attributes:
        output: folder of the drafter; also keeps what an interrupted run continues from.
        prompts: files, see `read_chats`.
        responses: files of conversations with the model's own responses, which are not generated.
        server: address of a server that generates the responses; None: the model does.
        server_model: name that the server has for the model; None: as found.
        chat: whether prompts go through the model's chat template, where it has one.
        max_new_tokens: most tokens of a response.
        order: of the n-gram LM of the responses.
        smoothing: of it.
        max_bytes: size that it is pruned to; None: as it is.
        lms: files of further n-gram LMs over the model's token ids.
        costs: file of the times of another engine's steps, see `read_costs`; it verifies a single
            path. None: measured here.
        heads: whether to train draft heads.
        epochs: of the heads' training.
        keep_heads: keep the heads whatever they gain.
        seconds: of the whole build, to which the number of prompts is fitted; None: all prompts.
        batch_size: rows of a batch of responses, or requests to a server at a time.
        live_prompts: held-out prompts that are decoded in the end.
    """

    output: Path
    prompts: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()
    server: str | None = None
    server_model: str | None = None
    chat: bool = True
    max_new_tokens: int = 128
    order: int = 5
    smoothing: str = "modified_kneser_ney"
    max_bytes: int | None = None
    lms: tuple[Path, ...] = ()
    costs: Path | None = None
    heads: bool = False
    epochs: float = 6.0
    keep_heads: bool = False
    seconds: float | None = None
    batch_size: int = 64
    live_prompts: int = 20


def split_chats(chats: Sequence[int]) -> tuple[set[int], set[int], set[int]]:
    """Conversations to train on, to fit the gates to, and to measure, at random.

    Args:
        chats: indices of conversations.
    """
    order = np.random.default_rng(1).permutation(np.array(chats, int)).tolist()
    count = max(1, round(_HELD_OUT * len(order)), min(FEWEST_TEXTS, len(order) // 3))
    return set(order[2 * count :]), set(order[count : 2 * count]), set(order[:count])

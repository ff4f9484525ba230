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
        responses: conversations with the model's own responses, such as logs of a server, in the
            formats of prompts; nothing is generated for them.
        server: a running server of the model answers the prompts, many at a time: one with
            OpenAI's API, such as http://localhost:8000; OPENAI_API_KEY is its key. None: the model
            does.
        server_model: name that the server has for the model. None: that of the first model that it
            lists.
        chat: whether prompts go through the model's chat template, where it has one.
        max_new_tokens: most tokens of a response.
        order: of the n-gram LM of the responses.
        smoothing: of the n-gram LM.
        max_bytes: prunes the n-gram LM to this size, such as 4M. None: as it is.
        lms: further n-gram LMs, of ngram train --model MODEL.
        costs: JSON with milliseconds of a step of the engine that will serve, by draft tokens, such
            as {"0": 21.5, "4": 24}; it verifies a single path. None: times measured here.
        heads: whether to train draft heads too.
        epochs: of the heads' training.
        keep_heads: train heads, and keep them whatever they gain.
        seconds: time of the whole build, such as 20m: uses as many prompts as fit. None: all.
        batch_size: responses, or requests to a server, at a time.
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

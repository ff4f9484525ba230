"""Replays of recordings against live decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lattice_bpd.decode import DecodeResult
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.replay.strategies import STRATEGIES


def check_replay(
    recording: Recording, name: str, rescorers: Rescorers, options: DraftConfig,
    decode: Callable[[int, Any], DecodeResult],
) -> Replayed:  # fmt: skip
    """A replay has the calls, accepted tokens and nodes of decoding each text.

    Args:
        recording: of greedy outputs.
        name: of the strategy.
        rescorers: of the strategy.
        options: of the strategy.
        decode: decodes the prompt of a number with a drafter.
    """
    replayed = recording.replay(STRATEGIES[name], rescorers, options)
    for number, text in enumerate(recording.texts):
        output = text.output.tolist()
        live = decode(number, STRATEGIES[name].make_drafter(rescorers, output, options))
        assert live.token_ids == output
        mine = replayed.texts == number
        assert replayed.calls[number] == live.stats.target_calls, (number, options)
        assert replayed.accepted[mine].tolist() == live.stats.accept_lengths
        assert replayed.nodes[mine].sum() == live.stats.verified_tokens
    assert replayed.block_efficiency == replayed.tokens.sum() / replayed.calls.sum()
    return replayed

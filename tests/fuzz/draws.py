"""Choices that a fuzzer's bytes make."""

from __future__ import annotations

import struct
from typing import Any


class Draws:
    """Choices from bytes; zeros where they end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        """0..255."""
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def rarely(self) -> bool:
        """True for one byte of sixteen."""
        return self.byte() >= 240

    def one_of(self, values: Any) -> Any:
        """One of the values."""
        return values[self.byte() % len(values)]

    def number(self) -> float:
        """Any float32, as its bits say."""
        return float(struct.unpack("<f", bytes(self.byte() for _ in range(4)))[0])

    def rest(self) -> bytes:
        """What no choice has used."""
        return self.data[self.at :]

"""Writes acceptors in OpenFst's binary format, without pywrapfst.

    header   magic, "vector", "standard", version, flags, properties, start, states, arcs
    state    final weight, number of arcs, arcs (input label, output label, weight, next state)

Little-endian; strings are prefixed by a 32-bit length. Labels are token id + 1, 0 is epsilon.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

_MAGIC = 2125659606
_VERSION = 2
_KNOWN_PROPERTIES = 0x3  # expanded, mutable; readers compute the others
_HEADER = struct.Struct("<iiQqqq")
_STATE = struct.Struct("<fq")
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("next", "<i4")])


def write_acceptor(
    final: npt.NDArray[np.float32], arcs: list[list[tuple[int, float, int]]]
) -> bytes:
    """Serialize an acceptor whose start is state 0.

    Args:
        final: (states,) costs, +inf for states that are not final.
        arcs: (label, cost, next state) of the arcs of each state.

    Returns:
        The bytes that `write_to_string` of a `pywrapfst.VectorFst` returns.
    """
    parts = [struct.pack("<i", _MAGIC), _string(b"vector"), _string(b"standard")]
    count = sum(map(len, arcs))
    parts.append(_HEADER.pack(_VERSION, 0, _KNOWN_PROPERTIES, 0, len(final), count))
    for cost, outgoing in zip(final.tolist(), arcs, strict=True):
        parts.append(_STATE.pack(cost, len(outgoing)))
        rows = [(label, label, weight, state) for label, weight, state in outgoing]
        parts.append(np.array(rows, _ARC).tobytes())
    return b"".join(parts)


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text

"""Reads and writes acceptors in OpenFst's binary format, without pywrapfst.

    header   magic, "vector", "standard", version, flags, properties, start, states, arcs
    state    final weight, number of arcs, arcs (input label, output label, weight, next state)

Little-endian; strings are prefixed by a 32-bit length. Labels are token id + 1, 0 is epsilon.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_MAGIC = 2125659606
_VERSION = 2
_KNOWN_PROPERTIES = 0x3  # expanded, mutable; the reader computes the others
_HEADER = struct.Struct("<iiQqqq")
_STATE = struct.Struct("<fq")
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("next", "<i4")])

_WHERE = "FstConstraint"


class Acceptor(NamedTuple):
    """A weighted acceptor.

    Attributes:
        start: start state; -1 if there are no states.
        final: (states,) float32 costs, +inf for states that are not final.
        arcs: the arcs of each state, a structured array with fields input, output, weight and next.
    """

    start: int
    final: npt.NDArray[np.float32]
    arcs: list[Any]


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


def read_acceptor(data: bytes) -> Acceptor:
    """Parse the acceptor in `data`.

    Raises:
        ValueError: not a vector FST over standard arcs, symbol tables, a transducer, or truncated
            bytes.
    """
    try:
        return _read(memoryview(data))
    except (struct.error, IndexError) as error:
        raise ValueError(
            f"{_WHERE}: the bytes are not a complete FST ({error}); expected those of "
            "write_to_string of a pywrapfst.VectorFst"
        ) from None


def _read(data: memoryview) -> Acceptor:
    (magic,) = struct.unpack_from("<i", data, 0)
    if magic != _MAGIC:
        raise ValueError(f"{_WHERE}: the bytes begin with {magic:#x}; expected an FST of OpenFst")
    kind, offset = _read_string(data, 4)
    arc_type, offset = _read_string(data, offset)
    version, flags, _, start, states, _ = _HEADER.unpack_from(data, offset)
    offset += _HEADER.size
    if (kind, arc_type, version) != (b"vector", b"standard", _VERSION):
        raise ValueError(
            f"{_WHERE}: the FST is of type {kind!r} over {arc_type!r} arcs, version {version}; "
            "expected b'vector' over b'standard' arcs, version 2; convert it with fst.convert"
        )
    if flags & 3:
        raise ValueError(f"{_WHERE}: the FST has symbol tables; expected none; clear them first")
    if not 0 <= states <= len(data) or not -1 <= start < states:
        raise struct.error(f"{states} states, start {start}")
    final, arcs = np.empty(states, np.float32), []
    for state in range(states):
        final[state], count = _STATE.unpack_from(data, offset)
        offset += _STATE.size
        if not 0 <= count * _ARC.itemsize <= len(data) - offset:
            raise struct.error(f"state {state} has {count} arcs")
        arcs.append(np.frombuffer(data, _ARC, count, offset))
        offset += count * _ARC.itemsize
        _check_arcs(arcs[-1], state, states)
    return Acceptor(start, final, arcs)


def _check_arcs(arcs: Any, state: int, states: int) -> None:
    if bool((arcs["input"] != arcs["output"]).any()):
        raise ValueError(
            f"{_WHERE}: state {state} has arcs with different input and output labels; "
            "expected an acceptor; project the transducer first"
        )
    if bool((arcs["next"] < 0).any() or (arcs["next"] >= states).any()):
        raise struct.error(f"state {state} has arcs to states that do not exist")


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text


def _read_string(data: memoryview, offset: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<i", data, offset)
    end = offset + 4 + length
    if not 0 <= length <= 64 or end > len(data):
        raise struct.error(f"a name of {length} bytes")
    return bytes(data[offset + 4 : end]), end

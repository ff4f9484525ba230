"""Acceptors in OpenFst's own file format, read and written without pywrapfst.

    header   magic, "vector", "standard", version, flags, properties, start, states, arcs
    state    final weight, number of arcs, arcs (input label, output label, weight, next state)

Little-endian; strings have a 32-bit length before them. Labels are token id + 1, 0 is epsilon.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_MAGIC = 2125659606
_VERSION = 2
_KNOWN_PROPERTIES = 0x3  # expanded, mutable: all others are to be found out by the reader
_HEADER = struct.Struct("<iiQqqq")
_STATE = struct.Struct("<fq")
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("next", "<i4")])

_WHERE = "FstConstraint"


class Acceptor(NamedTuple):
    """A weighted acceptor.

    Attributes:
        start: its start state; -1 where it has no state.
        final: (states,) float32 costs, +inf for states that are not final.
        arcs: of each state the labels, costs and next states: structured, fields input, output,
            weight and next.
    """

    start: int
    final: npt.NDArray[np.float32]
    arcs: list[Any]


def write_acceptor(
    final: npt.NDArray[np.float32], arcs: list[list[tuple[int, float, int]]]
) -> bytes:
    """An acceptor whose start is state 0.

    Args:
        final: (states,) costs, +inf for states that are not final.
        arcs: of each state (label, cost, next state).

    Returns:
        What `write_to_string` of a `pywrapfst.VectorFst` gives.
    """
    parts = [struct.pack("<i", _MAGIC), _string(b"vector"), _string(b"standard")]
    count = sum(map(len, arcs))
    parts.append(_HEADER.pack(_VERSION, 0, _KNOWN_PROPERTIES, 0, len(final), count))
    for cost, leaving in zip(final.tolist(), arcs, strict=True):
        parts.append(_STATE.pack(cost, len(leaving)))
        rows = [(label, label, weight, state) for label, weight, state in leaving]
        parts.append(np.array(rows, _ARC).tobytes())
    return b"".join(parts)


def read_acceptor(data: bytes) -> Acceptor:
    """The acceptor in `data`.

    Raises:
        ValueError: no vector FST over standard arcs, symbol tables, a transducer, or an end that
            comes too early.
    """
    try:
        return _read(memoryview(data))
    except (struct.error, IndexError) as error:
        raise ValueError(
            f"{_WHERE}: the bytes are no whole FST ({error}); expected those of "
            "write_to_string of a pywrapfst.VectorFst"
        ) from None


def _read(data: memoryview) -> Acceptor:
    (magic,) = struct.unpack_from("<i", data, 0)
    if magic != _MAGIC:
        raise ValueError(f"{_WHERE}: the bytes begin with {magic:#x}; expected an FST of OpenFst")
    kind, place = _read_string(data, 4)
    arc_type, place = _read_string(data, place)
    version, flags, _, start, states, _ = _HEADER.unpack_from(data, place)
    place += _HEADER.size
    if (kind, arc_type, version) != (b"vector", b"standard", _VERSION):
        raise ValueError(
            f"{_WHERE}: found an FST of type {kind!r} over {arc_type!r} arcs, version {version}; "
            "expected b'vector' over b'standard' arcs, version 2; convert it with fst.convert"
        )
    if flags & 3:
        raise ValueError(f"{_WHERE}: the FST has symbol tables; expected none; clear them first")
    if not 0 <= states <= len(data) or not -1 <= start < states:
        raise struct.error(f"{states} states, start {start}")
    final, arcs = np.empty(states, np.float32), []
    for state in range(states):
        final[state], count = _STATE.unpack_from(data, place)
        place += _STATE.size
        if not 0 <= count * _ARC.itemsize <= len(data) - place:
            raise struct.error(f"state {state} has {count} arcs")
        arcs.append(np.frombuffer(data, _ARC, count, place))
        place += count * _ARC.itemsize
        _check_arcs(arcs[-1], state, states)
    return Acceptor(start, final, arcs)


def _check_arcs(arcs: Any, state: int, states: int) -> None:
    if bool((arcs["input"] != arcs["output"]).any()):
        raise ValueError(
            f"{_WHERE}: state {state} writes other labels than it reads; expected an acceptor; "
            "project the transducer first"
        )
    if bool((arcs["next"] < 0).any() or (arcs["next"] >= states).any()):
        raise struct.error(f"state {state} leads to states that are not there")


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text


def _read_string(data: memoryview, place: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<i", data, place)
    end = place + 4 + length
    if not 0 <= length <= 64 or end > len(data):
        raise struct.error(f"a name of {length} bytes")
    return bytes(data[place + 4 : end]), end

"""Decompressed bytes of plain, .gz and .zst files and standard input, in chunks."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lattice_bpd._core import FormatError
from lattice_bpd.extras import require

STANDARD_INPUT = "-"

_CHUNK_BYTES = 1 << 16


@dataclass
class Meter:
    """The number of (compressed) bytes read so far."""

    bytes_read: int = 0


def read_chunks(file: str, meter: Meter) -> Iterator[bytes]:
    """The decompressed bytes of a file.

    Raises:
        OSError: it cannot be read.
        FormatError: damaged compression.
        ImportError: zstandard is not installed (extra ``train``).
    """
    if file == STANDARD_INPUT:
        yield from _read_raw(sys.stdin.buffer, meter)
        return
    with Path(file).open("rb") as raw:
        if file.endswith(".gz"):
            yield from _read_gz(raw, file, meter)
        elif file.endswith(".zst"):
            yield from _read_zst(raw, file, meter)
        else:
            yield from _read_raw(raw, meter)


def _read_raw(raw: BinaryIO, meter: Meter) -> Iterator[bytes]:
    while chunk := raw.read(_CHUNK_BYTES):
        meter.bytes_read += len(chunk)
        yield chunk


def _read_gz(raw: BinaryIO, file: str, meter: Meter) -> Iterator[bytes]:
    before, start = 0, meter.bytes_read
    try:
        with gzip.GzipFile(fileobj=raw) as text:
            while chunk := text.read(_CHUNK_BYTES):
                before = raw.tell()
                meter.bytes_read = start + before
                yield chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(
            f"{file}: damaged or not a gzip file, near byte {before} ({error}); compress it again"
        ) from error


def _read_zst(raw: BinaryIO, file: str, meter: Meter) -> Iterator[bytes]:
    zstandard = require("zstandard", "train")
    decompressor: Any = None
    start = meter.bytes_read
    try:
        for chunk in _read_raw(raw, meter):
            rest = chunk
            while rest:
                decompressor = decompressor or zstandard.ZstdDecompressor().decompressobj()
                if text := decompressor.decompress(rest):
                    yield text
                rest = decompressor.unused_data
                if decompressor.eof:
                    decompressor = None
    except zstandard.ZstdError as error:
        raise FormatError(
            f"{file}: damaged or not a zstd file, near byte {meter.bytes_read - start} ({error}); "
            "compress it again"
        ) from error
    if decompressor is not None:
        raise FormatError(f"{file}: the zstd file is truncated; compress it again")

"""Input files of text: decompressed, without a BOM, refused if they are another format."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import require

STANDARD_INPUT = "-"
BOM = b"\xef\xbb\xbf"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
LM_MAGIC, NPY_MAGIC = b"LBPD-LM\n", b"\x93NUMPY"

_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 512


def fill_command(command: str, file: str, **values: str) -> str:
    """A command for a file, whose output has the file's name without its endings."""
    file = "INPUT" if file == STANDARD_INPUT else file
    if "{packed}" in command:
        return command.format(packed=shlex.quote(file))
    path = Path(file)
    stem = path.parent / (path.name.split(".")[0] or "input")
    unpack = {".gz": "gunzip -k", ".zst": "unzstd"}.get(path.suffix.lower())
    plain = str(path.with_suffix("")) if unpack else file
    command = command.format(file=shlex.quote(plain), stem=shlex.quote(str(stem)), **values)
    words, mark, command = command.rpartition("it: ")  # such as "convert it: "
    first = f"{unpack} {shlex.quote(file)} && " if unpack else ""
    return f"{words}{mark}{first}{command}"


def _python(imports: str, rows: str) -> str:
    """A command that writes the rows of a file as JSON lines."""
    code = f"import json, sys{imports}; [print(json.dumps(row, default=str)) for row in {rows}]"
    return f"python -c '{code}' {{file}} > {{stem}}.jsonl"


CSV_TO_JSONL = _python(
    ", csv; csv.field_size_limit(10**9)",
    'csv.DictReader(open(sys.argv[1], encoding="utf-8-sig"), dialect="{dialect}")',
)
JSON_TO_JSONL = _python("", 'json.load(open(sys.argv[1], encoding="utf-8-sig"))')


class _Foreign(NamedTuple):
    """A format that is no text: how its files begin, its name, and what to do."""

    pattern: bytes
    name: str
    advice: str


_FOREIGN = (
    _Foreign(rb"version https://git-lfs\.github\.com/spec", "a pointer of Git LFS",
             "fetch the file itself: git lfs pull --include {packed}"),
    _Foreign(rb"PAR1\x15", "a Parquet file", "convert it: "
             + _python(", pyarrow.parquet as p", "p.read_table(sys.argv[1]).to_pylist()")),
    _Foreign(rb"ARROW1\x00", "an Arrow (Feather) file", "convert it: "
             + _python(", pyarrow.feather as f", "f.read_table(sys.argv[1]).to_pylist()")),
    _Foreign(rb"\xff\xff\xff\xff.{3}\x00", "a stream of Arrow", "convert it: "
             + _python(", pyarrow.ipc as i", "i.open_stream(sys.argv[1]).read_all().to_pylist()")),
    _Foreign(rb"\x1f\x8b\x08", "a gzip file", "unpack it: gunzip -k {packed}"),
    _Foreign(rb"\x28\xb5\x2f\xfd", "a zstd file", "unpack it: unzstd {packed}"),
    _Foreign(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "a bzip2 file", "unpack it: bunzip2 -k {file}"),
    _Foreign(rb"\xfd7zXZ\x00", "an xz file", "unpack it: unxz -k {file}"),
    _Foreign(rb"\x5d\x00\x00[\x00-\xff]{2}", "an LZMA file", "unpack it: unlzma -k {file}"),
    _Foreign(rb"\x04\x22\x4d\x18", "an LZ4 file", "unpack it: lz4 -d {file} {stem}.txt"),
    _Foreign(rb"PK\x03\x04", "a zip archive", "unpack it: unzip -p {file} > {stem}.txt"),
    _Foreign(rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: 7z e {file}"),
    _Foreign(rb"[\x00-\xff]{257}ustar", "a tar archive", "unpack it: tar -xf {file}"),
    _Foreign(rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", "UTF-32 text",
             "convert it: iconv -f UTF-32 -t UTF-8 {file} > {stem}.utf8"),
    _Foreign(rb"\xff\xfe|\xfe\xff", "UTF-16 text",
             "convert it: iconv -f UTF-16 -t UTF-8 {file} > {stem}.utf8"),
    _Foreign(rb"mmap lm http://kheafield\.com/code", "a binary LM of KenLM",
             "take the ARPA file that it was built from: lattice-bpd ngram convert {stem}.arpa "
             "{stem}.lm --words"),
    _Foreign(LM_MAGIC, "an n-gram LM of lattice-bpd",
             "NGramLM.load reads it; convert it to ARPA: lattice-bpd ngram convert {file} "
             "{stem}.arpa"),
    _Foreign(rb"LBPD-NC\n", "n-gram counts of lattice-bpd",
             "train an LM of them: lattice-bpd ngram train {file} -o {stem}.lm"),
    _Foreign(rb"\xd6\xfd\xb2\x7e", "an OpenFst file", "lattice_bpd.lm.read_lm reads an LM"),
    _Foreign(NPY_MAGIC, "a NumPy array", "name a file of token ids .npy"),
    _Foreign(rb"GGUF.\x00\x00\x00", "a GGUF model", "give another file"),
    _Foreign(rb"[\x00-\xff]{4}\x00{4}\{\"", "a safetensors file", "give another file"),
    _Foreign(rb"\x80[\x02-\x05]", "a pickle", "give another file"),
    _Foreign(rb"%PDF-\d", "a PDF file", "convert it: pdftotext {file} {stem}.txt"),
)  # fmt: skip


@dataclass
class Meter:
    """The number of (compressed) bytes read so far."""

    bytes_read: int = 0


def read_chunks(file: str, meter: Meter | None = None) -> Iterator[bytes]:
    """The bytes of a text file, decompressed if its first bytes or its name say gzip or zstd.

    Args:
        file: a path, or "-" for standard input.
        meter: counts the bytes read.

    Raises:
        OSError: it cannot be read.
        FormatError: damaged compression, or a file that is no UTF-8 text (Parquet, bzip2, UTF-16,
            ..); the message has the command that converts it.
        ImportError: zstandard is not installed (extra ``train``).
    """
    meter = meter or Meter()
    is_standard = file == STANDARD_INPUT
    with nullcontext(sys.stdin.buffer) if is_standard else Path(file).open("rb") as raw:
        yield from _decompressed(_read_raw(raw, meter), file)


def read_text(file: str | Path) -> str:
    """The text of a file; see `read_chunks` and `decode_text`."""
    return decode_text(b"".join(read_chunks(str(file))), name_input(str(file)))


def read_bytes(file: str | Path) -> bytes:
    """The bytes of a text file without its BOM, for libraries that decode; see `read_chunks`."""
    return b"".join(read_chunks(str(file))).removeprefix(BOM)


def name_input(file: str) -> str:
    """The name of an input file for messages."""
    return "<standard input>" if file == STANDARD_INPUT else file


def decode_text(data: bytes, name: str, byte: int = 0, line: int = 1) -> str:
    """Decodes UTF-8, without the BOM at the beginning of a file.

    Args:
        data: bytes of a file from `read_chunks`, whole characters.
        name: the file's name, for messages.
        byte: offset of `data` in the file.
        line: number of its first line.

    Raises:
        FormatError: bytes that are not UTF-8, or NUL; the message has line and byte.
    """
    skipped = len(BOM) if byte == 0 and data.startswith(BOM) else 0
    nul = data.find(0)
    try:
        if nul < 0:
            return data[skipped:].decode("utf-8")
        at, problem, source = nul, "is NUL, so this is no UTF-8 text", "UTF-16LE"
    except UnicodeDecodeError as error:
        at = error.start + skipped
        problem, source = f"(0x{data[at]:02x}) is not UTF-8 ({error.reason})", "latin1"
    raise FormatError(
        f"{name}, line {line + data.count(10, 0, at)}: byte {byte + at} {problem}; convert the "
        f"file, for example with iconv -f {source} -t utf-8"
    )


def parse_json(text: str, location: str, expected: str) -> Any:
    """The value of JSON text.

    Args:
        text: the text.
        location: file and line, for messages.
        expected: what follows "expected" in them.

    Raises:
        FormatError: it is not JSON, or has a string that is no Unicode text.
    """
    try:
        value = json.loads(text)
        if re.search(r"\\u[dD]", text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{location}: a string has the unpaired surrogate {error.object[error.start]!r}, which "
            "is no text; remove it, or write the pair"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{location}: not JSON ({error}); expected {expected}") from None
    return value


def refuse_foreign(
    file: str | Path,
    head: bytes | None = None,
    *,
    expected: str = "UTF-8 text",
    magic: bytes | None = None,
    least: int = 2,
) -> None:
    """Refuses a file that begins as one of another format does.

    Args:
        file: its name.
        head: its first bytes, decompressed; None: they are read, if that is possible.
        expected: what the file should be.
        magic: how such a file begins, if it has a magic number.
        least: length in bytes of the shortest beginning that counts.

    Raises:
        FormatError: the message has the command that converts it, or what to do instead.
    """
    if head is None:
        try:
            if not Path(file).is_file():
                return
            with Path(file).open("rb") as raw:
                head = raw.read(_HEAD_BYTES)
        except OSError:  # whoever reads the file says what is wrong
            return
    if magic is not None and head.startswith(magic):
        return
    for foreign in _FOREIGN:
        found = re.match(foreign.pattern, head, re.DOTALL)
        if found and found.end() >= least:
            raise FormatError(
                f"{name_input(str(file))} is {foreign.name}; expected {expected}; "
                f"{fill_command(foreign.advice, str(file))}"
            )


def _read_raw(raw: BinaryIO, meter: Meter) -> Iterator[bytes]:
    while chunk := raw.read(_CHUNK_BYTES):
        meter.bytes_read += len(chunk)
        yield chunk


def _decompressed(chunks: Iterator[bytes], file: str) -> Iterator[bytes]:
    first = next(chunks, b"")
    chunks = itertools.chain([first], chunks)
    if not first.startswith((GZIP, ZSTD)):
        refuse_foreign(file, first)
    if first.startswith(GZIP) or (first and file.endswith(".gz")):
        chunks = _unpack(chunks, file, "gzip", zlib.error, lambda: zlib.decompressobj(31))
    elif first.startswith(ZSTD) or (first and file.endswith(".zst")):
        zstandard = require("zstandard", "train")
        make = zstandard.ZstdDecompressor().decompressobj
        chunks = _unpack(chunks, file, "zstd", zstandard.ZstdError, make)
    first = next(chunks, b"")
    refuse_foreign(file, first)
    yield first
    yield from chunks


def _unpack(
    chunks: Iterator[bytes],
    file: str,
    kind: str,
    failure: type[Exception],
    make: Callable[[], Any],
) -> Iterator[bytes]:
    """The decompressed bytes; each part of a file has a decompressor of its own."""
    decompressor: Any = None
    try:
        for chunk in chunks:
            rest = chunk
            while rest and (decompressor or rest.strip(b"\0")):  # gzip allows zeros at the end
                decompressor = decompressor or make()
                if text := decompressor.decompress(rest):
                    yield text
                rest = decompressor.unused_data
                if decompressor.eof:
                    decompressor = None
    except failure as error:
        raise FormatError(
            f"{name_input(file)}: damaged or not a {kind} file ({error}); compress or copy it again"
        ) from error
    if decompressor is not None:
        raise FormatError(
            f"{name_input(file)}: the {kind} file is truncated; compress or copy it again"
        )

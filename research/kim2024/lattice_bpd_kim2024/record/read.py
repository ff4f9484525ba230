"""Reading records; damaged shards are left out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd._core import FormatError
from lattice_bpd_kim2024.record.manifest import MANIFEST_FILE, Manifest, load_manifest
from lattice_bpd_kim2024.record.shards import checksum, read_shard
from lattice_bpd_kim2024.record.texts import RecordedText

RECORDS_FOLDER = "record"


@dataclass(frozen=True)
class Record:
    """A record in memory: the texts of all intact shards, and the names of the others."""

    directory: Path
    manifest: Manifest
    texts: list[RecordedText]
    skipped: list[str]


def read_record(directory: str | Path) -> Record:
    """Read a record; shards that are missing, cut or altered are left out with a warning each.

    Raises:
        FileNotFoundError: no record there.
        FormatError: a damaged manifest, or no intact shard.
        ImportError: pyarrow is missing.
    """
    directory = Path(directory)
    manifest = load_manifest(directory)
    texts: list[RecordedText] = []
    skipped: list[str] = []
    for number, shard in enumerate(manifest.shards):
        name = f"shard-{number:05d}.parquet" if shard is None else shard.file
        try:
            if shard is None:
                raise FormatError(f"{directory / name}: not recorded yet")
            if checksum(directory / name) != shard.sha256:
                raise FormatError(f"{directory / name}: altered or cut, its checksum differs")
            texts += read_shard(directory / name, manifest.num_slots)
        except (OSError, FormatError) as error:
            skipped.append(name)
            warnings.warn(
                f"{error}; the shard is left out; run lattice-bpd record again to repair it",
                stacklevel=2,
            )
    if not texts:
        raise FormatError(
            f"{directory}: none of its {len(manifest.shards)} shards is whole; record again"
        )
    return Record(directory, manifest, texts, skipped)


def find_records(run: str | Path) -> dict[str, Path]:
    """The records of a run, by task.

    Args:
        run: the folder of a record, or one that holds `record/TASK/` folders.

    Raises:
        FileNotFoundError: neither.
    """
    run = Path(run)
    if (run / MANIFEST_FILE).is_file():
        return {load_manifest(run).task or run.name: run}
    found = sorted((run / RECORDS_FOLDER).glob(f"*/{MANIFEST_FILE}"))
    if not found:
        raise FileNotFoundError(
            f"{run}: no {MANIFEST_FILE} and no {RECORDS_FOLDER}/TASK/{MANIFEST_FILE} there; "
            "expected the output folder of lattice-bpd record or lattice-bpd evaluate"
        )
    return {path.parent.name: path.parent for path in found}

"""Check every architecture of transformers and write docs/architectures.md.

    python scripts/write_architectures.py [--jobs N] [--only NAME ..] [--out FILE]

Exit status 1 where a case is different or ends in an error.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice_bpd.conformance import ArchitectureResult

ROOT = Path(__file__).resolve().parents[1]


def check(name: str) -> ArchitectureResult | str:
    """An ArchitectureResult, or what building it raised."""
    import torch
    import transformers

    from lattice_bpd.conformance import check_architecture, list_architectures

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    architecture = next(entry for entry in list_architectures() if entry.name == name)
    try:
        return check_architecture(architecture)
    except Exception as error:  # a new architecture may need an override
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


def main() -> int:
    """Run; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="these model types, no page")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "architectures.md")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    import transformers

    from lattice_bpd.conformance import list_architectures, write_page

    names = [
        entry.name for entry in list_architectures()
        if not args.only or entry.model_type in args.only
    ]  # fmt: skip
    start, failed = time.perf_counter(), 0
    results: list[ArchitectureResult] = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for number, (name, result) in enumerate(
            zip(names, pool.imap(check, names), strict=True), 1
        ):
            head = f"[{number}/{len(names)}] {name}"
            if isinstance(result, str):
                failed += 1
                print(f"{head}: cannot be built: {result}", flush=True)
                continue
            results.append(result)
            bad = [verdict for verdict in result.verdicts if verdict.failed]
            failed += bool(bad)
            what = result.not_built or f"{len(result.verdicts)} cases, {len(bad)} failed"
            print(f"{head}: {what} ({result.seconds:.1f} s)", flush=True)
            for verdict in bad:
                print(f"    {verdict.outcome}: {verdict.case.name}: {verdict.detail}", flush=True)
    if not args.only:
        args.out.write_text(write_page(results, transformers.__version__), encoding="utf-8")
        print(f"wrote {args.out}")
    print(f"{len(names)} architectures, {failed} failed, {time.perf_counter() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

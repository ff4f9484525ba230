"""Statistics of replays: tables and figures of Kim et al. 2024, intervals and tests.

Functions that fill a part of results.json return it as plain dicts, with the keys of
docs/evaluate.md.
"""

from __future__ import annotations

from lattice_bpd.build.bootstrap import (
    Interval,
    PairedTest,
    bootstrap_block_efficiency,
    compare_paired,
)
from lattice_bpd_kim2024.statistics.acceptance import (
    accept_histogram,
    acceptance_by_slot,
    gains_by_loops,
    looping_shares,
    measure_calibration,
)
from lattice_bpd_kim2024.statistics.drafts import (
    argmax_drafts,
    compare_drafts,
    first_drafts,
    measure_repetition,
)
from lattice_bpd_kim2024.statistics.heads import (
    correlate,
    fit_line,
    h_max,
    measure_entropies,
)

__all__ = [
    "Interval",
    "PairedTest",
    "accept_histogram",
    "acceptance_by_slot",
    "argmax_drafts",
    "bootstrap_block_efficiency",
    "compare_drafts",
    "compare_paired",
    "correlate",
    "first_drafts",
    "fit_line",
    "gains_by_loops",
    "h_max",
    "looping_shares",
    "measure_calibration",
    "measure_entropies",
    "measure_repetition",
]

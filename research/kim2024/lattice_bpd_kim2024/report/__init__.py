"""A run folder as one HTML page: tables, charts, and lattices of single steps."""

from __future__ import annotations

from lattice_bpd_kim2024.report.page import (
    REPORT_FILE,
    Steps,
    collect_steps,
    render_report,
    write_report,
)

__all__ = ["REPORT_FILE", "Steps", "collect_steps", "render_report", "write_report"]

"""Strategy "auto": the tree size of highest estimated throughput, chosen at run time."""

from __future__ import annotations

from lattice_bpd.decode.adaptive.controller import Controller
from lattice_bpd.decode.adaptive.experience import Experience

__all__ = ["Controller", "Experience"]

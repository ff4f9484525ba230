"""Lattice drafts for vLLM's drafting method `custom_class`.

Importing this package imports neither vLLM nor torch; `LatticeProposer` is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lattice_bpd_vllm.proposer import LatticeProposer

__version__ = "0.2.0"
__all__ = ["LatticeProposer"]


def __getattr__(name: str) -> Any:
    if name != "LatticeProposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lattice_bpd_vllm.proposer import LatticeProposer

    return LatticeProposer

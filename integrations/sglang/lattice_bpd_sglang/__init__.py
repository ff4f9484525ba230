"""Draft trees for SGLang: the speculative algorithm LATTICE_BPD.

SGLang calls `register` in each of its processes (entry point `sglang.srt.plugins`).
"""

from __future__ import annotations

__version__ = "0.2.0"
__all__ = ["register"]


def register() -> None:
    """Register the algorithm; nothing of SGLang's own changes.

    Raises:
        ImportError: an SGLang without the classes and methods that are used.
    """
    from lattice_bpd_sglang.worker import register_algorithm

    register_algorithm()

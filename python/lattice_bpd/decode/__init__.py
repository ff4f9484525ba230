"""Decoding: draft, verify, keep what the target itself would have generated.

Drafters of each kind are in `lattice_bpd.decode.drafters`.
"""

from __future__ import annotations

from lattice_bpd import models as _models  # noqa: F401  (fails early, with advice)
from lattice_bpd.decode.certificate.certificate import Certificate, CertificateError
from lattice_bpd.decode.drafter_file import load_drafter
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.p_best import PBestDrafter
from lattice_bpd.decode.drafters.proposals import DraftError, DraftWarning
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.huggingface.custom_generate import CustomGenerate
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.loop.decode import DecodeResult, decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.strategies import DraftSources, make_drafter

__all__ = [
    "Certificate",
    "CertificateError",
    "CustomGenerate",
    "DecodeResult",
    "DecodeState",
    "DecodeStats",
    "DraftError",
    "DraftSources",
    "DraftWarning",
    "Drafter",
    "DraftingModel",
    "PBestDrafter",
    "TreeDrafter",
    "decode",
    "generate",
    "load_drafter",
    "make_drafter",
]

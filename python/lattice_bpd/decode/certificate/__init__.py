"""Certificates that rounding did not change a decoded text."""

from __future__ import annotations

from lattice_bpd.decode.certificate.certificate import (
    Certificate,
    CertificateError,
    CheckedPosition,
)
from lattice_bpd.decode.certificate.noise import Noise

__all__ = ["Certificate", "CertificateError", "CheckedPosition", "Noise"]

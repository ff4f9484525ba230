"""Constraints on the decoded text: regular expressions, JSON schemas, acceptors."""

from __future__ import annotations

from lattice_bpd.decode.constraint.fst import FstConstraint
from lattice_bpd.decode.constraint.guidance import GuidanceConstraint
from lattice_bpd.decode.constraint.protocol import Constraint, ConstraintState

__all__ = ["Constraint", "ConstraintState", "FstConstraint", "GuidanceConstraint"]

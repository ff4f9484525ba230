"""Constraints on decoded text: regular expressions, JSON schemas, acceptors, automata."""

from __future__ import annotations

from lattice_bpd_constraints.fst import FstConstraint
from lattice_bpd_constraints.guidance import GuidanceConstraint
from lattice_bpd_constraints.protocol import Constraint, ConstraintState

__all__ = ["Constraint", "ConstraintState", "FstConstraint", "GuidanceConstraint"]

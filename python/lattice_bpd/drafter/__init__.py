"""Drafts: the p best paths through a lattice under head scores and an LM."""

from lattice_bpd.drafter.drafts import Drafts
from lattice_bpd.drafter.rescore import rescore_lattice

__all__ = ["Drafts", "rescore_lattice"]

"""Lattices: the k best tokens of every head, and all paths through them."""

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.sausage import SausageLattice

__all__ = ["LatticeInput", "SausageLattice"]

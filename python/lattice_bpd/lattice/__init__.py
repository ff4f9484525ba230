"""Lattices: the k best tokens of every head, and all paths through them."""

from lattice_bpd.lattice.sausage import SausageLattice

__all__ = ["SausageLattice"]

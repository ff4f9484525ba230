"""Drafters that append mask tokens to a causal text: PARD and P-EAGLE."""

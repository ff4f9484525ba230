"""Measured time of a target call, and modeled cost of a decoded token."""

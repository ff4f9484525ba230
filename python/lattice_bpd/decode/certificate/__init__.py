"""Certificates that floating-point rounding did not change an output."""

"""Certificates that rounding did not change a decoded text."""

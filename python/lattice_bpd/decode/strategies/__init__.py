"""Strategies by name, and drafters that are described in a file."""

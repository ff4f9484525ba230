"""Decoding state: target and heads, state of each sequence, statistics."""

"""Recorded runs of a target: greedy outputs with the heads at every position, on the disk."""

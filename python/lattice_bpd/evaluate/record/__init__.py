"""Recorded runs of a target: greedy outputs with the heads at every position, on the disk.

Submodules are imported by name (`record.write`, `record.read`, `record.texts`), since reading
needs neither a model nor torch's heads.
"""

"""Recorded runs of a target on disk: greedy outputs with the heads' candidates.

Submodules are imported by name (`record.write`, `record.files`, `record.texts`), since reading
needs neither a model nor torch.
"""

"""Interfaces to transformers: `generate`, and `CustomGenerate` for `model.generate`."""

"""The interfaces to transformers: `generate`, and a method for a model's own `generate`."""

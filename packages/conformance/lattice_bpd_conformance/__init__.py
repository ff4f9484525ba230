"""Is decoded output that of a model's own `generate`, or of another server?"""

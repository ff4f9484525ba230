"""The small model of Python code and its texts, for quick evaluations."""

"""Live decoding of prompts by several strategies, and the table of the results."""

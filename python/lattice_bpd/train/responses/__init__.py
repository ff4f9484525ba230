"""A target's own responses to prompts: reading prompts, batched generation, storage."""

"""Training of a small causal LM that rescores drafts, from files to a model folder."""

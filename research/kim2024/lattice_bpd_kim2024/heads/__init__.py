"""Training of draft heads and small causal LMs."""

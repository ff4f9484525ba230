"""Training of block drafters for a frozen target."""

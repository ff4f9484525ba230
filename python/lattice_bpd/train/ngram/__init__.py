"""Training of n-gram LMs on corpora larger than memory, and on a target's own predictions."""

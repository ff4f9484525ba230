"""Training of a low-rank selector: transition scores for heads or a block drafter."""

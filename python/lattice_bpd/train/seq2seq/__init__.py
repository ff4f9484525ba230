"""Training of encoder-decoders, their heads and SpecDrafters."""

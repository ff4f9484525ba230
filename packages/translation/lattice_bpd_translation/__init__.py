"""Encoder-decoders as targets, SpecDec drafters, and training on pairs of source and output."""

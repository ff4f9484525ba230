"""Drafters: what is proposed for verification. The decoding loop is the same for all."""

"""Replay: what decoding with a strategy would do, from recorded greedy outputs."""

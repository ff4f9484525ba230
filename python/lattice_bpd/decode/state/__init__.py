"""The state of decoding: target and heads, one state per sequence, statistics."""

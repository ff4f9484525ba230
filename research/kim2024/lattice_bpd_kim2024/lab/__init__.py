"""Evaluation of recorded tasks: tuning, replays, tables, run folders."""

"""Evaluations of recorded tasks: replay, tune, tabulate, write the run folder."""

"""Commands that this distribution adds to `lattice-bpd`."""

"""The demo; see `lattice_bpd.cli.demo`."""

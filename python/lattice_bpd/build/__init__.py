"""From a model and prompts to a tuned drafter: `lattice-bpd build`."""

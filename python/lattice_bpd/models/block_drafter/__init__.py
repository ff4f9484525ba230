"""One-pass block drafters that read hidden states of the target (DFlash and its relatives)."""

"""Block drafters (DFlash and its relatives), and transition scores of heads."""

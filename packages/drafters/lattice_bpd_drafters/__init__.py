"""Block drafters (DFlash and its relatives), parallel drafters, and transition scores of heads."""

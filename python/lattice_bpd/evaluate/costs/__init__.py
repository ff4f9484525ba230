"""What a call of the target and a decoded token cost."""

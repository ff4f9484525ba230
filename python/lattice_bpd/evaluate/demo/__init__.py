"""The demo: its model folder, prompts, training and measured table."""

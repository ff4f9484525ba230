"""Checkpoint formats of block drafters: z-lab, SpecForge, speculators, DeepSpec, Muse-Glimmer."""

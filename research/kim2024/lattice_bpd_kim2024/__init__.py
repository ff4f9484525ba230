"""Evaluation and training of heads as in Kim et al. 2024 and Stern et al. 2018."""

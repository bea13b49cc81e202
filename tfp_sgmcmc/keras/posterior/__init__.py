"""Samples of a network's weights: their predictions, scores, summaries and files."""

"""Experiments from the papers of the samplers, with the numbers found here."""

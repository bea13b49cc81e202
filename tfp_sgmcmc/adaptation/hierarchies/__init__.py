"""Widths of priors, centred hierarchies, and coordinates in which effects have a fixed prior."""

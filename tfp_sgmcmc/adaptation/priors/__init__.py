"""The prior: its widths, hierarchies in it, and coordinates in which effects have a fixed prior."""

"""The mode of a log posterior, its curvature there, and coordinates whitened by it."""

"""Runs on disk: the directory, its checkpoints, its draws, and what identifies a run."""

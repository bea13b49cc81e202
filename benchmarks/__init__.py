"""Measurements of speed, memory and correctness; they are not part of the installed package."""

"""Checks of a target, a start and a step size before a chain runs."""

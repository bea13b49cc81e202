"""Checks of a `fit` before its first step and between its epochs."""

"""Experiments of the papers that the samplers come from, with our own numbers."""

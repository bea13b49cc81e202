"""Gains from more cores, processes and machines."""

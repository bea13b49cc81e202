"""Passes over data on disk, and the pool of rows that represents them in memory."""

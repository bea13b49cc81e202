"""Nests of state parts, argument checks, and what depends on device and compiler."""

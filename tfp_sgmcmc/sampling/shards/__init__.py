"""Chains in shards, each a separate run, by threads or on the workers of an executor."""

"""Chains in shards: each shard is a run of its own, by threads or on the workers of an engine."""

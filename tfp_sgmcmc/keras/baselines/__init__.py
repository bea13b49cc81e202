"""Cheap normal approximations of a posterior: baselines of a sampler, and starts of its chains."""

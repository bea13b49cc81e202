"""Chains on devices, without TensorFlow too."""

"""Training functions of a `fit` on several workers."""

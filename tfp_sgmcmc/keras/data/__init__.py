"""Training data of `fit`: where batches come from and how they are drawn."""

"""Examples of keras.io with a sampler in place of the last epochs of training."""

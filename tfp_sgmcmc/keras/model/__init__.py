"""A Keras model seen as a log posterior of its weights."""

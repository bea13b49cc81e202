"""Equal samplers, models and data in this library and in others, timed in turn on one machine."""

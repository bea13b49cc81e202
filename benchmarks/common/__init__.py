"""What scripts of several rooms share; the other rooms import this one and themselves alone."""

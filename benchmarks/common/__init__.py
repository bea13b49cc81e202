"""Code shared by several rooms, each of which imports this one and itself alone."""

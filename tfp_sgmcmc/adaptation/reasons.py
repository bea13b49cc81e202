"""Why a posterior cannot be sampled near its mode, or not at all."""


class NotQuadratic(Exception):
    """Says why the quadratic at the mode is of no use for sampling this posterior.

    Args:
      reason: why, as a clause.
      has_shape: whether the posterior's shape is the reason, as for a funnel or several modes.
    """

    def __init__(self, reason: str, has_shape: bool = True):
        super().__init__(reason)
        self.has_shape = has_shape


class ImproperError(ValueError):
    """The posterior has no finite integral, so that nothing can be drawn from it."""

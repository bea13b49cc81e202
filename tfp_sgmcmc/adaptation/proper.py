"""Whether a posterior has a finite integral along a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.reasons import ImproperError
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    flatten_events,
    part_names,
    unflatten_events,
)

_NEAR, _FAR = 1e4, 1e6  # deviations from the center at which densities are compared


def check_proper(problem: Any, center: State, direction: np.ndarray) -> None:
    """Raises ImproperError if the density hardly falls along a line through `center`.

    A density that falls more slowly than 1 / t along a line has no finite integral. So the log
    posterior must fall by log(100) between 10^4 and 10^6 times `direction`, `[D]`, to both sides.
    The direction should be about one standard deviation long, given the other directions.
    """
    flat, dtype = flatten_events(center, 0).numpy(), tf.nest.flatten(center)[0].dtype
    ends = np.outer([_NEAR, _FAR, -_NEAR, -_FAR], direction)
    states = unflatten_events(tf.constant(flat + ends, dtype), center, 0)
    values = call_with_state(problem, states).numpy().astype(np.float64)
    with np.errstate(invalid="ignore"):
        falls = values[::2] - values[1::2] > np.log(_FAR / _NEAR)
    if np.all(falls | ~np.isfinite(values[1::2])):
        return
    parts = tf.nest.flatten(unflatten_events(tf.constant(direction), center, 0))
    name = part_names(center)[int(np.argmax([np.abs(x).max() for x in parts]))]
    fall = np.min(values[::2] - values[1::2])
    raise ImproperError(
        "The posterior must have a finite integral. Received: a log posterior that falls by only "
        f"{fall:.3g} between {_NEAR:.0e} and {_FAR:.0e} standard deviations along a line, which "
        f"changes {name} most. Neither prior nor data inform it. Give it a proper prior, or drop "
        "what is redundant."
    )

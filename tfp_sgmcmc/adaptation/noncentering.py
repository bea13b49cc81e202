"""Coordinates in which the effects of a centred hierarchy are standard normals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.prior_scale import density_of_effects
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.laplace import vector_bijector

tfb = tfp.bijectors


class NonCentering(tfb.Bijector):
    r"""Maps standard normals to the effects of a hierarchy, whose prior is normal given the rest.

    \[
    \theta_e = m_e(\theta_{-e}) + w_e(\theta_{-e}) z_e, \qquad
    w_e^{-2} = \partial_e \log p(\theta_e = 0) - \partial_e \log p(\theta_e = 1), \quad
    m_e = w_e^2 \, \partial_e \log p(\theta_e = 0)
    \]

    All other entries stay as they are. The slopes are those of the user's log prior, so nothing
    needs to be known of how locations and widths depend on other parameters. Where only the log
    posterior is known, its slopes give the normal distribution of the effects given data and rest.

    Args:
      problem: the target, whose log prior gives the slopes.
      like: one unconstrained state.
      entries: the places of the effects in a flat state.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        entries: Sequence[int],
        name: str = "non_centering",
    ):
        parameters = dict(locals())
        flat = flatten_events(like, 0)
        self._problem, self._like = problem, like
        self._is_effect = np.isin(np.arange(flat.shape[0]), entries)
        super().__init__(
            forward_min_event_ndims=1, dtype=flat.dtype, parameters=parameters, name=name
        )

    @classmethod
    def _parameter_properties(cls, dtype: Any) -> dict[str, Any]:
        del dtype
        return {}

    def location_and_width(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns m and w of all entries, which are 0 and 1 where there is no effect."""
        is_effect, density = tf.constant(self._is_effect), density_of_effects(self._problem)

        def slopes(value: float) -> tf.Tensor:
            at = tf.where(is_effect, tf.constant(value, x.dtype), x)
            state = unflatten_events(at, self._like, 0)
            found = value_and_gradient(density, state, connected=False)[1]
            return flatten_events(found, x.shape.rank - 1)

        zero = slopes(0.0)
        precision = tf.where(is_effect, zero - slopes(1.0), tf.ones([], x.dtype))
        return tf.where(is_effect, zero / precision, tf.zeros([], x.dtype)), precision**-0.5

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        location, width = self.location_and_width(x)
        return location + width * x

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        location, width = self.location_and_width(y)
        return (y - location) / width

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(self.location_and_width(x)[1]), axis=-1)


def noncentered(
    problem: MinibatchLogProb, state: State, entries: Sequence[int]
) -> tuple[MinibatchLogProb, tf.Tensor]:
    """Returns the target of flat states whose `entries` are standard normals, and such a state."""
    step = NonCentering(problem, state, entries)
    other = problem.with_bijector(vector_bijector(problem.bijector, state, [step]))
    at = step.inverse(flatten_events(state, 0))
    kept_program(other, "hierarchy", at, lambda: None)  # it need not be looked for again
    return other, at

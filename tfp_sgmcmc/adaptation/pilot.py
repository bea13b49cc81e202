"""Pilots: short chains from dispersed starts, and what they say."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.chains import Chains, Gradients
from tfp_sgmcmc.adaptation.draw_statistics import Convergence, Fit, convergence, fit

_WIDER = 1.3  # the starts, in deviations of Laplace's approximation


class Pilot(NamedTuple):
    """A pilot's draws and their figures.

    Attributes:
      z: the draws, `[results, chains, D]`.
      fit: what the gradients say.
      convergence: R-hat and effective sample sizes.
    """

    z: np.ndarray
    fit: Fit
    convergence: Convergence

    @property
    def fits(self) -> bool:
        """Whether the posterior is about as wide as these coordinates say."""
        return 0.8 < self.fit.radius < 1.3

    @property
    def wanders(self) -> bool:
        """Whether the draws go where the quadratic says nothing of the posterior."""
        return not (0.4 < self.fit.radius < 2.5 and self.convergence.rhat < 1.15)

    @property
    def wandering(self) -> str:
        """How far the draws went, in words."""
        return (
            f"a pilot's draws went {self.fit.radius:.3g} times as far in the mean square as the "
            f"curvature at the mode says, and R-hat of its chains was {self.convergence.rhat:.2f}"
        )

    @property
    def draws_per_sample(self) -> int:
        """Number of draws that are worth an independent one for the median entry, at most 20.

        For the slowest entry it is at most three times as many. By chance, the slowest of many
        entries of independent draws looks 1.6 times slower than it is.
        """
        num_draws, found = self.z.shape[0] * self.z.shape[1], self.convergence
        wanted = max(num_draws / found.median_ess, num_draws / found.ess / 1.6 / 3)
        return int(np.clip(round(wanted), 1, 20))


def dispersed_starts(num_chains: int, dim: int, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Returns z of all chains, `[chains, D]`: draws of a widened Laplace approximation."""
    return tf.cast(_WIDER * random.normal([num_chains, dim], tf.float64, seed), dtype)


def run_pilot(
    chains: Chains,
    gradients: Gradients,
    settings: Any,
    stride: int,
    start: tf.Tensor,
    num_draws: int,
    seed: tf.Tensor,
) -> Pilot | None:
    """Returns the draws after a burn-in of ten strides; None if a chain broke down."""
    chains.restart(settings, start, seed)
    if not chains.burn_in(10 * stride):
        return None
    z = chains.draw(num_draws, stride)
    if z is None:
        return None
    g = gradients(z, random.fold_in(seed, 2**31 - 1))
    if not np.isfinite(g).all():
        return None
    return Pilot(z, fit(z, g), convergence(z))

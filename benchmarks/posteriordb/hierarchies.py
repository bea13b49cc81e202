"""Eight schools, with the effects as parameters and as standard normals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density, gathered
from datasets import posteriordb_data

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]


def eight_schools(effects: str) -> Posterior:
    """Returns the posterior with the part `effects`: `"theta"`, or `"theta_trans"` for N(0, 1)."""
    d = posteriordb_data("eight_schools")

    def log_prior(mu: tf.Tensor, tau: tf.Tensor, **parts: tf.Tensor) -> tf.Tensor:
        x = parts[effects]
        center, scale = (mu, tau) if effects == "theta" else (tf.zeros_like(mu), tf.ones_like(tau))
        of_effects = tfd.Normal(center[..., tf.newaxis], scale[..., tf.newaxis]).log_prob(x)
        return (
            tf.reduce_sum(of_effects, axis=-1)
            + density(tfd.Normal, mu, 0.0, 5.0)
            + density(tfd.HalfCauchy, tau, 0.0, 5.0)
        )

    def derived(parts: Parts) -> Parts:
        if effects == "theta":
            return {}
        mu, tau = parts["mu"][..., tf.newaxis], parts["tau"][..., tf.newaxis]
        return {"theta": mu + tau * parts["theta_trans"]}

    def log_likelihood(batch: Parts, **parts: tf.Tensor) -> tf.Tensor:
        theta = {**parts, **derived(parts)}["theta"]
        return tfd.Normal(gathered(theta, batch["school"]), batch["sigma"]).log_prob(batch["y"])

    data = {
        "y": d["y"].astype(np.float64),
        "sigma": d["sigma"].astype(np.float64),
        "school": np.arange(8),
    }
    shapes = {effects: [8], "mu": [], "tau": []}
    reference = "eight_schools-eight_schools_noncentered"
    bijector = {"tau": tfb.Exp()}
    return Posterior(log_prior, log_likelihood, data, shapes, bijector, derived, reference)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "eight_schools-eight_schools_noncentered": lambda: eight_schools("theta_trans"),
    "eight_schools-eight_schools_centered": lambda: eight_schools("theta"),
}

"""NOGIN and CCAdL written by hand in JAX: a side of `covariance.py`.

Runs with BlackJAX's interpreter, which has JAX. Scores are in closed form, the loop is one
`jax.lax.scan`, and NOGIN solves by `jax.scipy.linalg.cho_solve`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve

from benchmarks.common.environment import versions
from benchmarks.peers.covariance_settings import DECAY, FRICTION, PRIOR_PRECISION, STEP_SIZES
from benchmarks.peers.worker import Case, Runner, serve


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    total, dimension = x.shape
    n, h = case.batch_size, STEP_SIZES[case.sampler]
    noise_scale = total**2 / n

    def gradient(
        key: jax.Array, theta: jax.Array, x: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        rows = jax.random.randint(key, (n,), 0, total)
        features = x[rows]
        scores = (y[rows] - jax.nn.sigmoid(features @ theta))[:, None] * features
        centred = scores - scores.mean(axis=0)
        estimate = total * scores.mean(axis=0) - PRIOR_PRECISION * theta
        return estimate, centred.T @ centred / (n - 1)

    def average(v: jax.Array, new: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        used = jnp.where(t == 0, new, v)
        return used, v + jnp.maximum(1 / (t + 1), 1 - DECAY) * (new - v)

    def nogin(carry: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        theta, p, v, t = carry
        batch_key, noise_key = jax.random.split(key)
        lambda2 = jnp.tanh(FRICTION * h / 2)
        theta = theta + h / 2 * p
        g, new = gradient(batch_key, theta, x, y)
        used, v = average(v, new, t)
        kick = h / 2 * g + jnp.sqrt(lambda2) * jax.random.normal(noise_key, theta.shape)
        p = p + kick
        matrix = (1 + lambda2) * jnp.eye(dimension) + h**2 / 4 * noise_scale * used
        p = 2 * cho_solve(cho_factor(matrix), p) - p + kick
        return theta + h / 2 * p, p, v, t + 1

    def ccadl(carry: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        theta, p, xi, v, t = carry
        batch_key, noise_key = jax.random.split(key)
        theta = theta + h * p
        g, new = gradient(batch_key, theta, x, y)
        used, v = average(v, new, t)
        z = jax.random.normal(noise_key, theta.shape)
        damping = h**2 / 2 * noise_scale * (used @ p) + h * xi * p
        p = p + h * g - damping + jnp.sqrt(2 * FRICTION * h) * z
        return theta, p, xi + h * (p @ p / dimension - 1), v, t + 1

    step = {"NOGIN": nogin, "CCAdL": ccadl}[case.sampler]
    zeros, matrix = jnp.zeros(dimension), jnp.zeros([dimension, dimension])
    thermostat = () if case.sampler == "NOGIN" else (jnp.array(FRICTION),)

    @jax.jit
    def run(key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        start = (zeros, zeros, *thermostat, matrix, jnp.zeros([]))
        keys = jax.random.split(key, case.num_steps)
        last, _ = jax.lax.scan(lambda c, k: (step(c, k, x, y), None), start, keys)
        return last[0]

    on_device = jnp.asarray(x), jnp.asarray(y)
    return lambda seed: [np.asarray(run(jax.random.key(seed), *on_device))]


if __name__ == "__main__":
    serve(make_runner, versions("jax"))

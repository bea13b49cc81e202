"""SGLD of BlackJAX, written as in its documentation: a side of `sgld.py`.

Runs with BlackJAX's interpreter. The loop is one `jax.lax.scan`, which is compiled once. The data
are arguments, and indices are drawn by `jax.random.randint`, which is the fastest way in JAX.
"""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.sgmcmc.gradients import grad_estimator

from benchmarks.common.environment import versions
from benchmarks.peers.worker import STEP_SIZE, Case, Runner, serve


def log_prior(theta: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = example
    logit = x @ theta
    return y * logit - jax.nn.softplus(logit)


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    num_examples, dimension = x.shape
    sgld = blackjax.sgld(grad_estimator(log_prior, log_likelihood, num_examples))
    step_size = STEP_SIZE / 2  # BlackJAX's eta: theta + eta gradient + N(0, 2 eta)
    chains = case.num_chains

    @jax.jit
    def run(key: jax.Array, theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def minibatch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            indices = jax.random.randint(key, (case.batch_size,), 0, num_examples)
            return x[indices], y[indices]

        def one_chain(key: jax.Array, noise_key: jax.Array, theta: jax.Array) -> jax.Array:
            return sgld.step(noise_key, theta, minibatch(key), step_size)

        def step(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
            key, noise_key = jax.random.split(key)
            if chains == 1:
                theta = one_chain(key, noise_key, theta)
            elif case.shared_batch:
                batch = minibatch(key)
                theta = jax.vmap(lambda k, t: sgld.step(k, t, batch, step_size))(
                    jax.random.split(noise_key, chains), theta
                )
            else:
                keys = jax.random.split(key, chains), jax.random.split(noise_key, chains)
                theta = jax.vmap(one_chain)(*keys, theta)
            return theta, theta if case.keep_all else None

        last, states = jax.lax.scan(step, theta, jax.random.split(key, case.num_steps))
        return states if case.keep_all else last

    initial = jnp.zeros(dimension if chains == 1 else (chains, dimension))
    data = jnp.asarray(x), jnp.asarray(y)

    def runner(seed: int) -> np.ndarray:
        states = run(jax.random.key(seed), initial, *data).block_until_ready()
        return np.asarray(states[-1] if case.keep_all else states)

    return runner


if __name__ == "__main__":
    serve(make_runner, versions("blackjax", "jax", "jaxlib"))

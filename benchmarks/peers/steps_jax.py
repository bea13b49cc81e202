"""SGD in JAX, and the models of `steps.py` for one example, as the libraries on JAX take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.steps_settings import STEP_SIZES, first_state, model
from benchmarks.peers.worker import Case, Runner


def log_prior(parts: list[jax.Array]) -> jax.Array:
    return -0.5 * sum(jnp.sum(part**2) for part in parts)


def log_likelihood(parts: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    if len(parts) == 1:
        logit = x @ parts[0]
        return y * logit - jax.nn.softplus(logit)
    w1, b1, w2, b2 = parts
    return jax.nn.log_softmax(jax.nn.relu(x @ w1 + b1) @ w2 + b2)[y]


def minibatch(key: jax.Array, n: int, *data: jax.Array) -> tuple[jax.Array, ...]:
    """Draws n examples with replacement, in the fastest way of JAX."""
    rows = jax.random.randint(key, (n,), 0, len(data[0]))
    return tuple(part[rows] for part in data)


def runner(run: Callable[..., list[jax.Array]], case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    """Returns a function of the seed that calls `run(key, parts, x, y)`, compiled."""
    compiled = jax.jit(run)
    start = [jnp.asarray(part) for part in first_state(x, case.num_chains)]
    data = jnp.asarray(x), jnp.asarray(y)
    return lambda seed: [
        np.asarray(part[-1] if case.keep_all else part)
        for part in compiled(jax.random.PRNGKey(seed), start, *data)
    ]


def sgd(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    """Returns one chain of SGD in plain JAX, which no sampler can beat."""
    if case.num_chains > 1:
        raise NotImplementedError("SGD is timed for one chain")
    rate, total = STEP_SIZES[model(x)]["SGD"] / 2, len(x)

    def log_prob(parts: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        likelihoods = jax.vmap(log_likelihood, in_axes=(None, 0, 0))(parts, x, y)
        return log_prior(parts) + total * jnp.mean(likelihoods)

    def run(key: jax.Array, parts: list[jax.Array], *data: jax.Array) -> list[jax.Array]:
        def step(parts: list[jax.Array], key: jax.Array) -> tuple[Any, None]:
            gradients = jax.grad(log_prob)(parts, *minibatch(key, case.batch_size, *data))
            return [p + rate * g for p, g in zip(parts, gradients, strict=True)], None

        return jax.lax.scan(step, parts, jax.random.split(key, case.num_steps))[0]

    return runner(run, case, x, y)

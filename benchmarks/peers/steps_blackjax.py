"""BlackJAX's samplers, written as in its documentation: a side of `steps.py` and of `sgld.py`.

Runs with BlackJAX's interpreter. The loop is one `jax.lax.scan`, which is compiled once. BlackJAX's
`sghmc` takes many steps on one minibatch and keeps no momentum. So that all sides do the same, its
integrator is given a new minibatch at each step here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blackjax
import jax
import numpy as np
from blackjax.base import SamplingAlgorithm
from blackjax.sgmcmc import diffusions
from blackjax.sgmcmc.gradients import grad_estimator
from blackjax.util import generate_gaussian_noise

from benchmarks.common.environment import versions
from benchmarks.peers.steps_jax import log_likelihood, log_prior, minibatch, runner, sgd
from benchmarks.peers.steps_settings import FRICTIONS, STEP_SIZES, model
from benchmarks.peers.worker import Case, Runner, serve


def sghmc(gradient: Callable[..., Any], friction: float) -> SamplingAlgorithm:
    """Returns SGHMC with the state (position, momentum)."""
    integrate = diffusions.sghmc(friction)

    def init(position: Any, key: jax.Array) -> Any:
        return position, generate_gaussian_noise(key, position)

    def step(key: jax.Array, state: Any, batch: Any, h: float) -> Any:
        return integrate(key, *state, gradient(state[0], batch), h)

    return SamplingAlgorithm(init, step)


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    if case.sampler == "SGD":
        return sgd(case, x, y)
    h, friction = STEP_SIZES[model(x)][case.sampler], FRICTIONS[model(x)]
    gradient = grad_estimator(log_prior, lambda p, example: log_likelihood(p, *example), len(x))
    chains = case.num_chains
    if case.sampler == "SGLD":
        sampler, h = blackjax.sgld(gradient), h / 2  # theta + eta gradient + N(0, 2 eta)
    elif case.sampler == "SGHMC":
        sampler = sghmc(gradient, friction)
    else:
        sampler = blackjax.sgnht(gradient, friction)

    def run(key: jax.Array, parts: Any, *data: jax.Array) -> Any:
        def one_chain(key: jax.Array, noise_key: jax.Array, state: Any) -> Any:
            return sampler.step(noise_key, state, minibatch(key, case.batch_size, *data), h)

        def move(state: Any, key: jax.Array) -> Any:
            key, noise_key = jax.random.split(key)
            if chains == 1:
                return one_chain(key, noise_key, state)
            noise_keys = jax.random.split(noise_key, chains)
            if case.shared_batch:
                batch = minibatch(key, case.batch_size, *data)
                return jax.vmap(lambda k, s: sampler.step(k, s, batch, h))(noise_keys, state)
            return jax.vmap(one_chain)(jax.random.split(key, chains), noise_keys, state)

        def position(state: Any) -> Any:
            return state if case.sampler == "SGLD" else state[0]

        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            state = move(state, key)
            return state, position(state) if case.keep_all else None

        key, init_key = jax.random.split(key)
        state = parts if case.sampler == "SGLD" else sampler.init(parts, init_key)
        state, positions = jax.lax.scan(step, state, jax.random.split(key, case.num_steps))
        return positions if case.keep_all else position(state)

    return runner(run, case, x, y)


if __name__ == "__main__":
    serve(make_runner, versions("blackjax", "jax", "jaxlib"))

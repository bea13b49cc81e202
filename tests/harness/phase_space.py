"""Schemes with momenta: their matrices (from the code), their laws, and runs that keep p.

If gradients are linear in theta and their noise has a constant covariance Sigma, a step is

  x <- F x + K e + L z,   x = (theta, p),   e ~ N(0, Sigma),   z ~ N(0, I),

and the stationary covariance of x solves a discrete Lyapunov equation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from scipy.linalg import solve_discrete_lyapunov

from tests.harness.chains import by_chain, compiled
from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class LinearScheme(NamedTuple):
    """The matrices F, `[2 D, 2 D]`, and K and L, `[2 D, D]`."""

    step: np.ndarray
    kick: np.ndarray
    drawn: np.ndarray

    @property
    def spectral_radius(self) -> float:
        return float(np.abs(np.linalg.eigvals(self.step)).max())

    def covariance(self, noise: np.ndarray) -> np.ndarray:
        """Returns the covariance of (theta, p) if the covariance of the gradient is `noise`."""
        injected = self.kick @ noise @ self.kick.T + self.drawn @ self.drawn.T
        return solve_discrete_lyapunov(self.step, injected)

    def position(self, noise: np.ndarray) -> np.ndarray:
        """Returns the block of theta in `covariance`."""
        size = self.kick.shape[1]
        return self.covariance(noise)[:size, :size]


class Quadratic(Target):
    """log p = -theta^T A theta / 2 with gradients that are off by `offset`, and zero scores."""

    num_examples, num_scores, noise_scale = 1, 2, 1.0

    def __init__(self, hessian: np.ndarray, offset: np.ndarray):
        self._hessian, self._offset = tf.constant(hessian), tf.constant(offset)

    def __call__(self, theta: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(theta * tf.linalg.matvec(self._hessian, theta), axis=-1)

    def chain_shape(self, state: State) -> Any:
        return state.shape[:-1]

    def estimate(self, state: State, seed: Any, target_state: Any = (), *_: Any, **__: Any) -> Any:
        gradient = self._offset - tf.linalg.matvec(self._hessian, state)
        scores = tf.zeros([*state.shape[:-1], 2, state.shape[-1]], state.dtype)
        return GradientEstimate(gradient, self(state), scores, (), target_state, 1.0)


def linear_scheme(make: Callable[..., Any], hessian: np.ndarray) -> LinearScheme:
    """Returns the matrices of a kernel, from one float64 step of chains at basis vectors.

    Args:
      make: function that returns the kernel, `make(target, initial_momentum=p)`.
      hessian: A.
    """
    size = len(hessian)
    basis = np.concatenate([np.zeros([1, 4 * size]), np.eye(4 * size)])
    theta, p, offset, z = np.split(basis, 4, axis=1)
    kernel = make(Quadratic(hessian, offset), initial_momentum=p)
    if "num_estimation_steps" in kernel.parameters:
        kernel = kernel.copy(num_estimation_steps=0)  # steps of estimation do not move
    state = tf.constant(theta)
    results = kernel.bootstrap_results(state)
    with mock.patch.object(random, "normal_like", lambda *_: tf.constant(z)):
        theta, results = kernel.one_step(state, results, seed=0)
    reached = np.concatenate([theta, results.momentum], axis=1)
    columns = (reached[1:] - reached[0]).T
    return LinearScheme(*np.split(columns, [2 * size, 3 * size], axis=1))


class Run(NamedTuple):
    """Samples of (theta, p), `[chains, num_results, 2 D]`, and the temperature of each."""

    samples: np.ndarray
    kinetic_temperature: np.ndarray


def run_phase_space(
    kernel: Any, state: Any, num_results: int, num_burnin: int, seed: int, jit: bool = False
) -> Run:
    """Runs all chains and concatenates the parts of the state."""

    def kept(theta: Any, results: Any) -> Any:
        return (theta, results.momentum), results.kinetic_temperature

    run = compiled(kernel, num_results, num_burnin, jit, kept)
    samples, temperature = run(state, tf.constant(seed))
    return Run(by_chain(samples), temperature.numpy().T)

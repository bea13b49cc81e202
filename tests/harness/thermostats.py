"""Laws of schemes with a thermostat xi, and runs that record xi.

A thermostat makes a step nonlinear. With a large thermal mass, xi stays at the value that balances
its equation. On the Gaussian-mean model, the law of (theta, p) then equals the law of the linear
step with this xi, which solves a discrete Lyapunov equation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.linalg import block_diag, solve_discrete_lyapunov
from scipy.optimize import brentq

from tests.harness.chains import by_chain, compiled
from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class Law(NamedTuple):
    """Covariance of (theta, p), and the excess of the thermostat's temperature over T."""

    covariance: np.ndarray
    excess: float


def euler_law(
    hessian: np.ndarray,
    step_size: float,
    thermostat: float,
    friction: float,
    noise: np.ndarray,
    mass: Any = 1.0,
    temperature: float = 1.0,
    known: np.ndarray | float = 0.0,
) -> Law:
    """Solves theta += h p / m; p += h g - h^2 / (2 T) known p / m - h xi p + sqrt(2 A T h m) z."""
    size, h = len(hessian), step_size
    one, zero, inverse = np.eye(size), np.zeros([size, size]), np.eye(size) / mass
    known = known if np.ndim(known) == 2 else known * one
    damped = (1 - h * thermostat) * one - h**2 / (2 * temperature) * known @ inverse
    step = np.block([[one, h * inverse], [-h * hessian, damped - h**2 * hessian @ inverse]])
    injected = 2 * friction * temperature * h * mass * one + h**2 * noise
    covariance = solve_discrete_lyapunov(step, block_diag(zero, injected))
    return Law(covariance, np.mean(np.diag(covariance)[size:] / mass) - temperature)


def adodab_law(
    hessian: np.ndarray,
    step_size: float,
    thermostat: float,
    friction: float,
    noise: np.ndarray,
    mass: Any = 1.0,
    temperature: float = 1.0,
    known: np.ndarray | float = 0.0,
) -> Law:
    """Solves half drift, exact Ornstein-Uhlenbeck, half drift, kick; xi sees p around O.

    Before and after the kick, p -= h^2 / (4 T) known p / m.
    """
    size, h, xi = len(hessian), step_size, thermostat
    one, zero = np.eye(size), np.zeros([size, size])
    half = np.block([[one, h / 2 * one / mass], [zero, one]])
    known = known if np.ndim(known) == 2 else known * one
    damp = block_diag(one, one - h**2 / (4 * temperature) * known / mass)
    kick = damp @ np.block([[one, zero], [-h * hessian, one]]) @ damp
    decay = np.exp(-xi * h)
    drawn = friction * temperature * (1 - decay**2) / xi
    after = kick @ half
    step = after @ block_diag(one, decay * one) @ half
    injected = after @ block_diag(zero, drawn * mass * one) @ after.T
    kicked = damp @ block_diag(zero, h**2 * noise) @ damp.T
    covariance = solve_discrete_lyapunov(step, injected + kicked)
    before = np.mean(np.diag(covariance)[size:] / mass)
    return Law(covariance, (before + decay**2 * before + drawn) / 2 - temperature)


def balanced(law: Callable[[float], Law]) -> tuple[float, np.ndarray]:
    """Returns the xi whose law has no excess temperature, and the covariance of this law."""
    xi = brentq(lambda xi: law(xi).excess, 0.5, 50.0, xtol=1e-13, rtol=1e-14)
    return xi, law(xi).covariance


class NoisyQuadratic(Target):
    """log p = -k |theta|^2 / 2 with parts `[chains, D]` and additive gradient noise.

    The gradient noise of part i is N(0, sigma[i]^2 I).
    """

    num_examples = 1

    def __init__(self, stiffness: float, *sigma: float):
        self._stiffness, self._sigma = stiffness, sigma

    def __call__(self, *parts: tf.Tensor) -> tf.Tensor:
        return -0.5 * self._stiffness * tf.add_n([tf.reduce_sum(x**2, axis=-1) for x in parts])

    def chain_shape(self, state: State) -> Any:
        return tf.nest.flatten(state)[0].shape[:-1]

    def estimate(self, state: State, seed: tf.Tensor, *_: Any, **__: Any) -> GradientEstimate:
        parts, z = (tf.nest.flatten(x) for x in (state, random.normal_like(state, seed)))
        gradient = [
            s * n - self._stiffness * x for x, s, n in zip(parts, self._sigma, z, strict=True)
        ]
        return GradientEstimate(tf.nest.pack_sequence_as(state, gradient), self(*parts))


class Run(NamedTuple):
    """All parts of (theta, p), the temperature and all of xi, `[chains, num_results, ...]`."""

    samples: np.ndarray
    kinetic_temperature: np.ndarray
    thermostat: np.ndarray


def run_thermostat(
    kernel: Any,
    state: Any,
    num_results: int,
    num_burnin: int,
    seed: int,
    first: float | None = None,
    jit: bool = True,
) -> Run:
    """Runs all chains; xi starts at `first` if given."""

    def prepare(results: Any) -> Any:
        if first is None:
            return results
        return results._replace(thermostat=tf.fill(results.thermostat.shape, first))

    def kept(theta: Any, results: Any) -> Any:
        return (theta, results.momentum), results.kinetic_temperature, results.thermostat

    run = compiled(kernel, num_results, num_burnin, jit, kept, prepare)
    samples, temperature, thermostat = run(state, tf.constant(seed))
    xi = tf.nest.flatten(thermostat)
    if len(xi) > 1:
        xi = [x[..., tf.newaxis] if x.shape.rank == 2 else x for x in xi]
    xi = xi[0] if len(xi) == 1 else np.concatenate(xi, axis=-1)
    return Run(by_chain(samples), *(np.moveaxis(np.asarray(x), 0, 1) for x in (temperature, xi)))

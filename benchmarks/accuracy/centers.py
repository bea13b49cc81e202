"""Control variates of second order at the mode and at the normal distribution nearest in KL(q, p).

Both centers whiten the same posterior: the mode by the Hessian there, and the mean m of the normal
q that minimises KL(q, p) by q's covariance. At draws of q, the same for both,

  trace     the mean over directions of the variance of the estimate from one example, whitened,
  rows      examples a step that make variances at most 3 % too large on average and 5 % in the
            worst direction, at the step size of the cheapest such setting,
  h         that step size, of `UnderdampedLangevin` with friction 1,
  ms        processor milliseconds a step of four chains,
  ESS       effective samples of the worst parameter, and
  ms/ESS    processor milliseconds for one of them.

Examples are drawn by the pilot's probabilities, which each center has for itself. At either center
an example's expansion has its gradient and Hessian there, not their means under q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled, effective_sizes
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.tables import Table
from benchmarks.common.timing import processor_seconds
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_at_mode, whiten_by_normal
from tfp_sgmcmc.adaptation.langevin import (
    FRICTION,
    NUM_STATES,
    BatchAndStep,
    noise_covariance,
    safe_settings,
)
from tfp_sgmcmc.diagnostics.certificate import fit_kl_normal
from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_vectors
from tfp_sgmcmc.targets.control_variates.control_variate import RemainderCovariance

NUM_CHAINS, NUM_DRAWS = 4, 500  # of each chain
BURN_IN = 20  # in draws


def _mnist(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    return datasets.mnist_7v9(projection="pca", num_features=num_features)[:2]


def _a9a() -> tuple[np.ndarray, np.ndarray]:
    x, y, _, _ = datasets.a9a()
    return np.concatenate([np.ones([len(x), 1], x.dtype), x], axis=1), y


PROBLEMS: Mapping[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "MNIST 7 v 9, D = 51": lambda: _mnist(50),
    "MNIST 7 v 9, D = 129": lambda: _mnist(128),
    "a9a, D = 124": _a9a,
}


class Row(NamedTuple):
    """One center of one problem."""

    problem: str
    center: str
    trace: float
    setting: BatchAndStep
    milliseconds: float
    ess: float
    seconds: float  # for an effective sample


def centers(problem: sgmcmc.MinibatchLogProb, dim: int, seed: int) -> tuple[Any, Any, np.ndarray]:
    """Returns coordinates at both centers, and draws of q, `[NUM_STATES, D]`."""
    rng = np.random.default_rng(seed)
    at_mode = whiten_at_mode(problem, tf.zeros([dim]))
    assert at_mode.factor is not None
    value_and_gradient_fn = value_and_gradient_of_vectors(problem, at_mode.center, True)
    normal = fit_kl_normal(value_and_gradient_fn, at_mode.center.numpy(), at_mode.factor, rng)
    draws = normal.mean + rng.standard_normal([NUM_STATES, dim]) @ normal.factor.T
    return at_mode, whiten_by_normal(problem, at_mode, normal.mean, normal.factor), draws


def measure(
    problem: sgmcmc.MinibatchLogProb, found: Coordinates, draws: np.ndarray, seed: int
) -> tuple[float, BatchAndStep, float, float, float]:
    """Returns the figures of `Row` for one center."""
    assert found.factor is not None
    zero = tf.zeros_like(found.center)
    control = sgmcmc.ControlVariate(found.target, zero, order=2, importance="pilot")
    z = np.linalg.solve(found.factor, (draws - found.center.numpy()).T).T
    covariance = noise_covariance(RemainderCovariance(control, NUM_STATES), z, blocks=1)
    setting = min(
        safe_settings(covariance, problem.num_examples),
        key=lambda s: s.batch_size * s.steps_per_draw,
    )
    kernel = sgmcmc.UnderdampedLangevin(
        control.with_batch_size(setting.batch_size), setting.step_size, FRICTION
    )
    stride = setting.steps_per_draw
    run = compiled(kernel, NUM_DRAWS, stride, num_burnin_steps=BURN_IN * stride)
    start = tf.random.stateless_normal([NUM_CHAINS, *zero.shape], [seed, 1], dtype=zero.dtype)
    run(start, None, tf.constant([seed, 2]))  # compiles
    seconds, states = processor_seconds(
        lambda: run(start, None, tf.constant([seed, 3])).all_states.numpy()
    )
    ess = float(effective_sizes(states @ found.factor.T, cross_chain_dims=1).min())
    steps = (NUM_DRAWS + BURN_IN) * stride
    trace = float(np.diag(covariance).mean())
    return trace, setting, 1e3 * seconds / steps, ess, seconds / ess


def run(*, problems: tuple[str, ...] = tuple(PROBLEMS), seed: int = 0) -> Iterator[Row]:
    """Measures each problem at both centers.

    Args:
      problems: names.
      seed: seed of q's draws and of the chains.
    """
    for name in problems:
        x, y = PROBLEMS[name]()
        problem = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, as_batch(x, y), 500)
        at_mode, at_normal, draws = centers(problem, x.shape[1], seed)
        for center, found in (("mode", at_mode), ("KL", at_normal)):
            yield Row(name, center, *measure(problem, found, draws, seed))


def show(rows: Iterator[Row]) -> Table:
    """Prints the table."""
    header = ("posterior", "center", "trace", "rows", "h", "ms", "ESS", "ms/ESS")
    lines: list[tuple[str, ...]] = [
        (
            row.problem,
            row.center,
            f"{row.trace:.3g}",
            str(row.setting.batch_size),
            f"{row.setting.step_size:g}",
            f"{row.milliseconds:.3g}",
            f"{row.ess:.0f}",
            f"{1e3 * row.seconds:.3g}",
        )
        for row in rows
    ]
    table = Table(header, lines)
    print(table.markdown())
    return table


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": PROBLEMS}, table="accuracy.centers")

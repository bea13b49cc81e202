"""The mode of rows in memory, from which the passes over a stream begin.

The programs of the passes find it, and sum over such rows.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.mode import find_center
from tfp_sgmcmc.targets.laplace.newton import NEAR_ENOUGH, Ascent, newton_ascent
from tfp_sgmcmc.targets.laplace.quadratic import hessian_products, least_eigenvalue, root_above
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives, Sums, filled
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb
from tfp_sgmcmc.targets.streaming.row_remainders import is_simple

_MOST_STEPS = 100
_LITTLE_DAMPING = 1e-6  # of steps from a state near the mode


def pilot_mode(
    model: MinibatchLogProb,
    rows: Any,
    total: int,
    initial_state: State,
    derivatives: BlockDerivatives,
    few: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mode of rows that represent `total` ones, `[D]`, and the precision there.

    Hessians of a `LinearModel` are as cheap as gradients, so that the programs of the passes search
    the mode. Otherwise, and where Newton's method finds no mode, `find_center` does.

    Args:
      model: evaluates prior and likelihood.
      rows: a nest of arrays `[M, ...]`.
      total: the rows that they represent.
      initial_state: where the search begins.
      derivatives: the program of blocks, with Hessians.
      few: random ones of the rows in random order. The mode of a block of them is near that of all
        rows, which are then evaluated less often. None takes the first rows.
    """
    rows, count = tf.nest.map_structure(tf.convert_to_tensor, rows), len(tf.nest.flatten(rows)[0])

    def refined(theta: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Returns the precision at theta, of which rounding hides flat directions, seen better.

        It is evaluated anew in coordinates that the given one whitens. What one such evaluation
        does not see is too flat for a pool.
        """
        if least_eigenvalue(precision) > derivatives.resolution**0.5:
            return precision
        factor = root_above(precision, derivatives.resolution)
        sums = sums_in_memory(rows, None, theta, derivatives, factor).times(total / count)
        hessian = with_prior(model, sums, theta, initial_state).hessian
        assert hessian is not None
        return -(hessian + hessian.T) / 2

    def sums_of(part: Any) -> Callable[[np.ndarray], Sums]:
        scale = total / len(tf.nest.flatten(part)[0])
        return lambda theta: sums_in_memory(part, None, theta, derivatives).times(scale)

    if is_simple(model):
        start, damping = None, 1.0
        few = tf.nest.map_structure(lambda x: x[: derivatives.size], rows if few is None else few)
        num_few = len(tf.nest.flatten(few)[0])
        if num_few <= count // 2:
            gain = NEAR_ENOUGH * total / num_few
            near = ascent(model, sums_of(few), initial_state, gain)
            if near is not None and near[0].is_maximum and near[0].expected_gain <= gain:
                start, damping = near[0].theta, _LITTLE_DAMPING
        found = ascent(model, sums_of(rows), initial_state, NEAR_ENOUGH, start, damping)
        if found is not None and found[0].is_mode:
            return found[0].theta, refined(found[0].theta, found[1])
    pilot = PooledLogProb(model, rows, np.full([count], total / count, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the passes show how far the mode is
        mode, _ = find_center(pilot, initial_state)
    flat = flatten_events(mode, 0).numpy()
    curvature = hessian_products(pilot, mode).matrices(flat).posterior
    return flat.astype(np.float64), -curvature


def ascent(
    model: MinibatchLogProb,
    sums_at: Callable[[np.ndarray], Sums],
    like: State,
    last_gain: float,
    start: np.ndarray | None = None,
    damping: float = 1.0,
    most_steps: int = _MOST_STEPS,
) -> tuple[Ascent, np.ndarray] | None:
    """Returns where Newton's method ends, and the precision there.

    Returns None without finite derivatives at the start.

    Args:
      model: evaluates the prior.
      sums_at: theta -> sums over all rows, with Hessian.
      like: a state without chain dimensions.
      last_gain: the expected gain, in nats, that ends the ascent.
      start: theta; None for the state `like`.
      damping: that of the first step.
      most_steps: the largest number of steps.
    """

    @functools.lru_cache(maxsize=1)  # the value at a state is wanted before its derivatives
    def at(theta: tuple[float, ...]) -> Sums:
        flat = np.array(theta)
        return with_prior(model, sums_at(flat), flat, like)

    def hessian_and_gradient(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = at((*theta,))
        assert found.hessian is not None
        return (found.hessian + found.hessian.T) / 2, found.gradient

    flat = flatten_events(like, 0).numpy()
    found = newton_ascent(
        lambda theta: at((*theta,)).log_likelihood,
        hessian_and_gradient,
        flat.astype(np.float64) if start is None else start,
        most_steps,
        float(np.finfo(flat.dtype).eps),
        last_gain,
        damping,
    )
    return None if found is None else (found, -hessian_and_gradient(found.theta)[0])


def with_prior(model: MinibatchLogProb, sums: Sums, theta: np.ndarray, like: State) -> Sums:
    """Returns the derivatives of the log posterior at theta."""
    program = kept_program(model, "prior", like, lambda: traced(_prior(model, like)))
    dtype = tf.nest.flatten(like)[0].dtype
    found = (x.numpy().astype(np.float64) for x in program(tf.constant(theta, dtype)))
    value, gradient, hessian = found
    return sums.plus(Sums(float(value), gradient, None if sums.hessian is None else hessian))


def _prior(model: MinibatchLogProb, like: State) -> Any:
    """Returns the function of theta, `[D]`, that gives the log prior and its derivatives."""

    def prior(theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        probes = tf.eye(theta.shape[0], dtype=theta.dtype)
        states = unflatten_events(tf.broadcast_to(theta, probes.shape), like, 0)
        along = unflatten_events(probes, like, 0)
        value, slope, bend = value_and_gradient(model.log_prior, states, along, connected=False)
        return value[0], flatten_events(slope, 1)[0], flatten_events(bend, 1)

    return prior


def sums_in_memory(
    rows: Any,
    weights: np.ndarray | None,
    theta: np.ndarray,
    derivatives: BlockDerivatives,
    factor: np.ndarray | None = None,
) -> Sums:
    """Returns the sums over rows with weights, or all of weight 1, by the program of blocks.

    The Hessian is computed in coordinates that `factor` whitens, if any, and is that of the state.
    """
    count, size, found = len(tf.nest.flatten(rows)[0]), derivatives.size, []
    at = derivatives.at(theta, factor)
    for start in range(0, count, size):
        block = tf.nest.map_structure(lambda x, at=start: x[at : at + size], rows)
        here = min(size, count - start)
        of_rows = None if weights is None else weights[start : start + size]
        if here < size:
            block = tf.nest.map_structure(lambda x: filled(x, size), block)
            of_rows = np.pad(np.ones([here]) if of_rows is None else of_rows, (0, size - here))
        found.append(at(block, of_rows))
    return functools.reduce(Sums.plus, found).not_whitened()

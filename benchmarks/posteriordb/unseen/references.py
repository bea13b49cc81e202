"""Moments of posteriors by closed forms, or by long runs of NUTS in `float64`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.posteriordb.accuracy import sizes
from benchmarks.posteriordb.posterior import Posterior
from datasets.posteriordb import QUANTILES, Moments
from tfp_sgmcmc.internal.nest import call_with_state, flatten_events, unflatten_events
from tfp_sgmcmc.targets.laplace.quadratic import hessian_products, root_of_inverse

NUM_CHAINS, BLOCK = 16, 50
NUM_WINDOWS, FIRST_DENSE = 14, 5  # of adaptation, and the first that gives a dense metric
ACCEPTANCE, MOST_DEPTH = 0.9, 9
ENOUGH, MOST_R_HAT, MOST_BLOCKS = 4000.0, 1.005, 600  # effective draws, R-hat, blocks of draws


def moments(draws: Mapping[str, np.ndarray], num_draws: float) -> Moments:
    """Returns moments of draws, `[S]` or `[S, D]` of each part, which are worth `num_draws`."""
    named = {
        f"{name}[{j + 1}]" if x.ndim > 1 else name: column
        for name, x in draws.items()
        for j, column in enumerate(x.T if x.ndim > 1 else [x])
    }
    flat = np.stack([*named.values()], axis=-1)
    quantiles = np.quantile(flat, QUANTILES, axis=0)
    return Moments(tuple(named), int(num_draws), flat.mean(axis=0), flat.std(axis=0), quantiles)


def compared(posterior: Posterior, parts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the scalars and vectors of draws `[S, event...]` that are compared, by name."""
    found = {**parts, **posterior.derived(parts)}
    arrays = {name: np.asarray(x) for name, x in found.items() if name not in posterior.hidden}
    return {name: x for name, x in arrays.items() if x.ndim <= 2}


def kept(path: Path, make: Any) -> Moments:
    """Returns moments from a file, or those of `make()`, which are then written to it."""
    if path.exists():
        with np.load(path) as file:
            found = {name: file[name] for name in file}
        names = tuple(str(name) for name in found.pop("names"))
        return Moments(names, int(found.pop("num_draws")), **found)
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **found._asdict())
    return found


def long_run(
    posterior: Posterior, seed: int = 0, at_mode: bool = False
) -> tuple[dict[str, np.ndarray], float]:
    """Returns draws of constrained parts, `[S, event...]`, and the number that they are worth.

    Sixteen chains of NUTS start around zero. Fourteen windows of 50 draws adapt step and metric,
    the covariance of the last two windows. Then draws follow until the worst quantity that is
    compared has 4000 effective ones and R-hat below 1.005. `at_mode` begins with draws of Laplace's
    approximation instead, which suits posteriors with one mode that is hard to reach from zero.

    Raises:
      ValueError: 6000 draws of each chain are not enough.
    """
    target, like = posterior.target("float64"), posterior.start("zeros", "float64")
    rng, dim = np.random.default_rng(seed), flatten_events(like, 0).shape[0]

    def sampler(step: tf.Tensor, mean: tf.Tensor, factor: tf.Tensor) -> Any:
        def log_prob(z: tf.Tensor) -> tf.Tensor:
            moved = mean + tf.linalg.matvec(factor, z)
            return call_with_state(target, unflatten_events(moved, like, 0))

        return tfp.mcmc.NoUTurnSampler(log_prob, step, max_tree_depth=MOST_DEPTH)

    def trace(_: Any, results: Any) -> tf.Tensor:
        return tf.exp(tf.minimum(results.log_accept_ratio, 0.0))

    run = compiled(sampler, BLOCK, trace_fn=trace)
    z = rng.standard_normal([NUM_CHAINS, dim])
    theta, step, mean, factor, before = 0.3 * z, 0.05, np.zeros(dim), np.eye(dim), None
    if at_mode:
        mean, factor = _at_mode(target, like)
        theta, step = mean + z @ factor.T, 0.5
    blocks = []
    for number in range(NUM_WINDOWS - 4 if at_mode else 0, NUM_WINDOWS + MOST_BLOCKS):
        z = np.linalg.solve(factor, (theta - mean).T).T
        settings = (tf.constant(x, tf.float64) for x in (step, mean, factor))
        found = run(tf.constant(z), None, tf.constant([seed, number]), *settings)
        draws = mean + found.all_states.numpy() @ factor.T
        theta, accepted = draws[-1], float(np.mean(found.trace))
        if number >= NUM_WINDOWS:
            blocks.append(draws)
            if len(blocks) % 10 == 0 and (enough := _judged(posterior, target, like, blocks)):
                return enough
        else:
            step *= np.exp(2 * (accepted - ACCEPTANCE)) if accepted < 0.99 else 1.5
        if number < NUM_WINDOWS - 2 and number % 2 and before is not None:
            mean, factor = _normal(np.concatenate([before, draws]), number >= FIRST_DENSE)
            step = min(max(step, 0.05), 1.0)
        before = draws
    raise ValueError(f"{MOST_BLOCKS * BLOCK} draws of each chain are not enough.")


def _at_mode(target: Any, like: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mode, and a factor of the inverse of minus the Hessian there."""
    center = sgmcmc.find_center(target, like)[0]
    flat = flatten_events(center, 0).numpy()
    precision = -hessian_products(target, center).matrices(flat).posterior
    return flat, root_of_inverse(precision)


def _normal(draws: np.ndarray, is_dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean of draws `[S, chains, D]`, and a factor of their covariance."""
    rows = draws.reshape(-1, draws.shape[-1])
    scale = rows.std(axis=0)
    if not is_dense:
        return rows.mean(axis=0), np.diag(scale)
    share = 5 * len(scale) / (len(rows) + 5 * len(scale))  # a covariance of few draws is rough
    correlation = np.corrcoef(rows, rowvar=False).reshape(len(scale), len(scale))
    root = np.linalg.cholesky((1 - share) * correlation + share * np.eye(len(scale)))
    return rows.mean(axis=0), scale[:, np.newaxis] * root


def _judged(
    posterior: Posterior, target: Any, like: Any, blocks: list[np.ndarray]
) -> tuple[dict[str, np.ndarray], float] | None:
    """Returns draws and their worth, or None if they are too few."""
    draws = np.concatenate(blocks)
    shape = draws.shape[:2]
    flat = tf.constant(draws.reshape(-1, draws.shape[-1]))
    parts = compared(posterior, target.constrain(unflatten_events(flat, like, 0)))
    columns = np.concatenate([x.reshape(*shape, -1) for x in parts.values()], axis=-1)
    worth = sizes((columns - columns.mean(axis=(0, 1))) / columns.std(axis=(0, 1))).min()
    r_hat = np.max(tfp.mcmc.potential_scale_reduction(columns, split_chains=True))
    print(f"  {len(draws)} draws, {worth:.0f} effective, R-hat {r_hat:.4f}", file=sys.stderr)
    return (parts, float(worth)) if worth >= ENOUGH and r_hat < MOST_R_HAT else None

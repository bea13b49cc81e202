"""Checks of a stream: the order of its batches, and the gradient noise that they give a kernel."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.base import covariance_states
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import State, chain_of_vector, named_parts, one_chain, vector_of_chain
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.data import assert_finite_rows
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.validation.step_size_check import (
    Stability,
    check_approach,
    check_step,
    epochs_of,
)

_MOST_SECONDS = 30.0
_LEAST_BATCHES = 20
_MOST_COLUMNS = 1000
MOST_RATIO = 4.0  # random batches of any data exceed it with probability below 1e-9
_MOST_TEMPERATURE = 1.05
_NUM_MINIBATCHES = 32


class Order(NamedTuple):
    """How much the means of batches vary.

    Attributes:
      column: the name of the column whose means vary most.
      ratio: their variance over that of the means of random rows, about 1 for random batches.
      first: the column's mean in the first batch that was read.
      last: its mean in the last one.
    """

    column: str
    ratio: float
    first: float
    last: float


def check_stream(target: StreamedLogProb, state: State, kernel: Any) -> Stability | None:
    """Warns of batches in an order, of an unstable step, and of hot draws. See `preflight`."""
    order = measure_order(_finite_batches(target))
    if order is not None and order.ratio > MOST_RATIO:
        warnings.warn(
            "dataset must give batches of random rows. Received: batches whose means of "
            f"{order.column} vary {order.ratio:.3g} times as much as those of random rows, from "
            f"{order.first:.3g} in the first to {order.last:.3g} in the last that was read, as "
            f"from files that are sorted by {order.column}. Draws are then far too wide. Write "
            "the rows to the files in random order, or call `sample`, which takes any order.",
            stacklevel=4,
        )
    if kernel is None:
        return None
    check_approach(kernel, target, state, stacklevel=5)
    found = check_step(kernel, target, state)
    if found is None or found.is_stable:
        check_temperature(kernel, target, state)
    return found


def measure_order(
    batches: Iterable[Any], called: str = "batch", most_seconds: float = _MOST_SECONDS
) -> Order | None:
    """Compares the means of an epoch's batches, up to one of fewer rows than the first.

    Returns None for fewer than 20 batches. The ratio is NaN if a number is not finite.

    Args:
      batches: nests of arrays, `[rows, ...]`.
      called: the name of a batch.
      most_seconds: ends the reading.
    """
    began, names, means = time.perf_counter(), list[str](), []
    size, count, total, squares = 0, 0, np.zeros([]), np.zeros([])
    for rows in batches:
        columns = _columns(rows, called)
        names, values = [*columns], np.stack([*columns.values()], axis=-1)
        size = size or len(values)
        if len(values) < size:
            break
        means.append(values.mean(axis=0))
        count, total, squares = (
            count + len(values),
            total + values.sum(0),
            squares + (values**2).sum(0),
        )
        if time.perf_counter() - began > most_seconds:
            break
    if len(means) < _LEAST_BATCHES or not names:
        return None
    with np.errstate(invalid="ignore"):
        found, mean = np.stack(means), total / count
        variances = squares / count - mean**2
        scale = np.where(variances > 1e-9 * (1e-30 + squares / count), variances, np.inf)
        ratios = size * found.var(axis=0) / scale
    worst = int(np.argmax(ratios))
    return Order(names[worst], float(ratios[worst]), found[0, worst], found[-1, worst])


def _finite_batches(target: StreamedLogProb) -> Iterator[Any]:
    """Yields the batches of an epoch; raises ValueError for a row that is not finite."""
    for number, rows in enumerate(target.blocks(target.batch_size)):
        assert_finite_rows(rows, number * target.batch_size)
        yield rows


def _columns(rows: Any, called: str) -> dict[str, np.ndarray]:
    """Returns the first 1000 columns of numbers of a batch, `[n]`, by name."""
    found: dict[str, np.ndarray] = {}
    for name, leaf in named_parts(rows, called):
        values = np.asarray(leaf)
        flat = values.reshape(len(values), -1).astype(np.float64)
        for i in range(min(flat.shape[1], _MOST_COLUMNS - len(found))):
            index = ", ".join(str(k) for k in np.unravel_index(i, values.shape[1:]))
            found[f"{name}[..., {index}]" if values.ndim > 1 else name] = flat[:, i]
    return found


def check_temperature(kernel: Any, target: StreamedLogProb, state: State) -> None:
    """Warns if gradient noise makes the draws of a kernel more than 5 % too hot."""
    if not hasattr(kernel, "noise_temperature"):
        return
    chains = tuple(int(n) for n in target.chain_shape(state))
    here, ndims = one_chain(state, chains, 0), len(chains)
    stream = target.bootstrap(here)
    graph = traced(lambda carried: target.estimate(here, tf.constant([0, 0]), carried, None, False))
    gradients = []
    for i in range(min(_NUM_MINIBATCHES, target.batches_per_read)):
        estimate = graph(stream._replace(position=tf.constant(i, tf.int64)))
        gradients.append(vector_of_chain(estimate.gradient, ndims))
    if len(gradients) < 2:
        return
    noise = np.stack(gradients)
    if not np.isfinite(noise).all():
        wrong = int(np.argmin(np.isfinite(noise).all(axis=1)))
        warnings.warn(
            "The gradients of batches must be finite at the initial state. Received: NaN or "
            f"infinite ones of batch {wrong} of the stream.",
            stacklevel=5,
        )
        return
    noise -= noise.mean(axis=0)
    results, products = kernel.bootstrap_results(here), []
    for g in noise:
        metric = kernel.metric_product(chain_of_vector(g, here, ndims), here, results)
        products.append(g @ vector_of_chain(metric, ndims))
    mean = np.sum(products) / (len(products) - 1) / noise.shape[1]
    found = kernel.noise_temperature(mean, results)
    if not found <= _MOST_TEMPERATURE:
        warnings.warn(
            "The noise of batches must be small compared with that of the sampler. Received: a "
            f"batch_size and a step_size with which independent batches would make "
            f"{type(kernel).__name__}'s variances {found:.3g} times too large on average, and "
            "the epochs of a stream make them smaller by an unknown part of that. Take a step "
            f"that is {(found - 1) / (_MOST_TEMPERATURE - 1):.2g} times smaller, or larger "
            "batches, or call `sample(target, ...)`, which needs no such choice.",
            stacklevel=5,
        )


def refuse_epochs(kernel: Any, target: Any, results: Any) -> None:
    """Raises ValueError if a kernel that expects independent minibatches would get epochs."""
    epochs = epochs_of(target)
    if epochs is None or epochs.num_steps <= 1 or not covariance_states(results):
        return
    is_stream = isinstance(target, StreamedLogProb)
    cure = (
        "call sgmcmc.sample(target, initial_state, num_results), or take SGLD with a small step, "
        "or give this kernel the target in memory that sgmcmc.draw_pool(target, initial_state) "
        "returns first"
        if is_stream
        else "make the target with reshuffle='step'"
    )
    raise ValueError(
        f"The minibatches must be independent for {type(kernel).__name__}, because it corrects "
        "for the gradient noise of independent minibatches. Received: "
        f"{a_type(target)} whose epochs take every example once, so that variances would be "
        f"too small, by up to the share of the gradient noise in all noise. To sample, {cure}. "
        "preflight_check=False takes them all the same."
    )

"""The pool of rows in memory that represents a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import boolean, function
from tfp_sgmcmc.internal.nest import (
    State,
    flatten_events,
    num_entries,
    unflatten_events,
)
from tfp_sgmcmc.targets.base import ExpansionError, kept_program
from tfp_sgmcmc.targets.bijectors import start_of
from tfp_sgmcmc.targets.laplace.laplace import check_single_state
from tfp_sgmcmc.targets.laplace.quadratic import root_of_inverse, to_unit_diagonal
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives, Sums
from tfp_sgmcmc.targets.streaming.passes import (
    DrawnRows,
    DrawRows,
    ReadRows,
    Show,
    StreamParts,
    SumDerivatives,
    as_arrays,
    joined,
)
from tfp_sgmcmc.targets.streaming.pilot_mode import (
    ascent,
    pilot_mode,
    sums_in_memory,
    with_prior,
)
from tfp_sgmcmc.targets.streaming.pooled import (
    MOST_MEAN_ERROR,
    MOST_OFFSET,
    MOST_WIDTH_ERROR,
    Correction,
    PooledLogProb,
    PoolReport,
    keeping_probabilities,
    moments_of,
    pool_errors,
)
from tfp_sgmcmc.targets.streaming.row_remainders import RowRemainders

MOST_DIMENSIONS = 1024
_MOST_PILOT_ROWS = 100_000
# Enough rows for a mode from which one step leads to that of all rows, and so few that evaluating
# them takes less than passes.
_PILOT_SHARE, _PILOT_ROWS_PER_PARAMETER = 1 / 32, 128
_FEWEST_ROWS = 2
_FEW_ROWS = 2**13  # with which searches begin, and which tell errors
_MOST_STEP = 10.0  # beside what random rows explain
_LAST_GAIN, _MOST_CLIMB = 1.0, 20  # nats and steps, of a climb by passes


def draw_pool(
    target: StreamedLogProb | Callable[[int], StreamedLogProb],
    initial_state: State = None,
    *,
    num_parts: int | None = None,
    executor: Any = None,
    seed: Any = 0,
    jit_compile: bool = True,
    show: Show = lambda what, num_rows: None,
) -> tuple[MinibatchLogProb, PoolReport]:
    r"""Returns a target in memory whose posterior is that of a stream, and a `PoolReport`.

    \[
    \log p(\theta \mid x_{1:N}) \approx \log p(\theta) + q(\theta)
      + \sum_{j=1}^M w_j \bigl( \log p(x_j \mid \theta) - q_j(\theta) \bigr)
    \]

    \( q_j \) is the second-order expansion of a row's log likelihood at a center, and q their sum
    over all N rows, which is exact. Only what is beyond is estimated, from M rows that are kept
    with the probabilities \( 1/w_j \), in proportion to the root mean square of their remainders at
    draws of Laplace's approximation. So the pool's error is small, and the report has it.

    If the data fit into `memory` of the stream, one pass loads them. Otherwise

    1. a pass reads a uniform sample of rows, whose mode Newton's method finds in memory,
    2. a pass sums the gradient there, for a step to the mode of all rows,
    3. a pass sums gradient and Hessian and draws the pool. It is repeated from a nearer center if
       the pool's error is too large.

    If a step is far longer than random rows explain, because single rows count for much, damped
    steps of Newton's method lead to the mode, each by a pass.

    All sums are in double precision. Blocks of rows are evaluated by as many threads as there are
    cores, or in the scope of a strategy on the devices of its replicas. Rows may come in any order.

    Rows may be split into parts, such as the files of each machine. The passes are then made by the
    workers of an `executor`, and only sums and the rows that are kept come back. If a worker dies,
    its engine gives the part to another one. The result is the same as without an executor.

    Examples:
      With `x` and `tfd` as in `MinibatchLogProb`:

      >>> streamed = sgmcmc.StreamedLogProb(
      ...     tfd.Normal(0., 10.).log_prob,
      ...     lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...     tf.data.Dataset.from_tensor_slices(x).batch(100), num_examples=1000, memory=400)
      >>> pool, report = sgmcmc.draw_pool(streamed, tf.zeros([]))
      >>> len(report.passes), report.num_rows <= 100
      (3, True)
      >>> center, _ = sgmcmc.find_center(pool, tf.zeros([]))
      >>> bool(abs(center - x.mean()) < 0.01)
      True

    Args:
      target: the stream; or with `num_parts` a function from the number of a part to the stream of
        its rows, whose `num_examples` are those of the part. The functions and `memory` are those
        of part 0, which is made here, too.
      initial_state: where the search for a mode begins: one state without chain dimensions,
        unconstrained with a bijector. None takes the start of a stream made by `from_joint`.
      num_parts: the number of parts, if `target` is a function. Each is compiled by itself, so
        that one or two for each worker are best.
      executor: an object with `submit`, such as a client of dask, whose workers make the passes, as
        in `sample_shards`. None makes them in this process.
      seed: an integer or two, of the rows.
      jit_compile: whether XLA compiles the evaluation of blocks.
      show: receives what a pass does, and the number of rows that it has read.

    Raises:
      TypeError: `target` is neither a `StreamedLogProb` nor a function that returns one; there is
        an executor, but no function; the function cannot be sent to workers.
      ValueError: a row is not finite; parts have rows of different forms; there are more than 1024
        parameters and the data do not fit into memory; the curvature at the mode cannot be used;
        the log likelihood does not take rows with chain dimensions; the strategy has several
        workers.
      StreamReadError: the data cannot be read.
    """
    boolean("jit_compile", jit_compile)
    function("show", show, "(what, num_rows)")
    parts = StreamParts(target, num_parts, executor, show)
    first, total = parts.first, sum(parts.sizes)
    model = first.of_one_batch
    state = start_of(model, initial_state)
    checked = functools.partial(check_single_state, "initial_state", model, state)
    kept_program(model, "one state", state, checked)
    row_seed, draw_seed = random.split(random.as_seed(seed), 2)
    row_seed = tuple(row_seed.numpy().view(np.uint32).tolist())
    row_bytes = max(1, model.row_bytes)
    if total * row_bytes <= first.memory:
        found, read = parts.run(ReadRows((*parts.sizes,), row_seed))
        rows = joined(found)
        loaded = MinibatchLogProb(
            model._log_prior_fn,
            model._log_likelihood_fn,
            rows,
            min(first.batch_size, len(tf.nest.flatten(rows)[0])),
            bijector=model.bijector,
        )
        if model.initial_state is not None:
            loaded.initial_state = model.initial_state
        return loaded, PoolReport(total, read.num_rows, (read,))
    dim = num_entries(state)
    if dim > MOST_DIMENSIONS:
        raise ValueError(
            f"target must have at most {MOST_DIMENSIONS} parameters if its data do not fit into "
            f"memory={first.memory} bytes, because a pool needs their Hessian. Received: {dim} "
            f"parameters and {total * row_bytes} bytes. sample_chain takes SGLD on the stream."
        )
    most_rows = first.memory // row_bytes
    if most_rows < _FEWEST_ROWS:
        raise ValueError(
            f"memory must hold at least {_FEWEST_ROWS} rows of {row_bytes} bytes, of which the "
            f"pool is made. Received: {first.memory}."
        )
    wanted = max(_FEW_ROWS, int(_PILOT_SHARE * total), _PILOT_ROWS_PER_PARAMETER * dim)
    counts = _shares(min(_MOST_PILOT_ROWS, most_rows, wanted), parts.sizes, row_seed)
    found, read = parts.run(ReadRows(counts, row_seed))
    pilots, passes = joined(found), [read]
    num_pilots = len(tf.nest.flatten(pilots)[0])
    few, rows = _few(pilots, row_seed), tf.nest.map_structure(tf.constant, pilots)
    del found, pilots
    checked = functools.partial(_check_rows_of_chains, model, state, rows)
    kept_program(model, "rows of chains", state, checked)
    derivatives = BlockDerivatives(model, state, first.block_rows, True, jit_compile)
    theta, precision = pilot_mode(model, rows, total, state, derivatives, few)
    del rows, checked
    factor = _factor(precision)

    def sums_at(theta: np.ndarray, factor: np.ndarray | None = None) -> Sums:
        at = as_arrays(unflatten_events(theta, state, 0))
        found, done = parts.run(SumDerivatives(at, jit_compile, factor))
        passes.append(done)
        return functools.reduce(Sums.plus, found)

    offset = factor.T @ with_prior(model, sums_at(theta), theta, state).gradient
    step, most_step = factor @ offset, _MOST_STEP * (dim * total / num_pilots) ** 0.5
    for is_last in (False, True):
        drawn = found = None  # which frees their memory
        if np.linalg.norm(offset) > most_step:
            climb = functools.partial(sums_at, factor=factor)
            climbed = ascent(model, climb, state, _LAST_GAIN, theta, most_steps=_MOST_CLIMB)
            if climbed is not None:
                theta, step, factor = climbed[0].theta, 0.0, _factor(climbed[1])
        center = unflatten_events(theta + step, state, 0)
        remainders = RowRemainders(model, center, factor, draw_seed, jit_compile)
        moments = moments_of(remainders, few)
        probabilities = keeping_probabilities(moments, total, most_rows)
        kept_with = probabilities(moments.norms)
        del moments  # which are large
        work = DrawRows(
            as_arrays(center),
            factor,
            draw_seed.numpy(),
            probabilities,
            (*row_seed, len(passes)),
            jit_compile,
        )
        found, done = parts.run(work)
        passes.append(done)
        drawn = DrawnRows(
            joined([x.rows for x in found]),
            np.concatenate([x.probabilities for x in found]),
            functools.reduce(Sums.plus, [x.sums for x in found]),
        )
        most_step, at = MOST_OFFSET, flatten_events(center, 0).numpy().astype(np.float64)
        exact = with_prior(model, drawn.sums, at, state)
        assert exact.hessian is not None
        precision = -(exact.hessian + exact.hessian.T) / 2
        try:
            factor = _factor(precision)
        except ExpansionError:
            if is_last:
                raise
            offset = np.array([np.inf])  # the step led to where there is no mode
            continue
        theta, offset = at, factor.T @ exact.gradient
        step = factor @ offset
        if np.linalg.norm(offset) > most_step:
            errors = np.inf, np.inf
            continue
        # The remainders that count are those at draws around the mode.
        around = RowRemainders(model, center, factor, draw_seed, jit_compile, offset)
        errors = pool_errors(moments_of(around, few), kept_with, total)
        if errors[0] < MOST_MEAN_ERROR and errors[1] < MOST_WIDTH_ERROR:
            break
    del few, found
    assert drawn is not None
    pool = PooledLogProb(model, drawn.rows, (1 / drawn.probabilities).astype(np.float32))
    kept, weights = pool.rows_and_weights()
    in_pool = sums_in_memory(kept, weights.numpy(), theta, derivatives, factor)
    lacking = drawn.sums.plus(in_pool.times(-1.0))
    correction = Correction.of(theta, lacking, factor, tf.nest.flatten(state)[0].dtype)
    distance = float(np.linalg.norm(offset))
    report = PoolReport(total, pool.num_examples, tuple(passes), *errors, distance)
    return pool.corrected(correction), report


def _few(rows: Any, seed: tuple[int, ...]) -> Any:
    """Returns random ones of rows in memory, or all if they are few, in random order."""
    count = len(tf.nest.flatten(rows)[0])
    taken = np.random.default_rng([*seed, count]).permutation(count)[:_FEW_ROWS]
    return tf.nest.map_structure(lambda x: tf.constant(x[taken]), rows)


def _shares(count: int, sizes: list[int], seed: tuple[int, ...]) -> tuple[int, ...]:
    """Returns how many of `count` random rows are in each part."""
    shares = np.array(sizes) / sum(sizes)
    drawn = np.random.default_rng(seed).multinomial(count, shares)
    return tuple(np.minimum(drawn, sizes).tolist())


def _factor(precision: np.ndarray) -> np.ndarray:
    """Returns L with L L^T the inverse of a precision; raises ExpansionError without a mode."""
    symmetric = (precision + precision.T) / 2
    scaled, _ = to_unit_diagonal(symmetric)
    if not np.isfinite(scaled).all() or np.linalg.eigvalsh(scaled)[0] <= 1e-9:
        raise ExpansionError(
            "The log posterior of a stream must have a finite, negative definite Hessian at its "
            "mode, because a pool needs it. Received: a Hessian that is not. Raise memory= of the "
            "StreamedLogProb, so that all data are loaded, or sample_chain with SGLD."
        )
    return root_of_inverse(symmetric)


def _check_rows_of_chains(model: MinibatchLogProb, center: State, rows: Any) -> None:
    """Raises if the log likelihood does not take minibatches of chains."""
    few = min(3, len(tf.nest.flatten(rows)[0]))
    shared = tf.nest.map_structure(lambda x: tf.constant(x[:few]), rows)
    own = tf.nest.map_structure(lambda x: tf.stack([x, x]), shared)
    states = tf.nest.map_structure(lambda x: tf.stack([x, x]), center)
    expected = model.log_likelihood(center, shared, few)
    try:
        found = model.log_likelihood(states, own, few, [2])
    except Exception as error:
        error.add_note(
            "The pool gives each chain other examples, so log_likelihood_fn was called with "
            f"leaves [2, {few}, ...] of the batch, for two chains. tf.linalg.matvec(x, theta) and "
            "tf.gather(theta, group, axis=-1, batch_dims=group.shape.rank - 1) are right for "
            "batches with and without chain dimensions."
        )
        raise
    if not np.allclose(found, [expected, expected], rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            "log_likelihood_fn must return for each of two equal chains, with a batch of leaves "
            f"[2, {few}, ...], what it returns for one. Received: {found.numpy()}, not "
            f"{expected.numpy()}."
        )

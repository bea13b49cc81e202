"""The pool of rows in memory that represents a stream, and the mode of rows in memory.

The programs of the passes find the mode, and sum over such rows.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import boolean
from tfp_sgmcmc.internal.nest import (
    State,
    convert_state,
    flatten_events,
    num_entries,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import ExpansionError, kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.mode import check_single_state, find_center
from tfp_sgmcmc.targets.laplace.newton import NEAR_ENOUGH, newton_ascent
from tfp_sgmcmc.targets.laplace.quadratic import hessian_products, root_of_inverse, to_unit_diagonal
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives, Sums, filled
from tfp_sgmcmc.targets.streaming.passes import (
    DrawnRows,
    DrawRows,
    ReadRows,
    Show,
    StreamParts,
    SumGradients,
    as_arrays,
    joined,
)
from tfp_sgmcmc.targets.streaming.pooled import (
    MOST_MEAN_ERROR,
    MOST_WIDTH_ERROR,
    Correction,
    PooledLogProb,
    PoolReport,
    fading_radius,
    keeping_probabilities,
    moments_of,
    pool_errors,
)
from tfp_sgmcmc.targets.streaming.row_remainders import RowRemainders, is_simple

_MOST_STEPS = 100
_MOST_REFINEMENTS = 5
_SAME = 0.05  # relative changes of a precision that end its refinement

MOST_DIMENSIONS = 1024
_MOST_PILOT_ROWS = 100_000
_MOST_POOLS = 2


def pilot_mode(
    model: MinibatchLogProb,
    rows: Any,
    total: int,
    initial_state: State,
    derivatives: BlockDerivatives,
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
    """
    count = len(tf.nest.flatten(rows)[0])

    def refined(theta: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Returns the precision at theta, anew in whitened coordinates until that changes little.

        Rounding hides flat directions of the first one; each time they are seen better.
        """
        for _ in range(_MOST_REFINEMENTS):
            scaled, scale = to_unit_diagonal(precision)
            values, vectors = np.linalg.eigh(scaled)
            if values[0] > derivatives.resolution**0.5:
                break
            lengths = np.sqrt(np.maximum(values, derivatives.resolution))
            factor = vectors / lengths / scale[:, np.newaxis]
            sums = sums_in_memory(rows, None, theta, derivatives, factor).times(total / count)
            hessian = with_prior(model, sums, theta, initial_state).hessian
            assert hessian is not None
            precision, before = -(hessian + hessian.T) / 2, precision
            if np.abs(factor.T @ (precision - before) @ factor).max() < _SAME:
                break
        return precision

    if is_simple(model):

        @functools.lru_cache(maxsize=1)  # the value at a state is wanted before its derivatives
        def at(theta: tuple[float, ...]) -> Sums:
            flat = np.array(theta)
            found = sums_in_memory(rows, None, flat, derivatives).times(total / count)
            return with_prior(model, found, flat, initial_state)

        def hessian_and_gradient(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = at((*theta,))
            assert found.hessian is not None
            return (found.hessian + found.hessian.T) / 2, found.gradient

        flat = flatten_events(initial_state, 0)
        ascent = newton_ascent(
            lambda theta: at((*theta,)).log_likelihood,
            hessian_and_gradient,
            flat.numpy().astype(np.float64),
            _MOST_STEPS,
            float(np.finfo(flat.dtype.as_numpy_dtype).eps),
            NEAR_ENOUGH,
        )
        if ascent is not None and ascent.is_mode:
            return ascent.theta, refined(ascent.theta, -hessian_and_gradient(ascent.theta)[0])
    pilot = PooledLogProb(model, rows, np.full([count], total / count, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the passes show how far the mode is
        mode, _ = find_center(pilot, initial_state)
    flat = flatten_events(mode, 0).numpy()
    curvature = hessian_products(pilot, mode).matrices(flat).posterior
    return flat.astype(np.float64), refined(flat.astype(np.float64), -curvature)


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

    The Hessian is computed in coordinates that `factor` whitens, and is that of the state.
    """
    count, size, found = len(tf.nest.flatten(rows)[0]), derivatives.size, []
    for start in range(0, count, size):
        block = tf.nest.map_structure(lambda x, at=start: tf.constant(x[at : at + size]), rows)
        here = min(size, count - start)
        of_rows = None if weights is None else weights[start : start + size]
        if here < size:
            block = tf.nest.map_structure(lambda x: filled(x, size), block)
            of_rows = np.pad(np.ones([here]) if of_rows is None else of_rows, (0, size - here))
        found.append(derivatives(theta, block, of_rows, factor))
    total = functools.reduce(Sums.plus, found)
    return total if factor is None else total.not_whitened(factor)


def draw_pool(
    target: StreamedLogProb | Callable[[int], StreamedLogProb],
    initial_state: State,
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

    All sums are in double precision. Blocks of rows are evaluated by as many threads as there are
    cores. Rows may come in any order.

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
        unconstrained with a bijector.
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
        the log likelihood does not take rows with chain dimensions.
      StreamReadError: the data cannot be read.
    """
    boolean("jit_compile", jit_compile)
    state = convert_state(initial_state, initial=True, called="initial_state")
    parts = StreamParts(target, num_parts, executor, show)
    first, total = parts.first, sum(parts.sizes)
    model = first.of_one_batch
    check_single_state("initial_state", model, state)
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
        return loaded, PoolReport(total, read.num_rows, (read,))
    dim = num_entries(state)
    if dim > MOST_DIMENSIONS:
        raise ValueError(
            f"target must have at most {MOST_DIMENSIONS} parameters if its data do not fit into "
            f"memory={first.memory} bytes, because a pool needs their Hessian. Received: {dim} "
            f"parameters and {total * row_bytes} bytes. sample_chain takes SGLD on the stream."
        )
    most_rows = max(1, first.memory // row_bytes)
    counts = _shares(min(_MOST_PILOT_ROWS, most_rows), parts.sizes, row_seed)
    found, read = parts.run(ReadRows(counts, row_seed))
    rows, passes = joined(found), [read]
    _check_rows_of_chains(model, state, rows)
    derivatives = BlockDerivatives(model, state, first.block_rows, True, jit_compile)
    theta, precision = pilot_mode(model, rows, total, state, derivatives)
    factor = _factor(precision)
    start = unflatten_events(theta, state, 0)
    found, done = parts.run(SumGradients(as_arrays(start), jit_compile))
    passes.append(done)
    sums = functools.reduce(Sums.plus, found)
    step = factor @ (factor.T @ with_prior(model, sums, theta, state).gradient)
    for _ in range(_MOST_POOLS):
        drawn = found = None  # which frees their memory
        center = unflatten_events(theta + step, state, 0)
        remainders = RowRemainders(model, center, factor, draw_seed, jit_compile)
        moments = moments_of(remainders, rows)
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
        theta = flatten_events(center, 0).numpy().astype(np.float64)
        exact = with_prior(model, drawn.sums, theta, state)
        assert exact.hessian is not None
        precision = -(exact.hessian + exact.hessian.T) / 2
        factor = _factor(precision)
        offset = factor.T @ exact.gradient
        step = factor @ offset
        # The remainders that count are those at draws around the mode.
        around = RowRemainders(model, center, factor, draw_seed, jit_compile, offset)
        errors = pool_errors(moments_of(around, rows), kept_with, total)
        if errors[0] < MOST_MEAN_ERROR and errors[1] < MOST_WIDTH_ERROR:
            break
    del rows, found
    assert drawn is not None
    pool = PooledLogProb(model, drawn.rows, (1 / drawn.probabilities).astype(np.float32))
    kept, weights = pool.rows_and_weights()
    in_pool = sums_in_memory(kept, weights.numpy(), theta, derivatives, factor)
    lacking = drawn.sums.plus(in_pool.times(-1.0))
    radius = fading_radius(lacking.gradient, factor)
    numbers = lacking.log_likelihood, lacking.gradient, lacking.hessian, precision, radius
    dtype = tf.nest.flatten(state)[0].dtype
    correction = Correction(*(tf.constant(x, dtype) for x in (theta, *numbers)))
    distance = float(np.linalg.norm(offset))
    report = PoolReport(total, pool.num_examples, tuple(passes), *errors, distance)
    return pool.corrected(correction), report


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
            f"leaves [2, {few}, ...] of the batch, for two chains. tf.linalg.matvec(x, theta) is "
            "right for batches with and without chain dimensions."
        )
        raise
    if not np.allclose(found, [expected, expected], rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            "log_likelihood_fn must return for each of two equal chains, with a batch of leaves "
            f"[2, {few}, ...], what it returns for one. Received: {found.numpy()}, not "
            f"{expected.numpy()}."
        )

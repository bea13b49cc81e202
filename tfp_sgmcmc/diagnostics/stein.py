"""The kernel Stein discrepancy: the distance of samples from the target without a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.base import PeriodicReducer
from tfp_sgmcmc.internal.checks import integer, number, one_of, optional, positive, unary
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    call_with_state,
    convert_state,
    flatten_events,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import Target, as_target, kept_program, value_and_gradient
from tfp_sgmcmc.targets.streamed import StreamedLogProb

_CHUNK = 2**22  # pairs of samples that may be in memory at once


def squared_kernel_stein_discrepancy(
    samples: State,
    gradients: State,
    *,
    chain_ndims: int = 0,
    weights: Any = None,
    preconditioner: Any = None,
    scale: float = 1.0,
    exponent: float = -0.5,
    statistic: Literal["U", "V"] = "U",
    chunk_size: int | None = None,
) -> tf.Tensor:
    r"""Estimates the squared kernel Stein discrepancy, with the inverse multiquadric kernel.

    \[
    S^2 = \sum_{ij} w_i w_j k_0(\theta_i, \theta_j), \qquad
    k(x, y) = q^\beta, \; q = c^2 + |x - y|^2
    \]

    \[
    k_0(x, y) = g(x)^T g(y)\, q^\beta
      - 2 \beta q^{\beta - 1} \bigl( d + (g(x) - g(y))^T (x - y) \bigr)
      - 4 \beta (\beta - 1) q^{\beta - 2} |x - y|^2
    \]

    g is the gradient of the log posterior, which does not depend on the normalising constant. With
    a preconditioner M, k_0 is the kernel of the diffusion \( g^T M f + \nabla \cdot (M f) \): M g
    replaces g, \( \operatorname{tr} M^2 \) replaces d, and M (x - y) replaces x - y outside of q.
    If M is the posterior's covariance, deviations count as they do in its moments. Without M, the
    narrowest direction counts most.

    The statistic `"V"` is this sum. For n independent draws from the target its mean is
    E[k_0(x, x)] / n, so that S goes to zero as 1 / sqrt(n). For other samples it does not go to
    zero. `"U"` leaves out the pairs i = j and is unbiased. Its mean is zero on the target, so it
    can be negative. If g is estimated from minibatches that are independent of each other and of
    the samples, U stays unbiased, and V grows by
    \( c^{2 \beta} \operatorname{tr} \operatorname{cov}(g) / n \).

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> x = tf.random.stateless_normal([1000, 2], seed=[0, 1])
      >>> right = sgmcmc.diagnostics.squared_kernel_stein_discrepancy(x, -x)
      >>> wrong = sgmcmc.diagnostics.squared_kernel_stein_discrepancy(x + 0.5, -(x + 0.5))
      >>> bool(abs(right) < 0.01), bool(wrong > 0.1)
      (True, True)

    Args:
      samples: theta, a nest of parts `[n, chains..., event...]`, best scaled so that the
        posterior's deviations are about `scale`. In single precision, distances below about 1e-3 of
        the samples' spread are lost.
      gradients: g at the samples, or estimates, in the same shapes; see `gradients_at`.
      chain_ndims: number of dimensions after the first that count chains.
      weights: w, `[n]`, not negative, such as step sizes; they are divided by their sum. None
        weights all samples equally.
      preconditioner: M, `[D, D]`, symmetric and positive definite; None means the identity.
      scale: c, positive.
      exponent: beta, in (-1, 0), where S detects samples that do not converge to the target.
      statistic: `"U"` or `"V"`.
      chunk_size: rows of the n x n pairs that are in memory at once. None allows 4 million pairs of
        all chains together.

    Returns:
      S squared, a scalar or `[chains...]`; `"U"` is NaN for a single sample.

    Raises:
      ValueError: there are no samples; shapes do not fit; `scale`, `exponent`, `statistic` or
        `chunk_size` is out of range.

    References:
      J. Gorham and L. Mackey. Measuring sample quality with kernels. ICML, 2017.
      J. Gorham, A. Duncan, S. Vollmer and L. Mackey. Measuring sample quality with diffusions.
      Annals of Applied Probability, 2019. The preconditioner.
      Q. Liu, J. Lee and M. Jordan. A kernelized Stein discrepancy for goodness-of-fit tests. ICML,
      2016. Both statistics.
    """
    scale = positive("scale", scale)
    exponent = number("exponent", exponent, "between -1 and 0", lambda e: -1 < e < 0)
    one_of("statistic", statistic, ("U", "V"))
    integer("chain_ndims", chain_ndims, 0)
    x, g = _rows("samples", samples, chain_ndims), _rows("gradients", gradients, chain_ndims)
    if x.shape != g.shape:
        raise ValueError(
            "samples and gradients must have equal shapes [chains..., n, D] of entries. Received: "
            f"{x.shape} and {g.shape}."
        )
    n, size = x.shape[-2:]
    if n == 0:
        raise ValueError("samples must not be empty. Two are needed for 'U', and one for 'V'.")
    w = tf.ones([n], x.dtype) if weights is None else _numbers("weights", weights, x)
    if w.shape != [n]:
        raise ValueError(f"weights must have shape [{n}], as samples. Received: {w.shape}.")
    known = tf.get_static_value(w)
    if known is not None and not np.all(np.isfinite(known) & (known >= 0)):
        raise ValueError(f"weights must be finite and not negative. Received: {weights}.")
    w /= tf.reduce_sum(w)
    x -= tf.reduce_mean(x, axis=-2, keepdims=True)  # keeps small differences exact
    chunk_size = optional(integer, "chunk_size", chunk_size, 1)
    num_rows = min(n, chunk_size or max(1, _CHUNK // (n * x.shape[:-2].num_elements())))

    mx, trace = x, size
    if preconditioner is not None:
        m = _numbers("preconditioner", preconditioner, x)
        if m.shape != [size, size]:
            raise ValueError(
                f"preconditioner must have shape [{size}, {size}]. Received: {m.shape}."
            )
        known = tf.get_static_value(m)
        if known is not None:
            values = np.linalg.eigvalsh(np.asarray(known, np.float64))
            if not (values[-1] > 0 and values[0] >= -1e-6 * values[-1]):  # rounding is allowed
                raise ValueError(
                    f"preconditioner must be symmetric and positive definite. Received: {known}."
                )
        g, mx, trace = tf.matmul(g, m), tf.matmul(x, m), tf.reduce_sum(m**2)
    squares, m_squares = (tf.reduce_sum(a**2, axis=-1) for a in (x, mx))
    along = tf.reduce_sum(g * mx, axis=-1)
    beta, c2 = exponent, scale**2

    def rows_sum(start: tf.Tensor) -> tf.Tensor:
        """Returns the sum over j, and over the `num_rows` rows i that begin at `start`."""
        # The last chunk begins early enough to fit. Rows that were counted before get no weight.
        first = tf.minimum(start, n - num_rows)
        y, my, h = (_slice(a, first, num_rows, -2) for a in (x, mx, g))
        y2, my2, hy, v = (_slice(a, first, num_rows, -1) for a in (squares, m_squares, along, w))
        v = tf.where(first + tf.range(num_rows) >= start, v, 0)
        distance = _distances(y, x, y2, squares)
        m_distance = distance if mx is x else _distances(my, mx, my2, m_squares)
        slope = hy[..., :, tf.newaxis] + along[..., tf.newaxis, :]  # (g(y) - g(x))^T (y - x)
        slope -= tf.matmul(h, mx, transpose_b=True) + tf.matmul(my, g, transpose_b=True)
        q = c2 + distance
        terms = tf.matmul(h, g, transpose_b=True) - 2 * beta * (trace + slope) / q
        terms -= 4 * beta * (beta - 1) * m_distance / q**2
        return tf.linalg.matvec(tf.linalg.matvec(q**beta * terms, w)[..., tf.newaxis, :], v)[..., 0]

    _, total = tf.while_loop(
        lambda start, _: start < n,
        lambda start, total: (start + num_rows, total + rows_sum(start)),
        (tf.constant(0), tf.zeros(tf.shape(x)[:-2], x.dtype)),
        parallel_iterations=1,
    )
    if statistic == "V":
        return total
    same = c2**beta * (tf.reduce_sum(g**2, axis=-1) - 2 * beta * trace / c2)
    same = tf.linalg.matvec(same[..., tf.newaxis, :], w**2)[..., 0]
    return (total - same) / (1 - tf.reduce_sum(w**2))


def gradients_at(target_log_prob_fn: Any, samples: State, seed: Any = None) -> State:
    """Computes the gradients of the log posterior at samples, one result after the other.

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> sgmcmc.diagnostics.gradients_at(lambda x: -0.5 * x**2, tf.constant([1., -2.])).numpy()
      array([-1.,  2.], dtype=float32)

    Args:
      target_log_prob_fn: a target or a plain callable.
      samples: a nest of parts `[n, chains..., event...]`.
      seed: an integer or two, which names minibatches; None takes exact gradients.

    Returns:
      Gradients, in the structure and shapes of the samples.
    """
    target = as_target(target_log_prob_fn, full_data_expected=True)
    samples = convert_state(samples, called="samples")
    lengths = {x.shape[0] if x.shape.rank else None for x in tf.nest.flatten(samples)}
    if len(lengths) > 1 or not all(lengths):
        raise ValueError(
            "samples must have parts [n, chains..., event...] of equal length n. Received: shapes "
            f"{[tuple(x.shape) for x in tf.nest.flatten(samples)]}."
        )
    seed = None if seed is None else random.as_seed(seed)
    if seed is None and isinstance(target, StreamedLogProb):  # one pass over the data for all
        return value_and_gradient(lambda s: call_with_state(target, s), samples)[1]
    if isinstance(target, StreamedLogProb):
        raise ValueError(
            "seed must be None for a StreamedLogProb, whose exact gradients at all samples take "
            "one pass. Received: a seed, which names minibatches."
        )

    first = tf.nest.map_structure(lambda x: x[0], samples)
    chain_ndims = len(tf.TensorShape(target.chain_shape(first)))
    # A loop in eager mode takes as long as many gradients.
    sizes = target.num_scores, target.noise_scale, getattr(target, "reshuffle", None)
    name = f"gradients at samples, minibatches {sizes}"
    run = kept_program(
        target, name, samples, lambda: traced(lambda *x: estimates_at(target, *x, chain_ndims)[1])
    )
    return run(samples, seed)


def estimates_at(
    target: Target, samples: State, seed: Any, chain_ndims: int
) -> tuple[tf.Tensor, State]:
    """Returns what `estimate_at` does for all samples, one result after the other."""
    first = tf.nest.flatten(samples)[0]
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), samples)
    return tf.map_fn(
        lambda pair: estimate_at(target, pair[1], seed, pair[0]),
        (tf.range(first.shape[0]), samples),
        fn_output_signature=(tf.TensorSpec(first.shape[1 : 1 + chain_ndims], first.dtype), specs),
        parallel_iterations=1,
    )


def estimate_at(
    target: Target, state: State, seed: Any, number: tf.Tensor, results: Any = ()
) -> tuple[tf.Tensor, State]:
    """Returns the gradient at a state, exact or of the minibatch that seed and number name.

    `results` are those of the kernel that led there, which may carry a state of the target.
    """
    if seed is None:
        return value_and_gradient(lambda s: call_with_state(target, s), state)[:2]
    drawn = random.fold_in(random.as_seed(seed), number)
    target_state = getattr(results, "target_state", ())
    if getattr(target, "reshuffle", "step") != "step":  # whose state names the next minibatch
        target_state = ()
    estimate = target.estimate(state, drawn, target_state, with_scores=False)
    return estimate.log_prob, estimate.gradient


def _numbers(name: str, value: Any, like: tf.Tensor) -> tf.Tensor:
    """Returns an array of numbers in the dtype of another; raises TypeError for anything else."""
    try:
        return tf.convert_to_tensor(value, like.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be an array of {like.dtype.name} numbers. Received: {value!r:.100}."
        ) from error


def _rows(name: str, nest: State, chain_ndims: int) -> tf.Tensor:
    """Returns parts `[n, chains..., event...]` as one array `[chains..., n, D]`."""
    parts = tf.nest.flatten(convert_state(nest, called=name))
    fits = all(x.shape.rank > chain_ndims for x in parts)
    if not fits or len({tuple(x.shape[: 1 + chain_ndims]) for x in parts}) > 1:
        raise ValueError(
            f"{name} must have parts [n, chains..., event...] with equal n and {chain_ndims} "
            f"dimensions of chains. Received: shapes {[tuple(x.shape) for x in parts]}."
        )
    flat = flatten_events(parts, 1 + chain_ndims)
    return tf.transpose(flat, [*range(1, 1 + chain_ndims), 0, 1 + chain_ndims])


def _distances(y: tf.Tensor, x: tf.Tensor, y2: tf.Tensor, x2: tf.Tensor) -> tf.Tensor:
    """Returns squared distances of all rows of y to all rows of x, from their squared norms."""
    both = y2[..., :, tf.newaxis] + x2[..., tf.newaxis, :]
    return tf.maximum(both - 2 * tf.matmul(y, x, transpose_b=True), 0)


def _slice(x: tf.Tensor, start: tf.Tensor, size: int, axis: int) -> tf.Tensor:
    """Returns `size` entries of an axis, with a static shape for XLA."""
    begin, shape = [0] * x.shape.rank, list(x.shape)
    begin[axis], shape[axis] = start, size
    return tf.slice(x, begin, shape)


class SteinState(NamedTuple):
    """The state of `KernelSteinDiscrepancyReducer`.

    Attributes:
      samples: the states after steps `every`, `2 every`, and so on, in parts
        `[size, chains..., event...]`; entries from `num_kept` on have no meaning.
      gradients: gradients of the log posterior at the samples, in the same shapes.
      num_kept: number of states kept.
      every: number of steps from one kept state to the next.
      num_steps: number of steps.
    """

    samples: State
    gradients: State
    num_kept: tf.Tensor
    every: tf.Tensor
    num_steps: tf.Tensor


class KernelSteinDiscrepancyReducer(PeriodicReducer):
    r"""Computes the `squared_kernel_stein_discrepancy` of a chain that is not kept.

    The discrepancy is a sum over all pairs of states, which cannot be computed in fixed memory. So
    at most `size` states are kept, with their gradients. When there is no room for another, every
    second state is dropped and `every` is doubled. So the kept states are always those after
    `every`, `2 every`, `3 every` and so on steps, and at least `size / 2` of them once there were
    so many. It finalises to their squared discrepancy, `[chains...]`, which is NaN without any
    state, and for the statistic "U" with fewer than two.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
      >>> squares, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3, 2]), kernel=sgmcmc.SGLD(target, 1.), seed=[0, 1],
      ...     reducer=sgmcmc.diagnostics.KernelSteinDiscrepancyReducer(target, size=10))
      >>> squares.shape
      TensorShape([3])

    Args:
      target_log_prob_fn: the kernel's target, or a plain callable.
      size: largest number of states kept; finalising takes time in proportion to its square.
      seed: an integer or two, which names a separate minibatch for each state's gradient. None
        takes exact gradients, over all examples. (A target that goes through its data in epochs
        uses the minibatch of the next step. Then let `every` be as long as chains need to forget.)
      every: number of steps from one kept state to the next, at first.
      gradient_fn: kernel results -> gradient of the log posterior at the new state, which replaces
        both. For `CorrectedLangevin`: `lambda r: r.accepted_results.grads_target_log_prob`. The
        estimate that a step uses does not qualify, because it belongs to the state before.
      preconditioner: M, as in `squared_kernel_stein_discrepancy`.
      scale: c, as in `squared_kernel_stein_discrepancy`.
      exponent: beta, as in `squared_kernel_stein_discrepancy`.
      statistic: `"U"` or `"V"`, as in `squared_kernel_stein_discrepancy`.

    Raises:
      ValueError: `size` is below 2, `every` is below 1, or `squared_kernel_stein_discrepancy`
        refuses the options, which is checked before the first step.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        size: int,
        *,
        seed: Any = None,
        every: int = 1,
        gradient_fn: Callable[[Any], State] | None = None,
        preconditioner: Any = None,
        scale: float = 1.0,
        exponent: float = -0.5,
        statistic: Literal["U", "V"] = "U",
    ):
        super().__init__(as_target(target_log_prob_fn, full_data_expected=True), every)
        self._size = integer("size", size, 2)
        self._seed = None if seed is None else random.as_seed(seed)
        signature = "kernel results -> gradient"
        self._gradient_fn = optional(unary, "gradient_fn", gradient_fn, signature)
        scale = positive("scale", scale)
        exponent = number("exponent", exponent, "between -1 and 0", lambda e: -1 < e < 0)
        one_of("statistic", statistic, ("U", "V"))
        self._options: dict[str, Any] = dict(
            preconditioner=preconditioner, scale=scale, exponent=exponent, statistic=statistic
        )

    def _start(self, state: State, zeros: tf.Tensor) -> SteinState:
        slots = tf.nest.map_structure(
            lambda x: tf.zeros(tf.concat([[self._size], tf.shape(x)], axis=0), x.dtype), state
        )
        zero, every = tf.zeros([], tf.int64), tf.constant(self._every, tf.int64)
        own = SteinState(slots, slots, tf.zeros([], tf.int32), every, zero)
        # Raises if the options do not fit. Two rows suffice; all pairs of `size` would take long.
        two = tf.nest.map_structure(lambda x: x[:2], slots)
        self.finalize(own._replace(samples=two, gradients=two))
        return own

    def _update(self, own: SteinState, state: State, results: Any) -> SteinState:
        """Keeps a state, and makes room for it before."""
        own = tf.cond(own.num_kept == self._size, lambda: self._halved(own), lambda: own)

        def keep() -> SteinState:
            if self._gradient_fn is None:
                gradient = estimate_at(self._target, state, self._seed, own.num_steps, results)[1]
            else:
                gradient = self._gradient_fn(results)

            def write(kept: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
                return tf.tensor_scatter_nd_update(kept, [[own.num_kept]], [x])

            return own._replace(
                samples=tf.nest.map_structure(write, own.samples, state),
                gradients=tf.nest.map_structure(write, own.gradients, gradient),
                num_kept=own.num_kept + 1,
            )

        return tf.cond(own.num_steps % own.every == 0, keep, lambda: own)  # `every` may have grown

    def finalize(self, final_reducer_state: SteinState) -> tf.Tensor:
        """Returns the squared discrepancy, `[chains...]`."""
        own = final_reducer_state
        is_kept = tf.range(tf.nest.flatten(own.samples)[0].shape[0]) < own.num_kept

        def filled(x: tf.Tensor) -> tf.Tensor:
            """Fills up with the first state, which is not far away; its copies have no weight."""
            return tf.where(append_dims(is_kept, x), x, x[:1])

        samples, gradients = tf.nest.map_structure(filled, (own.samples, own.gradients))
        state = tf.nest.map_structure(lambda x: x[0], samples)
        return squared_kernel_stein_discrepancy(
            samples,
            gradients,
            chain_ndims=len(tf.TensorShape(self._target.chain_shape(state))),
            weights=tf.cast(is_kept, tf.nest.flatten(samples)[0].dtype),
            **self._options,
        )

    def _halved(self, own: SteinState) -> SteinState:
        """Keeps the second, fourth, sixth and so on state."""
        num_kept = self._size // 2
        second = tf.minimum(2 * tf.range(self._size) + 1, 2 * num_kept - 1)
        samples, gradients = tf.nest.map_structure(
            lambda x: tf.gather(x, second), (own.samples, own.gradients)
        )
        return SteinState(samples, gradients, tf.constant(num_kept), 2 * own.every, own.num_steps)

"""Whether injected noise outweighs gradient noise: the sampling threshold of Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.kernels.settings import check_positive, value_at
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix, LocalMatrix, as_preconditioner
from tfp_sgmcmc.state import State, flatten_events, map_parts, sum_events
from tfp_sgmcmc.targets.base import GradientEstimate


def sampling_threshold(
    estimate: GradientEstimate,
    step_size: Any,
    preconditioner: Any = None,
    *,
    seed: Any,
    temperature: float = 1.0,
    num_iterations: int = 20,
) -> tf.Tensor:
    r"""The sampling threshold alpha: gradient noise over injected noise, where it is largest.

    \[ \alpha = \frac{\epsilon}{4 T} \lambda_{max} \left( M^{1/2} \Sigma M^{1/2} \right) \]

    A step of SGLD has gradient noise of covariance \( \frac{\epsilon^2}{4} M \Sigma M \), with
    \( \Sigma = c V \) the covariance of the gradient estimate, and injected noise of covariance
    \( \epsilon T M \); alpha is the largest ratio of their variances in any direction. Where
    alpha << 1, the chain is in its sampling phase. At another step size a, alpha is a / epsilon
    times as large.

    In the paper's notation, \( \alpha = \frac{\epsilon N^2}{4n} \lambda_{max} (M^{1/2} V_s M^{1/2})
    \): its \( \frac{N^2}{n} V_s \) is Sigma for minibatches drawn with replacement, with divisor n
    in \( V_s \); V here has n - 1, and c is `noise_scale`, which knows how minibatches are drawn.

    The eigenvalue is that of the Gram matrix of the centred scores, C M C^T, by power iteration, of
    n D numbers an iteration; it comes from below (20 iterations were 1.6 % short for n = 500
    Gaussian scores in D = 129 dimensions, a flat spectrum).

    >>> import numpy as np, tensorflow as tf, tfp_sgmcmc as sgmcmc
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000, 2]).astype(np.float32)
    >>> target = sgmcmc.MinibatchLogProb(
    ...     log_prior_fn=lambda theta: tf.zeros(theta.shape[:-1]),
    ...     log_likelihood_fn=lambda theta, batch: -0.5 * tf.reduce_sum(
    ...         (batch - theta[..., None, :])**2, axis=-1),
    ...     data=x, batch_size=50, replacement=True)
    >>> estimate = target.estimate(tf.zeros([2]), seed=tf.constant([0, 1]))
    >>> alpha = sgmcmc.diagnostics.sampling_threshold(estimate, step_size=1e-5, seed=2)
    >>> 0.05 < float(alpha) < 0.1  # epsilon/4 N^2/n = 0.05
    True

    Args:
      estimate: with its scores, as `target.estimate` returns it.
      step_size: epsilon: a positive number, or a nest in the structure of the state. It may differ
        between entries that M does not mix.
      preconditioner: M: None, a positive number or array, `Diagonal` or `FullMatrix`; of another
        preconditioner the `LocalMatrix` at the state.
      seed: an integer, or two; names the vector that the iteration begins with.
      temperature: T.
      num_iterations: of the power iteration.

    Returns:
      alpha, `[chains...]`; NaN from a minibatch of a single score, which has no covariance.

    Raises:
      ValueError: an estimate without scores whose gradient is not exact; a step size that is not
        positive and finite; `temperature` or `num_iterations` out of range.
      TypeError: a preconditioner whose M depends on the state; a step size that is a schedule.

    #### References

    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Equations 8-10.
    """
    integer("num_iterations", num_iterations, 1)
    if _is_exact(estimate):
        return tf.zeros_like(estimate.log_prob)
    like, multiply = estimate.gradient, _scaled_matrix(estimate, step_size, preconditioner)
    chain_ndims = estimate.log_prob.shape.rank
    rows = [_centred(s, chain_ndims) for s in tf.nest.flatten(estimate.scores)]

    def gram_product(u: tf.Tensor) -> tf.Tensor:
        """C M C^T u, u of shape `[chains..., n]`."""
        v = _as_state([tf.linalg.matvec(r, u, transpose_a=True) for r in rows], like)
        parts = zip(rows, tf.nest.flatten(multiply(v)), strict=True)
        flat = [(r, flatten_events([x], chain_ndims)) for r, x in parts]
        return tf.add_n([tf.linalg.matvec(r, x) for r, x in flat])

    u = random.normal_like(rows[0][..., 0], random.as_seed(seed))
    _, u = tf.while_loop(
        lambda i, _: i < num_iterations,
        lambda i, u: (i + 1, gram_product(_unit(u))),
        (tf.constant(0), u),
    )
    return _ratio(estimate, tf.norm(u, axis=-1), temperature)


def gradient_noise_share(
    estimate: GradientEstimate,
    step_size: Any,
    preconditioner: Any = None,
    *,
    temperature: float = 1.0,
) -> tf.Tensor:
    r"""The fraction of a Langevin step's variance that is gradient noise.

    \[
    \frac{\bar\alpha}{1 + \bar\alpha}, \qquad
    \bar\alpha = \frac{\epsilon}{4 T D} \operatorname{tr} \left( M^{1/2} \Sigma M^{1/2} \right)
    \]

    \( \bar\alpha \) is the mean, over directions, of the ratio of which `sampling_threshold` gives
    the maximum; it costs no more than to look at the scores once. With M = I it is the ratio of the
    two total variances, \( \frac{\epsilon^2}{4} \operatorname{tr} \Sigma \) and \( \epsilon T D \).

    >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
    >>> estimate = sgmcmc.GradientEstimate(  # V = diag(2, 8), c = 2
    ...     tf.zeros([2]), tf.zeros([]), tf.constant([[1., 2.], [-1., -2.]]), noise_scale=2.)
    >>> float(sgmcmc.diagnostics.gradient_noise_share(estimate, step_size=0.4))  # 0.1 * 20 / 2 = 1
    0.5

    Args:
      estimate: with its scores, as `target.estimate` returns it.
      step_size: as of `sampling_threshold`.
      preconditioner: as of `sampling_threshold`.
      temperature: T.

    Returns:
      The share, in [0, 1), `[chains...]`; NaN likewise.

    Raises:
      ValueError: as `sampling_threshold`.
      TypeError: likewise.

    #### References

    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Figure 2, left: both variances, by iteration.
    """
    if _is_exact(estimate):
        return tf.zeros_like(estimate.log_prob)
    like, multiply = estimate.gradient, _scaled_matrix(estimate, step_size, preconditioner)
    chain_ndims = estimate.log_prob.shape.rank
    scores = tf.nest.flatten(estimate.scores)
    if isinstance(preconditioner, FullMatrix | LocalMatrix):

        def quadratic(row: list[tf.Tensor]) -> tf.Tensor:
            x = _as_state(row, like)
            return sum_events(map_parts(tf.multiply, x, multiply(x)), chain_ndims)

        # [n, chains..., D]: one row of all chains at a time is a state.
        rows = [_centred(s, chain_ndims) for s in scores]
        rows = [tf.transpose(r, [chain_ndims, *range(chain_ndims), chain_ndims + 1]) for r in rows]
        trace = tf.reduce_sum(tf.vectorized_map(quadratic, rows), axis=0)
    else:
        diagonal = multiply(tf.nest.map_structure(tf.ones_like, like))
        variances = _as_state([_variances(s, chain_ndims) for s in scores], like)
        trace = sum_events(map_parts(tf.multiply, diagonal, variances), chain_ndims)
    size = sum(g.shape[chain_ndims:].num_elements() for g in tf.nest.flatten(like))
    ratio = _ratio(estimate, trace, temperature) / size
    return ratio / (1 + ratio)


def _is_exact(estimate: GradientEstimate) -> bool:
    if tf.nest.flatten(estimate.scores):
        return False
    if tf.get_static_value(tf.convert_to_tensor(estimate.noise_scale)) == 0:
        return True
    raise ValueError(
        "The estimate has no scores, from which the covariance of its gradient noise could be "
        "estimated: one of a target that gives them (MinibatchLogProb, ControlVariate, SVRG), made "
        "with with_scores=True, is expected."
    )


def _scaled_matrix(
    estimate: GradientEstimate, step_size: Any, preconditioner: Any
) -> Callable[[State], State]:
    """v -> E^(1/2) M E^(1/2) v, with E = diag(step_size)."""
    like, chain_ndims = estimate.gradient, estimate.log_prob.shape.rank
    if any(callable(s) and not tf.is_tensor(s) for s in tf.nest.flatten(step_size)):
        raise TypeError("step_size is a schedule; its value at the step in question is expected.")
    check_positive("step_size", step_size)
    root = map_parts(tf.sqrt, value_at(step_size, tf.zeros([], tf.int64), like))
    matrix = preconditioner
    if not isinstance(matrix, LocalMatrix):
        constant = as_preconditioner(preconditioner)
        if not isinstance(constant, Diagonal | FullMatrix):
            raise TypeError(
                f"preconditioner is a {type(constant).__name__}, whose M depends on the state or "
                "on past gradients; the LocalMatrix that its `evaluate` returns is expected."
            )
        matrix, _ = constant.evaluate(like, chain_ndims)
    return lambda v: map_parts(tf.multiply, matrix.multiply(map_parts(tf.multiply, v, root)), root)


def _ratio(estimate: GradientEstimate, of_v: tf.Tensor, temperature: Any) -> tf.Tensor:
    """From a figure of M^(1/2) V M^(1/2) that of the ratio of the variances."""
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; a positive number is expected.")
    return tf.cast(estimate.noise_scale, of_v.dtype) / (4 * temperature) * of_v


def _centred(scores: Any, chain_ndims: int) -> tf.Tensor:
    """C, `[chains..., n, D]`, with V = C^T C."""
    scores = scores.rows() if isinstance(scores, FactoredScores) else scores
    rows = flatten_events([scores], chain_ndims + 1)
    freedom = tf.cast(tf.shape(rows)[-2] - 1, rows.dtype)
    return (rows - tf.reduce_mean(rows, axis=-2, keepdims=True)) / tf.sqrt(freedom)


def _variances(scores: Any, chain_ndims: int) -> tf.Tensor:
    """The diagonal of V, `[chains..., D]`."""
    if isinstance(scores, FactoredScores):
        return scores.variances()
    return tf.reduce_sum(tf.square(_centred(scores, chain_ndims)), axis=-2)


def _unit(u: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(u, tf.norm(u, axis=-1, keepdims=True))


def _as_state(parts: list[tf.Tensor], like: State) -> State:
    """Parts `[chains..., D]` in the structure and shapes of the state."""
    pairs = zip(parts, tf.nest.flatten(like), strict=True)
    return tf.nest.pack_sequence_as(like, [tf.reshape(x, tf.shape(g)) for x, g in pairs])

"""The ratio of gradient to injected noise, the end of burn-in by it, and temperatures of chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance.factored_scores import FactoredScores, OuterProducts
from tfp_sgmcmc.diagnostics.base import PeriodicReducer, real_array
from tfp_sgmcmc.diagnostics.stein import estimate_at
from tfp_sgmcmc.internal.checks import a_type, integer, positive, unary
from tfp_sgmcmc.internal.nest import (
    State,
    convert_state,
    flatten_events,
    map_parts,
    num_entries,
    sum_events,
)
from tfp_sgmcmc.kernels import momentum as momentum_kernels
from tfp_sgmcmc.kernels.base import check_positive, value_at
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix, LocalMatrix, as_preconditioner
from tfp_sgmcmc.targets.base import GradientEstimate, Target, as_target


def sampling_threshold(
    estimate: GradientEstimate,
    step_size: Any,
    preconditioner: Any = None,
    *,
    seed: Any,
    temperature: float = 1.0,
    num_iterations: int = 20,
) -> tf.Tensor:
    r"""Estimates the sampling threshold alpha, the largest ratio of gradient to injected noise.

    \[ \alpha = \frac{\epsilon}{4 T} \lambda_{max} \left( M^{1/2} \Sigma M^{1/2} \right) \]

    A step of SGLD has gradient noise with covariance \( \frac{\epsilon^2}{4} M \Sigma M \), where
    \( \Sigma = c V \) is the covariance of the gradient estimate, and injected noise with
    covariance \( \epsilon T M \). alpha is the largest ratio of their variances in any direction.
    If alpha << 1, the chain is in its sampling phase. alpha is proportional to the step size.

    The paper writes \( \alpha = \frac{\epsilon N^2}{4n} \lambda_{max} (M^{1/2} V_s M^{1/2}) \).
    Its \( \frac{N^2}{n} V_s \) is Sigma for minibatches drawn with replacement, and \( V_s \) has
    divisor n. V here has divisor n - 1, and c is `noise_scale`, which depends on how minibatches
    are drawn.

    The eigenvalue is computed from the Gram matrix of the centred scores, C M C^T, by power
    iteration over n D numbers. If M is a number, wide dense layers take n^2 numbers instead. The
    iteration converges from below: 20 iterations were 1.6 % short for n = 500
    Gaussian scores in D = 129 dimensions, a flat spectrum.

    Examples:
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
      estimate: the result of `target.estimate`, with scores.
      step_size: epsilon: a positive number, or a nest in the structure of the state. It may differ
        between entries that M does not mix.
      preconditioner: M: None, a positive number or array, `Diagonal` or `FullMatrix`. For another
        preconditioner, give its `LocalMatrix` at the state.
      seed: an integer or two, which names the vector that the iteration begins with.
      temperature: T.
      num_iterations: number of power iterations.

    Returns:
      alpha, `[chains...]`; NaN for a minibatch of a single score, which has no covariance.

    Raises:
      ValueError: the estimate has no scores and its gradient is not exact; the step size is not
        positive and finite; `temperature` or `num_iterations` is out of range.
      TypeError: the preconditioner's M depends on the state; the step size is a schedule.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Equations 8-10.
    """
    integer("num_iterations", num_iterations, 1)
    temperature = positive("temperature", temperature)
    if _is_exact(estimate):
        return tf.zeros_like(estimate.log_prob)
    like, multiply = estimate.gradient, _scaled_matrix(estimate, step_size, preconditioner)
    chain_ndims = estimate.log_prob.shape.rank
    scores = tf.nest.flatten(estimate.scores)
    number = _number(step_size, preconditioner, tf.nest.flatten(like)[0].dtype)
    grams = [None if number is None else _centred_gram(s) for s in scores]
    pairs = zip(scores, grams, strict=True)
    rows = [_centred(s, chain_ndims) for s, gram in pairs if gram is None]
    known = [gram for gram in grams if gram is not None]

    def gram_product(u: tf.Tensor) -> tf.Tensor:
        """Returns C M C^T u / |u| for u of shape `[chains..., n]`."""
        u = tf.math.divide_no_nan(u, tf.norm(u, axis=-1, keepdims=True))
        if number is not None:
            parts = [tf.linalg.matvec(r, tf.linalg.matvec(r, u, transpose_a=True)) for r in rows]
            parts += [tf.linalg.matvec(tf.add_n(known), u)] if known else []
            return number * tf.add_n(parts)
        v = _as_state([tf.linalg.matvec(r, u, transpose_a=True) for r in rows], like)
        parts = zip(rows, tf.nest.flatten(multiply(v)), strict=True)
        flat = [(r, flatten_events([x], chain_ndims)) for r, x in parts]
        return tf.add_n([tf.linalg.matvec(r, x) for r, x in flat])

    u = random.normal_like((known or rows)[0][..., 0], random.as_seed(seed))
    _, u = tf.while_loop(
        lambda i, _: i < num_iterations,
        lambda i, u: (i + 1, gram_product(u)),
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
    r"""Computes the fraction of a Langevin step's variance that is gradient noise.

    \[
    \frac{\bar\alpha}{1 + \bar\alpha}, \qquad
    \bar\alpha = \frac{\epsilon}{4 T D} \operatorname{tr} \left( M^{1/2} \Sigma M^{1/2} \right)
    \]

    \( \bar\alpha \) is the mean over directions of the ratio whose maximum `sampling_threshold`
    gives. It costs one pass over the scores. With M = I it is the ratio of the two total variances,
    \( \frac{\epsilon^2}{4} \operatorname{tr} \Sigma \) and \( \epsilon T D \).

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> estimate = sgmcmc.GradientEstimate(  # V = diag(2, 8), c = 2
      ...     tf.zeros([2]), tf.zeros([]), tf.constant([[1., 2.], [-1., -2.]]), noise_scale=2.)
      >>> float(sgmcmc.diagnostics.gradient_noise_share(estimate, step_size=0.4))  # 0.1 * 20/2 = 1
      0.5

    Args:
      estimate: the result of `target.estimate`, with scores.
      step_size: epsilon, as in `sampling_threshold`.
      preconditioner: M, as in `sampling_threshold`.
      temperature: T.

    Returns:
      The share, in [0, 1), `[chains...]`; NaN for a minibatch of a single score.

    Raises:
      ValueError, TypeError: `sampling_threshold` would refuse the arguments.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Figure 2, left: both variances, by iteration.
    """
    temperature = positive("temperature", temperature)
    if _is_exact(estimate):
        return tf.zeros_like(estimate.log_prob)
    like, multiply = estimate.gradient, _scaled_matrix(estimate, step_size, preconditioner)
    chain_ndims = estimate.log_prob.shape.rank
    scores = tf.nest.flatten(estimate.scores)
    if isinstance(preconditioner, FullMatrix | LocalMatrix):

        def quadratic(row: list[tf.Tensor]) -> tf.Tensor:
            x = _as_state(row, like)
            return sum_events(map_parts(tf.multiply, x, multiply(x)), chain_ndims)

        # Rows are [n, chains..., D], so that one row of all chains is a state.
        rows = [_centred(s, chain_ndims) for s in scores]
        rows = [tf.transpose(r, [chain_ndims, *range(chain_ndims), chain_ndims + 1]) for r in rows]
        trace = tf.reduce_sum(tf.vectorized_map(quadratic, rows), axis=0)
    else:
        diagonal = multiply(tf.nest.map_structure(tf.ones_like, like))
        variances = _as_state([_variances(s, chain_ndims) for s in scores], like)
        trace = sum_events(map_parts(tf.multiply, diagonal, variances), chain_ndims)
    ratio = _ratio(estimate, trace, temperature) / num_entries(like, chain_ndims)
    return ratio / (1 + ratio)


def _is_exact(estimate: GradientEstimate) -> bool:
    if not isinstance(estimate, GradientEstimate):
        raise TypeError(
            f"estimate must be a result of `target.estimate`. Received: {a_type(estimate)}."
        )
    if tf.nest.flatten(estimate.scores):
        return False
    if tf.get_static_value(tf.convert_to_tensor(estimate.noise_scale)) == 0:
        return True
    raise ValueError(
        "estimate must have scores, which give the covariance of its gradient noise. Received: an "
        "estimate that has no scores. Use with_scores=True and a target that gives scores "
        "(MinibatchLogProb, ControlVariate, SVRG)."
    )


def _scaled_matrix(
    estimate: GradientEstimate, step_size: Any, preconditioner: Any
) -> Callable[[State], State]:
    """Returns the function v -> E^(1/2) M E^(1/2) v, with E = diag(step_size)."""
    like, chain_ndims = estimate.gradient, estimate.log_prob.shape.rank
    if any(callable(s) and not tf.is_tensor(s) for s in tf.nest.flatten(step_size)):
        raise TypeError("step_size must be the value at one step. Received: a schedule.")
    check_positive("step_size", step_size)
    root = map_parts(tf.sqrt, value_at(step_size, tf.zeros([], tf.int64), like))
    matrix = preconditioner
    if not isinstance(matrix, LocalMatrix):
        constant = as_preconditioner(preconditioner)
        if not isinstance(constant, Diagonal | FullMatrix):
            raise TypeError(
                "preconditioner must have a fixed M. Received: "
                f"{type(constant).__name__}, whose M depends on the state or on past gradients. "
                "Give the LocalMatrix that its `evaluate` returns."
            )
        matrix, _ = constant.evaluate(like, chain_ndims)
    return lambda v: map_parts(tf.multiply, matrix.multiply(map_parts(tf.multiply, v, root)), root)


def _number(step_size: Any, preconditioner: Any, dtype: tf.DType) -> tf.Tensor | None:
    """Returns the number that multiplies vectors as E^(1/2) M E^(1/2) does; None for a matrix."""
    factors: list[Any] = [step_size, 1.0 if preconditioner is None else preconditioner]
    for i, x in enumerate(factors):
        if tf.is_tensor(x) and x.shape.rank == 0:
            factors[i] = tf.cast(x, dtype)
        elif isinstance(x, float | int | np.number):
            factors[i] = tf.constant(x, dtype)
        else:
            return None
    return factors[0] * factors[1]


def _ratio(estimate: GradientEstimate, of_v: tf.Tensor, temperature: Any) -> tf.Tensor:
    """Returns the ratio of variances that follows from a figure of M^(1/2) V M^(1/2)."""
    return tf.cast(estimate.noise_scale, of_v.dtype) / (4 * temperature) * of_v


def _centred(scores: Any, chain_ndims: int) -> tf.Tensor:
    """Returns C, `[chains..., n, D]`, with V = C^T C."""
    scores = scores.rows() if isinstance(scores, FactoredScores) else scores
    rows = flatten_events([scores], chain_ndims + 1)
    freedom = tf.cast(tf.shape(rows)[-2] - 1, rows.dtype)
    return (rows - tf.reduce_mean(rows, axis=-2, keepdims=True)) / tf.sqrt(freedom)


def _centred_gram(scores: Any) -> tf.Tensor | None:
    """Returns C C^T, `[chains..., n, n]`, or None if C itself is to be used.

    Its relative error in single precision is about 1e-7 (1 + mean^2 / variance) of the scores.
    """
    gram = scores.gram() if isinstance(scores, OuterProducts) else None
    if gram is None:
        return None
    for axis in (-1, -2):
        gram -= tf.reduce_mean(gram, axis=axis, keepdims=True)
    return gram / tf.cast(tf.shape(gram)[-1] - 1, gram.dtype)


def _variances(scores: Any, chain_ndims: int) -> tf.Tensor:
    """Returns the diagonal of V, `[chains..., D]`."""
    if isinstance(scores, FactoredScores):
        return scores.variances()
    return tf.reduce_sum(tf.square(_centred(scores, chain_ndims)), axis=-2)


def _as_state(parts: list[tf.Tensor], like: State) -> State:
    """Returns parts `[chains..., D]` in the structure and shapes of the state."""
    pairs = zip(parts, tf.nest.flatten(like), strict=True)
    return tf.nest.pack_sequence_as(like, [tf.reshape(x, tf.shape(g)) for x, g in pairs])


class SamplingThresholdState(NamedTuple):
    """The result of `SamplingThresholdReducer`.

    Attributes:
      alpha: the last value of alpha, `[chains...]`; infinite before the first one.
      first_step: number of the first step (counted from 1) after which alpha was below the
        threshold, `[chains...]`; 0 if there is none yet.
      num_steps: number of steps.
    """

    alpha: tf.Tensor
    first_step: tf.Tensor
    num_steps: tf.Tensor


class SamplingThresholdReducer(PeriodicReducer):
    """Finds the first step after which alpha is below a threshold, where burn-in may end.

    At every `every`-th state it draws another minibatch with scores, and computes
    `sampling_threshold` at the step size in the kernel's results. No states are kept.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfp.distributions.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda theta, batch: -0.5 * (batch - theta[..., None])**2,
      ...     data=x, batch_size=50, replacement=True)
      >>> schedule = sgmcmc.schedules.PolynomialDecay(a=1e-3, b=1., gamma=0.55)
      >>> @tf.function(jit_compile=True)
      ... def run(seed):
      ...     found, _, _ = tfp.experimental.mcmc.sample_fold(
      ...         500, tf.zeros([4]), kernel=sgmcmc.SGLD(target, schedule), seed=seed,
      ...         reducer=sgmcmc.diagnostics.SamplingThresholdReducer(target, 0.3, seed=1))
      ...     return found
      >>> run(tf.constant([0, 1])).first_step.shape
      TensorShape([4])

    Args:
      target: the kernel's target, which must give scores.
      threshold: a positive number; a chain with a smaller alpha is in its sampling phase.
      preconditioner: M: None, a positive number or array, `Diagonal` or `FullMatrix`.
      seed: an integer or two, which names the minibatches.
      every: number of steps between the states that it uses.
      temperature: T.
      num_iterations: number of power iterations.
      step_size_fn: kernel results -> epsilon.

    Raises:
      ValueError: `threshold` or `every` is out of range.
      TypeError: `target` is not a target; or `sampling_threshold` raises it.
    """

    def __init__(
        self,
        target: Target,
        threshold: float,
        preconditioner: Any = None,
        *,
        seed: Any,
        every: int = 1,
        temperature: float = 1.0,
        num_iterations: int = 20,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        if not isinstance(target, Target):
            raise TypeError(f"target must be a Target. Received: {a_type(target)}.")
        super().__init__(target, every)
        self._threshold = positive("threshold", threshold)
        self._preconditioner = preconditioner
        self._temperature = positive("temperature", temperature)
        self._seed, self._num_iterations = random.as_seed(seed), num_iterations
        self._step_size_fn = unary("step_size_fn", step_size_fn, "kernel results -> step size")
        integer("num_iterations", num_iterations, 1)

    def _start(self, state: State, zeros: tf.Tensor) -> SamplingThresholdState:
        never, counts = zeros + float("inf"), tf.zeros_like(zeros, tf.int64)
        return SamplingThresholdState(never, counts, tf.zeros([], tf.int64))

    def _update(
        self, own: SamplingThresholdState, state: State, results: Any
    ) -> SamplingThresholdState:
        seeds = random.split(random.fold_in(self._seed, own.num_steps), 2)
        alpha = sampling_threshold(
            self._target.estimate(state, seeds[0], getattr(results, "target_state", ())),
            self._step_size_fn(results),
            self._preconditioner,
            seed=seeds[1],
            temperature=self._temperature,
            num_iterations=self._num_iterations,
        )
        is_first = (alpha < self._threshold) & (own.first_step == 0)
        first_step = tf.where(is_first, own.num_steps, own.first_step)
        return own._replace(alpha=alpha, first_step=first_step)


def kinetic_temperature(momentum: State, mass: Any = 1.0, *, chain_ndims: int = 0) -> tf.Tensor:
    r"""Returns the kinetic temperature of momenta, \( p^T m^{-1} p / d \).

    In equilibrium its mean is T and its variance 2 T^2 / d. The results of samplers with momenta
    hold it at each step, as `kinetic_temperature`. The mean over a chain that is not kept is
    `tfp.experimental.mcmc.ExpectationsReducer(lambda _, r: r.kinetic_temperature)`.

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> p = tf.constant([[1., 2.], [3., 1.]])  # two chains, d = 2
      >>> sgmcmc.diagnostics.kinetic_temperature(p, mass=2., chain_ndims=1).numpy()
      array([1.25, 2.5 ], dtype=float32)

    Args:
      momentum: p, a nest of parts `[chains..., event...]`.
      mass: m, a positive number, or a nest of them in the structure of the momenta.
      chain_ndims: number of leading dimensions that count chains (or steps).

    Returns:
      Temperatures, `[chains...]`.

    Raises:
      ValueError: a mass is not positive and finite.

    References:
      B. Leimkuhler and C. Matthews. Molecular Dynamics. Springer, 2015.
    """
    momentum = convert_state(momentum, called="momentum")
    integer("chain_ndims", chain_ndims, 0)
    shapes = [tuple(x.shape) for x in tf.nest.flatten(momentum)]
    if any(len(shape) < chain_ndims for shape in shapes):
        raise ValueError(
            "chain_ndims must be at most the number of dimensions of momentum. Received: "
            f"{chain_ndims}, with shapes {shapes}."
        )
    check_positive("mass", mass)
    mass = value_at(mass, tf.zeros([], tf.int64), momentum, "mass")
    return momentum_kernels.kinetic_temperature(momentum, mass, chain_ndims)


def configurational_temperature(samples: State, gradients: State, *, chain_ndims: int = 0) -> Any:
    r"""Returns the temperature of states, from the gradients of the log posterior there.

    \[
    T_c = - \frac1d \sum_{i=1}^d \widehat{\operatorname{cov}}\left( \theta_i, g_i \right), \qquad
    - E\left[ (\theta - a)^T \nabla \log p(\theta) \right] = d\, T
    \text{ under } p(\theta)^{1/T}, \text{ for every } a
    \]

    The sample covariances are taken over the chain. g may be an unbiased estimate of the gradient
    at the state, such as that of a minibatch that had no part in the step to the state. Gradient
    noise and large steps heat the chain, so that T_c is above the temperature asked for.

    Examples:
      >>> import numpy as np, tfp_sgmcmc as sgmcmc
      >>> theta = 2 * np.random.default_rng(0).standard_normal([10000, 3])  # of N(0, 1), T = 4
      >>> sgmcmc.diagnostics.configurational_temperature(theta, gradients=-theta).round(1)
      np.float64(4.0)

    Args:
      samples: a nest of parts `[results, chains..., event...]`.
      gradients: gradients of the log posterior at the samples, or estimates, in the same shapes.
      chain_ndims: number of dimensions behind the first that count chains.

    Returns:
      A number, or `[chains...]`.

    Raises:
      ValueError: shapes differ, or there are fewer than two samples.

    References:
      O. G. Jepps, G. Ayton and D. J. Evans. Microscopic expressions for the thermodynamic
      temperature. Physical Review E, 2000. With the vector field theta - a.
    """
    total, size = 0.0, 0
    integer("chain_ndims", chain_ndims, 0)
    parts, slopes = tf.nest.flatten(samples), tf.nest.flatten(gradients)
    if not parts or len(parts) != len(slopes):
        raise ValueError(
            "samples and gradients must have the same parts. Received: "
            f"{len(parts)} and {len(slopes)} parts."
        )
    for x, g in zip(parts, slopes, strict=True):
        x, g = real_array("samples", x), real_array("gradients", g)
        if x.shape != g.shape or x.ndim < 1 + chain_ndims or len(x) < 2:
            raise ValueError(
                "samples and gradients must have equal shapes [results, chains..., event...] with "
                f"{chain_ndims} dimensions of chains and at least 2 results. Received: shapes "
                f"{x.shape} and {g.shape}."
            )
        covariance = np.sum((x - x.mean(axis=0)) * (g - g.mean(axis=0)), axis=0) / (len(x) - 1)
        total = total + np.sum(covariance, axis=tuple(range(chain_ndims, covariance.ndim)))
        size += int(np.prod(x.shape[1 + chain_ndims :]))
    return -total / size


class TemperatureState(NamedTuple):
    """The state of `ConfigurationalTemperatureReducer`.

    Attributes:
      mean_state: mean of the states used.
      mean_gradient: mean of the gradients there.
      product: sum of the products of their deviations, `[chains...]`.
      count: number of states used.
      num_steps: number of steps.
    """

    mean_state: State
    mean_gradient: State
    product: tf.Tensor
    count: tf.Tensor
    num_steps: tf.Tensor


class ConfigurationalTemperatureReducer(PeriodicReducer):
    """Computes the `configurational_temperature` of a chain that is not kept.

    At every `every`-th state it draws another minibatch for the gradient. It finalises to the
    temperature, `[chains...]`, which is NaN if fewer than two states were used.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
      >>> temperature, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3, 10]), kernel=sgmcmc.SGLD(target, 0.1),
      ...     reducer=sgmcmc.diagnostics.ConfigurationalTemperatureReducer(target, seed=1),
      ...     seed=[0, 1])
      >>> temperature.shape
      TensorShape([3])

    Args:
      target_log_prob_fn: the kernel's target, or a plain callable.
      seed: an integer or two, which names the minibatches.
      every: number of steps between the states that it uses.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, target_log_prob_fn: Any, *, seed: Any, every: int = 1):
        super().__init__(as_target(target_log_prob_fn, full_data_expected=True), every)
        self._seed = random.as_seed(seed)

    def _start(self, state: State, zeros: tf.Tensor) -> TemperatureState:
        mean, zero = tf.nest.map_structure(tf.zeros_like, state), tf.zeros([], tf.int64)
        return TemperatureState(mean, mean, zeros, zero, zero)

    def _update(self, own: TemperatureState, state: State, results: Any) -> TemperatureState:
        """Updates means and product by Welford's recursion."""
        gradient = estimate_at(self._target, state, self._seed, own.num_steps, results)[1]
        count = own.count + 1

        def moved(mean: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            return mean + (x - mean) / tf.cast(count, x.dtype)

        mean_state = map_parts(moved, own.mean_state, state)
        mean_gradient = map_parts(moved, own.mean_gradient, gradient)
        product = map_parts(
            lambda x, m, g, n: (x - m) * (g - n), state, own.mean_state, gradient, mean_gradient
        )
        product = own.product + sum_events(product, own.product.shape.rank)
        return TemperatureState(mean_state, mean_gradient, product, count, own.num_steps)

    def finalize(self, final_reducer_state: TemperatureState) -> tf.Tensor:
        """Returns the temperature, `[chains...]`."""
        own = final_reducer_state
        chain_ndims = own.product.shape.rank
        size = num_entries(own.mean_state, chain_ndims)
        freedom = tf.cast(own.count - 1, own.product.dtype)
        return tf.where(freedom > 0, -own.product / (freedom * size), float("nan"))

"""The search for a mode of the posterior, by L-BFGS, Newton steps or Adam, and its report."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import accepts, integer, numbers, one_of, positive, require
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    flatten_events,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import ExpansionError, value_and_gradient
from tfp_sgmcmc.targets.laplace.laplace import laplace
from tfp_sgmcmc.targets.laplace.quadratic import (
    HessianForm,
    hessian_products,
    matrices,
    quadratic_at,
)
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target
from tfp_sgmcmc.targets.sharded import refuse_shards

_MAX_ITERATIONS = {"lbfgs": 100, "adam": 2000}
_ROUNDS = 3
_NEWTON_STEPS = 50
MOST_NEWTON_DIMENSIONS = 1024
_MOST_HALVINGS = 20
_ROUNDING = 8  # in units of the last place of the log posterior


@dataclasses.dataclass(frozen=True)
class CenterReport:
    """The result of `find_center`, with the Hessian and Laplace's approximation at the center.

    Attributes:
      converged: whether `offset` is at most the tolerance.
      offset: the largest entry of the gradient, in units of its standard deviation under the
        posterior: about the distance to the mode in standard deviations. Where parameters are
        strongly correlated, the mode can be farther away.
      log_prob: log posterior at the center.
      gradient_norm: Euclidean norm of the gradient of the log posterior at the center.
      num_passes: number of gradients and Hessian-vector products over all N examples that were
        evaluated.
      num_minibatches: number of gradients of minibatches that were evaluated.
      num_newton_steps: number of damped Newton steps, each of D Hessian-vector products or more.
    """

    converged: bool
    offset: float
    log_prob: float
    gradient_norm: float
    num_passes: int
    num_minibatches: int
    num_newton_steps: int
    _at: tuple[MinibatchLogProb, State, HessianForm] = dataclasses.field(repr=False, compare=False)

    @functools.cached_property
    def _quadratic(self) -> Any:
        return quadratic_at(*self._at)

    @property
    def hessian(self) -> tf.Tensor | tf.linalg.LinearOperator:
        """The Hessian of the log posterior at the center, computed on first use.

        It is a matrix `[D, D]`, or with the form `"low_rank"` or `"diag"` an operator. Its entries
        are ordered as the flattened parts of the center, `tf.nest.flatten`.

        Raises:
          ValueError: as `whiten` does for a center without a finite, negative definite Hessian.
        """
        return self._quadratic.hessian

    @functools.cached_property
    def laplace(self) -> tfp.distributions.Distribution:
        """Laplace's approximation of the posterior, computed on first use.

        It is a distribution of the model's parameters, in the structure of the state, constrained
        if the target has a bijector. Raises as `hessian` does.
        """
        target, center, _ = self._at
        return laplace(target.bijector, center, self._quadratic)


class _Point(NamedTuple):
    """The log posterior at theta, its gradient, and the gradient's standard deviations, `unit`."""

    theta: tf.Tensor
    log_prob: tf.Tensor
    gradient: tf.Tensor
    unit: tf.Tensor

    @property
    def offset(self) -> float:
        return float(tf.reduce_max(tf.abs(self.gradient) / self.unit))


def find_center(
    target: MinibatchLogProb,
    initial_state: State,
    method: Literal["lbfgs", "adam"] = "lbfgs",
    *,
    max_iterations: int | None = None,
    tolerance: float = 0.1,
    learning_rate: Any = 0.01,
    seed: Any = 0,
    hessian: HessianForm = "auto",
) -> tuple[State, CenterReport]:
    r"""Finds a mode of the posterior, the center of a `ControlVariate`.

    \[
    \max_j \; \frac{|\partial_j \log p(\theta \mid x_{1:N})|}{\sqrt{1 + \frac N n
      \sum_{i \in S} s_{ij}^2}} \le \text{tolerance}
    \]

    defines a state that is near enough: its gradient is small compared with the gradient's standard
    deviations under the posterior. The scores \( s_i = \nabla \log p(x_i \mid \theta) \) of a
    minibatch estimate these, and the 1 is for parameters that no example depends on. L-BFGS uses
    the same standard deviations as units, and the exact log posterior. Adam uses minibatches, for
    models in which a pass over the data is expensive. It ends a few standard deviations away, after
    as many examples as in a few passes, so raise the tolerance. The dtype is the state's.

    L-BFGS is slow where the posterior is ill-conditioned. If it has not converged, damped Newton
    steps follow for up to 1024 entries, \( \theta + a |-H|^{-1} \nabla \log p \). |-H| has the
    eigenvalues of -H without their signs, and a is halved from 1 until the log posterior rises.

    The report also has the Hessian at the center and Laplace's approximation, which are computed on
    first use.

    Examples:
      With `x` and `target` as in `MinibatchLogProb`:

      >>> center, report = sgmcmc.find_center(target, initial_state=tf.constant(0.))
      >>> report.converged, bool(abs(center - x.mean()) < 0.01)
      (True, True)
      >>> draw = report.laplace.sample(seed=[0, 1])  # N(center, 1 / 1000.01)
      >>> bool(abs(draw - center) < 6 / 1000**0.5)
      True

    Args:
      target: a `MinibatchLogProb`.
      initial_state: the start, one state without chain dimensions, unconstrained with a bijector.
      method: `"lbfgs"` or `"adam"`.
      max_iterations: iterations of L-BFGS (default 100; each takes two to three passes over the
        data), or steps of Adam (default 2000). As many Newton steps may follow L-BFGS, 50 at most.
      tolerance: the bound in the equation.
      learning_rate: of Adam: a schedule, which is a callable from step to value, or a number that
        decays to zero along a cosine.
      seed: seed of the minibatches.
      hessian: the form of the Hessian in the report: `"full"`, `"low_rank"`, `"diag"`, or `"auto"`,
        which is full up to 4096 entries and low rank beyond. See `whiten`.

    Returns:
      The center, in the structure of `initial_state`, and a `CenterReport`. Warns if the search has
      not converged: a `ControlVariate` at such a center has no bias, but more noise.

    Raises:
      ValueError: `method` is unknown; a number is not positive; `initial_state` has chain
        dimensions; the log posterior or its gradient is not finite at the start or the end.
      TypeError: the target is not a `MinibatchLogProb`, or is wrapped.
    """
    checked_target(target)
    one_of("method", method, [*_MAX_ITERATIONS])
    one_of("hessian", hessian, ["auto", "full", "low_rank", "diag"])
    if method == "adam":
        refuse_shards("method='adam'", target, replicas_alone=True)
    limit = _MAX_ITERATIONS[method] if max_iterations is None else max_iterations
    integer("max_iterations", limit, 1)
    positive("tolerance", tolerance)
    if callable(learning_rate):
        first = accepts("learning_rate", learning_rate, 0)(0)
        numbers("learning_rate at step 0", first, "a finite number of at least 0")
        require("learning_rate at step 0", first, np.ndim(first) == 0, "one number")
    else:
        positive("learning_rate", learning_rate)
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    seed = random.as_seed(seed)

    @traced
    def log_posterior(theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        at = unflatten_events(theta, state, 0)
        log_prob, gradient, _ = value_and_gradient(lambda s: call_with_state(target, s), at)
        return log_prob, flatten_events(gradient, 0)

    @traced
    def evaluate(theta: tf.Tensor) -> _Point:
        scores = target.estimate(unflatten_events(theta, state, 0), seed).scores
        squares = tf.nest.map_structure(lambda s: tf.reduce_mean(s**2, axis=0), scores)
        unit = tf.sqrt(1 + target.num_examples * flatten_events(squares, 0))
        return _Point(theta, *log_posterior(theta), unit)

    def climb(start: _Point, iterations: int) -> tuple[tf.Tensor, int, int]:
        def descent(u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            log_prob, gradient = log_posterior(start.theta + u / start.unit)
            return -log_prob, -gradient / start.unit

        # Eager, around compiled functions: its graph would take longer to build than to run.
        found = tfp.optimizer.lbfgs_minimize(
            descent,
            tf.zeros_like(start.theta),
            tolerance=tolerance / 2,  # the units change until the end
            max_iterations=iterations,
        )
        theta = start.theta + found.position / start.unit
        return theta, int(found.num_iterations), int(found.num_objective_evaluations)

    point, num_passes, left = evaluate(flatten_events(state, 0)), 1, limit
    _check_finite(point, "initial_state")
    if method == "adam":
        found = _adam(target, state, limit, learning_rate, seed)
        point = evaluate(flatten_events(found, 0))
        num_passes, left = 2, 0
    for _ in range(_ROUNDS):  # each in the units of its start
        if left <= 0 or point.offset <= tolerance:
            break
        theta, used, passes = climb(point, left)
        point = evaluate(theta)
        num_passes, left = num_passes + passes + 1, left - used
    num_newton_steps, products = 0, hessian_products(target, state)
    most = min(limit, _NEWTON_STEPS) if method == "lbfgs" else 0
    most = most if len(point.theta) <= MOST_NEWTON_DIMENSIONS else 0
    while num_newton_steps < most and not point.offset <= tolerance:
        found = newton_step(log_posterior, products, point.theta, point.log_prob)
        if found is None:
            break
        theta, passes = found
        point = evaluate(theta)
        num_passes, num_newton_steps = num_passes + passes + 1, num_newton_steps + 1
    _check_finite(point, f"the state at which {method!r} ended")
    center = unflatten_events(point.theta, state, 0)
    report = CenterReport(
        converged=point.offset <= tolerance,
        offset=point.offset,
        log_prob=float(point.log_prob),
        gradient_norm=float(tf.norm(point.gradient)),
        num_passes=num_passes,
        num_minibatches=limit if method == "adam" else 0,
        num_newton_steps=num_newton_steps,
        _at=(target, center, hessian),
    )
    if not report.converged:
        newton = f" and {num_newton_steps} Newton steps" if num_newton_steps else ""
        warnings.warn(
            f"find_center ended after {limit - left} iterations of {method!r}{newton} at a "
            f"gradient of up to {report.offset:.3g} standard deviations (tolerance {tolerance:g}). "
            "A ControlVariate there has no bias, but more noise. To come nearer to the mode, raise "
            "max_iterations, or start again from the center that was returned.",
            stacklevel=2,
        )
    return center, report


def check_single_state(name: str, target: MinibatchLogProb, state: State) -> None:
    """Raises ValueError if `state`, an argument called `name`, has chain dimensions."""
    chains = tf.TensorShape(target.chain_shape(state))
    if chains.rank:
        raise ValueError(
            f"{name} must be one state without chain dimensions, at which log_prior_fn returns a "
            f"scalar. Received: a state at which it returns shape {chains}."
        )


def _check_finite(point: _Point, where: str) -> None:
    if not np.all(np.isfinite(point.gradient)) or not np.isfinite(point.log_prob):
        raise ExpansionError(f"The log posterior or its gradient is NaN or infinite at {where}.")


def newton_step(
    log_posterior: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    products: Callable[..., Any],
    theta: tf.Tensor,
    log_prob: tf.Tensor,
) -> tuple[tf.Tensor, int] | None:
    r"""Returns \( \theta + a |-H|^{-1} \nabla \log p \), and the number of passes over the data.

    |-H| has the absolute eigenvalues of -H, so that the step also leaves saddles. a is halved from
    1 until the log posterior rises by a share of the increase that the slope predicts. Returns None
    if there is no such a, or if the second derivatives do not exist or are not finite.

    Args:
      log_posterior: theta, `[D]` -> log posterior and its gradient.
      products: the function of `hessian_products`.
      theta: the start, `[D]`.
      log_prob: the log posterior there.
    """
    try:
        _, posterior, gradient = matrices(products, theta.numpy())
    except (LookupError, NotImplementedError):
        return None
    if not np.isfinite(posterior).all():
        return None
    resolution = np.finfo(theta.dtype.as_numpy_dtype).eps
    eigenvalues, vectors = np.linalg.eigh(-posterior)
    eigenvalues = np.abs(eigenvalues)
    eigenvalues = np.maximum(eigenvalues, resolution * eigenvalues.max())
    along = vectors.T @ gradient
    step, slope = vectors @ (along / eigenvalues), np.sum(along**2 / eigenvalues)
    start, passes = float(log_prob), len(gradient)
    rounding = _ROUNDING * resolution * abs(start)
    for halvings in range(_MOST_HALVINGS):
        share = 0.5**halvings
        reached = theta + tf.constant(share * step, theta.dtype)
        value, _ = log_posterior(reached)
        passes += 1
        if float(value) >= start + 1e-4 * share * slope - rounding:  # false for NaN
            return reached, passes
    return None


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Wraps a function of the step, because Keras calls plain callables without the step."""

    def __init__(self, fn: Any):
        self._fn = fn

    def __call__(self, step: Any) -> Any:
        return self._fn(step)


def _adam(
    target: MinibatchLogProb, state: State, num_steps: int, learning_rate: Any, seed: tf.Tensor
) -> State:
    if not callable(learning_rate):
        learning_rate = keras.optimizers.schedules.CosineDecay(learning_rate, num_steps)
    optimizer = keras.optimizers.Adam(_Schedule(learning_rate))
    variables = [keras.Variable(x, dtype=x.dtype.name) for x in tf.nest.flatten(state)]
    optimizer.build(variables)

    def step(i: tf.Tensor, carried: Any) -> tuple[tf.Tensor, Any]:
        at = tf.nest.pack_sequence_as(state, [tf.convert_to_tensor(v.value) for v in variables])
        estimate = target.estimate(at, random.fold_in(seed, i), carried, with_scores=False)
        optimizer.apply([-g for g in tf.nest.flatten(estimate.gradient)], variables)
        return i + 1, estimate.target_state

    @traced
    def run() -> None:
        start = (tf.zeros([], tf.int32), target.bootstrap(state))
        tf.while_loop(lambda i, _: i < num_steps, step, start, parallel_iterations=1)

    run()
    return tf.nest.pack_sequence_as(state, [tf.convert_to_tensor(v.value) for v in variables])

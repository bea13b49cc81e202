"""The search for a mode of the posterior, by L-BFGS, Newton steps or Adam, and its report."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import accepts, eager, integer, numbers, one_of, positive, require
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    entry_names,
    flatten_events,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import ExpansionError, kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.laplace import check_single_state, laplace
from tfp_sgmcmc.targets.laplace.lbfgs import lbfgs_ascent
from tfp_sgmcmc.targets.laplace.newton import MOST_LAST_GAIN, NEAR_ENOUGH, Ascent, newton_ascent
from tfp_sgmcmc.targets.laplace.quadratic import (
    HessianForm,
    hessian_products,
    quadratic_at,
)
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target
from tfp_sgmcmc.targets.sharded import refuse_shards

MAX_ITERATIONS = {"auto": 200, "newton": 100, "lbfgs": 200, "adam": 2000}
_ROUNDS = 10
_NEWTON_FIRST = 128  # entries up to which Newton steps need no start from L-BFGS
_CHEAP_DIMENSIONS, _CHEAP_WORK = 512, 1e8  # D and N D^2 up to which they do not, either
MOST_NEWTON_DIMENSIONS = 1024


@dataclasses.dataclass(frozen=True)
class CenterReport:
    r"""The result of `find_center`, with the Hessian and Laplace's approximation at the center.

    Attributes:
      converged: whether `offset` is at most the tolerance and, where a Hessian was evaluated, it is
        negative definite and `expected_gain` is at most 0.01 nat.
      expected_gain: by how many nats the log posterior is expected to rise on the way to the mode,
        \( \tfrac12 g^T |H|^{-1} g \) with the gradient g and the Hessian H. It does not depend on
        the units of parameters. NaN where no Hessian was evaluated.
      offset: the largest entry of the gradient, in units of its standard deviation under the
        posterior: about the distance to the mode in standard deviations. Where parameters are
        strongly correlated, the mode can be farther away.
      log_prob: log posterior at the center.
      gradient_norm: Euclidean norm of the gradient of the log posterior at the center.
      num_passes: number of gradients and Hessian-vector products over all N examples that were
        evaluated.
      num_minibatches: number of gradients of minibatches that were evaluated.
      num_newton_steps: number of damped Newton steps, each of D Hessian-vector products or more.
      unbounded: the name of a part along which the density narrowed without end while it rose, as
        that of effects does whose scale falls to zero. No mode lies that way. None otherwise.
    """

    converged: bool
    expected_gain: float
    offset: float
    log_prob: float
    gradient_norm: float
    num_passes: int
    num_minibatches: int
    num_newton_steps: int
    unbounded: str | None
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
    method: Literal["auto", "newton", "lbfgs", "adam"] = "auto",
    *,
    max_iterations: int | None = None,
    tolerance: float = 0.1,
    learning_rate: Any = 0.01,
    seed: Any = 0,
    hessian: HessianForm = "auto",
) -> tuple[State, CenterReport]:
    r"""Finds a mode of the posterior, the center of a `ControlVariate`.

    \[
    \tfrac12\, g^T |H|^{-1} g \le 0.01, \qquad g = \nabla \log p(\theta \mid x_{1:N}), \quad
    H = \nabla^2 \log p(\theta \mid x_{1:N})
    \]

    and

    \[
    \max_j \; |g_j| \Big/ |H_{jj}|^{1/2} \le \text{tolerance}
    \]

    define a state that is near enough. By the first, the log posterior is expected to rise by at
    most 0.01 nat on the way to the mode. |H| has the absolute eigenvalues of H. The condition does
    not depend on the units of parameters, and neither do damped Newton steps with the Hessian
    scaled to a unit diagonal, which search up to 128 entries, and of few data up to 512. Beyond,
    and where they find no mode, L-BFGS comes first, and Newton steps follow up to 1024 entries. The
    search ends where the density narrows without end while it rises, as with the scale of effects
    near zero. By the second, each entry of the
    gradient is small compared with its standard deviation under the posterior. It is the only
    condition where no Hessian can be evaluated. The scores
    \( s_i = \nabla \log p(x_i \mid \theta) \) of a minibatch S of n then give the standard
    deviations, \( (1 + \frac N n \sum_{i \in S} s_{ij}^2)^{1/2} \).

    Adam uses minibatches, for models in which a pass over the data is expensive. It ends a few
    standard deviations away, after as many examples as in a few passes, so raise the tolerance. All
    is in the dtype of the state.

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
      method: `"newton"`, `"lbfgs"` or `"adam"`. `"auto"` is `"newton"` up to 128 entries, or up to
        512 if N D^2 is at most 1e8, and `"lbfgs"` beyond.
      max_iterations: Newton steps (default 100), steps of L-BFGS (default 200, each of one to three
        passes over the data) with as many Newton steps after them (default 100), or steps of Adam
        (default 2000).
      tolerance: the bound of the second condition.
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
    eager("find_center")
    checked_target(target)
    one_of("method", method, [*MAX_ITERATIONS])
    one_of("hessian", hessian, ["auto", "full", "low_rank", "diag"])
    if method == "adam":
        refuse_shards("method='adam'", target, replicas_alone=True)
    limit = MAX_ITERATIONS[method] if max_iterations is None else max_iterations
    integer("max_iterations", limit, 1)
    newton_limit = MAX_ITERATIONS["newton"] if max_iterations is None else limit
    tolerance = positive("tolerance", tolerance)
    if callable(learning_rate):
        first = accepts("learning_rate", learning_rate, 0)(0)
        numbers("learning_rate at step 0", first, "a finite number of at least 0")
        require("learning_rate at step 0", first, np.ndim(first) == 0, "one number")
    else:
        positive("learning_rate", learning_rate)
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    seed = random.as_seed(seed)
    dtype, products = tf.nest.flatten(state)[0].dtype, hessian_products(target, state)
    resolution = float(np.finfo(dtype.as_numpy_dtype).eps)

    log_posterior = kept_program(
        target, "value and gradient", state, lambda: _value_and_gradient(target, state)
    )

    units = kept_program(
        target, f"units by {target.batch_size} scores", state, lambda: _units(target, state)
    )

    def evaluate(theta: tf.Tensor) -> _Point:
        return _Point(theta, *log_posterior(theta), units(theta, seed))

    def climb(start: _Point, iterations: int) -> tuple[tf.Tensor, int, int]:
        unit = start.unit.numpy().astype(np.float64)

        def of_scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
            log_prob, gradient = log_posterior(tf.constant(u / unit, dtype))
            return float(log_prob), gradient.numpy() / unit

        scaled = start.theta.numpy() * unit
        # Half the tolerance, because the units change until the end.
        scaled, num_steps, num_gradients = lbfgs_ascent(
            of_scaled, scaled, iterations, tolerance / 2, resolution
        )
        return tf.constant(scaled / unit, dtype), num_steps, num_gradients

    def newton(start: tf.Tensor) -> Ascent | None:
        """Returns the end of Newton steps, or None if there are no finite second derivatives."""

        def derivatives(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = products.matrices(theta, is_step=True)
            return found.posterior, found.gradient

        try:
            return newton_ascent(
                lambda theta: float(log_posterior(tf.constant(theta, dtype))[0]),
                derivatives,
                start.numpy().astype(np.float64),
                newton_limit,
                resolution,
                min(MOST_LAST_GAIN, tolerance**2 / 2),
            )
        except (LookupError, NotImplementedError):
            return None

    flat, num_passes, left = flatten_events(state, 0), 1, limit
    _check_finite(*log_posterior(flat), "initial_state")
    if method == "adam":
        flat = flatten_events(_adam(target, state, limit, learning_rate, seed), 0)
        left = 0
    is_small = len(flat) <= MOST_NEWTON_DIMENSIONS
    if method == "auto" and len(flat) > _NEWTON_FIRST:
        is_cheap = target.num_examples * len(flat) ** 2 <= _CHEAP_WORK
        is_small = is_cheap and len(flat) <= _CHEAP_DIMENSIONS
    ascents = [newton(flat)] if method in ("auto", "newton") and is_small else []
    if not any(a and (a.is_mode or a.grown is not None or method == "newton") for a in ascents):
        point, num_passes = evaluate(flat), num_passes + 1
        for _ in range(_ROUNDS):  # each in the units of its start
            if left <= 0 or point.offset <= tolerance:
                break
            theta, used, passes = climb(point, left)
            point = evaluate(theta)
            num_passes, left = num_passes + passes + 1, left - used
        has_moved = not ascents or bool(tf.reduce_any(point.theta != flat))
        flat = point.theta
        if method != "adam" and len(flat) <= MOST_NEWTON_DIMENSIONS and has_moved:
            ascents.append(newton(flat))
    ended = [a for a in ascents if a is not None]
    ascent = max(ended, key=lambda a: (a.is_mode, a.log_prob), default=None)
    if ascent is not None:
        at, unit = ascent.theta, np.sqrt(ascent.curvature)
        point = _Point(
            *(tf.constant(x, dtype) for x in (at, ascent.log_prob, ascent.gradient, unit))
        )
        num_passes += sum(a.num_passes for a in ended)
    _check_finite(point.log_prob, point.gradient, f"the state at which {method!r} ended")
    center = unflatten_events(point.theta, state, 0)
    converged, grown = point.offset <= tolerance, None if ascent is None else ascent.grown
    if ascent is not None:
        converged &= ascent.is_mode
    report = CenterReport(
        converged=converged,
        expected_gain=np.nan if ascent is None else ascent.expected_gain,
        offset=point.offset,
        log_prob=float(point.log_prob),
        gradient_norm=float(tf.norm(point.gradient)),
        num_passes=num_passes,
        num_minibatches=limit if method == "adam" else 0,
        num_newton_steps=0 if ascent is None else ascent.num_steps,
        unbounded=None if grown is None else entry_names(state)[grown],
        _at=(target, center, hessian),
    )
    if not converged:
        warnings.warn(_why_not_converged(report, ascent, tolerance), stacklevel=2)
    return center, report


def _why_not_converged(report: CenterReport, ascent: Ascent | None, tolerance: float) -> str:
    gain = ""
    advice = (
        "To come nearer to the mode, raise max_iterations, or start again from the center that was "
        "returned."
    )
    if report.unbounded is not None:
        advice = (
            f"The log posterior rose without end while {report.unbounded} became narrower, as "
            "where the scale of effects falls to zero, so that there is no mode. Write the effects "
            "as location plus scale times standard normals, or sample without a center."
        )
    if ascent is not None and ascent.is_maximum:
        gain = f" and an expected gain of {ascent.expected_gain:.3g} nats (at most {NEAR_ENOUGH})"
    elif ascent is not None:
        gain = " and a Hessian that is not negative definite"
    return (
        "find_center must end near a mode. Received: a gradient of up to "
        f"{report.offset:.3g} standard deviations (at most {tolerance:g}){gain}, after "
        f"{report.num_newton_steps} Newton steps and {report.num_passes} passes over the data. A "
        f"ControlVariate there has no bias, but more noise. {advice}"
    )


def _value_and_gradient(target: MinibatchLogProb, like: State) -> Any:
    """Returns the function of theta, `[D]`, that gives the log posterior and its gradient."""

    def run(theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        at = unflatten_events(theta, like, 0)
        log_prob, gradient, _ = value_and_gradient(lambda s: call_with_state(target, s), at)
        return log_prob, flatten_events(gradient, 0)

    return traced(run)


def _units(target: MinibatchLogProb, like: State) -> Any:
    """Returns the function of theta, `[D]`, and a seed that gives the gradient's deviations."""

    def run(theta: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        scores = target.estimate(unflatten_events(theta, like, 0), seed).scores
        squares = tf.nest.map_structure(lambda s: tf.reduce_mean(s**2, axis=0), scores)
        return tf.sqrt(1 + target.num_examples * flatten_events(squares, 0))

    return traced(run)


def _check_finite(log_prob: tf.Tensor, gradient: tf.Tensor, where: str) -> None:
    if not np.all(np.isfinite(gradient)) or not np.isfinite(log_prob):
        raise ExpansionError(f"The log posterior or its gradient is NaN or infinite at {where}.")


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

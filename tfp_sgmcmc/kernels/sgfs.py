"""Stochastic gradient Fisher scoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import Block, CovarianceState, Diag, Full, NoiseCovariance, RunningMean
from tfp_sgmcmc.internal.checks import a_type, integer, optional
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    flatten_events,
    map_parts,
    num_entries,
    squared_norm,
    sum_events,
    unflatten_events,
)
from tfp_sgmcmc.kernels.base import (
    StepSize,
    StochasticGradientKernel,
    check_positive,
    check_results,
    number_at,
    setting_at,
    value_at,
)
from tfp_sgmcmc.kernels.linear_theory import at_least_zero
from tfp_sgmcmc.kernels.momentum import scaled
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise
from tfp_sgmcmc.preconditioners import FullMatrix
from tfp_sgmcmc.targets.anchored import AnchoredTarget

_LEAST = 1e-3  # of the diagonal of the Fisher matrix, for the injected noise


class InjectedNoise(NamedTuple):
    """The covariance C = rate B, before it is raised: a multiple of V, a diagonal, or dense.

    A Fisher matrix of few scores, or of constant or collinear features, is singular. C is therefore
    at least 1e-3 of its diagonal, in the matrix and in the noise, so the samples keep their law.

    Attributes:
      multiple: the factor of V in C, a scalar or `[chains...]`.
      diagonal: the diagonal of C, in the structure of the state; zeros for a multiple of V.
      draw: `draw(matrix, share, shift, seed)` returns a draw from N(0, C) with C raised. C is the
        sum of `share` times `matrix` (if it is a multiple of V), `dense` and the diagonal `shift`.
      dense: C if it is a dense matrix over all entries, `[D, D]` or `[chains..., D, D]`.
    """

    multiple: tf.Tensor
    diagonal: State
    draw: Callable[[NoiseCovariance, tf.Tensor, State, tf.Tensor], State]
    dense: tf.Tensor | None = None

    def raised_shift(self, matrix: NoiseCovariance) -> tuple[State, State]:
        """Returns the diagonal to add to `matrix` and a dense C, and where it exceeds C's.

        With a dense C it is C's diagonal, at least 1e-3 of `matrix`'s, or 1 where both are zero.
        """
        diagonal, given = matrix.diag_part(), self.diagonal

        def shift(m: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
            raised = tf.maximum(_LEAST * m, c)
            return tf.where(m + c > 0, raised if self.dense is None else raised - c, 1)

        return map_parts(shift, diagonal, given), map_parts(
            lambda m, c: _LEAST * m > c, diagonal, given
        )

    def solve(
        self, matrix: NoiseCovariance, shift: State, v: State, chain_ndims: int
    ) -> tuple[State, State]:
        """Returns (matrix + C)^-1 v, and which of its entries are unknown and set to zero.

        Those have zeros on the diagonals of `matrix` and C, or belong to a chain whose system could
        not be solved in this precision. Where v is not finite, x is not finite either.
        """
        lost = map_parts(lambda m, c: m + c <= 0, matrix.diag_part(), self.diagonal)
        if self.dense is not None:
            matrix = matrix.plus(self.dense)
        x = matrix.solve(shift, 1.0, v)
        solvable = tf.math.is_finite(squared_norm(v, chain_ndims))
        failed = solvable & ~tf.math.is_finite(squared_norm(x, chain_ndims))
        lost = tf.nest.map_structure(lambda a: a | append_dims(failed, a), lost)
        return map_parts(lambda a, x, v: tf.where(a, 0 * v, x), lost, x, v), lost


class SGFSResults(NamedTuple):
    """Results of a step of `SGFS`: the fields of `StochasticGradientKernel` and three more.

    Attributes:
      step_size: the epsilon that the step used, 4 / alpha^2; infinite where alpha is zero.
      num_raised: number of entries of the state in which 4B/epsilon was raised, `[chains...]`.
      num_frozen: number of entries that the step could not move, `[chains...]`: those in which both
        V and 4B/epsilon are zero, or all if the system could not be solved in this precision.
      covariance_state: what the covariance estimator carries. Its `num_skipped` counts minibatches
        whose scores were not finite.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    num_raised: tf.Tensor
    num_frozen: tf.Tensor
    covariance_state: CovarianceState


class SGFS(StochasticGradientKernel):
    r"""Stochastic gradient Fisher scoring, tempered.

    \[
    \theta \leftarrow \theta
      + 2 \left( \gamma N V_t + \frac{4 B}{\epsilon_t} \right)^{-1} (g(\theta) + \eta),
    \qquad \eta \sim N\left( 0, \frac{4 T B}{\epsilon_t} \right),
    \qquad \gamma = 1 + \frac{c}{N T}
    \]

    g is the target's gradient estimate with covariance c V (the minibatch noise), V the covariance
    of the single examples' scores, \( V_t \) its average over minibatches (with weights
    \( \kappa_t = 1/t \)), T the temperature. N V estimates the precision of the posterior. With
    replacement \( c = N^2/n \) and, at T = 1, \( \gamma = (N + n)/n \) as in the paper. Without,
    \( c = N(N - n)/n \) and \( \gamma = N/n \).

    The matrix balances drift and noise. With `"full"`, a Gaussian posterior of precision N V and
    Gaussian noise of constant covariance, the law of the samples is exact at *every* step size,
    even at alpha = 0. N V lacks the precision of the prior, which causes a bias in proportion to
    the prior's share. `"diag"` (SGFS-d in the paper, where `"full"` is SGFS-f) and `"block"` leave
    correlations out of the matrix but not out of the noise. At large steps their samples have too
    little variance where the posterior is correlated: at alpha = 0 and n << N, SGFS-d has the
    variances \( T / (N V_{ii}) \), those of each parameter with all others held fixed. As epsilon
    falls, these errors vanish, leaving SGLD with preconditioner \( B^{-1} \).

    V may be singular. Where \( 4B/\epsilon \) is less than 1e-3 of the diagonal of
    \( \gamma N V \), it is raised to that, in the matrix and in the noise (where B is a multiple of
    V, that much is added). The law stays exact, with some injected noise at alpha = 0. In
    directions that only the prior determines, a step is stable if the prior's precision is below
    the raised \( 4B/\epsilon \). Parameters whose scores never vary do not move at alpha = 0.

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and B = 1, the steps 0.1,
    0.5 and 1 leave variances exact, and give 0.025, 0.12 and 0.25 effective samples a step.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.SGFS(target, alpha=0.), tf.zeros([]), 2000,
      ...     num_burnin_steps=500, seed=0, progress_bar=False)
      >>> bool(abs(result.states.std() / (x.std() / 1000**.5) - 1.) < 0.2)
      True

    Args:
      target_log_prob_fn: a target whose scores are those of its examples, `MinibatchLogProb`. The
        scores of `ControlVariate` and `SVRG` are differences, with another covariance. Those of a
        `ShardedLogProb` have the covariance within shards, so shards must be random parts.
      step_size: epsilon: a positive number, `[chains...]` tensor or schedule. Or give `alpha`.
      B: the covariance of the injected noise, up to the factor 4 T/epsilon: a positive number, or
        arrays that broadcast with the state parts, for a scalar or diagonal matrix; a
        `tfp_sgmcmc.preconditioners.FullMatrix` (with `covariance="full"`); `"fisher"`, which is
        N V; or `"scaled_fisher"`, which is gamma N V, the paper's choice. Its
        inverse is the preconditioner of small steps. With `"scaled_fisher"` a step is
        \( \theta \leftarrow \theta + 2 (\gamma N V)^{-1} (g + \eta) / (1 + \alpha^2) \): alpha
        alone divides it.
      alpha: \( 2/\sqrt\epsilon \), at least 0: a number, `[chains...]` tensor or schedule. At 0,
        almost all noise comes from the minibatches (see above).
      covariance: V: `"full"`, `"block"`, `"diag"`, `"low_rank"`, an estimator of
        `tfp_sgmcmc.covariance`, or `"auto"`: full, but in `fit` diag with more than 1000 weights.
        By default all past minibatches are averaged. The paper's average,
        `Full(include_current=True)`, includes the current minibatch.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      num_estimation_steps: number of steps at the start that average V and do not move the state.
        None stands for 10 D / n, at least 10, where D is the number of entries (1 for "diag", that
        of the largest part for "block") and n the number of scores of a minibatch. At large epsilon
        the first steps would otherwise solve with a V of few examples. Where few of these have
        large scores (such as the misclassified ones at the mode of a logistic regression), that
        throws a chain far: with alpha = 0, D = 129 and n = 500 by 600 posterior standard deviations
        after 0 steps of estimation, by 65 after 2, by 4 after 5, and not at all after 10.
      num_fisher_steps: number of steps, at least 1, whose minibatches V is estimated from. V then
        stays as it is and no more scores are computed, which makes steps cheaper. Give at least
        the steps of burn-in and of estimation, to estimate V in the posterior. None: all.

    Raises:
      ValueError: both or neither of `step_size` and `alpha` are given; one of them, B or T is out
        of range; a FullMatrix is given with another covariance than `"full"`; the covariance or B
        is unknown; the target gives no scores. At bootstrap: the state is not finite; there are
        fewer than two scores; `"block"` is given for a state of one part; B has the wrong size;
        with alpha = 0 there is no minibatch noise (to the end); or, with alpha = 0 or a B that is a
        multiple of V and another covariance than `"diag"`, the steps of estimation have too few
        scores for a matrix of full rank.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
      Fisher scoring. ICML, 2012. Algorithm 1.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize = None,
        B: Any = 1.0,
        *,
        alpha: StepSize = None,
        covariance: Any = "auto",
        temperature: StepSize = 1.0,
        num_estimation_steps: int | None = None,
        num_fisher_steps: int | None = None,
    ):
        if (step_size is None) == (alpha is None):
            raise ValueError(
                "Either step_size or alpha = 2 / sqrt(step_size) must be given. Received: "
                f"step_size={step_size}, alpha={alpha}."
            )
        super().__init__(locals(), ("temperature", *(["step_size"] if alpha is None else [])))
        optional(integer, "num_estimation_steps", num_estimation_steps, 0)
        optional(integer, "num_fisher_steps", num_fisher_steps, 1)
        if alpha is not None:
            check_positive("alpha", alpha, zero_allowed=True)
        if self._target.num_scores == 0 or isinstance(self._target, AnchoredTarget):
            raise ValueError(
                "target_log_prob_fn must give scores of single examples, whose covariance is the "
                f"Fisher information. Received: {a_type(self._target)}, which gives none, "
                "or differences of them. Use MinibatchLogProb."
            )
        self._noise = GradientNoise(self._target, covariance, RunningMean())
        used = self._noise.covariance
        if isinstance(B, FullMatrix) and (not isinstance(used, Full) or isinstance(used, Block)):
            raise ValueError(
                "covariance must be 'full' if B is a FullMatrix. Received: "
                f"covariance={used.name!r}."
            )
        if isinstance(B, str) and B not in ("fisher", "scaled_fisher"):
            raise ValueError(
                f"B must be 'fisher', 'scaled_fisher', numbers or a FullMatrix. Received: {B!r}."
            )
        if not isinstance(B, str | FullMatrix):
            check_positive("B", B)

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns infinity if \( \lambda < 1 \), otherwise \( \epsilon / \lambda \).

        A step multiplies by \( I - 2 M H \), where
        \( M = (\gamma N V_t + 4 B / \epsilon)^{-1} \) is `metric_product` at the step in use. It
        is stable if and only if the largest eigenvalue \( \lambda \) of M H is below 1. If N V is
        the precision of the likelihood (the information equality), this holds at every
        \( \epsilon \), except where the prior's precision exceeds
        \( (\gamma - 1) N V + 4 B / \epsilon \). Otherwise, as with a V of few examples or one
        estimated elsewhere, every stable step is below \( \epsilon / \lambda \), and
        \( 4 / \lambda_{\max}(B^{-1} H) \) is stable with any V. At alpha = 0 the largest
        floating-point number stands for the infinite \( \epsilon \).
        """
        name = "alpha" if self.step_size is None else "step_size"
        if results is not None:
            check_results(results, "results", "step")
        at = (
            results.step if results is not None else tf.constant(integer("step", step, 0), tf.int64)
        )
        value = np.asarray(setting_at(self._parameters[name], at), np.float64)
        with np.errstate(divide="ignore"):
            epsilon = np.minimum(4 / value**2 if name == "alpha" else value, np.finfo(float).max)
        curvature = at_least_zero("largest_curvature", largest_curvature)
        return np.where(curvature >= 1, epsilon / np.maximum(curvature, 1), np.inf)[()]

    def metric_product(self, vector: State, state: State, results: Any) -> State:
        r"""Returns \( (\gamma N V_t + 4 B / \epsilon)^{-1} v \).

        Before the first minibatch V is unknown. 1e-12 v then stands for a V that exceeds H, as it
        does by the information equality, so that every step counts as stable.
        """
        chain_ndims = results.target_log_prob.shape.rank
        _, rate, temperature = self._numbers(results.step, state, chain_ndims)
        gamma_n = self._target.num_examples + (self._target.noise_scale or 0.0) / temperature
        injected = self._injected(rate, results.step, state, chain_ndims, gamma_n)
        matrix = self._noise.past(state, results.covariance_state, gamma_n + injected.multiple)
        shift, _ = injected.raised_shift(matrix)
        product, _ = injected.solve(matrix, shift, vector, chain_ndims)
        known = results.covariance_state.step > 0
        return map_parts(lambda x, v: tf.where(known, x, 1e-12 * v), product, vector)

    def _init_results(self, state: State) -> SGFSResults:
        zeros, step = self._zeros(state), tf.zeros([], tf.int64)
        chain_ndims = zeros.shape.rank
        epsilon, rate, temperature = self._numbers(step, state, chain_ndims)
        self._injected(rate, step, state, chain_ndims, rate)
        self._check_regular(rate, state, chain_ndims)
        return SGFSResults(
            **self._first_figures(state, zeros, epsilon, temperature),
            num_raised=tf.zeros_like(zeros, tf.int32),
            num_frozen=tf.zeros_like(zeros, tf.int32),
            covariance_state=self._noise.init(state, chain_ndims),
        )

    def _update(
        self, state: State, results: SGFSResults, seed: tf.Tensor
    ) -> tuple[State, SGFSResults]:
        last = self._parameters["num_fisher_steps"]
        if last is None:
            return self._move(state, results, seed, learns=True)
        return tf.cond(
            results.step < last,
            lambda: self._move(state, results, seed, learns=True),
            lambda: self._move(state, results, seed, learns=False),
        )

    def _move(
        self, state: State, results: SGFSResults, seed: tf.Tensor, learns: bool
    ) -> tuple[State, SGFSResults]:
        """Takes a step, with V from the minibatches so far or, if `learns`, from this one too."""
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        epsilon, rate, temperature = self._numbers(results.step, state, chain_ndims)

        estimate = self._target.estimate(
            state, batch_seed, results.target_state, with_scores=learns
        )
        gamma_n = self._target.num_examples + estimate.noise_scale / temperature
        injected = self._injected(rate, results.step, state, chain_ndims, gamma_n)
        scale = gamma_n + injected.multiple  # 4 B / epsilon may itself be a multiple of V
        covariance_state = results.covariance_state
        if learns:
            matrix, covariance_state = self._noise.learn(estimate, scale, state, covariance_state)
        else:
            matrix = self._noise.past(state, covariance_state, scale)
            covariance_state = covariance_state._replace(step=covariance_state.step + 1)
        shift, raised = injected.raised_shift(matrix)
        matrix, covariance_state = self._noise.covariance.prepare(
            covariance_state, matrix, shift, 1.0
        )
        eta = injected.draw(matrix, injected.multiple / scale, shift, noise_seed)
        force = map_parts(lambda g, x: g + scaled(tf.sqrt(temperature), x), estimate.gradient, eta)
        change, lost = injected.solve(matrix, shift, force, chain_ndims)
        given = self._parameters["num_estimation_steps"]
        moves = results.step >= self._noise.estimation_steps(given, state, chain_ndims)
        state = map_parts(lambda theta, x: tf.where(moves, theta + 2 * x, theta), state, change)

        return state, SGFSResults(
            **self._figures(estimate, epsilon, temperature, results),
            num_raised=_count(raised, chain_ndims),
            num_frozen=_count(lost, chain_ndims),
            covariance_state=covariance_state,
        )

    def _numbers(
        self, step: tf.Tensor, state: State, chain_ndims: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns epsilon, 4 / epsilon = alpha^2 and T at `step`, scalars or `[chains...]`."""

        def number(name: str) -> tf.Tensor:
            return number_at(self._parameters[name], step, state, chain_ndims, name)

        if self.step_size is None:
            rate = number("alpha") ** 2
            epsilon = 4 / rate
        else:
            epsilon = number("step_size")
            rate = 4 / epsilon
        return epsilon, rate, number("temperature")

    def _injected(
        self, rate: tf.Tensor, step: tf.Tensor, state: State, chain_ndims: int, gamma_n: tf.Tensor
    ) -> InjectedNoise:
        """Returns C = rate B for numbers, a `FullMatrix`, or a name, where B is a multiple of V."""
        B = self._parameters["B"]
        if isinstance(B, str):
            fisher = gamma_n if B == "scaled_fisher" else self._target.num_examples
            return InjectedNoise(
                multiple=fisher * rate,
                diagonal=tf.nest.map_structure(tf.zeros_like, state),
                draw=lambda matrix, share, shift, seed: matrix.draw(shift, share, seed),
            )
        if isinstance(B, FullMatrix):
            return _dense_noise(B, rate, state, chain_ndims)
        try:
            diagonal = value_at(B, step, state, "B")
        except ValueError as error:
            raise ValueError(f"{error} Give a matrix over all entries as FullMatrix(B).") from error
        return InjectedNoise(
            multiple=tf.zeros_like(rate),
            diagonal=map_parts(lambda x, b: scaled(rate, b + tf.zeros_like(x)), state, diagonal),
            draw=lambda _, share, shift, seed: _diagonal_draw(shift, seed),
        )

    def _check_regular(self, rate: tf.Tensor, state: State, chain_ndims: int) -> None:
        """Raises ValueError if the matrix of the first move is singular."""
        value = tf.get_static_value(rate)
        is_zero = value is not None and bool(np.any(value == 0))
        if is_zero and (self._target.noise_scale == 0 or self._target.becomes_exact):
            raise ValueError(
                "alpha must be positive if the target's minibatch holds or comes to hold all its "
                "examples, which bring no noise. Received: alpha = 0. Use a positive alpha or a "
                "smaller minibatch."
            )
        parts, covariance = tf.nest.flatten(state), self._noise.covariance
        rank = self._noise.largest_rank(
            self._parameters["num_estimation_steps"], state, chain_ndims
        )
        is_solved = is_zero or isinstance(self._parameters["B"], str)
        if rank is None or not is_solved or isinstance(covariance, Diag):
            return
        for group in covariance.groups(parts):
            size = num_entries([parts[i] for i in group], chain_ndims)
            if rank < size:
                raise ValueError(
                    f"The target's scores must span {size} dimensions, because with alpha = 0 or "
                    f"B = 'fisher' a matrix of {size} entries is solved with. Received: "
                    f"{self._target.num_scores} scores (its batch_size or num_groups), of which "
                    f"the first matrix has a rank of at most {rank}. Use more scores or more steps "
                    "of estimation, a positive alpha with another B, or covariance='diag'."
                )


def _dense_noise(B: FullMatrix, rate: tf.Tensor, state: State, chain_ndims: int) -> InjectedNoise:
    local, _ = B.evaluate(state, chain_ndims)
    with tf.init_scope():  # a captured tensor, not a constant in every compiled program
        matrix = tf.constant(B.matrix, rate.dtype)
    flat = tf.linalg.diag_part(matrix) + tf.zeros_like(flatten_events(state, chain_ndims))
    diagonal = unflatten_events(flat, state, chain_ndims)

    def draw(_: NoiseCovariance, share: tf.Tensor, shift: State, seed: tf.Tensor) -> State:
        del share
        seeds = random.split(seed, 2)
        dense = local.sqrt_multiply(random.normal_like(state, seeds[0]))
        rest = _diagonal_draw(shift, seeds[1])
        return map_parts(lambda x, y: scaled(tf.sqrt(rate), x) + y, dense, rest)

    return InjectedNoise(
        multiple=tf.zeros_like(rate),
        diagonal=tf.nest.map_structure(lambda b: scaled(rate, b), diagonal),
        dense=(rate[..., tf.newaxis, tf.newaxis] if rate.shape.rank else rate) * matrix,
        draw=draw,
    )


def _diagonal_draw(variances: State, seed: tf.Tensor) -> State:
    return map_parts(lambda c, z: tf.sqrt(c) * z, variances, random.normal_like(variances, seed))


def _count(entries: State, chain_ndims: int) -> tf.Tensor:
    """Returns the number of true entries, `[chains...]`."""
    return sum_events(tf.nest.map_structure(lambda a: tf.cast(a, tf.int32), entries), chain_ndims)

"""Stochastic gradient Fisher scoring."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.covariance import Block, CovarianceState, Diag, Full, RunningMean
from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, check_step_size
from tfp_sgmcmc.kernels.injected_noise import (
    InjectedNoise,
    injected_noise,
    raised_shift,
    solve,
)
from tfp_sgmcmc.kernels.momentum import number_at, scaled
from tfp_sgmcmc.kernels.noise import GradientNoise
from tfp_sgmcmc.preconditioners import FullMatrix
from tfp_sgmcmc.state import State, map_parts, squared_norm, sum_events
from tfp_sgmcmc.targets.anchors import AnchoredTarget


class SGFSResults(NamedTuple):
    """Results of a step of `SGFS`.

    Attributes:
      target_log_prob: the minibatch estimate of the log posterior at the state that the step left,
        `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the epsilon that the step used, 4 / alpha^2; infinite where alpha is zero.
      temperature: the T that the step used.
      num_raised: entries of the state in which 4B/epsilon was raised, `[chains...]`.
      num_frozen: entries that the step could not move, `[chains...]`: those in which both V and
        4B/epsilon are zero; all, where the system could not be solved in this precision.
      step: number of steps taken.
      target_state: what the target carries between steps.
      covariance_state: what the covariance estimator carries; its `num_skipped` counts minibatches
        whose scores were not finite.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    num_raised: tf.Tensor
    num_frozen: tf.Tensor
    step: tf.Tensor
    target_state: Any
    covariance_state: CovarianceState


class SGFS(StochasticGradientKernel):
    r"""Stochastic gradient Fisher scoring, tempered.

    \[
    \theta \leftarrow \theta
      + 2 \left( \gamma N V_t + \frac{4 B}{\epsilon_t} \right)^{-1} (g(\theta) + \eta),
    \qquad \eta \sim N\left( 0, \frac{4 T B}{\epsilon_t} \right),
    \qquad \gamma = 1 + \frac{c}{N T}
    \]

    g is the target's gradient estimate with covariance c V, V the covariance of the single
    examples' scores, \( V_t \) its average over minibatches (with weights
    \( \kappa_t = 1/t \)), T the temperature. N V stands for the precision of the posterior and
    c V for the noise that minibatches bring along. Drawn with replacement, \( c = N^2/n \) and,
    at T = 1, \( \gamma = (N + n)/n \) as in the paper; without, \( c = N(N - n)/n \) and
    \( \gamma = N/n \).

    The matrix is the one that balances drift and noise: with `"full"`, a Gaussian posterior of
    precision N V, and Gaussian noise of constant covariance, the samples' law is exact at *every*
    step size, at alpha = 0 too. A prior's precision, which N V lacks, biases it in proportion to
    its share. `"diag"` (SGFS-d in the paper; `"full"` is SGFS-f) and `"block"` leave correlations
    out of the matrix, not out of the noise: at large steps their samples have too little variance
    where the posterior is correlated. At alpha = 0 and n << N, SGFS-d has the variances
    \( T / (N V_{ii}) \), each parameter's with all others held fixed. As epsilon falls, these
    errors vanish, and the samples are those of SGLD with the preconditioner \( B^{-1} \).

    A singular V is no trouble: where \( 4B/\epsilon \) is less than 1e-3 of the diagonal of
    \( \gamma N V \), it is raised to that, in the matrix and in the noise alike (beside
    `B="fisher"` that much is added). So at alpha = 0 "no injected noise" is almost none, and the
    exact law stays exact. A step is stable in directions that only the prior determines if its
    precision there is below \( 4B/\epsilon \), raised; parameters whose scores never vary do not
    move at alpha = 0.

    #### Example

    >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
    >>> target = sgmcmc.MinibatchLogProb(
    ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
    ...     log_likelihood_fn=lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
    ...     data=x, batch_size=50)
    >>> @tf.function(jit_compile=True)
    ... def run(seed):
    ...     return tfp.mcmc.sample_chain(
    ...         num_results=2000, num_burnin_steps=200, current_state=tf.zeros([]),
    ...         kernel=sgmcmc.SGFS(target, alpha=0.), trace_fn=None, seed=seed)
    >>> samples = run(tf.constant([0, 1]))
    >>> bool(abs(tf.math.reduce_std(samples) / (x.std() / 1000**.5) - 1.) < 0.2)
    True

    Args:
      target_log_prob_fn: a target whose scores are those of its examples, `MinibatchLogProb`; the
        scores of `ControlVariate` and `SVRG` are differences, and make no Fisher matrix.
      step_size: epsilon: a positive number, `[chains...]` tensor or schedule. Either this or
        `alpha` is given.
      B: the covariance of the injected noise, up to 4 T/epsilon: a positive number, or arrays that
        broadcast with the state parts, as scalar or diagonal matrix; a
        `tfp_sgmcmc.preconditioners.FullMatrix` (beside `covariance="full"`); or `"fisher"`, which
        is N V. Its inverse is the preconditioner of small steps.
      alpha: \( 2/\sqrt\epsilon \), at least 0: a number, `[chains...]` tensor or schedule. At 0,
        all noise is that of the minibatches (almost; see above).
      covariance: V: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or an estimator of
        `tfp_sgmcmc.covariance`, which by default averages all past minibatches;
        `Full(include_current=True)` is the paper's average, which includes the current one.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      num_estimation_steps: steps at the start that average V and move nothing. At large epsilon the
        first steps solve with V of few examples, and where few of them carry the scores (at the
        mode of a logistic regression, those that are misclassified) that can throw a chain far: in
        129 dimensions, with n = 500 and alpha = 0, by 2,000 posterior standard deviations, and with
        10 steps of estimation not at all. An alpha that falls from a positive value does as well.

    Raises:
      ValueError: both or neither of `step_size` and `alpha`; one, or B or T, out of range; a
        FullMatrix beside another covariance; an unknown covariance or B; a target without scores.
        At bootstrap: a state with NaN or infinity; fewer than two scores; `"block"` for one part;
        B of the wrong size; with alpha = 0 or `B="fisher"`, a matrix that is bound to be singular
        at the first step (unless `"diag"`, as many scores as entries are not enough), or, with
        alpha = 0, no minibatch noise either.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

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
        covariance: Any = "full",
        temperature: StepSize = 1.0,
        num_estimation_steps: int = 0,
    ):
        if (step_size is None) == (alpha is None):
            raise ValueError(
                f"step_size is {step_size} and alpha is {alpha}; one of both is expected "
                "(alpha = 2 / sqrt(step_size))."
            )
        super().__init__(locals())
        check_step_size(temperature, "temperature")
        integer("num_estimation_steps", num_estimation_steps, 0)
        if alpha is not None:
            check_step_size(alpha, "alpha", zero_allowed=True)
        if self._target.num_scores == 0 or isinstance(self._target, AnchoredTarget):
            raise ValueError(
                f"The target, a {type(self._target).__name__}, gives no scores of single examples, "
                "whose covariance is the Fisher information, or differences of them; "
                "MinibatchLogProb is expected."
            )
        self._noise = GradientNoise(self._target, covariance, RunningMean())
        used = self._noise.covariance
        if isinstance(B, FullMatrix) and (not isinstance(used, Full) or isinstance(used, Block)):
            raise ValueError(
                f"B is a FullMatrix beside covariance={used.name!r}; 'full' is expected with it."
            )
        if isinstance(B, str) and B != "fisher":
            raise ValueError(f"B is {B!r}; 'fisher', numbers or a FullMatrix is expected.")
        if not isinstance(B, str | FullMatrix):
            check_step_size(B, "B")

    def _check_step_size(self) -> None:
        if self.step_size is not None:
            super()._check_step_size()

    def _init_results(self, state: State) -> SGFSResults:
        step = tf.zeros([], tf.int64)
        zeros = tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)
        chain_ndims = zeros.shape.rank
        epsilon, rate, temperature = self._numbers(step, state, chain_ndims)
        self._injected(rate, step, state, chain_ndims)
        self._check_regular(rate, state, chain_ndims)
        return SGFSResults(
            target_log_prob=zeros,
            gradient_norm=zeros,
            step_size=epsilon,
            temperature=temperature,
            num_raised=tf.zeros_like(zeros, tf.int32),
            num_frozen=tf.zeros_like(zeros, tf.int32),
            step=step,
            target_state=self._target.bootstrap(state),
            covariance_state=self._noise.init(state, chain_ndims),
        )

    def _update(
        self, state: State, results: SGFSResults, seed: tf.Tensor
    ) -> tuple[State, SGFSResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        epsilon, rate, temperature = self._numbers(results.step, state, chain_ndims)
        injected = self._injected(rate, results.step, state, chain_ndims)

        def multiple(c: Any) -> tf.Tensor:
            """gamma N, and that of C, if C = 4 B / epsilon is a multiple of V."""
            return self._target.num_examples + c / temperature + injected.multiple

        estimate, matrix, covariance_state = self._noise.estimate(
            state, batch_seed, results.target_state, results.covariance_state,
            system=lambda matrix: (raised_shift(matrix, injected)[0], 1.0), multiple=multiple,
        )  # fmt: skip
        shift, raised = raised_shift(matrix, injected)
        share = injected.multiple / multiple(estimate.noise_scale)
        eta = injected.draw(matrix, share, shift, noise_seed)
        force = map_parts(lambda g, x: g + scaled(tf.sqrt(temperature), x), estimate.gradient, eta)
        change, lost = solve(matrix, injected, shift, force, chain_ndims)
        moves = results.step >= self._parameters["num_estimation_steps"]
        state = map_parts(lambda theta, x: tf.where(moves, theta + 2 * x, theta), state, change)

        return state, SGFSResults(
            target_log_prob=estimate.log_prob,
            gradient_norm=tf.sqrt(squared_norm(estimate.gradient, chain_ndims)),
            step_size=epsilon,
            temperature=temperature,
            num_raised=_count(raised, chain_ndims),
            num_frozen=_count(lost, chain_ndims),
            step=results.step + 1,
            target_state=estimate.target_state,
            covariance_state=covariance_state,
        )

    def _numbers(
        self, step: tf.Tensor, state: State, chain_ndims: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """epsilon, 4 / epsilon = alpha^2, and T."""

        def number(name: str) -> tf.Tensor:
            return number_at(self._parameters[name], step, state, chain_ndims, name)

        temperature = number("temperature")
        if self.step_size is not None:
            epsilon = number("step_size")
            return epsilon, 4 / epsilon, temperature
        rate = number("alpha") ** 2
        return 4 / rate, rate, temperature

    def _injected(
        self, rate: tf.Tensor, step: tf.Tensor, state: State, chain_ndims: int
    ) -> InjectedNoise:
        return injected_noise(
            self._parameters["B"], rate, step, state, chain_ndims, self._target.num_examples
        )

    def _check_regular(self, rate: tf.Tensor, state: State, chain_ndims: int) -> None:
        """Raises where the first step's matrix is bound to be singular."""
        value = tf.get_static_value(rate)
        without = value is not None and bool(np.any(value == 0))
        if without and self._target.noise_scale == 0:
            raise ValueError(
                "alpha is 0, and the target's minibatch holds all its examples: neither brings any "
                "noise; a positive alpha, or a smaller minibatch, is expected."
            )
        covariance, parts = self._noise.covariance, tf.nest.flatten(state)
        if not (without or isinstance(self._parameters["B"], str)) or isinstance(covariance, Diag):
            return
        rows = self._target.num_scores
        if rows is None:
            return
        for group in covariance.groups(parts):
            size = sum(parts[i].shape[chain_ndims:].num_elements() for i in group)
            if rows <= size:
                raise ValueError(
                    f"The covariance of {rows} scores (the target's batch_size or num_groups) has "
                    f"a rank of at most {rows - 1}, but with alpha = 0 or B = 'fisher' a matrix of "
                    f"{size} entries is solved with; more than {size} scores, a positive alpha "
                    "beside another B, or covariance='diag' is expected."
                )


def _count(entries: State, chain_ndims: int) -> tf.Tensor:
    """Number of true entries, `[chains...]`."""
    return sum_events(tf.nest.map_structure(lambda a: tf.cast(a, tf.int32), entries), chain_ndims)

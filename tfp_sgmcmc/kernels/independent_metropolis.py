"""Independent proposals from a fixed distribution with a Metropolis-Hastings test."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import array, integer, number, require
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    call_with_state,
    convert_state,
    flatten_events,
    map_parts,
    sizes_of,
    unflatten_events,
)
from tfp_sgmcmc.kernels.base import check_results
from tfp_sgmcmc.random.normals import defensive_normal, defensive_normal_log_prob
from tfp_sgmcmc.targets.base import Target, as_target
from tfp_sgmcmc.targets.laplace.quadratic import least_eigenvalue, root_of_inverse


class IndependentMetropolisResults(NamedTuple):
    """Results of `IndependentMetropolis`.

    The proposal is a part of them, so that one compiled program serves all proposals.

    Attributes:
      target_log_prob: the log posterior at the state, `[chains...]`.
      log_weight: log p - log q at the state, `[chains...]`.
      is_accepted: whether the last proposal was accepted, `[chains...]`.
      proposals: the block's proposals, `[block_size, chains..., D]`.
      log_probs: the log posterior at the proposals, `[block_size, chains...]`.
      log_weights: log p - log q at the proposals, `[block_size, chains...]`.
      center: mean of the proposals, `[D]`.
      factor: L, `[D, D]`.
      tail_share: the share of heavy tails.
      step: number of steps taken.
    """

    target_log_prob: tf.Tensor
    log_weight: tf.Tensor
    is_accepted: tf.Tensor
    proposals: tf.Tensor
    log_probs: tf.Tensor
    log_weights: tf.Tensor
    center: tf.Tensor
    factor: tf.Tensor
    tail_share: tf.Tensor
    step: tf.Tensor


class IndependentMetropolis(tfp.mcmc.TransitionKernel):
    r"""Metropolis-Hastings with independent proposals, for posteriors near a normal distribution.

    \[
    \theta' = \hat\theta + L z, \quad L L^T = (-H)^{-1}, \quad
    z \sim (1 - \alpha)\, N(0, I) + \alpha\, t_8(0, I)
    \]

    is accepted with probability

    \[
    \min \left( 1, \frac{w(\theta')}{w(\theta)} \right), \qquad
    w = \frac{p(\theta \mid x_{1:N})}{q(\theta)},
    \]

    where q is the density of the proposals. The chain leaves the posterior invariant whatever q is.
    Where q is close to the posterior, draws are nearly independent. If w is bounded, the chain is
    uniformly ergodic (Mengersen and Tweedie 1996, theorem 2.1), and the share \( \alpha \) with
    heavy tails bounds w where a normal distribution would not. If w is not bounded, states with a
    large w hold a chain for a long time. `certify` tells, by the Pareto shape of w.

    Proposals do not depend on the state, so the log posteriors of `block_size` proposals of all
    chains are evaluated at once, which takes a fraction of the time of as many single evaluations.

    Examples:
      With `x` and `target` as in `MinibatchLogProb`:

      >>> center, found = sgmcmc.find_center(target, tf.constant(0.))
      >>> kernel = sgmcmc.IndependentMetropolis(target, center, found.hessian)
      >>> run = sgmcmc.sample_chain(kernel, center, 500, num_chains=4, seed=0, progress_bar=False)
      >>> bool(abs(run.states.std() * 1000**0.5 - 1) < 0.1)
      True

    Args:
      target_log_prob_fn: a target or a plain callable. Its exact value is used.
      center: the mean of the proposals: one state without chain dimensions.
      hessian: H, `[D, D]`, negative definite, in the order of the flattened parts: the Hessian at
        a mode, or minus the inverse of a covariance.
      tail_share: the share \( \alpha \), above 0 and below 1.
      block_size: number of proposals of each chain that are evaluated at once.

    Raises:
      ValueError: a number is out of range; the Hessian has another shape or is not negative
        definite. At bootstrap: the state is not finite.
      TypeError: an argument has the wrong type.

    References:
      L. Tierney. Markov chains for exploring posterior distributions. Annals of Statistics, 1994.
      K. L. Mengersen and R. L. Tweedie. Rates of convergence of the Hastings and Metropolis
      algorithms. Annals of Statistics, 1996.
      T. Hesterberg. Weighted average importance sampling and defensive mixture distributions.
      Technometrics, 1995.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        center: State,
        hessian: Any,
        tail_share: float = 0.1,
        block_size: int = 250,
    ):
        number("tail_share", tail_share, "above 0 and below 1", lambda x: 0 < x < 1)
        integer("block_size", block_size, 1)
        center = convert_state(center, initial=True, called="center")
        self._center = flatten_events(center, 0)
        precision = -array("hessian", hessian, 2).astype(np.float64)
        dim = self._center.shape[0]
        fits = list(precision.shape) == [dim, dim]
        expected = f"of shape [{dim}, {dim}], as center has {dim} entries"
        require("hessian", f"shape {list(precision.shape)}", fits, expected)
        least = least_eigenvalue(precision)
        require("hessian", f"a largest eigenvalue of {-least:.3g}", least > 0, "negative definite")
        self._factor = root_of_inverse(precision)
        self._target = as_target(target_log_prob_fn, full_data_expected=True)
        self._parameters = {
            "target_log_prob_fn": target_log_prob_fn,
            "center": center,
            "hessian": hessian,
            "tail_share": tail_share,
            "block_size": block_size,
        }

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)

    @property
    def is_calibrated(self) -> bool:
        return True

    @property
    def target_log_prob_fn(self) -> Any:
        return self._parameters["target_log_prob_fn"]

    @property
    def target(self) -> Target:
        """The target; a plain callable is wrapped."""
        return self._target

    def bootstrap_results(self, init_state: State) -> IndependentMetropolisResults:
        """Evaluates the log posterior at `init_state`."""
        state = convert_state(init_state, initial=True)
        log_prob = call_with_state(self._target, state)
        flat = flatten_events(state, log_prob.shape.rank)
        offset = flat.numpy() - self._center.numpy() if tf.executing_eagerly() else None
        if offset is None:
            inverse = tf.constant(np.linalg.inv(self._factor), flat.dtype)
            z = tf.linalg.matvec(inverse, flat - self._center)
        else:
            z = tf.constant(np.linalg.solve(self._factor, offset[..., np.newaxis])[..., 0])
            z = tf.cast(z, flat.dtype)
        size = self._parameters["block_size"]
        share = tf.constant(self._parameters["tail_share"], flat.dtype)
        return IndependentMetropolisResults(
            target_log_prob=log_prob,
            log_weight=log_prob - defensive_normal_log_prob(z, share),
            is_accepted=tf.ones_like(log_prob, tf.bool),
            proposals=tf.zeros([size, *sizes_of(flat)], flat.dtype),
            log_probs=tf.zeros([size, *sizes_of(log_prob)], log_prob.dtype),
            log_weights=tf.zeros([size, *sizes_of(log_prob)], log_prob.dtype),
            center=self._center,
            factor=tf.constant(self._factor, flat.dtype),
            tail_share=share,
            step=tf.zeros([], tf.int64),
        )

    def one_step(
        self, current_state: State, previous_kernel_results: Any, seed: Any = None
    ) -> tuple[State, IndependentMetropolisResults]:
        """Accepts or rejects the block's next proposal; draws a new block when it is used up."""
        check_results(previous_kernel_results)
        state, results = convert_state(current_state), previous_kernel_results
        block_seed, accept_seed = random.split(random.as_seed(seed), 2)
        chain_ndims = results.target_log_prob.shape.rank
        position = results.step % results.log_probs.shape[0]
        block = tf.cond(
            position == 0,
            lambda: self._block(state, results, block_seed),
            lambda: (results.proposals, results.log_probs, results.log_weights),
        )
        proposed, log_prob, log_weight = (tf.gather(x, position) for x in block)
        # Half the square of two normals' norm is exponential: minus the log of a uniform number.
        pair = random.normal([2, *sizes_of(log_prob)], log_prob.dtype, accept_seed)
        accepts = log_weight - results.log_weight > -0.5 * tf.reduce_sum(pair**2, axis=0)
        moved = map_parts(
            lambda new, old: tf.where(append_dims(accepts, old), new, old),
            unflatten_events(proposed, state, chain_ndims),
            state,
        )
        proposals, log_probs, log_weights = block
        return moved, results._replace(
            target_log_prob=tf.where(accepts, log_prob, results.target_log_prob),
            log_weight=tf.where(accepts, log_weight, results.log_weight),
            is_accepted=accepts,
            proposals=proposals,
            log_probs=log_probs,
            log_weights=log_weights,
            step=results.step + 1,
        )

    def _block(
        self, state: State, results: IndependentMetropolisResults, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns proposals, their log posteriors, and their log weights."""
        like, shape = results.log_probs, sizes_of(results.proposals)
        z = defensive_normal(shape, results.proposals.dtype, seed, results.tail_share)
        proposals = results.center + tf.linalg.matvec(results.factor, z)
        flat = tf.reshape(proposals, [-1, proposals.shape[-1]])
        states = unflatten_events(flat, state, like.shape.rank - 1)
        log_probs = tf.reshape(self._target.log_prob_of_many(states), shape[:-1])
        nowhere = tf.constant(-np.inf, log_probs.dtype)
        log_probs = tf.where(tf.math.is_nan(log_probs), nowhere, log_probs)
        return proposals, log_probs, log_probs - defensive_normal_log_prob(z, results.tail_share)

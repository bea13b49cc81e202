"""Independent proposals from a fixed distribution with a Metropolis-Hastings test."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from tfp_sgmcmc.targets.base import as_target
from tfp_sgmcmc.targets.laplace.quadratic import least_eigenvalue, root_of_inverse

DEGREES_OF_FREEDOM = 8  # of the heavy tails of a defensive normal


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
      center: mean of the proposals, `[D]`; `[K, D]` of a mixture.
      factor: L, `[D, D]` or `[K, D, D]`.
      tail_share: the share of heavy tails; `[K]` of a mixture.
      weights: weights of a mixture, `[K]`; `()` of one component.
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
    weights: Any
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

    With `weights`, proposals come from a mixture of K such distributions, one for each mode of the
    posterior, and q is the density of the mixture. The draws then move between the modes.

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
      center: the mean of the proposals: one state without chain dimensions. Of a mixture, all
        parts have a leading axis of K components.
      hessian: H, `[D, D]`, negative definite, in the order of the flattened parts: the Hessian at
        a mode, or minus the inverse of a covariance; `[K, D, D]` of a mixture.
      tail_share: the share \( \alpha \), above 0 and below 1; a number, or `[K]`.
      block_size: number of proposals of each chain that are evaluated at once.
      weights: weights of a mixture, `[K]`, positive; they are divided by their sum. None is a
        single component.

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
        tail_share: Any = 0.1,
        block_size: int = 250,
        weights: Any = None,
    ):
        integer("block_size", block_size, 1)
        center = convert_state(center, initial=True, called="center")
        self._parameters = {name: x for name, x in locals().items() if name != "self"}
        lead: list[int] = []
        if weights is not None:
            given = array("weights", weights, 1).astype(np.float64)
            expected = "positive numbers, one for each component"
            require("weights", weights, given.size > 0 and bool((given > 0).all()), expected)
            lead = [given.size]
        if isinstance(tail_share, list | tuple):
            tail_share = array("tail_share", tail_share)
        shares = np.broadcast_to(tail_share, lead) if np.ndim(tail_share) == 0 else tail_share
        for share in np.ravel(shares).tolist():
            number("tail_share", share, "above 0 and below 1", lambda x: 0 < x < 1)
        fits = list(np.shape(shares)) == lead
        require("tail_share", f"shape {list(np.shape(shares))}", fits, f"a number, or {lead}")
        shapes = [x.shape for x in tf.nest.flatten(center)]
        if lead and not all(shape.rank and shape[0] == lead[0] for shape in shapes):
            raise ValueError(
                f"center must have a leading axis of {lead[0]} components, as weights have. "
                f"Received: parts of shapes {[tuple(shape) for shape in shapes]}."
            )
        self._center = flatten_events(center, len(lead))
        precision = -array("hessian", hessian, 2 + len(lead)).astype(np.float64)
        dim = self._center.shape[-1]
        fits = list(precision.shape) == [*lead, dim, dim]
        expected = f"of shape {[*lead, dim, dim]}, as center has {dim} entries"
        require("hessian", f"shape {list(precision.shape)}", fits, expected)
        matrices = precision.reshape(-1, dim, dim)
        least = min(map(least_eigenvalue, matrices))
        require("hessian", f"a largest eigenvalue of {-least:.3g}", least > 0, "negative definite")
        self._factor = np.stack([root_of_inverse(x) for x in matrices]).reshape(precision.shape)
        self._shares = np.asarray(shares, np.float64)
        self._weights = given / given.sum() if lead else None
        #: The target; a plain callable is wrapped.
        self.target = as_target(target_log_prob_fn, full_data_expected=True)

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
    def first_center(self) -> State:
        """The mean of the proposals, of the first component if there are several."""
        center = self._parameters["center"]
        return center if self._weights is None else tf.nest.map_structure(lambda x: x[0], center)

    def bootstrap_results(self, init_state: State) -> IndependentMetropolisResults:
        """Evaluates the log posterior at `init_state`."""
        state = convert_state(init_state, initial=True)
        log_prob = call_with_state(self.target, state)
        flat = flatten_events(state, log_prob.shape.rank)
        given = self._center.shape[-1], self._center.dtype.name
        if (flat.shape[-1], flat.dtype.name) != given:
            raise ValueError(
                f"The state must have {given[0]} entries of dtype {given[1]}, as center has. "
                f"Received: {flat.shape[-1]} of dtype {flat.dtype.name}."
            )
        proposals = self._proposals(flat.dtype)
        size = self._parameters["block_size"]
        return IndependentMetropolisResults(
            target_log_prob=log_prob,
            log_weight=_without_nan(log_prob) - proposals.log_prob(self._whitened(flat)),
            is_accepted=tf.ones_like(log_prob, tf.bool),
            proposals=tf.zeros([size, *sizes_of(flat)], flat.dtype),
            log_probs=tf.zeros([size, *sizes_of(log_prob)], log_prob.dtype),
            log_weights=tf.zeros([size, *sizes_of(log_prob)], log_prob.dtype),
            **proposals._asdict(),
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
        fields = results._asdict()
        proposals, log_q = _Proposals(*(fields[x] for x in _Proposals._fields)).draw(shape, seed)
        flat = tf.reshape(proposals, [-1, proposals.shape[-1]])
        states = unflatten_events(flat, state, like.shape.rank - 1)
        log_probs = _without_nan(tf.reshape(self.target.log_prob_of_many(states), shape[:-1]))
        return proposals, log_probs, log_probs - log_q

    def _proposals(self, dtype: tf.DType) -> _Proposals:
        weights = () if self._weights is None else tf.constant(self._weights, dtype)
        factor, share = tf.constant(self._factor, dtype), tf.constant(self._shares, dtype)
        return _Proposals(self._center, factor, share, weights)

    def _whitened(self, flat: tf.Tensor) -> tf.Tensor:
        """Returns z of states, `[..., D]`; `[K, ..., D]` of a mixture."""
        dim = flat.shape[-1]
        factors = self._factor.reshape(-1, dim, dim)
        offsets = [flat - center for center in tf.unstack(tf.reshape(self._center, [-1, dim]))]
        if tf.executing_eagerly():
            pairs = zip(factors, offsets, strict=True)
            found = [np.linalg.solve(f, x.numpy()[..., np.newaxis])[..., 0] for f, x in pairs]
            z = tf.constant(np.stack(found), flat.dtype)
        else:
            inverses = tf.constant(np.linalg.inv(factors), flat.dtype)
            pairs = zip(tf.unstack(inverses), offsets, strict=True)
            z = tf.stack([tf.linalg.matvec(inverse, x) for inverse, x in pairs])
        return z[0] if self._weights is None else z


class _Proposals(NamedTuple):
    """A normal distribution with heavy tails, or a mixture of K; fields as in the results."""

    center: tf.Tensor
    factor: tf.Tensor
    tail_share: tf.Tensor
    weights: Any

    def log_prob(self, z: tf.Tensor) -> tf.Tensor:
        """Returns log q, of one component up to a constant, where z is `[..., D]`.

        Of a mixture it takes z of all components, `[K, ..., D]`.
        """
        if isinstance(self.weights, tuple):
            return defensive_normal_log_prob(z, self.tail_share)
        log_dets = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(self.factor)), axis=-1)
        share, log_scale = (
            self._of_each(x, z.shape.rank - 2)
            for x in (self.tail_share, tf.math.log(self.weights) - log_dets)
        )
        return tf.reduce_logsumexp(defensive_normal_log_prob(z, share) + log_scale, axis=0)

    def draw(self, shape: list[Any], seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns proposals of this shape, and log q there."""
        dtype = self.center.dtype
        if isinstance(self.weights, tuple):
            z = defensive_normal(shape, dtype, seed, self.tail_share)
            return self.center + tf.linalg.matvec(self.factor, z), self.log_prob(z)
        seed, choice_seed = random.split(seed, 2)
        bounds = tf.math.ndtri(tf.cumsum(self.weights)[:-1])
        chosen = random.normal(shape[:-1], dtype, choice_seed)[..., tf.newaxis] > bounds
        chosen = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=-1)
        share = tf.gather(self.tail_share, chosen)[..., tf.newaxis]
        z = defensive_normal(shape, dtype, seed, share)
        is_own = tf.one_hot(chosen, self.weights.shape[0], True, False, axis=0)[..., tf.newaxis]
        center = self._of_each(self.center, z.shape.rank - 1)
        factor = self._of_each(self.factor, z.shape.rank - 1)
        moved = tf.where(is_own, center + tf.linalg.matvec(factor, z), 0.0)
        x = tf.reduce_sum(moved, axis=0)
        offsets = tf.reshape(x - center, [self.weights.shape[0], -1, self.center.shape[-1]])
        others = tf.linalg.triangular_solve(self.factor, tf.linalg.matrix_transpose(offsets))
        others = tf.reshape(tf.linalg.matrix_transpose(others), tf.shape(moved))
        return x, self.log_prob(tf.where(is_own, z, others))  # z itself has not been rounded

    def _of_each(self, x: tf.Tensor, num_axes: int) -> tf.Tensor:
        """Returns numbers, vectors or matrices of the components, with axes behind the first."""
        shape = x.shape.as_list()
        return tf.reshape(x, [shape[0], *[1] * num_axes, *shape[1:]])


def defensive_normal(
    shape: Sequence[Any], dtype: tf.DType, seed: tf.Tensor, tail_share: tf.Tensor
) -> tf.Tensor:
    r"""Draws from \( (1 - \alpha) N(0, I) + \alpha\, t_8(0, I) \) along the last axis of `shape`.

    A draw of t is \( z \sqrt{8 / \chi^2_8} \) with eight more normals for \( \chi^2_8 \). One more
    decides which of the two it is.
    """
    *lead, dim = shape
    z = random.normal([*lead, dim + DEGREES_OF_FREEDOM + 1], dtype, seed)
    chi_squared = tf.reduce_sum(z[..., dim:-1] ** 2, axis=-1, keepdims=True)
    below = tf.math.ndtri(tail_share)
    scale = tf.where(z[..., -1:] < below, tf.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)
    return z[..., :dim] * scale


def draw_defensive_normal(
    shape: tuple[int, ...], tail_share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws as `defensive_normal` does, by NumPy and in double precision."""
    z, is_tail = rng.standard_normal(shape), rng.uniform(size=shape[:-1]) < tail_share
    chi_squared = rng.chisquare(DEGREES_OF_FREEDOM, shape[:-1])
    return z * np.where(is_tail, np.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)[..., np.newaxis]


def defensive_normal_log_prob(z: tf.Tensor, tail_share: tf.Tensor) -> tf.Tensor:
    r"""Returns the log density of `defensive_normal` at z, `[..., D]`.

    \[
    \log \left( (1 - \alpha)\, (2 \pi)^{-D/2} e^{-r/2} + \alpha\, \frac{\Gamma(4 + D/2)}{\Gamma(4)}
    (8 \pi)^{-D/2} (1 + r / 8)^{-4 - D/2} \right), \qquad r = |z|^2
    \]
    """
    return defensive_normal_log_prob_at(tf.reduce_sum(z**2, axis=-1), z.shape[-1], tail_share)


def defensive_normal_log_prob_at(square: tf.Tensor, dim: int, tail_share: tf.Tensor) -> tf.Tensor:
    """Returns the log density of `defensive_normal` in `dim` dimensions where |z|^2 is `square`."""
    nu = DEGREES_OF_FREEDOM
    of_normal = -0.5 * square - 0.5 * dim * math.log(2 * math.pi)
    of_tails = -0.5 * (nu + dim) * tf.math.log1p(square / nu) + (
        math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - 0.5 * dim * math.log(nu * math.pi)
    )
    pair = tf.math.log1p(-tail_share) + of_normal, tf.math.log(tail_share) + of_tails
    return tf.reduce_logsumexp(tf.stack(pair), axis=0)


def _without_nan(log_prob: tf.Tensor) -> tf.Tensor:
    """Returns the log posterior, -infinity where it is NaN."""
    return tf.where(tf.math.is_nan(log_prob), tf.constant(-np.inf, log_prob.dtype), log_prob)

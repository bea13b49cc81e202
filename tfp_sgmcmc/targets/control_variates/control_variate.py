"""Control variates at a fixed center, where the minibatch noise vanishes."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import integer, one_of, require
from tfp_sgmcmc.internal.nest import State, convert_state, part_names
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.anchored import Anchor, AnchoredTarget, NextAnchor, anchor_at
from tfp_sgmcmc.targets.base import ExpansionError, GradientEstimate, kept_program
from tfp_sgmcmc.targets.control_variates.second_order import SecondOrder
from tfp_sgmcmc.targets.laplace.mode import check_single_state
from tfp_sgmcmc.targets.laplace.quadratic import HessianForm
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb


class ControlVariate(AnchoredTarget):
    r"""Wraps a `MinibatchLogProb`: minibatches estimate differences from a fixed center.

    \[
    g(\theta) = \nabla \log p(\theta) + \sum_{i=1}^N \nabla \log p(x_i \mid \hat\theta)
      + \frac N n \sum_{i \in S} s_i(\theta), \qquad
    s_i(\theta) = \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \hat\theta)
    \]

    The estimate has no bias for any center \( \hat\theta \), and no noise at the center: the
    covariance of g is c V, where V is the covariance of the s_i and of the order of the squared
    distance to the center. Centered at the mode of a posterior of d parameters, minibatches of a
    few times d examples have little noise in its region, however large N is. The s_i are also the
    scores that samplers receive. The constructor evaluates the sum over all N examples once. An
    estimate evaluates its minibatch at two states.

    With `order=2` the Hessians of the log likelihoods at the center are subtracted, too. With
    \( d = \theta - \hat\theta \), the Hessian \( H_l \) of the sum of all log likelihoods at the
    center, the Hessian H of the log posterior there, and examples drawn with probabilities
    \( q_i \),

    \[
    g(\theta) = \nabla \log p(\theta) + \sum_{i=1}^N \nabla \log p(x_i \mid \hat\theta) + w H_l d
      + \frac 1 n \sum_{i \in S} \frac{s_i(\theta)}{q_i},
    \]
    \[
    s_i(\theta) = \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \hat\theta)
      - w \nabla^2 \log p(x_i \mid \hat\theta) d, \qquad
    w = \min\left(1, \frac{1.5 D}{d^T (-H) d}\right).
    \]

    The noise is then of the order of the fourth power of the distance. w keeps the noise bounded
    far from the center, without a bias because it depends only on the state. The constructor takes
    D Hessian-vector products with all data, and keeps two matrices of D x D.

    With more than 4096 entries, or `hessian="low_rank"`, the Hessians of the log likelihoods act
    along k directions. In both equations \( Q d \) replaces the d that these multiply,

    \[
    Q = B B^T P, \qquad B = P^{-1/2} U, \qquad -H \approx P^{1/2} (I + U s U^T) P^{1/2},
    \]

    with P, U and s as in `whiten`. \( H_l Q d \) is \( (H_l B) (B^T P d) \), where \( H_l B \),
    `[D, k]`, is summed over all data, so g has no bias whatever U is. Along the other directions
    the noise is as with `order=1`. A target that `whiten` made by low rank keeps its U, with P = I.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).standard_t(5., size=[100_000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     tfd.Normal(0., 10.).log_prob,
      ...     lambda theta, batch: tfd.StudentT(5., theta[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=100)
      >>> center, report = sgmcmc.find_center(target, tf.constant(1.))
      >>> control = sgmcmc.ControlVariate(target, center)
      >>> theta = center + 0.003 * tf.random.stateless_normal([1000], seed=[0, 1])  # 1000 chains
      >>> def deviation(target):
      ...     gradient = target.estimate(theta, seed=tf.constant([0, 2])).gradient
      ...     return tf.math.reduce_std(gradient)
      >>> bool(deviation(control) < 0.05 * deviation(target))
      True

    Args:
      target: a `MinibatchLogProb`.
      center: one state without chain dimensions, such as `find_center` returns, in the structure
        and dtype of the states to sample (unconstrained if the target has a bijector).
      order: 1 subtracts the gradients at the center, 2 also the Hessians.
      importance: the \( q_i \) of `order=2`. None draws minibatches as the target does. An array
        `[N]` of positive numbers is scaled to sum to one, and examples are drawn with replacement.
        `"pilot"` takes them in proportion to the root mean square of \( |s_i| \), in units of
        Laplace's approximation, at 16 draws from it, plus 5 % of the mean. It takes 16 passes over
        the data, and matters where a few examples have large remainders. A `ShardedLogProb` draws
        n/S examples of each of its S shards, in proportion to the \( q_i \) within the shard,
        which are scaled to sum to 1/S. An array has the examples of shard 0, then of shard 1, and
        so on.
      hessian: the form of the Hessians of `order=2`: `"full"`, `"low_rank"`, or `"auto"`, which is
        full up to 4096 entries and low rank beyond.

    Raises:
      TypeError: the target is not a plain `MinibatchLogProb`; the center is not floating.
      ValueError: the center has NaN or infinite entries, chain dimensions, or a gradient that is
        not finite. With `order=2`: H is not finite or not negative definite, as at a mode; D is
        above 4096 with `hessian="full"`; the log likelihood has no second derivatives,
        or only zeros (it is piecewise linear); the target has a `score_fn`; `importance` is not N
        positive numbers. At bootstrap: states have another structure, shape or dtype than the
        center.

    References:
      J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth. Control variates for stochastic gradient
      MCMC. Statistics and Computing 29, 2019. Section 2.2.
    """

    def __init__(
        self,
        target: MinibatchLogProb,
        center: State,
        order: Literal[1, 2] = 1,
        importance: Any = None,
        hessian: HessianForm = "auto",
    ):
        super().__init__(target)
        integer("order", order, 1, 2)
        one_of("hessian", hessian, ["auto", "full", "low_rank"])
        center = convert_state(center, initial=True, called="center")
        self._names = part_names(center, "center")
        check_single_state("center", target, center)
        self.center = center
        anchor = kept_program(
            target, "anchor", center, lambda: traced(lambda c: anchor_at(target, c))
        )
        self._anchor = anchor(center)
        for name, x in zip(self._names, tf.nest.flatten(self._anchor.gradient), strict=True):
            value = tf.get_static_value(x)
            if value is not None and not np.all(np.isfinite(value)):
                raise ExpansionError(
                    f"The gradient with respect to {name} at the center must be finite. "
                    f"Received: {value}."
                )
        self.order = order
        if order == 1:
            require("importance", importance, importance is None, "None with order=1")
            require("hessian", hessian, hessian == "auto", "'auto' with order=1")
            return
        if target.has_score_fn:
            raise ValueError(
                "target must be made without score_fn for order=2, which differentiates the "
                "scores. Received: a target with a score_fn."
            )
        self.second_order = SecondOrder(target, self._anchor, importance, hessian)
        self.noise_scale = self.second_order.noise_scale

    def with_batch_size(self, batch_size: int) -> ControlVariate:
        """Returns these control variates with another batch size, without a new pass."""
        other = copy.copy(self)
        other.target = self.target.with_minibatches(batch_size)
        other.num_scores = other.target.num_scores
        other.noise_scale = other.target.noise_scale
        if self.order == 2:
            other.second_order = self.second_order.with_target(other.target)
            other.noise_scale = other.second_order.noise_scale
        return other

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        if self.order == 1:
            return super().estimate(state, seed, target_state, probe, with_scores)
        state = convert_state(state)
        self._check_fits(state)
        return self.second_order.estimate(state, seed, target_state, probe, with_scores)

    def chain_shape(self, state: State) -> Any:
        self._check_fits(state)
        return self.target.chain_shape(state)

    def bootstrap(self, state: State) -> Any:
        self._check_fits(state)
        return self.target.bootstrap(state)

    def _next_anchor(self, state: State, target_state: Any) -> NextAnchor:
        self._check_fits(state)
        center, parts = tf.nest.flatten(self.center), tf.nest.flatten(state)
        log_likelihood = self._anchor.log_likelihood
        if not self.target.shared_batch:  # a copy of the anchor for each chain
            chains = tf.shape(parts[0])[: parts[0].shape.rank - center[0].shape.rank]
            center = [tf.broadcast_to(c, tf.shape(x)) for c, x in zip(center, parts, strict=True)]
            log_likelihood = tf.broadcast_to(log_likelihood, chains)
        gradient = tf.nest.flatten(self._anchor.gradient)
        pack = tf.nest.pack_sequence_as
        anchor = Anchor(pack(state, center), log_likelihood, pack(state, gradient))
        return anchor, target_state, lambda inner: inner

    def _check_fits(self, state: State) -> None:
        """Raises ValueError unless the state has the center's parts behind chain dimensions."""
        names = part_names(state, "center")
        if names != self._names:  # in order: a namedtuple's may differ from a dict's
            raise ValueError(
                f"The state must have the structure of ControlVariate's center, {self._names}. "
                f"Received: {part_names(state)}."
            )
        pairs = zip(tf.nest.flatten(self.center), tf.nest.flatten(state), strict=True)
        for name, (c, x) in zip(part_names(state), pairs, strict=True):
            ndims = x.shape.rank - c.shape.rank
            if c.dtype != x.dtype or ndims < 0 or not c.shape.is_compatible_with(x.shape[ndims:]):
                raise ValueError(
                    f"{name} must have the dtype of ControlVariate's center, {c.dtype.name}, and "
                    f"its shape {c.shape} behind chain dimensions. "
                    f"Received: dtype {x.dtype.name}, shape {x.shape}."
                )

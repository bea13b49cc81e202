"""Control variates at a fixed center: minibatch noise that vanishes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.state import State, part_names
from tfp_sgmcmc.targets.anchors import Anchor, AnchoredTarget, anchor_at
from tfp_sgmcmc.targets.base import GradientEstimate
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb


class ControlVariate(AnchoredTarget):
    r"""Wraps a `MinibatchLogProb`: minibatches estimate differences from a fixed center.

    \[
    g(\theta) = \nabla \log p(\theta) + \sum_{i=1}^N \nabla \log p(x_i \mid \hat\theta)
      + \frac N n \sum_{i \in S} s_i(\theta), \qquad
    s_i(\theta) = \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \hat\theta)
    \]

    Without bias for every center \( \hat\theta \), and without noise at the center: the covariance
    of g is c V with V the covariance of the s_i, of the order of the squared distance to it. Within
    the posterior of d parameters, and with its mode for the center, minibatches of a few times d
    examples then have little noise, however large N is. The s_i are also the scores that samplers
    are given. The sum over all N examples is evaluated once, by the constructor; an estimate
    evaluates its minibatch at two states.

    #### Example

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
      center: one state, without chain dimensions, as `find_center` returns it: in the structure and
        dtype of the states that will be sampled (unconstrained where the target has a bijector).

    Raises:
      TypeError: a target that is no `MinibatchLogProb`, or is wrapped already; a center that is not
        floating.
      ValueError: a center with NaN or infinite entries, with chain dimensions, or at which the
        gradient is not finite; at bootstrap, states of another structure, shape or dtype.

    #### References

    J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth. Control variates for stochastic gradient MCMC.
    Statistics and Computing 29, 2019. Section 2.2.
    """

    def __init__(self, target: MinibatchLogProb, center: State):
        super().__init__(target)
        center = tf.nest.map_structure(tf.convert_to_tensor, center)
        self._names = [name.replace("state", "center", 1) for name in part_names(center)]
        for name, x in zip(self._names, tf.nest.flatten(center), strict=True):
            if not x.dtype.is_floating:
                raise TypeError(f"{name} has dtype {x.dtype.name}; a floating dtype is expected.")
        self._check_finite("{}, the center,", center)
        chains = tf.TensorShape(target.chain_shape(center))
        if chains.rank:
            raise ValueError(
                f"log_prior_fn returns shape {chains} at the center; one state without chain "
                "dimensions, at which it returns a scalar, is expected."
            )
        self.center = center
        self._anchor = tf.function(lambda c: anchor_at(target, c), autograph=False)(center)
        self._check_finite("The gradient by {} at the center", self._anchor.gradient)

    def chain_shape(self, state: State) -> Any:
        self._check_fits(state)
        return self.target.chain_shape(state)

    def bootstrap(self, state: State) -> Any:
        self._check_fits(state)
        return self.target.bootstrap(state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        draw, target_state = self.target.next_draw(seed, target_state)
        estimate = self._estimate_from(self._anchor_of(state), state, draw, probe, with_scores)
        return estimate._replace(target_state=target_state)

    def _anchor_of(self, state: State) -> Anchor:
        """The anchor in the structure of the state; chains with own minibatches get a copy each."""
        self._check_fits(state)
        center, parts = tf.nest.flatten(self.center), tf.nest.flatten(state)
        log_likelihood = self._anchor.log_likelihood
        if not self.target.shared_batch:
            chains = tf.shape(parts[0])[: parts[0].shape.rank - center[0].shape.rank]
            center = [tf.broadcast_to(c, tf.shape(x)) for c, x in zip(center, parts, strict=True)]
            log_likelihood = tf.broadcast_to(log_likelihood, chains)
        gradient = tf.nest.flatten(self._anchor.gradient)
        pack = tf.nest.pack_sequence_as
        return Anchor(pack(state, center), log_likelihood, pack(state, gradient))

    def _check_fits(self, state: State) -> None:
        """Raises ValueError unless the state is the center's with chain dimensions in front."""
        names = [name.replace("state", "center", 1) for name in part_names(state)]
        if names != self._names:  # their order counts, too: a namedtuple has another than a dict
            raise ValueError(
                f"The state has parts {part_names(state)}, but the center of ControlVariate has "
                f"{self._names}; the same structure is expected."
            )
        pairs = zip(tf.nest.flatten(self.center), tf.nest.flatten(state), strict=True)
        for name, (c, x) in zip(part_names(state), pairs, strict=True):
            ndims = x.shape.rank - c.shape.rank
            if c.dtype != x.dtype or ndims < 0 or not c.shape.is_compatible_with(x.shape[ndims:]):
                raise ValueError(
                    f"{name} has dtype {x.dtype.name} and shape {x.shape}, but the center of "
                    f"ControlVariate has {c.dtype.name} and {c.shape} there; the same dtype, and "
                    "the center's shape with chain dimensions in front, are expected."
                )

    def _check_finite(self, what: str, values: State) -> None:
        for name, x in zip(self._names, tf.nest.flatten(values), strict=True):
            value = tf.get_static_value(x)
            if value is not None and not np.all(np.isfinite(value)):
                raise ValueError(f"{what.format(name)} has NaN or infinite entries.")

"""SVRG: control variates with an anchor that follows the chain."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.anchored import Anchor, AnchoredTarget, NextAnchor, anchor_at
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.sharded import refuse_shards


class SVRGState(NamedTuple):
    """The chains' anchors, the number of estimates so far, and the wrapped target's state."""

    anchor: Anchor
    step: tf.Tensor
    target_state: Any


class SVRG(AnchoredTarget):
    r"""Wraps a `MinibatchLogProb`: minibatches estimate differences from a recent state.

    \[
    g(\theta) = \nabla \log p(\theta) + \sum_{i=1}^N \nabla \log p(x_i \mid \tilde\theta)
      + \frac N n \sum_{i \in S} s_i(\theta), \qquad
    s_i(\theta) = \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \tilde\theta)
    \]

    Every chain has an anchor \( \tilde\theta \), which moves to the chain's state at the estimates
    0, m, 2m, ... The full sum there takes a pass over the data, in chunks of bounded memory. Unlike
    `ControlVariate` this needs no center, and it follows chains that are far from one. The s_i are
    also the scores. Their covariance V grows from zero between one anchor and the next, and
    samplers average it over these distances.

    Examples:
      With `target` as in `MinibatchLogProb`:

      >>> kernel = sgmcmc.SGLD(sgmcmc.SVRG(target, update_every=20), step_size=1e-4)
      >>> state, results = tf.zeros([3]), kernel.bootstrap_results(tf.zeros([3]))  # three chains
      >>> state, results = kernel.one_step(state, results, seed=0)
      >>> bool(tf.reduce_all(results.target_state.anchor.state == 0.))
      True

    Args:
      target: a `MinibatchLogProb`.
      update_every: m, the number of estimates from one anchor to the next. The default is N/n,
        rounded up: anchors then cost half as much as minibatches, which need two states.

    Raises:
      TypeError: the target is not a plain `MinibatchLogProb`; `update_every` is not an integer.
      ValueError: `update_every` is below 1.

    References:
      A. Dubey, S. J. Reddi, B. Poczos, A. J. Smola, E. P. Xing and S. A. Williamson. Variance
      reduction in stochastic gradient Langevin dynamics. NeurIPS, 2016. Algorithm 2.
    """

    def __init__(self, target: MinibatchLogProb, update_every: int | None = None):
        super().__init__(target)
        refuse_shards("SVRG", target, replicas_alone=True)
        if update_every is None:
            update_every = -(-target.num_examples // target.batch_size)
        self.update_every = integer("update_every", update_every, 1)

    def bootstrap(self, state: State) -> SVRGState:
        inner = self.target.bootstrap(state)
        zeros = tf.nest.map_structure(tf.zeros_like, (self.target.log_prior(state), state))
        return SVRGState(Anchor(state, *zeros), tf.zeros([], tf.int64), inner)

    def _next_anchor(self, state: State, target_state: Any) -> NextAnchor:
        last, step, inner = target_state or self.bootstrap(state)
        here = tf.nest.pack_sequence_as(last.state, tf.nest.flatten(state))
        anchor = tf.cond(
            step % self.update_every == 0, lambda: anchor_at(self.target, here), lambda: last
        )
        return anchor, inner, lambda inner: SVRGState(anchor, step + 1, inner)

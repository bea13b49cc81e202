"""Control variates: with a fixed center, where the minibatch noise vanishes, and SVRG.

The anchor of SVRG follows the chain. The covariance of second-order estimates is computed before a
chain runs.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import integer, one_of, require
from tfp_sgmcmc.internal.nest import (
    State,
    convert_state,
    flatten_events,
    part_names,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.anchored import Anchor, AnchoredTarget, NextAnchor, anchor_at
from tfp_sgmcmc.targets.base import ExpansionError, GradientEstimate, kept_program
from tfp_sgmcmc.targets.control_variates.second_order import SecondOrder
from tfp_sgmcmc.targets.laplace.laplace import check_single_state
from tfp_sgmcmc.targets.laplace.quadratic import HessianForm
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.sharded import refuse_shards

_MOST_EXAMPLES = 20_000  # whose remainders are evaluated at every state


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


class RemainderCovariance:
    r"""Computes the covariance of a second-order gradient estimate from one example.

    \[
    C = \frac 1 K \sum_{k=1}^K \Bigl( \sum_{i=1}^N \frac{s_i s_i^T}{q_i}
      - \sum_i s_i \sum_i s_i^T \Bigr)(\theta_k)
    \]

    with the remainders \( s_i \) and probabilities \( q_i \) of `ControlVariate` (1/N without
    `importance`). A minibatch of n examples, drawn with replacement, has the covariance C / n.
    Data of more than 20,000 examples are represented by as many that are drawn by \( q_i \).
    All calls share one compiled program.

    Args:
      control: a `ControlVariate` of order 2.
      num_states: K.
    """

    def __init__(self, control: ControlVariate, num_states: int):
        self._control, self._num_states = control, num_states
        order_2, target = control.second_order, control.target
        flat = flatten_events(control.center, 0)
        self._dtype, total, dim = flat.dtype, target.num_examples, flat.shape[0]
        q = order_2.probabilities
        q = np.full(total, 1 / total) if q is None else q
        self._picked, self._weights = np.arange(total), 1 / q
        if total > _MOST_EXAMPLES:
            self._picked = np.random.default_rng(0).choice(total, _MOST_EXAMPLES, p=q)
            self._weights = 1 / (_MOST_EXAMPLES * q[self._picked] ** 2)
        self._ones = self._weights * q[self._picked]
        most = min(target.chunk_size // num_states, 2**24 // (num_states * dim))
        self._size = size = max(1, min(len(self._picked), most))

        def moments(
            points: tf.Tensor, rows: tf.Tensor, squares: tf.Tensor, ones: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            at = unflatten_events(points, control.center, 0)
            found = order_2.of_examples(at, target.rows(rows), size)
            flat_rows = tf.reshape(found * tf.sqrt(squares)[:, tf.newaxis], [-1, dim])
            return tf.matmul(flat_rows, flat_rows, transpose_a=True), tf.einsum(
                "knd,n->kd", found, ones
            )

        self._moments = traced(moments, jit_compile=True)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        r"""Returns C, `[D, D]`, in double precision.

        Args:
          states: the \( \theta_k \), `[K, D]`, with the parts of a state side by side.
        """
        points, dim = tf.constant(states, self._dtype), states.shape[-1]
        second, first = np.zeros([dim, dim]), np.zeros([self._num_states, dim])
        for start in range(0, len(self._picked), self._size):
            rows, squares, ones = (
                x[start : start + self._size] for x in (self._picked, self._weights, self._ones)
            )
            left = self._size - len(rows)  # padding of weight zero keeps the graph's shape
            parts = self._moments(
                points,
                tf.constant(np.pad(rows, (0, left), mode="edge"), tf.int32),
                *(tf.constant(np.pad(x, (0, left)), self._dtype) for x in (squares, ones)),
            )
            second += parts[0].numpy()
            first += parts[1].numpy()
        return (second - first.T @ first) / self._num_states

"""The log posterior of a data set, its gradient estimated from a random minibatch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import count_of_examples
from tfp_sgmcmc.state import (
    State,
    append_dims,
    call_with_state,
    state_from_call,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.targets.base import GradientEstimate, Target, of_first_order, value_and_gradient
from tfp_sgmcmc.targets.bijectors import check_bijectors, map_bijectors
from tfp_sgmcmc.targets.chain_groups import group_size, map_groups
from tfp_sgmcmc.targets.data import as_tensor, assert_finite, explain_failure, leading_axis
from tfp_sgmcmc.targets.scores import check_scores, combine_scores, mapped_scores


class EpochState(NamedTuple):
    """Where a chain stands in its epochs: the key of all permutations and the steps taken."""

    key: tf.Tensor
    step: tf.Tensor


class MinibatchLogProb(Target):
    r"""Log posterior of N examples, with gradient estimates from minibatches of n.

    \[
    \log p(\theta \mid x_{1:N}) = \log p(\theta) + \sum_{i=1}^N \log p(x_i \mid \theta) + const,
    \qquad
    g(\theta) = \nabla \log p(\theta) + \frac N n \sum_{i \in S} \nabla \log p(x_i \mid \theta)
    \]

    Nothing is averaged and nothing divided by N. `target(*state_parts)` is the first line, over all
    examples in chunks of bounded memory, so that the same object serves
    `tfp.mcmc.HamiltonianMonteCarlo`; `target.estimate(state, seed)` is the second. The covariance
    of g is c V, with V the covariance of the single examples' scores and `noise_scale` c.

    #### Example

    >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
    >>> target = sgmcmc.MinibatchLogProb(
    ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
    ...     log_likelihood_fn=lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
    ...     data=x, batch_size=50)
    >>> theta = tf.zeros([3])  # three chains
    >>> target(theta).shape, target.estimate(theta, seed=tf.constant([0, 1])).gradient.shape
    (TensorShape([3]), TensorShape([3]))

    Args:
      log_prior_fn: `log_prior_fn(*state_parts)` returns the log prior, shape `[chains...]`; this
        shape tells the chain dimensions. A dict or namedtuple is passed by name, and a minibatch
        beside it as `batch`.
      log_likelihood_fn: `log_likelihood_fn(*state_parts, batch)` returns the log likelihood of each
        example, shape `[chains..., n]`. Leaves of `batch` have shape `[n, ...]` when all chains see
        the same examples (`shared_batch`, or evaluation of all N) and `[chains..., n, ...]` when
        each has its own; `tf.linalg.matvec(x, theta)` is right for both. It may be called with
        part of the chains at a time (which is faster on a CPU), so it must not depend on which.
      data: a nest of arrays with one leading axis N.
      batch_size: n.
      replacement: whether a minibatch is drawn with replacement.
      shared_batch: whether all chains see the same minibatch (much cheaper; chains are then
        dependent, each by itself is as good).
      reshuffle: without replacement, when to take a fresh permutation of the data. `"step"`: every
        step; minibatches of different steps are independent, as every formula with c V takes for
        granted. `"epoch"`: a step goes on in the permutation where the last one ended, so that each
        pass sees every example once; a minibatch that reaches over the end of a pass goes on in the
        next permutation.
      bijector: a `tfp.bijectors.Bijector`, or a nest of them (None for a part that is not
        constrained) in the structure of the state. The state is then unconstrained,
        `log_prior_fn` and `log_likelihood_fn` are given `constrain(state)`, and the log posterior
        has the log Jacobian determinant.
      dtype: floating leaves of `data` are cast to it; None keeps them.
      chunk_size: examples evaluated at once by `target(*state_parts)`; by default all of up to
        32 MB (and 131,072 examples), and chunks of about 4 MB of larger data. With a single chunk
        the result has derivatives of every order, otherwise of first order.
      num_examples: N as you know it; checked against `data`.
      score_fn: closed form of the scores, for samplers that use the covariance of the gradient
        noise: `score_fn(*state_parts, batch)` returns the gradient of each example's log
        likelihood, `[chains..., n, event...]` a part. By default they are computed by
        `tf.vectorized_map`, which takes the time of many gradients.
      num_groups: give the means of so many equal groups of the minibatch instead of single
        examples' scores, scaled so that their sample covariance estimates V just as well without
        bias, at the price of about one gradient a group; divides n, at least 2.

    Raises:
      ValueError: data that are empty, have unequal leading axes, or NaN or infinite entries;
        `batch_size` not in 1 .. N; `num_examples` that is not N; an unknown `reshuffle`;
        `num_groups` that does not divide n; `score_fn` beside a bijector or `num_groups`. On the
        first use: log priors and log likelihoods of the wrong shape, a part of the state that the
        log posterior does not depend on.
      TypeError: functions that are not callable, data that are not numeric.
    """

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        data: Any,
        batch_size: int,
        *,
        replacement: bool = False,
        shared_batch: bool = False,
        reshuffle: Literal["step", "epoch"] = "step",
        bijector: Any = None,
        dtype: Any = None,
        chunk_size: int | None = None,
        num_examples: int | None = None,
        score_fn: Callable[..., Any] | None = None,
        num_groups: int | None = None,
    ):
        for name, fn in (("log_prior_fn", log_prior_fn), ("log_likelihood_fn", log_likelihood_fn)):
            if not callable(fn):
                raise TypeError(f"{name} is a {type(fn).__name__}; a callable is expected.")
        if score_fn is not None and not callable(score_fn):
            raise TypeError(f"score_fn is a {type(score_fn).__name__}; a callable is expected.")
        if reshuffle not in ("step", "epoch"):
            raise ValueError(f"reshuffle is {reshuffle!r}; 'step' or 'epoch' is expected.")
        if reshuffle == "epoch" and replacement:
            raise ValueError("reshuffle='epoch' draws without replacement; replacement is True.")
        check_bijectors(bijector)
        if dtype is not None and not tf.as_dtype(dtype).is_floating:
            raise TypeError(f"dtype is {tf.as_dtype(dtype).name}; a floating dtype is expected.")
        self._data = tf.nest.map_structure(lambda x: as_tensor(x, dtype), data)
        self.num_examples = leading_axis(self._data)
        if num_examples is not None and num_examples != self.num_examples:
            raise ValueError(
                f"num_examples is {num_examples}, but data has {self.num_examples} examples "
                "(its leading axis)."
            )
        self.batch_size = count_of_examples("batch_size", batch_size, self.num_examples)
        for leaf in tf.nest.flatten(self._data):
            assert_finite(leaf)
        self._log_prior_fn, self._log_likelihood_fn = log_prior_fn, log_likelihood_fn
        self.replacement, self.shared_batch, self.reshuffle = replacement, shared_batch, reshuffle
        total, n = self.num_examples, self.batch_size
        self.noise_scale = total * (total if replacement else total - n) / n
        self.bijector, self._score_fn = bijector, score_fn
        self.num_scores = self.batch_size if num_groups is None else num_groups
        if not 1 <= self.num_scores <= self.batch_size or self.batch_size % self.num_scores:
            raise ValueError(
                f"num_groups is {num_groups}; a divisor of batch_size = {self.batch_size} is "
                "expected."
            )
        if num_groups is not None and num_groups < 2:
            raise ValueError("num_groups is 1; a covariance needs at least 2 groups.")
        self._group_size = self.batch_size // self.num_scores
        if score_fn is not None and (bijector is not None or num_groups is not None):
            raise ValueError(
                "score_fn is given beside bijector or num_groups; it gives single examples' scores "
                "of unconstrained parameters, so neither is expected."
            )
        self._row_bytes = sum(
            leaf.dtype.size * leaf.shape[1:].num_elements() for leaf in tf.nest.flatten(self._data)
        )
        # A loop copies each chunk: twice the time of small data at once, though not of large data.
        is_small = self.num_examples <= 2**17 and self.num_examples * self._row_bytes <= 2**25
        rows = self.num_examples if is_small else 2**22 // max(1, self._row_bytes)
        self.chunk_size = (
            min(max(self.batch_size, rows), self.num_examples)
            if chunk_size is None
            else count_of_examples("chunk_size", chunk_size, self.num_examples)
        )

    def constrain(self, state: State) -> State:
        """Maps an unconstrained state (or samples of it) to the parameters of the model."""
        return self._map_bijectors(lambda b, x: b.forward(x), state)

    def unconstrain(self, state: State) -> State:
        """Maps parameters of the model to the unconstrained state that kernels move."""
        return self._map_bijectors(lambda b, x: b.inverse(x), state)

    def chain_shape(self, state: State) -> Any:
        return static_or_dynamic_shape(self.log_prior(state))

    def bootstrap(self, state: State) -> Any:
        # Raises here, before the first step, for what does not fit.
        value_and_gradient(
            lambda s: self.log_prior(s) + self._chunk_sum(s, 0, self.batch_size), state
        )
        return _first_epoch() if self.reshuffle == "epoch" else ()

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        draw, target_state = self.next_draw(seed, target_state)
        noise_scale = tf.constant(self.noise_scale, tf.nest.flatten(state)[0].dtype)
        if with_scores and probe is None:
            prior, gradient, _ = value_and_gradient(self.log_prior, state, connected=False)
            batch = self.rows(draw(static_or_dynamic_shape(prior)))
            values, scores = self.scores(state, batch, prior.shape)
            log_prob, gradient, scores = combine_scores(
                prior, gradient, values, scores, self.num_examples, self.batch_size
            )
            return GradientEstimate(gradient, log_prob, scores, (), target_state, noise_scale)
        scale = self.num_examples / self.batch_size

        def likelihood(state: State, indices: tf.Tensor, chain_shape: Any) -> tf.Tensor:
            values = self.log_likelihood(state, self.rows(indices), self.batch_size, chain_shape)
            return scale * tf.reduce_sum(values, axis=-1)

        size = None
        if probe is None and not self.shared_batch:
            size = group_size(self.chain_shape(state), self.batch_size * self._row_bytes)
        if size is not None:
            prior = value_and_gradient(self.log_prior, state, connected=False)[:2]
            in_groups = functools.partial(likelihood, chain_shape=[size])
            parts = map_groups(in_groups, state, draw(prior[0].shape), size)
            log_prob, gradient = tf.nest.map_structure(tf.add, prior, parts)
            return GradientEstimate(gradient, log_prob, (), (), target_state, noise_scale)

        def log_prob_fn(state: State) -> tf.Tensor:
            log_prior = self.log_prior(state)
            indices = draw(static_or_dynamic_shape(log_prior))
            return log_prior + likelihood(state, indices, log_prior.shape)

        log_prob, gradient, product = value_and_gradient(log_prob_fn, state, probe)
        return GradientEstimate(gradient, log_prob, (), product, target_state, noise_scale)

    def scores(self, state: State, batch: Any, chain_shape: Any) -> tuple[tf.Tensor, State]:
        """Log likelihoods of a minibatch and their gradients, single or summed over groups."""
        chain_ndims, n = len(chain_shape), self.batch_size
        if self._score_fn is not None:
            values = self.log_likelihood(state, batch, n, chain_shape)
            given = call_with_state(self._score_fn, state, batch=batch)
            return values, check_scores(given, state, n, chain_ndims)
        return mapped_scores(
            lambda s, group: self.log_likelihood(s, group, self._group_size, chain_shape),
            state,
            batch,
            self.num_scores,
            chain_ndims,
            0 if self.shared_batch else chain_ndims,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        state = tf.nest.map_structure(tf.convert_to_tensor, state_from_call(args, kwargs))
        if self.chunk_size >= self.num_examples:
            return self.log_prior(state) + self._chunk_sum(state, 0, self.num_examples)

        @tf.custom_gradient
        def log_likelihood(*leaves: tf.Tensor) -> Any:
            # Hidden from the caller's tape, which would otherwise keep every chunk in eager mode.
            hidden = [tf.stop_gradient(x) for x in leaves]
            value, gradient = self.sum_over_chunks(
                tf.nest.pack_sequence_as(state, hidden), self.chunk_size
            )

            def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
                pairs = zip(tf.nest.flatten(gradient), leaves, strict=True)
                return [append_dims(upstream, g) * of_first_order(g, x) for g, x in pairs]

            return value, vjp

        return self.log_prior(state) + log_likelihood(*tf.nest.flatten(state))

    def log_prior(self, state: State) -> tf.Tensor:
        """Log prior of the (unconstrained) state with its Jacobian term, shape `[chains...]`."""
        try:
            result = call_with_state(self._log_prior_fn, self.constrain(state))
        except tf.errors.InvalidArgumentError as error:
            explain_failure("log_prior_fn", error, state)
            raise
        result = _returned("log_prior_fn", result)
        for leaf in tf.nest.flatten(state):
            if result.shape.rank is not None and result.shape.rank > leaf.shape.rank:
                raise ValueError(
                    f"log_prior_fn returned shape {result.shape} for a state part of shape "
                    f"{leaf.shape}; [chains...], one number a chain, is expected "
                    "(sum over the event dimensions, or wrap in tfd.Independent)."
                )
            if result.dtype != leaf.dtype:
                raise TypeError(
                    f"log_prior_fn returned {result.dtype.name} for a state part of dtype "
                    f"{leaf.dtype.name}; give both the same dtype."
                )
        if self.bijector is None:
            return result
        terms = self._map_bijectors(
            lambda b, x: b.forward_log_det_jacobian(x, x.shape.rank - result.shape.rank),
            state,
            otherwise=lambda x: tf.zeros([], x.dtype),
        )
        return result + tf.add_n([t + tf.zeros_like(result) for t in tf.nest.flatten(terms)])

    def log_likelihood(
        self, state: State, batch: Any, size: int, chain_shape: Any = None
    ) -> tf.Tensor:
        """Log likelihoods of a batch of `size` examples, checked to be `[chains..., size]`."""
        if chain_shape is None:
            chain_shape = self.log_prior(state).shape
        try:
            result = call_with_state(self._log_likelihood_fn, self.constrain(state), batch=batch)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            explain_failure("log_likelihood_fn", error, state, batch)
            raise
        result = _returned("log_likelihood_fn", result)
        dtype = tf.nest.flatten(state)[0].dtype.name
        if result.dtype.name != dtype:
            raise TypeError(
                f"log_likelihood_fn returned {result.dtype.name} for a state of dtype {dtype}; "
                f"give both the same dtype (dtype='{dtype}' casts floating data)."
            )
        expected = tf.TensorShape(chain_shape).concatenate(size)
        if not result.shape.is_compatible_with(expected):
            raise ValueError(
                f"log_likelihood_fn returned shape {result.shape}; {expected}, the log likelihood "
                "of each example, [chains..., n], is expected: not their sum or mean, and without "
                f"event dimensions. The chain dimensions, {tf.TensorShape(chain_shape)}, are what "
                "log_prior_fn returned: it sums over event dimensions, too."
            )
        return result

    def next_draw(
        self, seed: tf.Tensor, target_state: Any
    ) -> tuple[Callable[[Any], tf.Tensor], Any]:
        """The draw of the next minibatch, chains' shape -> indices, and the state after it."""
        seed = random.as_seed(seed)
        if self.reshuffle == "step":
            return functools.partial(self.draw, seed, tf.range(self.batch_size)), target_state
        key, step = target_state or _first_epoch()
        key = tf.where(step == 0, seed, key)
        return functools.partial(self._epoch_draw, key, step), EpochState(key, step + 1)

    def rows(self, indices: tf.Tensor) -> Any:
        """The examples of the given indices, `[..., n]`: leaves `[..., n, ...]`."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self._data)

    def draw(self, seed: tf.Tensor, positions: tf.Tensor, chain_shape: Any) -> tf.Tensor:
        """Indices at `positions` of the sequence of examples that `seed` names."""
        draw = random.uniform_indices if self.replacement else random.permuted_indices
        return draw(seed, positions, self.num_examples, [] if self.shared_batch else chain_shape)

    def _epoch_draw(self, key: tf.Tensor, step: tf.Tensor, chain_shape: Any) -> tf.Tensor:
        chains = [] if self.shared_batch else chain_shape
        return random.epoch_indices(key, step, self.batch_size, self.num_examples, chains)

    def _chunk_sum(self, state: State, start: Any, size: int) -> tf.Tensor:
        # tf.slice, whose size is static: XLA has no fixed shape for x[start : start + size].
        chunk = tf.nest.map_structure(
            lambda x: tf.slice(x, [start] + [0] * (x.shape.rank - 1), [size, *x.shape[1:]]),
            self._data,
        )
        return tf.reduce_sum(self.log_likelihood(state, chunk, size), axis=-1)

    def sum_over_chunks(self, state: State, size: int) -> tuple[tf.Tensor, State]:
        """Sum of all log likelihoods and its gradient, in one pass of `size` examples a time."""
        first = self.num_examples % size or size

        def chunk(start: Any, size: int) -> tuple[tf.Tensor, State]:
            value, gradient, _ = value_and_gradient(
                lambda s: self._chunk_sum(s, start, size), state, connected=False
            )
            return value, gradient

        def body(start: tf.Tensor, total: Any) -> tuple[tf.Tensor, Any]:
            return start + size, tf.nest.map_structure(tf.add, total, chunk(start, size))

        _, total = tf.while_loop(
            lambda start, _: start < self.num_examples,
            body,
            (tf.constant(first), chunk(0, first)),
            parallel_iterations=1,
        )
        return total

    def _map_bijectors(self, fn: Callable[..., Any], state: State, **kwargs: Any) -> State:
        return map_bijectors(self.bijector, fn, state, **kwargs)


def _returned(name: str, value: Any) -> tf.Tensor:
    if value is None:
        raise TypeError(f"{name} returned None; log probabilities are expected.")
    return tf.convert_to_tensor(value)


def _first_epoch() -> EpochState:
    return EpochState(tf.zeros([2], tf.int32), tf.zeros([], tf.int64))

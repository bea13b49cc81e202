"""The log posterior of a data set, its gradient estimated from a random minibatch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks, xla
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    state_from_call,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.targets import bijectors, linear_model_scores
from tfp_sgmcmc.targets.base import GradientEstimate, check_signature, value_and_gradient
from tfp_sgmcmc.targets.data import as_tensors, assert_finite, form_of, leading_axis
from tfp_sgmcmc.targets.model_target import ModelTarget
from tfp_sgmcmc.targets.scores import (
    chains_per_group,
    check_scores,
    combine_scores,
    map_groups,
    mapped_scores,
    sum_over_chunks,
    sum_values,
    with_given_gradient,
)

_BATCH_SIZE = 100  # at most, if none is given


class EpochState(NamedTuple):
    """The position of the chains in their epochs: the permutations' seed and the step number."""

    key: tf.Tensor
    step: tf.Tensor


class MinibatchLogProb(ModelTarget):
    r"""Log posterior of N examples, with gradient estimates from minibatches of n.

    \[
    \log p(\theta \mid x_{1:N}) = \log p(\theta) + \sum_{i=1}^N \log p(x_i \mid \theta) + const,
    \qquad
    g(\theta) = \nabla \log p(\theta) + \frac N n \sum_{i \in S} \nabla \log p(x_i \mid \theta)
    \]

    `target(*state_parts)` returns the log posterior. It sums over all examples in chunks of bounded
    memory, so it serves `tfp.mcmc.HamiltonianMonteCarlo`. Nothing is averaged or divided by N.
    `target.estimate(state, seed)` returns the estimate g. Its covariance is c V, where V is the
    covariance of the single examples' scores and c is `noise_scale`.

    The target keeps the compiled programs of `find_center`, `whiten` and `sample`, which trace the
    functions once. After a change of anything that the functions close over, make a new target.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     tfd.Normal(0., 10.).log_prob,
      ...     lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=50)
      >>> theta = tf.zeros([3])  # three chains
      >>> target(theta).shape, target.estimate(theta, seed=tf.constant([0, 1])).gradient.shape
      (TensorShape([3]), TensorShape([3]))

    Args:
      log_prior_fn: `log_prior_fn(*state_parts)` returns the log prior, whose shape defines the
        chain dimensions, `[chains...]`. The parts of a dict or namedtuple are passed by name, and
        so is the minibatch, as `batch`.
      log_likelihood_fn: `log_likelihood_fn(*state_parts, batch)` returns each example's log
        likelihood, `[chains..., n]`. Leaves of `batch` have shape `[n, ...]` if all chains see the
        same examples (with `shared_batch`, or in the sum over all N) and `[chains..., n, ...]`
        otherwise; `tf.linalg.matvec(x, theta)` is right for both. It may be called with some of the
        chains at a time (which is faster on a CPU), and must not depend on which.
      data: a nest of arrays with one leading axis N. A pandas DataFrame stands for a dict of its
        columns by name. Data from a `tf.data.Dataset` take a `StreamedLogProb`. A series whose
        likelihood is not a sum over rows is one example: `series[np.newaxis]`.
      batch_size: n; None takes min(N, 100). `sample` chooses it anyway.
      replacement: whether a minibatch is drawn with replacement.
      shared_batch: whether all chains see the same minibatch: much cheaper, but they then depend on
        each other.
      reshuffle: when to take a new permutation of the data, without replacement. `"step"`: at every
        step, so that minibatches are independent, as every formula with c V assumes. `"epoch"`:
        after each pass, which sees every example once; a minibatch may end one pass and begin the
        next. `"symmetric"`: after two passes, the second in the opposite order of the first. With
        K = N/n, step t of 2 K takes minibatch min(t, 2 K - 1 - t). (If n does not divide N, the
        minibatch at the turn holds some examples twice.) Over an epoch the noise of both orders
        cancels in directions of a curvature a with L = K h sqrt(a) < 1 for samplers with momenta,
        and L = K epsilon a / 2 < 1 for others. What is left of the variance's error is of order L
        without momenta, with momenta L^2 for `"epoch"` and L^3 for `"symmetric"`. Where L > 1, the
        noise is about that of independent minibatches.
      bijector: a `tfp.bijectors.Bijector`, or a nest of them in the structure of the state, with
        None for a part that is not constrained, which a dict may also leave out; or one that maps
        all parts together, such as a joint distribution's
        `experimental_default_event_space_bijector()`. The state is then unconstrained, the
        functions receive `constrain(state)`, and the log posterior includes the Jacobian's log
        determinant.
      dtype: floating leaves of `data` are cast to it; None keeps them.
      chunk_size: number of examples evaluated at once by `target(*state_parts)`. By default up to
        32 MB (and 131,072 examples) are one chunk, and larger data have chunks of about 4 MB. With
        a single chunk the result has derivatives of every order, otherwise of first order.
      num_examples: N, if known; it is compared with `data`.
      score_fn: closed form of the scores, for samplers that use the covariance of the gradient
        noise: `score_fn(*state_parts, batch)` returns the gradient of each example's log
        likelihood, `[chains..., n, event...]` for each part. The default, `tf.vectorized_map` of a
        gradient, takes the time of many gradients.
      num_groups: number of equal groups of the minibatch, at least 2, that divides n. Their means
        replace the scores of single examples, scaled so that their sample covariance estimates V
        without bias. This costs about one gradient for each group.

    Raises:
      ValueError: the data are empty, not finite, or have unequal leading axes; `batch_size` is not
        in 1 .. N; `num_examples` is not N; `reshuffle` is unknown; `num_groups` does not divide n;
        `score_fn` is given with a bijector or `num_groups`. On the first use: a log prior or log
        likelihood has the wrong shape, or a part of the state has no effect on the log posterior.
      TypeError: a function is not callable, or the data are not numeric.
    """

    curvature: Any = None  # a known expansion, which `quadratic_at` returns
    initial_state: Any = None  # an unconstrained state, where the prior gives one
    _data_are_recorded = False  # in another file of a run, which takes them in any order

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        data: Any,
        batch_size: int | None = None,
        *,
        replacement: bool = False,
        shared_batch: bool = False,
        reshuffle: Literal["step", "epoch", "symmetric"] = "step",
        bijector: Any = None,
        dtype: Any = None,
        chunk_size: int | None = None,
        num_examples: int | None = None,
        score_fn: Callable[..., Any] | None = None,
        num_groups: int | None = None,
    ):
        super().__init__(log_prior_fn, log_likelihood_fn, bijector)
        self._set_score_fn(score_fn, num_groups)
        self.replacement = checks.boolean("replacement", replacement)
        self.shared_batch = checks.boolean("shared_batch", shared_batch)
        self.reshuffle = checks.one_of("reshuffle", reshuffle, ("step", "epoch", "symmetric"))
        allowed = reshuffle == "step" or not replacement
        expected = f"False with reshuffle={reshuffle!r}, which draws without replacement"
        checks.require("replacement", replacement, allowed, expected)
        self._data = as_tensors(data, dtype)
        self.num_examples = leading_axis(self._data)
        if num_examples is not None:
            fits = checks.integer("num_examples", num_examples, 1) == self.num_examples
            expected = f"{self.num_examples}, the leading axis of data"
            checks.require("num_examples", num_examples, fits, expected)
        if batch_size is None:
            batch_size = min(self.num_examples, _BATCH_SIZE)
        self.batch_size = checks.count_of_examples("batch_size", batch_size, self.num_examples)
        for leaf in tf.nest.flatten(self._data):
            assert_finite(leaf)
        n = self.batch_size
        self.noise_scale = noise_scale(self.num_examples, n, replacement)
        if num_groups is not None:
            checks.integer("num_groups", num_groups, 0)
            divides = num_groups >= 2 and n % num_groups == 0
            expected = f"a divisor of batch_size = {n} and at least 2"
            checks.require("num_groups", num_groups, divides, expected)
        self.num_scores = rows = n if num_groups is None else num_groups
        self.group_size = n // rows
        _, self.row_bytes = form_of(self._data)
        if chunk_size is None:
            chunk_size = self._default_chunk_size()
        self.chunk_size = checks.count_of_examples("chunk_size", chunk_size, self.num_examples)

    @classmethod
    def from_joint(
        cls,
        joint: Any,
        log_likelihood_fn: Callable[..., tf.Tensor],
        data: Any,
        batch_size: int | None = None,
        **options: Any,
    ) -> Self:
        """Returns a target whose prior is a distribution of TensorFlow Probability.

        `joint.log_prob` is the log prior, its `experimental_default_event_space_bijector()` the
        bijector, and the medians of its unconstrained draws are `initial_state`, where `sample`
        starts without another start.

        Examples:
          >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
          >>> import tfp_sgmcmc as sgmcmc
          >>> tfd = tfp.distributions
          >>> prior = tfd.JointDistributionNamed(
          ...     dict(mu=tfd.Normal(0., 10.), sigma=tfd.HalfNormal(5.)))
          >>> def log_likelihood(mu, sigma, batch):
          ...     return tfd.Normal(mu[..., None], sigma[..., None]).log_prob(batch)
          >>> x = np.random.default_rng(0).normal(3., 2., size=[500]).astype(np.float32)
          >>> target = sgmcmc.MinibatchLogProb.from_joint(prior, log_likelihood, x)
          >>> result = sgmcmc.sample(target, num_results=500, seed=0, progress_bar=False)
          >>> result.states['mu'].shape, result.states['sigma'].shape
          ((500, 4), (500, 4))

        Args:
          joint: a `JointDistribution` of all parts, by name or by position, or a distribution of
            the only one. It must have the batch shape `[]`.
          log_likelihood_fn: as for the class, with the parts of `joint`.
          data: as for the class.
          batch_size: as for the class.
          **options: the class's keywords, without `bijector`.

        Raises:
          TypeError: `joint` is not a distribution, or has discrete parts; a bijector is given.
          ValueError: `joint` has a batch shape, or a default bijector that does not reach every
            value.
        """
        return cls._of_joint(joint, log_likelihood_fn, data, batch_size, **options)

    @classmethod
    def _of_joint(cls, joint: Any, log_likelihood_fn: Any, *args: Any, **options: Any) -> Self:
        """Returns a target of this class, whose further arguments are `args`."""
        prior, bijector = bijectors.prior_and_bijector(joint, options)
        target = cls(prior, log_likelihood_fn, *args, bijector=bijector, **options)
        target.initial_state = bijectors.median_start(joint.sample, joint.log_prob, target)
        return target

    def _set_score_fn(self, score_fn: Any, num_groups: int | None) -> None:
        self._score_fn = score_fn if score_fn is None else checks.function("score_fn", score_fn)
        if score_fn is not None and (self.bijector is not None or num_groups is not None):
            raise ValueError(
                "score_fn must be given without bijector and num_groups, because it returns single "
                "examples' scores of unconstrained parameters. "
                f"Received: bijector={self.bijector}, num_groups={num_groups}."
            )

    def _default_chunk_size(self) -> int:
        # A loop copies each chunk, which takes small data twice as long as a single evaluation.
        total, row_bytes = self.num_examples, max(1, self.row_bytes)
        if total <= 2**17 and total * self.row_bytes <= 2**25:
            return total
        return min(max(self.batch_size, 2**22 // row_bytes), total)

    @property
    def has_score_fn(self) -> bool:
        """Whether scores come from a `score_fn` of the user."""
        return self._score_fn is not None

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        state = convert_state(state_from_call(args, kwargs))
        if self.chunk_size >= self.num_examples:
            kept = self._parameters(state)  # bijectors remember what is not yet deleted
            prior = self.log_prior(state)
            likelihood = self._sum_of_slice(state, 0, self.num_examples, prior.shape)
            del kept
            return prior + likelihood
        return self._in_chunks(state)

    def _in_chunks(self, state: State) -> tf.Tensor:
        """Returns the log posterior, with first derivatives only, in chunks of bounded memory."""
        return self.log_prior(state) + with_given_gradient(
            lambda s: self.sum_over_chunks(s, self.chunk_size), state
        )

    def log_prob_of_many(self, states: State) -> tf.Tensor:
        prior = self.log_prior(states)
        of_slice = functools.partial(self._sum_of_slice, chain_shape=prior.shape)
        return prior + sum_values(of_slice, states, self.num_examples)

    def with_bijector(self, bijector: Any, curvature: Any = None) -> Self:
        """Returns this target with another bijector, and its curvature in these coordinates."""
        bijectors.check_bijectors(bijector)
        other = copy.copy(self)
        other.__dict__.pop("_programs", None)
        other.bijector = bijector
        other.curvature, other.initial_state = curvature, None
        return other

    def with_minibatches(self, batch_size: int) -> Self:
        """Returns this target with another batch size, and without epochs, groups or `score_fn`."""
        _ = self._programs  # which the copy shares
        other = copy.copy(self)
        n = checks.count_of_examples("batch_size", batch_size, self.num_examples)
        other.batch_size, other.num_scores, other.group_size = n, n, 1
        other.reshuffle, other._score_fn = "step", None
        other.noise_scale = noise_scale(self.num_examples, n, self.replacement)
        return other

    def bootstrap(self, state: State) -> Any:
        # Raises errors of the user's functions before the first step.
        def of_batch(state: State) -> tf.Tensor:
            prior = self.log_prior(state)
            return prior + self._sum_of_slice(state, 0, self.batch_size, prior.shape)

        value_and_gradient(of_batch, state)
        self._check_another_size(state)
        return () if self.reshuffle == "step" else _first_epoch()

    def _check_another_size(self, state: State) -> None:
        """Raises ValueError if log likelihoods have the right shape only because sizes coincide.

        If n equals the number of chains, for example, theta without `[..., None]` broadcasts
        against the examples. Another number of examples reveals this.
        """
        sizes = {n for x in tf.nest.flatten(state) for n in x.shape}
        others = [n for n in range(2, self.num_examples + 1) if n not in sizes][:1]
        if self.batch_size not in sizes or not others:
            return
        try:
            self._sum_of_slice(state, 0, others[0])
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                "log_likelihood_fn must return [chains..., n] for minibatches of any size n. "
                f"Received: for n = {others[0]} the error below, and none for batch_size = "
                f"{self.batch_size}, which is also a size in the state's shapes "
                f"{[tuple(x.shape) for x in tf.nest.flatten(state)]}. A part that is combined with "
                f"the examples needs an axis for them, as theta[..., None] has. {error}"
            ) from error

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        state = convert_state(state)
        indices_of, target_state = self.next_indices(seed, target_state)

        def rows_of(part: MinibatchLogProb, chains: Any) -> Any:
            return part.rows(indices_of(part, chains))

        size = None
        if not (with_scores or self.shared_batch) and probe is None and xla.compiles_for_cpu():
            size = chains_per_group(self.chain_shape(state), self.batch_size * self.row_bytes)
        if size is None:
            estimate = self.estimate_from(rows_of, state, probe, with_scores, self.num_examples)
        else:
            prior = value_and_gradient(self.log_prior, state, connected=False)[:2]
            found = map_groups(
                lambda s, i: self.scaled_sum(s, self.rows(i), [size], self.num_examples),
                state,
                indices_of(self, prior[0].shape),
                size,
            )
            log_prob, gradient = tf.nest.map_structure(tf.add, prior, found)
            estimate = GradientEstimate(gradient, log_prob)
        noise_scale = tf.constant(self.noise_scale, estimate.log_prob.dtype)
        return estimate._replace(target_state=target_state, noise_scale=noise_scale)

    def estimate_from(
        self,
        rows_of: Callable[[Any, Any], Any],
        state: State,
        probe: State,
        with_scores: bool,
        total: int,
    ) -> GradientEstimate:
        """Returns an estimate for N = `total` examples from a minibatch.

        `rows_of(part, chain_shape)` returns the rows of a part of this target.
        """
        if with_scores and probe is None:
            prior, gradient, _ = value_and_gradient(self.log_prior, state, connected=False)
            shape = static_or_dynamic_shape(prior)
            values, scores = self.gathered(
                lambda part: part.scores(state, rows_of(part, shape), prior.shape), prior.shape.rank
            )
            log_prob, gradient, scores = combine_scores(
                prior, gradient, values, scores, total, self.batch_size
            )
            return GradientEstimate(gradient, log_prob, scores)

        def log_prob_fn(state: State) -> tf.Tensor:
            log_prior = self.log_prior(state)
            batch = rows_of(self, static_or_dynamic_shape(log_prior))
            return log_prior + self.scaled_sum(state, batch, log_prior.shape, total)

        log_prob, gradient, product = value_and_gradient(log_prob_fn, state, probe)
        return GradientEstimate(gradient, log_prob, (), product)

    def scaled_sum(self, state: State, batch: Any, chain_shape: Any, total: int) -> tf.Tensor:
        """Returns N/n times the sum of a minibatch's log likelihoods, with N = `total`."""
        values = self.log_likelihood(state, batch, self.batch_size, chain_shape)
        return total / self.batch_size * tf.reduce_sum(values, axis=-1)

    def scores(
        self, state: State, batch: Any, chain_shape: Any, weights: Any = None
    ) -> tuple[tf.Tensor, State]:
        """Returns log likelihoods of a minibatch, single or summed over groups, and gradients.

        `weights`, `[n]`, multiply the examples if they are given.
        """
        chain_ndims, n = len(chain_shape), self.batch_size
        if self._score_fn is not None:
            values = self.log_likelihood(state, batch, n, chain_shape)
            check_signature("score_fn", self._score_fn, state, batch=batch)
            given = call_with_state(self._score_fn, state, batch=batch)
            given = check_scores(given, state, n, chain_ndims)
            if weights is None:
                return values, given

            def weighted(x: tf.Tensor) -> tf.Tensor:
                return x * tf.reshape(weights, [n] + [1] * (x.shape.rank - chain_ndims - 1))

            return weighted(values), tf.nest.map_structure(weighted, given)
        if self.linear_model is not None:
            return linear_model_scores.scores(self, state, batch, chain_ndims, weights)
        batch_ndims, rows = 0 if self.shared_batch else chain_ndims, (batch,)
        if weights is not None:
            leading = tf.shape(tf.nest.flatten(batch)[0])[: batch_ndims + 1]
            rows = (batch, tf.broadcast_to(weights, leading))

        def likelihood(state: State, group: Any) -> tf.Tensor:
            values = self.log_likelihood(state, group[0], self.group_size, chain_shape)
            return values if weights is None else values * group[1]

        return mapped_scores(likelihood, state, rows, self.num_scores, chain_ndims, batch_ndims)[:2]

    def sum_over_chunks(
        self, state: State, size: int, probe: State = None, chain_shape: Any = None
    ) -> tuple[Any, ...]:
        """Returns the sum of all log likelihoods and its gradient, `size` examples at a time.

        With a `probe`, the sum's Hessian times the probe is the third result. An unknown shape of
        the chains is that of the log prior.
        """
        of_slice = functools.partial(self._sum_of_slice, chain_shape=chain_shape)
        found = sum_over_chunks(of_slice, state, self.num_examples, size, probe)
        return found[:2] if probe is None else found

    def _sum_of_slice(
        self, state: State, start: Any, size: int, chain_shape: Any = None
    ) -> tf.Tensor:
        # tf.slice has a static size: XLA knows no fixed shape for x[start : start + size].
        chunk = tf.nest.map_structure(
            lambda x: tf.slice(x, [start] + [0] * (x.shape.rank - 1), [size, *x.shape[1:]]),
            self._data,
        )
        return tf.reduce_sum(self.log_likelihood(state, chunk, size, chain_shape), axis=-1)

    def rows(self, indices: tf.Tensor) -> Any:
        """Returns the examples with the given indices, `[..., n]`, as leaves `[..., n, ...]`."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self._data)

    def next_indices(self, seed: tf.Tensor, target_state: Any) -> tuple[Callable[..., Any], Any]:
        """Returns the next minibatch, a function (part of this target, chain shape) -> indices.

        The second result is the target state after it.
        """
        seed = random.as_seed(seed)
        if self.reshuffle == "step":
            positions = tf.range(self.batch_size)
            return lambda part, chains: part.draw(seed, positions, chains), target_state
        key, step = target_state or _first_epoch()
        key = tf.where(step == 0, seed, key)

        def indices_of(part: MinibatchLogProb, chains: Any) -> tf.Tensor:
            return random.epoch_indices(
                key,
                step,
                part.batch_size,
                part.num_examples,
                [] if part.shared_batch else chains,
                is_symmetric=part.reshuffle == "symmetric",
            )

        return indices_of, EpochState(key, step + 1)

    def draw(self, seed: tf.Tensor, positions: tf.Tensor, chain_shape: Any) -> tf.Tensor:
        """Returns the indices at `positions` in the sequence of examples that `seed` determines."""
        draw = random.uniform_indices if self.replacement else random.permuted_indices
        return draw(seed, positions, self.num_examples, [] if self.shared_batch else chain_shape)


def checked_target(target: Any) -> MinibatchLogProb:
    """Returns `target` if it is a `MinibatchLogProb`; raises TypeError for anything else."""
    if not isinstance(target, MinibatchLogProb):
        raise TypeError(
            "target must be a MinibatchLogProb that is not wrapped. "
            f"Received: {checks.a_type(target)}.{getattr(target, 'wrapping_advice', '')}"
        )
    return target


def noise_scale(total: int, n: int, replacement: bool) -> float:
    """Returns c for minibatches of n of N = `total` examples."""
    return total * (total if replacement else total - n) / n


def _first_epoch() -> EpochState:
    return EpochState(tf.zeros([2], tf.int32), tf.zeros([], tf.int64))

"""The log posterior of data in shards, which are distributed over the replicas of a strategy."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Self

import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, boolean, function, integer, require
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    state_from_call,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.internal.replicas import current, device_scope, gathered, total
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import GradientEstimate, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.model_target import ModelTarget
from tfp_sgmcmc.targets.stratified import Strata, StratifiedLogProb, load_shards


class ShardedLogProb(MinibatchLogProb):
    r"""Log posterior of N examples in S shards, which are distributed over replicas.

    \[
    g(\theta) = \nabla \log p(\theta)
      + \sum_{s=1}^S \frac{N_s}{m} \sum_{i \in B_s} \nabla \log p(x_i \mid \theta), \qquad
    \operatorname{cov} g = \sum_{s=1}^S \frac{N_s (N_s - m)}{m} V_s = c V, \quad
    c = \frac{N (N - n)}{n}
    \]

    A minibatch has m = n/S examples \( B_s \) of each shard of \( N_s \) examples. They are drawn
    from (seed, s) alone, so that estimates are the same for every number of replicas, up to the
    order of sums. \( V_s \) is the covariance of the scores within a shard (divisor
    \( N_s - 1 \)), and V their average over shards if these are equal. It is smaller than the
    covariance of all scores where shards differ from each other.

    Made in the scope of a `tf.distribute.MirroredStrategy` or `MultiWorkerMirroredStrategy` with R
    replicas, replica r holds the shards s with s % R = r. `load_shard` is called for these alone,
    in the process of that replica. `sgmcmc.sample_chain`, called by all workers alike in the same
    scope, takes each step on all replicas. Each replica computes its share of the gradient, in a
    function that XLA compiles, and the shares are summed. Chains, their noise and the kernel's
    results are the same on all replicas. Without a strategy this process holds all shards.

    The target replaces a `MinibatchLogProb` for kernels, `ControlVariate`, `find_center`,
    `preflight` and `largest_curvature`.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> def load_shard(s):  # reads a file, say
      ...     return np.random.default_rng(s).normal(2., 1., size=[250]).astype(np.float32)
      >>> strategy = tf.distribute.get_strategy()  # or tf.distribute.MultiWorkerMirroredStrategy()
      >>> with strategy.scope():
      ...     target = sgmcmc.ShardedLogProb(
      ...         tfd.Normal(0., 10.).log_prob,
      ...         lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...         load_shard, num_shards=4, num_examples=1000, batch_size=40)
      >>> estimate = target.estimate(tf.zeros([3]), seed=tf.constant([0, 1]))  # three chains
      >>> estimate.gradient.shape, estimate.scores.shape, target.noise_scale
      (TensorShape([3]), TensorShape([3, 40]), 24000.0)

      Below `with strategy.scope():`, `sgmcmc.sample_chain(sgmcmc.SGLD(target, step_size=1e-4),
      ...)` then takes each step on all replicas.

    Args:
      log_prior_fn: see `MinibatchLogProb`.
      log_likelihood_fn: see `MinibatchLogProb`.
      load_shard: shard number, 0 .. S - 1 -> nest of arrays with one leading axis \( N_s \). All
        shards have the same nest, dtypes and other axes.
      num_shards: S, at least the number of replicas; a multiple of it shares the work equally.
        Another S draws other minibatches.
      num_examples: N, the sum of all \( N_s \).
      batch_size: n, a multiple of S. Samplers that use the covariance of the gradient noise need
        two examples of each shard, n >= 2 S.
      replacement: whether examples are drawn with replacement. Then \( c = N^2/n \).
      shared_batch: see `MinibatchLogProb`.
      bijector: see `MinibatchLogProb`.
      dtype: see `MinibatchLogProb`.
      chunk_size: see `MinibatchLogProb`; the number of examples that a replica evaluates at once.
      score_fn: see `MinibatchLogProb`.
      num_groups: see `MinibatchLogProb`; a multiple of S, at least 2 S.
      jit_compile: whether XLA compiles the share of each of several replicas.

    Raises:
      ValueError: there are fewer shards than replicas; `batch_size` or `num_groups` is not a
        multiple of `num_shards`; a shard is empty, not finite or smaller than n/S; shards have
        different forms, or not `num_examples` rows in total; workers differ in an argument, in
        their version of this library or of TensorFlow, or one cannot load its shards; the strategy
        is of another kind, or has no workers; the target is used in another scope.
      TypeError: a function is not callable, or the data are not numeric.
    """

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        load_shard: Callable[[int], Any],
        num_shards: int,
        num_examples: int,
        batch_size: int,
        *,
        replacement: bool = False,
        shared_batch: bool = False,
        bijector: Any = None,
        dtype: Any = None,
        chunk_size: int | None = None,
        score_fn: Callable[..., Any] | None = None,
        num_groups: int | None = None,
        jit_compile: bool = True,
    ):
        ModelTarget.__init__(self, log_prior_fn, log_likelihood_fn, bijector)
        accepts("load_shard", function("load_shard", load_shard, "shard number -> arrays"), 0)
        self.num_shards = integer("num_shards", num_shards, 1)
        self.num_examples = integer("num_examples", num_examples, num_shards)
        self.batch_size = integer("batch_size", batch_size, num_shards, num_examples)
        _check_multiple("batch_size", batch_size, num_shards)
        if num_groups is not None:
            integer("num_groups", num_groups, 2 * num_shards)
            _check_multiple("num_groups", num_groups, num_shards)
            divides = batch_size % num_groups == 0
            require("num_groups", num_groups, divides, f"a divisor of batch_size = {batch_size}")
        self._set_score_fn(score_fn, num_groups)
        self.replacement = boolean("replacement", replacement)
        self.shared_batch = boolean("shared_batch", shared_batch)
        self._jit_compile = boolean("jit_compile", jit_compile)
        self.reshuffle = "step"
        self.replicas = current()
        count = self.num_replicas
        if count > num_shards:
            raise ValueError(
                f"num_shards must be at least {count}, the number of replicas, each of which holds "
                f"a shard. Received: {num_shards}."
            )
        arguments = {
            "num_shards": num_shards,
            "num_examples": num_examples,
            "batch_size": batch_size,
            "replacement": replacement,
            "shared_batch": shared_batch,
            "num_groups": num_groups,
        }
        shards, sizes, self.row_bytes, self.checksums = load_shards(
            load_shard, num_shards, dtype, self.replicas, arguments
        )
        rows = batch_size if num_groups is None else num_groups
        strata = Strata(sizes, batch_size // num_shards, rows // num_shards, self.replacement)
        strata.check(num_examples)
        if chunk_size is None:
            chunk_size = self._default_chunk_size()
        self.chunk_size = integer("chunk_size", chunk_size, 1)
        options = dict(
            replacement=replacement, shared_batch=shared_batch, bijector=bijector, score_fn=score_fn
        )
        self._parts: dict[int, StratifiedLogProb] = {}
        for replica in self._held:
            with device_scope(self.replicas, replica):
                numbers = [*range(replica, num_shards, count)]
                own = [shards.pop(s) for s in numbers]
                size = min(self.chunk_size, sum(int(strata.sizes[s]) for s in numbers))
                functions = (log_prior_fn, log_likelihood_fn)
                self._parts[replica] = StratifiedLogProb(
                    functions, own, numbers, strata, options | {"chunk_size": size}
                )
        self._set(strata)

    @classmethod
    def from_joint(
        cls, joint: Any, log_likelihood_fn: Callable[..., tf.Tensor], *args: Any, **options: Any
    ) -> Self:
        """Returns a target whose prior is a distribution; see `MinibatchLogProb.from_joint`.

        Args:
          joint: a `JointDistribution` of all parts, or a distribution of the only one.
          log_likelihood_fn: as for the class, with the parts of `joint`.
          *args: the class's arguments from `load_shard` on.
          **options: the class's keywords, without `bijector`.
        """
        return cls._of_joint(joint, log_likelihood_fn, *args, **options)

    @property
    def num_replicas(self) -> int:
        """R, the number of replicas that hold the shards."""
        return 1 if self.replicas is None else self.replicas.count

    @property
    def parts(self) -> list[Any]:
        """The parts of this target that this process holds, one for each replica."""
        return [*self._parts.values()]

    @property
    def _held(self) -> list[int]:
        return [0] if self.replicas is None else self.replicas.held

    def _set(self, strata: Strata) -> None:
        self._strata, self.noise_scale = strata, strata.noise_scale
        self.batch_size = self.num_shards * strata.per_shard
        # A single row of each shard cannot estimate the covariance within shards.
        rows = strata.rows_per_shard
        self.num_scores = self.num_shards * rows if rows > 1 else 1
        self.group_size = strata.per_shard // rows

    def with_bijector(self, bijector: Any, curvature: Any = None) -> Self:
        other = super().with_bijector(bijector, curvature)
        other._parts = {r: x.with_bijector(bijector) for r, x in self._parts.items()}
        return other

    def with_minibatches(self, batch_size: int) -> Self:
        integer("batch_size", batch_size, self.num_shards, self.num_examples)
        _check_multiple("batch_size", batch_size, self.num_shards)
        size = batch_size // self.num_shards
        strata = self._strata._replace(per_shard=size, rows_per_shard=size)
        strata.check(self.num_examples)
        return self._with_strata(strata)

    def with_replacement(self) -> Self:
        """Returns this target with examples drawn with replacement."""
        other = self._with_strata(self._strata._replace(replacement=True))
        other.replacement = True
        return other

    def _with_strata(self, strata: Strata) -> Self:
        other = copy.copy(self)
        other._parts = {r: x.with_strata(strata) for r, x in self._parts.items()}
        other._score_fn = None
        other._set(strata)
        return other

    def with_most(self, max_examples: int) -> Self:
        """Returns this target with the largest minibatch of up to `max_examples` examples."""
        most = min(int(self._strata.sizes.min()), max_examples // self.num_shards)
        return self.with_minibatches(self.num_shards * max(1, most))

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        if self.replicas is None:
            return self._parts[0](*args, **kwargs)
        return self._in_chunks(convert_state(state_from_call(args, kwargs)))

    def log_prob_of_many(self, states: State) -> tf.Tensor:
        return call_with_state(self, states)

    def bootstrap(self, state: State) -> Any:
        return self._parts[self._held[0]].bootstrap(state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        num_scores = 1 if self.num_scores == 1 else None
        if self.replicas is None:
            estimate = self._parts[0].estimate(state, seed, target_state, probe, with_scores)
            return estimate._replace(num_scores=num_scores)
        state = convert_state(state)
        indices_of, target_state = self.next_indices(seed, target_state)

        def rows_of(part: StratifiedLogProb, chains: Any) -> Any:
            return part.rows(indices_of(part, chains))

        if with_scores and probe is None:
            estimate = self.estimate_from(rows_of, state, None, True, self.num_examples)
        else:
            prior = value_and_gradient(self.log_prior, state, probe, connected=False)
            shape = static_or_dynamic_shape(prior[0])

            def sums(part: StratifiedLogProb) -> Any:
                batch = rows_of(part, shape)
                return value_and_gradient(
                    lambda s: part.scaled_sum(s, batch, prior[0].shape, self.num_examples),
                    state,
                    probe,
                    connected=False,
                )

            log_prob, gradient, product = tf.nest.map_structure(tf.add, prior, self.summed(sums))
            estimate = GradientEstimate(gradient, log_prob, (), product)
        noise = tf.constant(self.noise_scale, estimate.log_prob.dtype)
        return estimate._replace(
            target_state=target_state, noise_scale=noise, num_scores=num_scores
        )

    def sum_over_chunks(
        self, state: State, size: int, probe: State = None, chain_shape: Any = None
    ) -> tuple[Any, ...]:
        given = probe, chain_shape
        return self.summed(
            lambda part: part.sum_over_chunks(state, min(size, part.num_examples), *given)
        )

    def summed(self, fn: Callable[[Any], Any]) -> Any:
        """Returns the sums of `fn(part)` over the parts of all replicas."""
        if self.replicas is None:
            return fn(self._parts[0])
        return self._on_replicas(lambda share: total(share(fn)))

    def gathered(self, fn: Callable[[Any], Any], axis: int) -> Any:
        """Returns the rows `fn(part)` of all replicas, `[chains..., rows, ...]`.

        Their sample covariance about their common mean estimates V within shards.
        """
        replicas, part = self.replicas, self._parts[self._held[0]]
        if replicas is None:
            return part.gathered(fn, axis)

        def local(part: StratifiedLogProb) -> Any:
            rows = fn(part)
            return part.spread(rows, axis), part.sums(rows, axis)

        def join(share: Callable[[Any], Any]) -> Any:
            rows, sums = share(local)
            own = len(range(replicas.here() or 0, self.num_shards, replicas.count))
            per_shard = tf.nest.flatten(rows)[0].shape[axis] // own
            rows = gathered(rows, axis, self.num_shards * per_shard)
            return part.restored(rows, total(sums), axis)

        return self._on_replicas(join)

    def _on_replicas(self, fn: Callable[[Callable[[Any], Any]], Any]) -> Any:
        """Returns `fn(share)`, on this replica within a step, or on all replicas between steps.

        `share(g)` returns `g(part)` of the replica's part, compiled by XLA unless it runs once.
        """
        replicas = self.replicas
        if replicas.here() is None:
            compiles = not tf.executing_eagerly()
            return replicas.run(lambda: fn(functools.partial(self._share, compiles=compiles)))
        return fn(self._share)

    def _share(self, fn: Callable[[Any], Any], compiles: bool = True) -> Any:
        part = self._parts[self.replicas.here()]
        if not (self._jit_compile and compiles) or tf.executing_eagerly():
            return fn(part)
        return traced(lambda: fn(part), jit_compile=True)()

    def rows(self, indices: tf.Tensor) -> Any:
        if self.replicas is not None:
            raise ValueError(
                f"A ShardedLogProb on {self.num_replicas} replicas cannot be used where all "
                "examples are needed in one place. Kernels, ControlVariate, find_center with "
                "L-BFGS, preflight and largest_curvature take it. Everything else needs a single "
                "replica."
            )
        return self._parts[0].rows(indices)


def refuse_shards(name: str, target: Any, replicas_alone: bool = False) -> None:
    """Raises ValueError for a `ShardedLogProb`, which `name` does not accept.

    With `replicas_alone` the error is raised only if several replicas hold the target.
    """
    target = getattr(target, "target", target)
    if not isinstance(target, ShardedLogProb):
        return
    if target.num_replicas > 1 or not replicas_alone:
        where = f" on {target.num_replicas} replicas" if replicas_alone else ""
        raise ValueError(
            f"{name} needs a MinibatchLogProb, with all examples in one place, as batches of a "
            "ShardedLogProb have a fixed and equal share of each shard. Received: a "
            f"ShardedLogProb{where}."
        )


def _check_multiple(name: str, value: int, num_shards: int) -> None:
    multiple = value % num_shards == 0
    require(name, value, multiple, f"a multiple of num_shards = {num_shards}")

"""Data that are larger than memory: minibatches that a `tf.data.Dataset` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.state import State, append_dims, state_from_call
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import combine_scores


class StreamState(NamedTuple):
    """Minibatches that lie ready in the results of a kernel.

    Attributes:
      batches: nest of arrays `[K, n, ...]`.
      position: estimates taken since the first step; the next uses batch `position % K`.
    """

    batches: Any
    position: tf.Tensor


class StreamedLogProb(Target):
    r"""A log posterior whose minibatches are read from a dataset as the chain goes on.

    \[
    g(\theta) = \nabla \log p(\theta) + \frac N n \sum_{i \in B_t} \nabla \log p(x_i \mid \theta)
    \]

    Epoch after epoch, each step uses the next batch, for all chains. `sgmcmc.sample` reads
    `batches_per_read` of them at a time, ahead of the steps that need them; other drivers go round
    in the first ones.

    A `tf.data.Dataset` is iterated anew for each epoch, and a run in a directory goes on in the
    middle of one by skipping what it has used. That is exact, bit for bit, where the batches come
    in the same order whenever they are read. A `shuffle` in the dataset gives another order each
    time: the chain is as good, but no run can go on with it. `sgmcmc.sample` compares the batches
    of the last read with those of the checkpoint, and refuses where they differ; at the start of a
    run in a directory, it warns. A function of the epoch's number does both, as in the example:
    another order in each epoch, and the same one when it is read again.

    #### Example

    >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
    >>> examples = tf.data.Dataset.from_tensor_slices(x)
    >>> target = sgmcmc.StreamedLogProb(
    ...     tfd.Normal(0., 10.).log_prob,
    ...     lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
    ...     lambda epoch: examples.shuffle(1000, seed=epoch).batch(50, drop_remainder=True),
    ...     num_examples=1000)
    >>> result = sgmcmc.sample(sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), 2000,
    ...                        num_burnin_steps=200, seed=0, progress_bar=False)
    >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
    True

    Args:
      log_prior_fn: as of `MinibatchLogProb`.
      log_likelihood_fn: likewise.
      dataset: a `tf.data.Dataset` of batches, all of n examples, one epoch long; or a callable,
        number of the epoch -> such a dataset. What lies together in a batch, and in which order
        batches come, should be random: where a dataset is not shuffled, its files should be.
      num_examples: N; an epoch has N/n batches, rounded down.
      batches_per_read: K, how many batches lie in the kernel's results, and so in checkpoints;
        memory holds a few times as many.
      bijector: as of `MinibatchLogProb`.
      score_fn: likewise.
      num_groups: likewise.

    Raises:
      ValueError: batches of unknown or unequal size; an epoch that has not N examples.
      TypeError: `dataset` that is neither a dataset nor a callable that returns one.
    """

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        dataset: tf.data.Dataset | Callable[[int], tf.data.Dataset],
        num_examples: int,
        *,
        batches_per_read: int = 100,
        bijector: Any = None,
        score_fn: Callable[..., Any] | None = None,
        num_groups: int | None = None,
    ):
        self._dataset_fn = _dataset_fn(dataset)
        epoch = self._dataset_fn(0)
        if not isinstance(epoch, tf.data.Dataset):
            raise TypeError(
                f"dataset(0) is a {type(epoch).__name__}; a tf.data.Dataset is expected of epoch 0."
            )
        shapes = [x.shape for x in tf.nest.flatten(epoch.element_spec)]
        if any(not shape.is_fully_defined() or shape.rank == 0 for shape in shapes):
            raise ValueError(
                f"The dataset gives batches of shapes {[str(s) for s in shapes]}; fully known ones "
                "are expected: .batch(n, drop_remainder=True)."
            )
        size = shapes[0][0]
        self.num_examples = integer("num_examples", num_examples, size)
        self.batches_per_read = integer("batches_per_read", batches_per_read, 1)
        self._epoch_batches = self.num_examples // size
        cardinality = int(epoch.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError("The dataset has no end; one epoch is expected, without .repeat().")
        if cardinality not in (self._epoch_batches, tf.data.UNKNOWN_CARDINALITY):
            raise self._wrong_epoch(0, cardinality, size)
        first = next(iter(epoch), None)
        if first is None:
            raise self._wrong_epoch(0, 0, size)
        #: The posterior of the first batch alone, for all that does not depend on which.
        self.of_one_batch = MinibatchLogProb(
            log_prior_fn,
            log_likelihood_fn,
            first,
            size,
            shared_batch=True,
            chunk_size=max(1, size // 3),  # so that `preflight` compares batches of other sizes
            bijector=bijector,
            score_fn=score_fn,
            num_groups=num_groups,
        )
        self.num_scores = self.of_one_batch.num_scores
        self.noise_scale = self.num_examples * (self.num_examples - size) / size

    def reads(self, start: int = 0) -> Iterator[Any]:
        """Batches `[K, n, ...]` without end, from that of step `start` on."""
        epoch, skipped = divmod(start, self._epoch_batches)
        rest: Any = None
        while True:
            dataset, seen = self._dataset_fn(epoch), skipped
            for read in dataset.skip(skipped).batch(self.batches_per_read).prefetch(1):
                if rest is not None:
                    read = tf.nest.map_structure(lambda *x: tf.concat(x, axis=0), rest, read)
                    seen -= len(tf.nest.flatten(rest)[0])
                count = len(tf.nest.flatten(read)[0])
                seen += count
                if count < self.batches_per_read:
                    rest = read
                elif count == self.batches_per_read:
                    rest = None
                    yield read
                else:
                    rest = tf.nest.map_structure(lambda x: x[self.batches_per_read :], read)
                    yield tf.nest.map_structure(lambda x: x[: self.batches_per_read], read)
            if seen != self._epoch_batches:
                raise self._wrong_epoch(epoch, seen, self.of_one_batch.batch_size)
            epoch, skipped = epoch + 1, 0

    def _wrong_epoch(self, epoch: int, num_batches: int, size: int) -> ValueError:
        return ValueError(
            f"num_examples is {self.num_examples}, but epoch {epoch} has {num_batches} batches of "
            f"{size}; {self._epoch_batches} are expected."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """The log posterior by a pass over epoch 0, whose sum is scaled to N examples.

        It is evaluated eagerly, and has first derivatives.
        """
        if not tf.executing_eagerly():
            raise ValueError(
                "The full log posterior of a StreamedLogProb is evaluated outside of tf.function "
                "only: it reads the whole dataset."
            )
        state = tf.nest.map_structure(tf.convert_to_tensor, state_from_call(args, kwargs))

        @tf.custom_gradient
        def log_likelihood(*leaves: tf.Tensor) -> Any:
            at = tf.nest.pack_sequence_as(state, [tf.stop_gradient(x) for x in leaves])
            sums = (self._value_and_gradient(at, batch) for batch in self._dataset_fn(0))
            total, num_batches = next(sums), 1
            for new in sums:
                total, num_batches = tf.nest.map_structure(tf.add, total, new), num_batches + 1
            scale = self.num_examples / (num_batches * self.of_one_batch.batch_size)
            value, gradient = tf.nest.map_structure(lambda x: scale * x, total)

            def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
                return [append_dims(upstream, g) * g for g in tf.nest.flatten(gradient)]

            return value, vjp

        return self.of_one_batch.log_prior(state) + log_likelihood(*tf.nest.flatten(state))

    def bootstrap(self, state: State) -> StreamState:
        self.of_one_batch.bootstrap(state)
        return StreamState(next(self.reads()), tf.zeros([], tf.int64))

    def chain_shape(self, state: State) -> Any:
        return self.of_one_batch.chain_shape(state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        del seed
        batches, position = target_state or self.bootstrap(state)
        at = position % self.batches_per_read
        batch = tf.nest.map_structure(lambda x: tf.gather(x, at), batches)
        base, size, product = self.of_one_batch, self.of_one_batch.batch_size, ()
        if with_scores and probe is None:
            prior, gradient, _ = value_and_gradient(base.log_prior, state, connected=False)
            values, scores = base.scores(state, batch, prior.shape)
            log_prob, gradient, scores = combine_scores(
                prior, gradient, values, scores, self.num_examples, size
            )
        else:
            scores = ()
            log_prob, gradient, product = value_and_gradient(
                lambda s: self._log_prob(s, batch), state, probe
            )
        return GradientEstimate(
            gradient,
            log_prob,
            scores,
            product,
            StreamState(batches, position + 1),
            tf.constant(self.noise_scale, log_prob.dtype),
        )

    def _log_prob(self, state: State, batch: Any) -> tf.Tensor:
        prior = self.of_one_batch.log_prior(state)
        return prior + self.num_examples / self.of_one_batch.batch_size * self._sum(state, batch)

    def _sum(self, state: State, batch: Any) -> tf.Tensor:
        values = self.of_one_batch.log_likelihood(state, batch, self.of_one_batch.batch_size)
        return tf.reduce_sum(values, axis=-1)

    def _value_and_gradient(self, state: State, batch: Any) -> tuple[tf.Tensor, State]:
        return value_and_gradient(lambda s: self._sum(s, batch), state, connected=False)[:2]


def _dataset_fn(dataset: Any) -> Callable[[int], Any]:
    if isinstance(dataset, tf.data.Dataset):
        return lambda epoch: dataset
    if callable(dataset):
        return dataset
    raise TypeError(
        f"dataset is a {type(dataset).__name__}; a tf.data.Dataset, or a callable, number of the "
        "epoch -> tf.data.Dataset, is expected."
    )

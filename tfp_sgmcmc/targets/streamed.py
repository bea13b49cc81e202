"""The log posterior of data larger than memory, in minibatches from a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, function, integer
from tfp_sgmcmc.internal.nest import State, convert_state, state_from_call
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.chunking import with_given_gradient
from tfp_sgmcmc.targets.data import as_tensors, assert_finite
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb


class StreamState(NamedTuple):
    """Minibatches in the results of a kernel that later steps will use.

    Attributes:
      batches: nest of arrays `[K, n, ...]`.
      position: number of estimates since the first step. The next one uses batch `position % K`.
    """

    batches: Any
    position: tf.Tensor


class StreamedLogProb(Target):
    r"""A log posterior whose minibatches are read from a dataset while the chain runs.

    \[
    g(\theta) = \nabla \log p(\theta) + \frac N n \sum_{i \in B_t} \nabla \log p(x_i \mid \theta)
    \]

    Each step uses the next batch, for all chains, epoch after epoch. `sgmcmc.sample` reads
    `batches_per_read` batches at a time, in advance. Other drivers cycle through the first ones.

    A `tf.data.Dataset` is iterated again in each epoch. A run that resumes within an epoch skips
    the batches that it has used, so that it continues bit for bit if batches have the same order
    each time. With a `shuffle` in the dataset the chain is as good, but cannot be resumed.
    `sgmcmc.sample` warns of this when a run in a directory starts, and refuses to resume with
    batches other than the checkpoint's. A function of the epoch, as in the example, shuffles each
    epoch and can be resumed.

    Examples:
      With `x` and `tfd` as in `MinibatchLogProb`:

      >>> examples = tf.data.Dataset.from_tensor_slices(x)
      >>> target = sgmcmc.StreamedLogProb(
      ...     tfd.Normal(0., 10.).log_prob,
      ...     lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...     lambda epoch: examples.shuffle(1000, seed=epoch).batch(50, drop_remainder=True),
      ...     num_examples=1000)
      >>> result = sgmcmc.sample_chain(sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), 2000,
      ...                        num_burnin_steps=200, seed=0, progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

    Args:
      log_prior_fn: see `MinibatchLogProb`.
      log_likelihood_fn: see `MinibatchLogProb`.
      dataset: a `tf.data.Dataset` of batches of n examples, one epoch long; or a function from the
        epoch's number to one. Contents and order of the batches should be random: shuffle the files
        if the dataset is not shuffled.
      num_examples: N; an epoch has N/n batches, rounded down.
      batches_per_read: K, the number of batches in the kernel's results and in checkpoints. Memory
        holds a few times as many.
      bijector: see `MinibatchLogProb`.
      score_fn: see `MinibatchLogProb`.
      num_groups: see `MinibatchLogProb`.

    Raises:
      ValueError: the batches have unknown or unequal sizes; an epoch does not have N examples; the
        current strategy has several replicas, which would all read all of the dataset.
      TypeError: `dataset` is neither a dataset nor a function that returns one.
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
        _refuse_replicas()
        is_dataset = isinstance(dataset, tf.data.Dataset)
        dataset_fn = (lambda epoch: dataset) if is_dataset else dataset
        signature = "epoch -> tf.data.Dataset, or a tf.data.Dataset"
        self._dataset_fn = accepts("dataset", function("dataset", dataset_fn, signature), 0)
        epoch = self._dataset_fn(0)
        if not isinstance(epoch, tf.data.Dataset):
            raise TypeError(
                f"dataset(0) must be a tf.data.Dataset. Received: a {type(epoch).__name__}."
            )
        shapes = [x.shape for x in tf.nest.flatten(epoch.element_spec)]
        if any(not shape.is_fully_defined() or shape.rank == 0 for shape in shapes):
            raise ValueError(
                "dataset must have batches of fully known shapes: .batch(n, drop_remainder=True). "
                f"Received: shapes {[str(s) for s in shapes]}."
            )
        size = shapes[0][0]
        self.num_examples = integer("num_examples", num_examples, size)
        self.batches_per_read = integer("batches_per_read", batches_per_read, 1)
        self._epoch_batches = self.num_examples // size
        cardinality = int(epoch.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "dataset must be one epoch, without .repeat(). Received: an infinite dataset."
            )
        if cardinality not in (self._epoch_batches, tf.data.UNKNOWN_CARDINALITY):
            raise self._wrong_epoch(0, cardinality, size)
        first = next(iter(epoch), None)
        if first is None:
            raise self._wrong_epoch(0, 0, size)
        first = as_tensors(first, None, "dataset")
        for leaf in tf.nest.flatten(first):
            assert_finite(leaf, "dataset")
        #: The posterior of the first batch, which evaluates priors, likelihoods and scores.
        self.of_one_batch = MinibatchLogProb(
            log_prior_fn,
            log_likelihood_fn,
            first,
            size,
            shared_batch=True,
            chunk_size=max(1, size // 3),  # so that `preflight` compares batches of different sizes
            bijector=bijector,
            score_fn=score_fn,
            num_groups=num_groups,
        )
        self.num_scores = self.of_one_batch.num_scores
        self.noise_scale = self.num_examples * (self.num_examples - size) / size

    def reads(self, start: int = 0) -> Iterator[Any]:
        """Yields batches `[K, n, ...]` endlessly, beginning with the batch of step `start`."""
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
            f"dataset must have {self._epoch_batches} batches of {size} in each epoch for "
            f"num_examples={self.num_examples}. Received: epoch {epoch} has {num_batches}."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Returns the log posterior from a pass over epoch 0, whose sum is scaled to N examples.

        It is evaluated eagerly, and has only first derivatives.

        Raises:
          ValueError: the call is in a `tf.function`.
        """
        if not tf.executing_eagerly():
            raise ValueError(
                "The full log posterior of a StreamedLogProb must be evaluated outside of "
                "tf.function, because it reads the whole dataset."
            )
        state = convert_state(state_from_call(args, kwargs))

        def log_likelihood(at: State) -> tuple[tf.Tensor, State]:
            sums = (
                value_and_gradient(lambda s, b=batch: self._sum(s, b), at, connected=False)[:2]
                for batch in self._dataset_fn(0)
            )
            total, num_batches = next(sums), 1
            for new in sums:
                total, num_batches = tf.nest.map_structure(tf.add, total, new), num_batches + 1
            scale = self.num_examples / (num_batches * self.of_one_batch.batch_size)
            return tf.nest.map_structure(lambda x: scale * x, total)

        return self.of_one_batch.log_prior(state) + with_given_gradient(log_likelihood, state)

    def bootstrap(self, state: State) -> StreamState:
        _refuse_replicas()
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
        state = convert_state(state)
        del seed
        batches, position = target_state or self.bootstrap(state)
        at = position % self.batches_per_read
        batch = tf.nest.map_structure(lambda x: tf.gather(x, at), batches)
        estimate = self.of_one_batch.estimate_from(
            lambda _: batch, state, probe, with_scores, self.num_examples
        )
        return estimate._replace(
            target_state=StreamState(batches, position + 1),
            noise_scale=tf.constant(self.noise_scale, estimate.log_prob.dtype),
        )

    def _sum(self, state: State, batch: Any) -> tf.Tensor:
        values = self.of_one_batch.log_likelihood(state, batch, self.of_one_batch.batch_size)
        return tf.reduce_sum(values, axis=-1)


def _refuse_replicas() -> None:
    count = tf.distribute.get_strategy().num_replicas_in_sync
    if count > 1:
        raise ValueError(
            "StreamedLogProb must be used on one replica, because only one order of batches can be "
            f"resumed. Received: a strategy of {count} replicas. A ShardedLogProb holds a share of "
            "the data on each replica."
        )

"""The log posterior of data larger than memory, in minibatches from a `tf.data.Dataset`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type, accepts, function, integer
from tfp_sgmcmc.internal.nest import State, convert_state, state_from_call
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.bijectors import median_start, prior_and_bijector
from tfp_sgmcmc.targets.data import RowSums, as_tensors, assert_finite_rows, leading_axis, untuned
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, noise_scale
from tfp_sgmcmc.targets.read_faults import ReadFaults
from tfp_sgmcmc.targets.scores import with_given_gradient

_BLOCK_BYTES, _MOST_BLOCK_ROWS = 2**22, 2**15  # of rows that are evaluated at once
_MOST_NUMBERS = 2**22  # log likelihoods that are evaluated at once


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

    `sgmcmc.sample` needs only the rows: it finds the mode and the curvature by a few passes over
    the files, keeps a pool of rows in memory, and samples with that. See `draw_pool`.

    With a kernel, each step uses the next batch, for all chains, epoch after epoch.
    `sgmcmc.sample_chain` reads `batches_per_read` batches at a time, in advance. Other drivers
    cycle through the first ones. An epoch takes every example once, so its batches are not
    independent. Kernels that correct for the covariance of gradient noise refuse them.

    A `tf.data.Dataset` is iterated again in each epoch. A run that resumes within an epoch skips
    the batches that it has used, so that it continues bit for bit if batches have the same order
    each time. With a `shuffle` in the dataset the chain is as good, but cannot be resumed.
    `sgmcmc.sample_chain` warns of this when a run in a directory starts, and refuses to resume with
    batches other than the checkpoint's. A function of the epoch, as in the example, shuffles each
    epoch and can be resumed.

    Examples:
      With `x` and `tfd` as in `MinibatchLogProb`:

      >>> examples = tf.data.Dataset.from_tensor_slices(x)
      >>> target = sgmcmc.StreamedLogProb(
      ...     tfd.Normal(0., 10.).log_prob,
      ...     lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...     lambda epoch: examples.shuffle(1000, seed=epoch).batch(250, drop_remainder=True),
      ...     num_examples=1000)
      >>> result = sgmcmc.sample_chain(sgmcmc.SGLD(target, step_size=5e-5), tf.ones([8]), 200,
      ...     num_burnin_steps=200, seed=0, progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

    Args:
      log_prior_fn: see `MinibatchLogProb`.
      log_likelihood_fn: see `MinibatchLogProb`.
      dataset: a `tf.data.Dataset` of batches or blocks of rows, one epoch long; or a function from
        the epoch's number to one. Leaves have one leading axis of rows; other axes may be known
        only at run time. `sample` takes rows in any order. A row counts as often as an epoch gives
        it, so a finite `repeat` makes the posterior too narrow. For steps on batches, contents and
        order should be random: shuffle the files if the dataset is not shuffled.
      num_examples: N; an epoch has N/n batches, rounded down.
      batch_size: n, the rows of a step. None takes the size of the first batch. The dataset's
        elements are cut and joined to batches of n where they have other or unknown sizes, and the
        last N mod n rows of each epoch are then left out of steps, of which the first one warns.
      batches_per_read: K, the number of batches in the kernel's results and in checkpoints. Memory
        holds a few times as many.
      memory: bytes of rows that `sample` keeps in memory. Data that fit are loaded as a whole.
      files: paths of the files that the dataset reads. An epoch does not begin if one of them is
        missing or was written again, and errors of reading name it. A run of `sample` in a
        directory then resumes without reading all rows, which it does to compare them otherwise.
      bijector: see `MinibatchLogProb`.
      score_fn: see `MinibatchLogProb`.
      num_groups: see `MinibatchLogProb`.

    Raises:
      ValueError: an epoch does not have N examples, or is infinite; two passes over an epoch read
        other rows, up to their order and rounding; elements have no axis of rows; an entry of a
        batch is NaN or infinite. In steps: the current strategy has several replicas, which would
        all read all of the dataset.
      TypeError: `dataset` is neither a dataset nor a function that returns one.
      StreamReadError: the dataset cannot be read. The message has the file, if `files` has it, and
        the row.
    """

    _is_compared = False  # with the data of a run in a directory, by another process
    reshuffle = "epoch"
    wrapping_advice = (
        " sgmcmc.sample(streamed, initial_state, num_results) needs none of this. To do it by hand,"
        " `pool, _ = sgmcmc.draw_pool(streamed, initial_state)` makes a target in memory that "
        "find_center, whiten, ControlVariate and SVRG take."
    )

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        dataset: tf.data.Dataset | Callable[[int], tf.data.Dataset],
        num_examples: int,
        *,
        batch_size: int | None = None,
        batches_per_read: int = 100,
        memory: int = 2**28,
        files: Sequence[str | os.PathLike[str]] = (),
        bijector: Any = None,
        score_fn: Callable[..., Any] | None = None,
        num_groups: int | None = None,
    ):
        self._is_dataset = isinstance(dataset, tf.data.Dataset)
        self._blocks = dict[int, tf.data.Dataset]()
        dataset_fn = (lambda epoch: dataset) if self._is_dataset else dataset
        signature = "epoch -> tf.data.Dataset, or a tf.data.Dataset"
        self._given_fn = accepts("dataset", function("dataset", dataset_fn, signature), 0)
        self._faults = ReadFaults(files)
        with self._faults.named(lambda: "epoch 0, in its first rows"):
            epoch = self._given_fn(0)
            if not isinstance(epoch, tf.data.Dataset):
                raise TypeError(f"dataset(0) must be a tf.data.Dataset. Received: {a_type(epoch)}.")
            if int(epoch.cardinality()) == tf.data.INFINITE_CARDINALITY:
                raise ValueError(
                    "dataset must be one epoch, without .repeat(). Received: an infinite dataset."
                )
            first = next((x for x in epoch if 0 not in tf.nest.flatten(x)[0].shape[:1]), None)
        self.num_examples = integer("num_examples", num_examples, 1)
        if first is None:
            raise self._wrong_length(0, "0")
        first = as_tensors(first, None, "dataset")
        shapes = [x.shape for x in tf.nest.flatten(first)]
        if any(shape.rank == 0 for shape in shapes):
            raise ValueError(
                "dataset must have batches of rows, as of .batch(n). Received: "
                f"elements of shapes {[str(s) for s in shapes]}, which are single rows."
            )
        given = leading_axis(first, "dataset")
        assert_finite_rows(first, 0)
        self._given_rows, self._num_passes, self._has_warned = given, 0, False
        self._row_sums, self._sums = RowSums.scaled_to(first), dict[int, np.ndarray]()
        self._first_sums = given, self._row_sums(first)
        size = (
            given if batch_size is None else integer("batch_size", batch_size, 1, self.num_examples)
        )
        self.num_examples = integer("num_examples", num_examples, size)
        self.batch_size = size
        self.batches_per_read = integer("batches_per_read", batches_per_read, 1)
        self.memory = integer("memory", memory, 1)
        self._epoch_batches = self.num_examples // size
        #: TensorSpecs of rows, `[None, ...]`.
        self.row_spec = tf.nest.map_structure(
            lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), first
        )
        specs = tf.nest.flatten(epoch.element_spec)
        #: Whether the dataset's elements are used as they come, as batches of n.
        self._are_batches = all(x.shape.is_fully_defined() for x in specs) and given == size
        known, found = (self._epoch_batches, tf.data.UNKNOWN_CARDINALITY), epoch.cardinality()
        if self._are_batches and int(found) not in known:
            raise self._wrong_epoch(0, f"{int(found)}")
        if size > given:
            first = self._first(size)
        #: The posterior of the first batch, which evaluates priors, likelihoods and scores.
        self.of_one_batch = MinibatchLogProb(
            log_prior_fn,
            log_likelihood_fn,
            tf.nest.map_structure(lambda x: x[:size], first),
            size,
            shared_batch=True,
            chunk_size=max(1, size // 3),  # so that `preflight` compares batches of different sizes
            bijector=bijector,
            score_fn=score_fn,
            num_groups=num_groups,
        )
        self.of_one_batch._dtype_advice = (
            "cast the rows of the dataset, as by dataset.map with tf.cast(..., '{dtype}')"
        )
        self.num_scores = self.of_one_batch.num_scores
        self.noise_scale = noise_scale(self.num_examples, size, replacement=False)

    def _first(self, size: int) -> Any:
        """Returns the first `size` rows."""
        with self._faults.named(lambda: f"epoch 0, in its first {size} rows"):
            first = next(iter(self._in_rows(0).rebatch(size)))
        if (found := leading_axis(first, "dataset")) < size:
            raise self._wrong_length(0, f"{found}")
        return first

    def _in_rows(self, epoch: int) -> tf.data.Dataset:
        """Returns an epoch whose elements have known shapes except for the number of rows.

        Raises:
          TypeError: its elements have other parts or dtypes than those of the first epoch.
        """
        dataset = untuned(self._given_fn(epoch))
        specs = dataset.element_spec, self.row_spec
        given, first = (tf.nest.map_structure(lambda spec: spec.dtype.name, x) for x in specs)
        if given != first:
            raise TypeError(
                f"dataset({epoch}) must have elements of the dtypes {first}. Received: {given}."
            )
        specs = tf.nest.flatten(dataset.element_spec)
        if all(x.shape.rank and x.shape[1:].is_fully_defined() for x in specs):
            return dataset

        def ensure(*parts: Any) -> Any:
            pairs = zip(tf.nest.flatten(parts), tf.nest.flatten(self.row_spec), strict=True)
            leaves = [tf.ensure_shape(x, spec.shape) for x, spec in pairs]
            return tf.nest.pack_sequence_as(self.row_spec, leaves)

        return dataset.map(ensure)

    def _in_blocks(self, epoch: int, size: int) -> tf.data.Dataset:
        """Returns an epoch of blocks of `size` rows, read in advance.

        That of a dataset is kept, because to put it together takes as long as to read megabytes.
        """
        if not (self._is_dataset and size in self._blocks):
            self._blocks[size] = self._in_rows(epoch).rebatch(size).prefetch(2)
        return self._blocks[size]

    def _batches(self, epoch: int) -> tf.data.Dataset:
        """Returns an epoch of batches of n."""
        rows = self._in_rows(epoch)  # as they are given, if they are batches
        return rows if self._are_batches else rows.rebatch(self.batch_size, drop_remainder=True)

    @classmethod
    def from_joint(
        cls,
        joint: Any,
        log_likelihood_fn: Callable[..., tf.Tensor],
        dataset: tf.data.Dataset | Callable[[int], tf.data.Dataset],
        num_examples: int,
        **options: Any,
    ) -> Self:
        """Returns a target whose prior is a distribution of TensorFlow Probability.

        `sample` starts at the medians of the prior's unconstrained draws, where no other start is
        given. See `MinibatchLogProb.from_joint`.

        Examples:
          >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
          >>> import tfp_sgmcmc as sgmcmc
          >>> tfd = tfp.distributions
          >>> prior = tfd.JointDistributionNamed(
          ...     dict(mu=tfd.Normal(0., 10.), sigma=tfd.HalfNormal(5.)))
          >>> def log_likelihood(mu, sigma, batch):
          ...     return tfd.Normal(mu[..., None], sigma[..., None]).log_prob(batch)
          >>> x = np.random.default_rng(0).normal(3., 2., size=[500]).astype(np.float32)
          >>> blocks = tf.data.Dataset.from_tensor_slices(x).batch(100)
          >>> target = sgmcmc.StreamedLogProb.from_joint(prior, log_likelihood, blocks, 500)
          >>> result = sgmcmc.sample(target, num_results=500, seed=0, progress_bar=False)
          >>> result.states['mu'].shape
          (500, 4)

        Args:
          joint: a `JointDistribution` of all parts, by name or by position, or a distribution of
            the only one. It must have the batch shape `[]`.
          log_likelihood_fn: as for the class, with the parts of `joint`.
          dataset: as for the class.
          num_examples: as for the class.
          **options: the class's keywords, without `bijector`.

        Raises:
          TypeError: `joint` is not a distribution, or has discrete parts; a bijector is given.
          ValueError: `joint` has a batch shape, or a default bijector that does not reach every
            value.
        """
        prior, bijector = prior_and_bijector(joint, options)
        target = cls(prior, log_likelihood_fn, dataset, num_examples, bijector=bijector, **options)
        model = target.of_one_batch
        model.initial_state = median_start(joint.sample, joint.log_prob, model)
        return target

    @property
    def block_rows(self) -> int:
        """The number of rows that passes over the data evaluate at once, about 4 MB.

        It is that of the dataset's elements if they are not much smaller, because cutting and
        joining rows takes as long as reading them.
        """
        row_bytes = max(1, self.of_one_batch.row_bytes)
        most = min(_MOST_BLOCK_ROWS, max(1, self.num_examples))
        size = min(most, max(1024, _BLOCK_BYTES // row_bytes))
        return self._given_rows if size // 4 <= self._given_rows <= size else size

    def blocks(self, size: int, epoch: int = 0) -> Iterator[Any]:
        """Yields all rows of an epoch in blocks of `size`; the last one may have fewer.

        Raises:
          StreamReadError: the dataset cannot be read.
          ValueError: the epoch does not have N examples, up to a last batch that is dropped; or its
            rows are not those of the pass before.
          TypeError: `size` or `epoch` is not an integer.
        """
        seen, size, sums = 0, integer("size", size, 1), np.zeros([2])
        self._num_passes += 1
        where = f"pass {self._num_passes} over epoch {integer('epoch', epoch, 0)}"
        with self._faults.named(lambda: f"{where}, in {self._examples(seen, size)}"):
            self._faults.check(epoch)
            for block in self._in_blocks(epoch, size):
                seen += len(tf.nest.flatten(block)[0])
                if seen > self.num_examples:
                    raise self._wrong_length(epoch, f"more than {self.num_examples}")
                sums += self._row_sums(block)
                yield block
        dropped = self.num_examples - seen
        if dropped >= (self.batch_size if self._are_batches else 1):
            raise self._wrong_length(epoch, f"{seen}")
        if not dropped:  # a shuffled dataset drops other rows in each pass
            before = self._sums.setdefault(epoch, sums)
            if self._row_sums.differ(before, sums, seen):
                raise ValueError(
                    "dataset must have the same rows in each pass over an epoch, in any order. "
                    f"Received: other rows in {where} than before.{self._faults.changed()} Rows "
                    "that are changed at random, as by noise or augmentation, must be written to "
                    "files once. Files must stay as they are."
                )

    def _examples(self, seen: int, size: int) -> str:
        """Returns the numbers of the examples that are being read after `seen` ones, in words."""
        return f"examples {seen} .. {max(seen, min(seen + size, self.num_examples) - 1)}"

    def reads(self, start: int = 0) -> Iterator[Any]:
        """Yields batches `[K, n, ...]` endlessly, beginning with the batch of step `start`."""
        epoch, skipped = divmod(start, self._epoch_batches)
        k, rest, size = self.batches_per_read, None, self.batches_per_read * self.batch_size
        while True:
            seen = skipped
            with self._faults.named(
                lambda: f"epoch {epoch}, in {self._examples(seen * self.batch_size, size)}"  # noqa: B023
            ):
                self._faults.check(epoch)
                for read in self._batches(epoch).skip(skipped).batch(k).prefetch(1):
                    rows = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), read)
                    assert_finite_rows(rows, seen * self.batch_size, epoch)
                    seen += len(tf.nest.flatten(read)[0])
                    if seen > self._epoch_batches:
                        raise self._wrong_epoch(epoch, f"more than {self._epoch_batches}")
                    if rest is not None:
                        read = tf.nest.map_structure(lambda *x: tf.concat(x, axis=0), rest, read)
                    count, rest = len(tf.nest.flatten(read)[0]), read
                    if count >= k:
                        rest = None if count == k else tf.nest.map_structure(lambda x: x[k:], read)
                        yield tf.nest.map_structure(lambda x: x[:k], read)
            if seen != self._epoch_batches:
                raise self._wrong_epoch(epoch, f"{seen}")
            epoch, skipped = epoch + 1, 0

    def _wrong_epoch(self, epoch: int, num_batches: str) -> ValueError:
        return ValueError(
            f"dataset must have {self._epoch_batches} batches of {self.batch_size} in each epoch "
            f"for num_examples={self.num_examples}. Received: epoch {epoch} has {num_batches}."
            f"{self._faults.changed()}"
        )

    def _wrong_length(self, epoch: int, found: str) -> ValueError:
        why = self._faults.changed()
        if not why and not found.startswith("more"):
            why = self._faults.damaged() or (
                " Each pass must begin at the first example. A file of records may be cut off "
                f"at the end of one.{self._faults.listed()}"
            )
        return ValueError(
            f"dataset must have num_examples={self.num_examples} examples in each epoch. Received: "
            f"epoch {epoch} has {found}.{why}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Returns the log posterior from a pass over epoch 0, whose sum is scaled to N examples.

        It is evaluated eagerly, and has only first derivatives. Leading axes of the state cost no
        further pass.

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
            chains = max(1, int(tf.size(self.of_one_batch.log_prior(at))))

            def of_rows(rows: Any) -> tuple[tf.Tensor, State]:
                return value_and_gradient(lambda s: self._sum(s, rows), at, connected=False)[:2]

            total = self._total(of_rows, chains)
            like = tf.nest.flatten(at)[0].dtype
            return tf.nest.map_structure(lambda x: tf.cast(x, like), total)

        return self.of_one_batch.log_prior(state) + with_given_gradient(log_likelihood, state)

    def log_prob_of_many(self, states: State) -> tf.Tensor:
        """Returns the log posterior at states `[S, ...]` in `float64`, from a pass over epoch 0.

        In single precision, sums over many rows could not be told apart.
        """
        total = self._total(lambda rows: self._sum(states, rows), len(tf.nest.flatten(states)[0]))
        return tf.cast(self.of_one_batch.log_prior(states), tf.float64) + total

    def _total(self, of_rows: Callable[[Any], Any], num_states: int) -> Any:
        """Returns the sum of `of_rows` over N rows, at so many states, in `float64`."""
        of_block, total, seen = traced(of_rows), None, 0
        for rows in self.blocks(max(1, min(self.block_rows, _MOST_NUMBERS // num_states))):
            new = tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), of_block(rows))
            total = new if total is None else tf.nest.map_structure(tf.add, total, new)
            seen += len(tf.nest.flatten(rows)[0])
        scale = self.num_examples / seen
        return tf.nest.map_structure(lambda x: scale * x, total)

    def bootstrap(self, state: State) -> StreamState:
        if (count := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
            raise ValueError(
                "StreamedLogProb must be used on one replica in steps, because only one order of "
                f"batches can be resumed. Received: a strategy of {count} replicas. `sample` and "
                "draw_pool divide passes between them, and a ShardedLogProb holds a share of the "
                "data on each."
            )
        self._warn_of_a_rest()
        self.of_one_batch.bootstrap(state)
        with tf.init_scope():  # a traced chain keeps the first ones
            first = next(self.reads())
        return StreamState(first, tf.zeros([], tf.int64))

    def _warn_of_a_rest(self) -> None:
        """Warns once if steps leave out the last rows of each epoch."""
        rest = 0 if self._are_batches else self.num_examples % self.batch_size
        if rest and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"batch_size must divide num_examples, or steps leave out the last {rest} examples "
                f"of each epoch. Received: batches of {self.batch_size} and {self.num_examples} "
                "examples. A shuffled epoch leaves out other examples each time, so that this does "
                "no harm. `sample` uses all examples.",
                stacklevel=5,
            )

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
            lambda part, chains: batch, state, probe, with_scores, self.num_examples
        )
        return estimate._replace(
            target_state=StreamState(batches, position + 1),
            noise_scale=tf.constant(self.noise_scale, estimate.log_prob.dtype),
        )

    def _sum(self, state: State, rows: Any) -> tf.Tensor:
        size = tf.nest.flatten(rows)[0].shape[0]
        return tf.reduce_sum(self.of_one_batch.log_likelihood(state, rows, size), axis=-1)

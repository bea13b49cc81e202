"""The log posterior of a Keras model, estimated from the batch that `fit` brings.

`RowsOfChains` takes rows of the data from some chains.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.internal.checks import accepts, function, integer
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.example_scores import (
    ExampleScores,
    count_rows,
    with_stored_gradient,
)
from tfp_sgmcmc.keras.model.priors import LogPrior, checked_value
from tfp_sgmcmc.random import hashed_words, mix, word
from tfp_sgmcmc.targets.base import (
    GradientEstimate,
    Target,
    UnconnectedError,
    value_and_gradient,
)

_MOST_FULL = 1000  # weights whose gradient noise has a full covariance by default


class RowsOfChains:
    r"""Decides by a hash of a row's inputs which chains see the row.

    A row with a hash below the `bound` belongs to the pool. A second hash gives it a fold f, and
    the chains f and f + 1 (modulo C) never see it. A row is known by its inputs alone, so the
    chains miss the same rows whatever the order, the batches and the replicas are, and copies of
    a row are missed with it. Inputs must reach the model unchanged: rows that are augmented before
    have no identity.

    Attributes:
      bound: hashes below belong to the pool, in 0 .. 2^32.
      num_chains: C, at least 3.
      key: one of 2^32 ways to choose the rows.
      num_seen: the number of rows of positive weight that each chain sees in an epoch, `[C]`.
      mean_weight: the mean of the positive weights of rows, by which they are divided: weights
        count relative to their mean.
    """

    def __init__(
        self,
        bound: int,
        num_chains: int,
        key: int,
        num_seen: np.ndarray,
        mean_weight: float = 1.0,
    ):
        self.bound, self.num_chains, self.key = bound, num_chains, key
        self.num_seen = np.asarray(num_seen, np.float32)
        self.mean_weight = mean_weight

    def seen(self, x: Any) -> tf.Tensor:
        """Returns 1 for rows of a batch that a chain sees and 0 for the others, `[C, rows]`."""
        hashes = row_hashes(x, self.key)
        is_missed = _misses(folds(hashes, self.num_chains), self.num_chains)
        return tf.where(is_missed & (hashes < self.bound), 0.0, 1.0)


def row_hashes(x: Any, key: int) -> tf.Tensor:
    """Returns a hash of each row of a nest of inputs, integers in 0 .. 2^32 - 1, `[rows]`.

    Floats are hashed in single precision. Zeros at the end of a row, such as the padding of a
    sequence, do not count.
    """
    total = mix(word(key))
    for place, leaf in enumerate(keras.tree.flatten(x)):
        words = _words(tf.convert_to_tensor(leaf))
        columns = tf.cast(tf.range(tf.shape(words)[1]), tf.uint32)
        factors = tf.bitwise.bitwise_or(hashed_words((word(place), word(0)), columns), word(1))
        # Sums of integers wrap around in two's complement.
        parts = tf.bitcast(mix(words) * factors, tf.int32)
        total += tf.bitcast(tf.reduce_sum(parts, axis=1), tf.uint32)
    return tf.cast(mix(total), tf.int64)


def folds(hashes: tf.Tensor, num_chains: int) -> tf.Tensor:
    """Returns the folds of rows, in 0 .. C - 1, `[rows]`."""
    words = mix(tf.cast(hashes, tf.uint32) + word(1))
    return tf.cast(words, tf.int64) % num_chains


def num_missed(fold: np.ndarray, num_chains: int) -> np.ndarray:
    """Returns how many rows of a pool each chain never sees, `[C]`."""
    return np.asarray(_misses(tf.constant(fold, tf.int64), num_chains)).sum(axis=1)


def _misses(fold: tf.Tensor, num_chains: int) -> tf.Tensor:
    """Returns whether a chain misses the pool's rows of these folds, `[C, rows]`."""
    chains = tf.range(num_chains, dtype=tf.int64)[:, tf.newaxis]
    return (chains - fold) % num_chains < 2


def _words(leaf: tf.Tensor) -> tf.Tensor:
    """Returns a tensor `[rows, ...]` as words of 32 bits, `[rows, entries]`."""
    if leaf.dtype == tf.string:
        words = tf.cast(tf.strings.to_hash_bucket_fast(leaf, 2**31 - 1), tf.uint32)
    elif leaf.dtype.is_floating:
        words = tf.bitcast(tf.cast(leaf, tf.float32), tf.uint32)
    else:
        words = tf.cast(tf.cast(leaf, tf.int64), tf.uint32)
    return tf.reshape(words, [tf.shape(words)[0], -1])


class BatchEvaluation(NamedTuple):
    """An evaluation of the model on a batch, which a step leaves in the kernel's results.

    Attributes:
      log_prob: estimate of the log posterior, `[chains...]`.
      forward: the forward pass, with a leading axis of chains if the state has one.
    """

    log_prob: tf.Tensor
    forward: internals.Forward


class LearningRate:
    """Maps the number of a step to the learning rate of a compiled model's optimizer.

    A schedule of the optimizer is evaluated at the step of the chain, so that it continues from one
    `fit` to the next. Any other learning rate is read when the step is taken. Callbacks such as
    `ReduceLROnPlateau` set it between epochs.

    Attributes:
      variable: the variable that callbacks set; None if the optimizer has a schedule.

    Args:
      model: a compiled model.

    Raises:
      ValueError: the model has no optimizer.
    """

    def __init__(self, model: keras.Model):
        self._rate = internals.learning_rate(model)
        has_variable = isinstance(self._rate, keras.Variable)
        self.variable: keras.Variable | None = self._rate if has_variable else None

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the step size of the step, a scalar."""
        if self.variable is not None:
            return tf.convert_to_tensor(self.variable.value)
        if isinstance(self._rate, keras.optimizers.schedules.LearningRateSchedule):
            return tf.convert_to_tensor(self._rate(step))
        return tf.convert_to_tensor(self._rate())


class ModelLogProb(Target):
    r"""Log posterior of a compiled model's trainable variables, estimated from one batch.

    \[
    \log p(\theta) - N \sum_k R_k(\theta)
      - \frac N B \sum_{i=1}^B w_i\, \ell(y_i, f_\theta(x_i))
    \]

    B is the number of rows of this batch, so a short last batch is scaled correctly. \( \ell \) is
    the compiled loss of one example with its `loss_weights`, and \( w_i \) is the sample weight.
    \( R_k \) are the model's regularisers and `add_loss` terms: Keras minimises the mean of
    \( \ell \) plus R, so -N R is a log prior. Rows of weight 0 bring no share of it: of a batch
    with B' rows of other weights it is estimated by -N R B'/B. The state is the list of the values
    of `model.trainable_variables`.

    If the model has several replicas, each holds some of the batch's rows, and estimates use the
    rows of all replicas. BatchNormalization normalises by the rows of one replica, and its new
    moving statistics are means over all rows. Dropout draws the same masks on each replica.

    If there are several chains, each part of the state has a leading axis `[num_chains, ...]`, and
    all chains see the same batch. They run side by side, or one after another where TensorFlow does
    not vectorize the model (see `Mapper`). With `rows_of_chains` a chain c sees some of the N
    examples only, N_c of them, none of weight 0. Its posterior is that of these examples: N_c takes
    the place of N, and B is the number of rows of the batch that the chain sees. The weights of
    examples are divided by their mean. (BatchNormalization normalises by all rows of the batch.)

    Scores belong to the batch's examples (see `ExampleScores`). The scale of the noise is
    c = N (N - B) / B, as for a batch drawn without replacement: each batch of an epoch of `fit`,
    taken alone, is drawn without replacement.

    A target is bound to one batch and never changes. An estimate returns the other results of the
    forward pass as `GradientEstimate.target_state`, a `BatchEvaluation`.

    Args:
      model: a compiled and built model.
      num_examples: N.
      log_prior_fn: maps the list of the variables' values to the log prior, a scalar.
      batch: `(x, y, sample_weight)`, or None for a target that is used in `bootstrap_results` only.
      num_chains: C, or None for a state without an axis of chains.
      others: the non-trainable variables that have a value for each chain, with these values,
        `[C, ...]`. Only with `num_chains`.
      scores: computes the scores. None makes an `ExampleScores(model)`.
      num_rows: rows of the batches on one replica, if known before the first batch.
      total_rows: rows of the batch on all replicas. None adds up the rows of the replicas.
      rows_of_chains: which rows each chain sees. None shows all rows to all chains. There are then
        no scores.
    """

    wrapping_advice = (
        " In fit the data make the batches: give fit sgmcmc.keras.IndependentBatches or resident "
        "data with growth for batches that grow, and the kernel the target itself."
    )

    def __init__(
        self,
        model: keras.Model,
        num_examples: int,
        log_prior_fn: LogPrior,
        batch: Any = None,
        num_chains: int | None = None,
        others: Sequence[tuple[keras.Variable, tf.Tensor]] = (),
        scores: ExampleScores | None = None,
        num_rows: Any = None,
        total_rows: Any = None,
        rows_of_chains: RowsOfChains | None = None,
    ):
        internals.check_built(model)
        self.num_examples = integer("num_examples", num_examples, 1)
        self.num_chains = None if num_chains is None else integer("num_chains", num_chains, 1)
        self.batch = batch
        accepts("log_prior_fn", function("log_prior_fn", log_prior_fn, "values -> log prior"), [])
        self._model, self._log_prior_fn, self._others = model, log_prior_fn, list(others)
        self._scores = ExampleScores(model) if scores is None else scores
        size = sum(math.prod(v.shape) for v in model.trainable_variables)
        self.default_covariance = "full" if size <= _MOST_FULL else "diag"
        #: Rows on this replica, and on all replicas.
        self.local_rows = num_rows if batch is None else count_rows(batch[0])
        if total_rows is None:
            total_rows = num_rows if batch is None else replicas.total_rows(self.local_rows)
        self.num_rows = total_rows
        self.num_scores = self._scores.num_scores(self.local_rows)
        self._rows_of_chains = rows_of_chains

    @property
    def examples_of_chains(self) -> Any:
        """The number of examples that a chain sees: N, or one number for each chain, `[C]`."""
        rows = self._rows_of_chains
        return self.num_examples if rows is None or self.num_chains is None else rows.num_seen

    @functools.cached_property
    def learning_rate(self) -> LearningRate:
        """The learning rate of the model's optimizer, as a step size: `LearningRate(model)`.

        `lambda target: SGLD(target, step_size=target.learning_rate)` lets the schedule of the
        compiled optimizer, `LearningRateScheduler` or `ReduceLROnPlateau` set the sampler's steps.
        """
        return LearningRate(self._model)

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raises NotImplementedError, since `fit` shows one batch at a time."""
        raise NotImplementedError(
            "The kernel asks for the exact log posterior over all examples, as corrected Langevin, "
            "HMC and NUTS do. Inside fit only estimates from a batch are available. Use a "
            "stochastic-gradient kernel such as SGLD, or sample a MinibatchLogProb outside fit."
        )

    def chain_shape(self, state: State) -> tf.TensorShape:
        return tf.TensorShape([] if self.num_chains is None else [self.num_chains])

    def bootstrap(self, state: State) -> tuple[()]:
        """Returns nothing: the model cannot be evaluated before the first batch."""
        del state
        return ()

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        del seed, target_state
        if self.batch is None:
            raise ValueError(
                "The kernel must estimate gradients in one_step alone: its bootstrap_results asks "
                "for one, but the first batch comes with the first step."
            )
        others, values = zip(*self._others, strict=True) if self._others else ((), ())
        variables = [*self._model.trainable_variables, *others]
        scored = with_scores and probe is None
        shares = self._shares(with_scores)
        # Multiplied by N / B, the gradients of layers in half precision could overflow, and would
        # be rounded otherwise.
        is_half = internals.has_half_precision(self._model)
        if scored:
            self._scores.prepare(self.batch[0], self.num_chains)

        def of_one_chain(given: tuple[list[tf.Tensor], ...]) -> tuple[Any, internals.Forward]:
            # The gradient is taken here and not of the mapped value. There, XLA would compile two
            # functions, with shapes of the first as arguments of the second, and would compile
            # them anew whenever the state changes.
            state, values, probe, shares = given
            found: list[internals.Forward] = []

            def log_likelihood(state: list[tf.Tensor], batch: Any, rows: Any) -> tf.Tensor:
                model = self._model
                forward = internals.forward(model, variables, [*state, *values], batch[0], True)
                found.append(forward)
                return self._log_likelihood(forward, batch, rows, *shares[:1])

            dtype = state[0].dtype
            rows = tf.cast(self.num_rows, dtype)
            scale = tf.cast(shares[1], dtype) if shares else self.num_examples / rows

            def log_posterior(state: list[tf.Tensor]) -> tf.Tensor:
                value = log_likelihood(state, self.batch, self.local_rows)
                value = tf.cast(value, dtype)  # Keras' losses are of floatx
                log_prior = checked_value("log_prior_fn", self._log_prior_fn(state))
                log_prior = tf.cast(log_prior, dtype) / replicas.count()
                return log_prior / scale + value if is_half else log_prior + scale * value

            try:
                if scored:
                    value, gradient, more = self._scores.gradient_and_factors(
                        log_posterior, log_likelihood, state, self.batch, self.local_rows
                    )
                else:
                    value, gradient, more = value_and_gradient(log_posterior, state, probe or None)
            except UnconnectedError as error:
                path = self._model.trainable_variables[error.place].path
                raise ValueError(
                    "The loss or the prior must depend on every trainable variable. Received: "
                    f"neither depends on {path}. Set trainable=False in its layer; or use it, as "
                    "by a loss for each output."
                ) from None
            if is_half:
                value, gradient = tf.nest.map_structure(lambda t: scale * t, (value, gradient))
                more = more if scored else tf.nest.map_structure(lambda t: scale * t, more)
            # The pass over the whole batch comes first.
            return (value, gradient, more), found[0]

        given = (list(state), list(values), [] if probe is None else list(probe), shares)
        if self.num_chains is None:
            estimated = of_one_chain(given)
        else:
            estimated = self._scores.map_chains(of_one_chain, given, self.local_rows, scored)
        (log_prob, gradient, more), forward = estimated
        lead = log_prob.shape.rank
        log_prob, gradient = replicas.total((log_prob, gradient))
        for part, value in zip(gradient, state, strict=True):
            part.set_shape(value.shape)  # which the map over chains may lose
        means = replicas.averaged([*forward.updates.values()], self.local_rows, self.num_rows)
        updates = dict(zip(forward.updates, means, strict=True))
        evaluation = BatchEvaluation(log_prob, forward._replace(updates=updates))
        if not scored:
            return GradientEstimate(gradient, log_prob, (), replicas.total(more), evaluation)
        factors = replicas.gathered(more, axis=lead)
        total = tf.constant(self.num_examples, state[0].dtype)
        rows = tf.cast(self.num_rows, total.dtype)
        scores = self._scores.scores(factors, self.num_rows, 1.0 if is_half else total / rows)
        scale = total * tf.maximum(total - rows, 0) / rows
        return GradientEstimate(gradient, log_prob, scores, (), evaluation, noise_scale=scale)

    def _shares(self, with_scores: bool) -> list[tf.Tensor]:
        """Returns which rows the chains see, `[C, rows]`, and N_c / (B mean weight), `[C]`.

        Returns nothing if all chains see all rows.

        Raises:
          ValueError: the kernel asks for scores.
        """
        if self._rows_of_chains is None or self.num_chains is None:
            return []
        if with_scores:
            raise ValueError(
                "The kernel must not ask for scores where chains see different rows of a batch. "
                "Received: a kernel that corrects for the gradient noise, with rows_of_chains."
            )
        assert self.batch is not None  # checked by `estimate`
        rows = self._rows_of_chains
        seen = rows.seen(self.batch[0])
        if (weighs := _weighs(*self.batch[1:])) is not None:
            seen *= tf.cast(weighs, seen.dtype)
        counts = replicas.total(tf.reduce_sum(seen, axis=1))
        return [seen, rows.num_seen / (rows.mean_weight * tf.maximum(counts, 1.0))]

    def _log_likelihood(
        self, forward: internals.Forward, batch: Any, rows: Any, seen: Any = None
    ) -> tf.Tensor:
        """Returns the sum over a batch's rows, each with its share of the regularisers.

        Rows of weight 0 have no share. `seen` is 1 for the rows that count, `[rows]`; None counts
        all others.
        """
        _, y, sample_weight = batch
        outputs = forward.outputs
        if self.num_chains is None:  # inside a mapped function it would not be stored
            outputs = with_stored_gradient(outputs)
        each = compiled_loss.negative_log_likelihoods(self._model, y, outputs, sample_weight)
        if seen is None:
            if forward.losses and (weighs := _weighs(y, sample_weight)) is not None:
                rows = tf.reduce_sum(weighs)
        else:
            each *= tf.cast(seen, each.dtype)
            assert self._rows_of_chains is not None  # which gave `seen`
            # The caller divides all by the mean weight.
            rows = self._rows_of_chains.mean_weight * tf.reduce_sum(seen)
        nll = tf.reduce_sum(each)
        penalty = sum((tf.cast(r, nll.dtype) for r in forward.losses), tf.zeros([], nll.dtype))
        return -(nll + tf.cast(rows, nll.dtype) * penalty)


def _weighs(y: Any, sample_weight: Any) -> tf.Tensor | None:
    """Returns 0 for rows whose weights are all 0, and 1 for others, `[rows]`; None without any."""
    weights = [tf.convert_to_tensor(w) for w in internals.array_leaves(sample_weight)]
    if not weights or internals.has_unweighted_targets(y, sample_weight):
        return None
    flat = [tf.reshape(w != 0, [tf.shape(w)[0], -1]) for w in weights]
    return tf.cast(tf.reduce_any(tf.concat(flat, axis=1), axis=1), keras.config.floatx())

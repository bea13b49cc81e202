"""The log posterior of a Keras model, seen through the batches that `fit` brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import compiled_loss, internals, replicas
from tfp_sgmcmc.keras.model.column_gradient import with_stored_gradient
from tfp_sgmcmc.keras.model.example_scores import ExampleScores, count_rows
from tfp_sgmcmc.keras.model.priors import LogPrior
from tfp_sgmcmc.keras.model.vectorize import is_vectorizable, mapped
from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient


class ModelLogProb(Target):
    r"""Log posterior of a compiled model's trainable variables, estimated from one batch.

    \[
    \log p(\theta) - N \sum_k R_k(\theta)
      - \frac N B \sum_{i=1}^B w_i\, \ell(y_i, f_\theta(x_i))
    \]

    B is the number of rows of this batch (a short last one counts as it is), \( \ell \) the
    compiled loss of one example with its `loss_weights`, w its sample weight, \( R_k \) the model's
    regularisers and `add_loss` terms: Keras minimises the mean of \( \ell \) plus R, so N R counts
    as minus a log prior. The state is the list of the values of `model.trainable_variables`.

    Of a model on several replicas each has some of the batch's rows, and estimates are those from
    the rows of all. BatchNormalization normalises by the rows of a replica, and its new moving
    statistics are means over all rows; Dropout draws the same masks on each.

    With chains, the state has a leading axis of them, `[num_chains, ...]` a part, and all of them
    see the same batch.

    Scores are those of the batch's examples (see `ExampleScores`), and c = N (N - B) / B, as of a
    batch drawn without replacement: in an epoch of `fit`, each batch by itself is so drawn.

    A step of `fit` makes a target of its own, bound to its batch. `evaluated` holds the forward
    pass of the last estimate, from which outputs and new moving statistics are taken, `log_prob`
    its value, `gave_scores` tells whether it had scores, and `num_rows` is B.

    Args:
      model: compiled, built.
      num_examples: N.
      log_prior_fn: list of variables' values -> log p, a scalar.
      batch: `(x, y, sample_weight)`, or None for a target that only serves `bootstrap_results`.
      num_chains: C, or None for a state without an axis of chains.
      others: with chains, the non-trainable variables that each chain has values of its own of,
        and these values, `[C, ...]`.
      scores: where scores come from; None is an `ExampleScores(model)`.
      num_rows: those of this replica, if they are known before the first batch.
    """

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
    ):
        self.num_examples, self.num_chains = num_examples, num_chains
        self.evaluated: internals.Forward | None = None
        self.gave_scores = False
        self.log_prob: tf.Tensor | None = None
        self._model, self._log_prior_fn, self.batch = model, log_prior_fn, batch
        self._others = list(others)
        self._scores = ExampleScores(model) if scores is None else scores
        if batch is not None:
            num_rows = count_rows(batch[0])
        self.num_scores = self._scores.num_scores(num_rows)
        self.num_rows = num_rows if batch is None else replicas.total_rows(num_rows)

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raises NotImplementedError: inside `fit` there is only ever one batch."""
        raise NotImplementedError(
            "Inside fit only estimates from a batch can be had, and the kernel asks for the exact "
            "log posterior over all examples (as corrected Langevin, HMC and NUTS do). Use a "
            "stochastic-gradient kernel such as SGLD, or sample a MinibatchLogProb outside fit."
        )

    def chain_shape(self, state: State) -> tf.TensorShape:
        return tf.TensorShape([] if self.num_chains is None else [self.num_chains])

    def bootstrap(self, state: State) -> tuple[()]:
        """Nothing is carried between steps, and nothing can be evaluated before the first batch."""
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
        if self.batch is None:
            raise ValueError(
                "bootstrap_results of the kernel asks for a gradient, but the first batch comes "
                "with the first step; a kernel that estimates only in one_step is expected."
            )
        others, values = zip(*self._others, strict=True) if self._others else ((), ())
        variables = [*self._model.trainable_variables, *others]
        own = (list(state), list(values), [] if probe is None else list(probe))
        updated: list[keras.Variable] = []
        counted: list[keras.Variable] = []
        scored = with_scores and probe is None
        if scored:
            self._scores.prepare(self.batch[0])
            self.gave_scores = True

        def of_one_chain(own: tuple[list[tf.Tensor], ...]) -> tuple[Any, ...]:
            # The gradient is taken here and not of the mapped value: under XLA the two would be
            # functions of their own, with shapes of the first handed to the second as arguments,
            # for which XLA compiles anew whenever the state changes.
            found: list[internals.Forward] = []

            def forward(state: list[tf.Tensor], inputs: Any) -> internals.Forward:
                values = [*state, *own[1]]
                return internals.forward(self._model, variables, values, inputs, training=True)

            def log_posterior(state: list[tf.Tensor]) -> tf.Tensor:
                found[:] = [forward(state, self.batch[0])]
                return self._log_posterior(state, found[0])

            def log_likelihood(state: list[tf.Tensor], batch: Any) -> tf.Tensor:
                return self._log_likelihood(forward(state, batch[0]), batch)

            if scored:
                estimate = self._scores.gradient_and_factors(
                    log_posterior, log_likelihood, own[0], self.batch
                )
            else:
                estimate = value_and_gradient(log_posterior, own[0], own[2] or None)
            outputs, penalties, updates, metrics, marks = found[0]
            updated[:], counted[:] = ([v for v, _ in pairs] for pairs in (updates, metrics))
            updates, metrics = ([x for _, x in pairs] for pairs in (updates, metrics))
            return estimate, (outputs, penalties, updates, metrics, marks)

        if self.num_chains is None:
            estimated = of_one_chain(own)
        else:
            estimated = mapped(of_one_chain, own, is_vectorizable(self._model))
        (log_prob, gradient, more), evaluated = estimated
        self.log_prob, gradient = replicas.total((log_prob, gradient))
        evaluated = internals.Forward(*evaluated)
        rows = count_rows(self.batch[0])
        values = replicas.averaged(evaluated.updates, rows, self.num_rows)
        self.evaluated = evaluated._replace(
            updates=list(zip(updated, values, strict=True)),
            metrics=list(zip(counted, evaluated.metrics, strict=True)),
        )
        if not scored:
            more = replicas.total(more)
            return GradientEstimate(gradient, self.log_prob, (), more, target_state)
        more = replicas.gathered(more, axis=log_prob.shape.rank)
        total = tf.constant(self.num_examples, state[0].dtype)
        rows = tf.cast(self.num_rows, total.dtype)
        return GradientEstimate(
            gradient,
            self.log_prob,
            self._scores.scores(more, self.num_rows, self.num_examples),
            target_state=target_state,
            noise_scale=total * tf.maximum(total - rows, 0) / rows,
        )

    def _log_posterior(self, state: list[tf.Tensor], evaluated: internals.Forward) -> tf.Tensor:
        log_likelihood = self._log_likelihood(evaluated, self.batch)
        rows = tf.cast(self.num_rows, log_likelihood.dtype)
        log_prior = tf.cast(self._log_prior_fn(state), log_likelihood.dtype)
        return log_prior / replicas.count() + self.num_examples / rows * log_likelihood

    def _log_likelihood(self, evaluated: internals.Forward, batch: Any) -> tf.Tensor:
        """Of a batch's rows together, each with its share of the regularisers."""
        x, y, sample_weight = batch
        outputs = evaluated.outputs
        if self.num_chains is None:  # else they are those of a mapped function
            outputs = with_stored_gradient(outputs)
        nll = compiled_loss.negative_log_likelihood(self._model, y, outputs, sample_weight)
        penalty = tf.add_n([tf.cast(r, nll.dtype) for r in evaluated.losses] or [0.0])
        return -(nll + tf.cast(count_rows(x), nll.dtype) * penalty)

"""The log posterior of a Keras model, seen through the batches that `fit` brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.targets.base import GradientEstimate, State, Target, value_and_gradient

LogPrior = Callable[[list[tf.Tensor]], tf.Tensor]


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

    A step of `fit` makes a target of its own, bound to its batch. `evaluated` holds the forward
    pass of the last estimate, from which outputs and new moving statistics are taken.

    Args:
      model: compiled, built.
      num_examples: N.
      log_prior_fn: list of variables' values -> log p, a scalar.
      batch: `(x, y, sample_weight)`, or None for a target that only serves `bootstrap_results`.
    """

    def __init__(
        self, model: keras.Model, num_examples: int, log_prior_fn: LogPrior, batch: Any = None
    ):
        self.num_examples = num_examples
        self.evaluated: losses.Forward | None = None
        self._model, self._log_prior_fn, self.batch = model, log_prior_fn, batch

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raises NotImplementedError: inside `fit` there is only ever one batch."""
        raise NotImplementedError(
            "Inside fit only estimates from a batch can be had, and the kernel asks for the exact "
            "log posterior over all examples (as corrected Langevin, HMC and NUTS do). Use a "
            "stochastic-gradient kernel such as SGLD, or sample a MinibatchLogProb outside fit."
        )

    def chain_shape(self, state: State) -> tf.TensorShape:
        return tf.TensorShape([])

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
        value, gradient, product = value_and_gradient(self._log_posterior, state, probe)
        return GradientEstimate(gradient, value, (), product, target_state)

    def _log_posterior(self, state: list[tf.Tensor]) -> tf.Tensor:
        model, (x, y, sample_weight) = self._model, self.batch
        self.evaluated = losses.forward(model, model.trainable_variables, state, x, training=True)
        nll = losses.negative_log_likelihood(model, y, self.evaluated.outputs, sample_weight)
        total = tf.constant(self.num_examples, nll.dtype)
        penalty = tf.add_n([tf.cast(r, nll.dtype) for r in self.evaluated.losses] or [0.0])
        return (
            tf.cast(self._log_prior_fn(state), nll.dtype)
            - total * penalty
            - total / tf.cast(num_rows(x), nll.dtype) * nll
        )


def num_rows(x: Any) -> tf.Tensor:
    """Leading axis of a batch's inputs."""
    return tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]


def as_log_prior(prior: Any) -> LogPrior:
    """Returns `prior`, a distribution of one entry, a callable or None, as a function of the state.

    Raises:
      TypeError: `prior` is none of these.
      ValueError: a distribution of more than one entry.
    """
    if prior is None:
        return lambda state: tf.zeros([])
    if isinstance(prior, tfp.distributions.Distribution):
        if prior.event_shape.rank != 0 or prior.batch_shape.rank != 0:
            raise ValueError(
                f"prior is a distribution with batch shape {prior.batch_shape} and event shape "
                f"{prior.event_shape}; a scalar one, the prior of every single weight, is "
                "expected. For a prior that differs between variables pass a callable: list of "
                "values -> log prior."
            )

        def distribution_log_prior(state: list[tf.Tensor]) -> tf.Tensor:
            # A copy has its parameters as constants of the trace, which XLA folds; those of the
            # original would be inputs, and each weight divided by the scale, twice.
            marginal = prior.copy()
            return tf.add_n([tf.reduce_sum(marginal.log_prob(x)) for x in state])

        return distribution_log_prior
    if not callable(prior):
        raise TypeError(
            f"prior is a {type(prior).__name__}; a scalar tfd distribution, a callable that takes "
            "the list of variables' values, or None is expected."
        )

    def log_prior(state: list[tf.Tensor]) -> tf.Tensor:
        value = tf.convert_to_tensor(prior(state))
        if value.shape.rank != 0:
            raise ValueError(
                f"prior returned shape {value.shape}; the log prior of all variables together, a "
                "scalar, is expected."
            )
        return value

    return log_prior

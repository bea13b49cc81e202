"""What a posterior computes from data: predictions, outputs, draws and scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.keras.posterior.batches import Batches
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation, Evaluator
from tfp_sgmcmc.keras.posterior.predict import (
    Activation,
    PosteriorPrediction,
    Predictor,
    check_activation,
    checked_levels,
)
from tfp_sgmcmc.keras.posterior.temperature_scaling import TemperatureScaling


class Predicting:
    """The methods of `Posterior` that take data."""

    model: keras.Model
    samples: list[Any]
    num_chains: int | None
    weights: np.ndarray | None
    _function: Callable[..., Any]

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        activation: Activation = "auto",
        *,
        steps: int | None = None,
        verbose: Any = "auto",
        quantiles: Any = None,
    ) -> PosteriorPrediction:
        """Returns mean, standard deviation and entropies of the outputs over samples and chains.

        The mean is one of probabilities, because a mean of logits would be wrong. With
        `activation="auto"`, outputs get a softmax or sigmoid where the compiled loss is a
        crossentropy object with `from_logits=True`. Entropies are given only with "auto", for
        outputs whose loss is a crossentropy of Keras, because these are probabilities. Outputs
        with a `NegativeLogLikelihood` get the predictive law of an observation (see `Predictive`).

        Args:
          x: what `model.predict` takes: an array or nest of arrays `[rows, ...]`, a
            `tf.data.Dataset`, a `keras.utils.PyDataset` or a Python generator of batches `x`,
            `(x,)`, `(x, y)` or `(x, y, sample_weight)`. Such data are read once, batch by batch.
          batch_size: the number of rows that are evaluated at once, 32 by default. None for data
            that come in batches.
          activation: "auto", None (outputs as they are), or a callable on the outputs.
          steps: the number of batches to take. None takes all, and data without an end need it.
          verbose: 0 is silent, 1 shows a progress bar, 2 one line at the end. "auto" is 1 in a
            terminal or a notebook, and 0 elsewhere.
          quantiles: levels of quantiles of an observation, such as `[0.05, 0.95]` for the central
            90 % interval.

        Raises:
          TypeError: x is of none of these kinds.
          ValueError: `activation` is an unknown string, or "auto" for a model that is not compiled;
            the data are empty, do not fit the model, or have no end; `quantiles` are not in (0, 1),
            or no output has a `NegativeLogLikelihood`.
        """
        check_activation(activation)
        levels = checked_levels(quantiles)
        predictor = self._function(Predictor, activation)
        data = Batches(self.model, x, batch_size=batch_size, steps=steps, verbose=verbose)
        return predictor(self.samples, self.num_chains, data, self.weights, levels)

    def outputs(
        self,
        x: Any,
        batch_size: int | None = None,
        activation: Activation = "auto",
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> Any:
        """Returns the model's outputs for each sample, `[num_kept, rows, ...]`.

        With chains the shape is `[num_kept, num_chains, rows, ...]`, as R-hat and effective sample
        size in `tfp.mcmc` expect it. All outputs are in memory at once, unlike in `predict`.

        Arguments and exceptions are those of `predict`.

        Examples:
          >>> import keras, numpy as np, tensorflow_probability as tfp
          >>> import tfp_sgmcmc as sgmcmc
          >>> x = np.random.default_rng(0).normal(size=[200, 1]).astype(np.float32)
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
          >>> model.compile(loss=sgmcmc.keras.NegativeLogLikelihood(
          ...     lambda out: tfp.distributions.Normal(out, 1.)), steps_per_execution=5)
          >>> sampler = sgmcmc.keras.SamplerCallback(
          ...     lambda target: sgmcmc.SGLD(target, step_size=1e-3), num_examples=200, prior=None,
          ...     num_burnin_steps=100, seed=0, num_chains=4)
          >>> _ = model.fit(x, 2. * x, batch_size=40, epochs=100, verbose=0, callbacks=[sampler])
          >>> outputs = sampler.posterior.outputs(x[:3])
          >>> outputs.shape
          (400, 4, 3, 1)
          >>> r_hat = tfp.mcmc.potential_scale_reduction(outputs, split_chains=True)
          >>> bool(np.max(r_hat) < 1.2)
          True
        """
        check_activation(activation)
        predictor = self._function(Predictor, activation)
        data = Batches(self.model, x, batch_size=batch_size, steps=steps, verbose=verbose)
        return predictor.outputs(self.samples, self.num_chains, data)

    def sample_predictive(
        self,
        x: Any,
        num_draws: int | None = None,
        *,
        seed: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> Any:
        """Draws observations from the posterior predictive, `[num_draws, rows, ...]`.

        Each draw takes one sample of the weights for all rows, and then an observation of each row.
        Samples are taken by systematic resampling: sample s comes floor(n w_s) or ceil(n w_s) times
        in n draws, so that with equal weights and as many draws as samples each comes once.
        Crossentropies give classes, in the form of their labels.

        Examples:
          >>> import keras, numpy as np
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
          >>> model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=0.1))
          >>> kernels = np.random.default_rng(0).normal(2., 0.1, size=[1000, 1, 1])
          >>> posterior = sgmcmc.keras.Posterior(
          ...     model, model.trainable_variables, [kernels.astype(np.float32)])
          >>> x = np.array([[0.], [3.]], np.float32)
          >>> draws = posterior.sample_predictive(x, seed=1)
          >>> draws.shape
          (1000, 2, 1)
          >>> draws.std(axis=0)[:, 0].round(1)  # noise alone; noise and uncertainty
          array([0.1, 0.3], dtype=float32)
          >>> lower, upper = posterior.predict(x, quantiles=[0.05, 0.95]).predictive.quantiles
          >>> (upper - lower)[:, 0].round(1)
          array([0.3, 1. ], dtype=float32)

        Args:
          x: inputs, as in `predict`.
          num_draws: the number of draws. None takes as many as there are samples in all chains.
          seed: one or two integers. None draws a seed. Draws depend on the sizes of the batches.
          batch_size: as in `predict`.
          steps: as in `predict`.
          verbose: as in `predict`.

        Raises:
          ValueError: the loss of an output does not tell the distribution of its observations.
        """
        if num_draws is not None:
            integer("num_draws", num_draws, 1)
        seed = random.as_seed(random.fresh_seed() if seed is None else seed)
        predictor = self._function(Predictor, "auto")
        data = Batches(self.model, x, batch_size=batch_size, steps=steps, verbose=verbose)
        return predictor.draw(self.samples, self.num_chains, data, self.weights, num_draws, seed)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> Evaluation:
        r"""Returns log predictive density, and scores of classes and of numbers (`Evaluation`).

        The log predictive density of an example is

        \[
        \log \frac 1 S \sum_s \exp(-\ell(y_i, f_{\theta_s}(x_i))),
        \]

        where \( \ell \) is the compiled loss, summed over outputs by `loss_weights`. It is the
        negative log likelihood that `SamplerCallback` samples with, without regularisers.

        Args:
          x: inputs in any form that `predict` takes. Batches of a data set must have labels.
          y: labels, as `fit` takes them. None for data that come in batches.
          sample_weight: weights `[rows]` of the examples in all averages. They do not weight the
            likelihoods, as they do in `fit`. None weights all examples by 1.
          batch_size: as in `predict`.
          steps: as in `predict`.
          verbose: as in `predict`.

        Raises:
          ValueError: the model's loss is not a negative log likelihood (see `SamplerCallback`),
            lengths differ, or weights are not finite, negative or all zero.
        """
        evaluator = self._function(Evaluator)
        data = self._labelled(x, y, sample_weight, batch_size, steps, verbose)
        return evaluator(self.samples, self.num_chains, data, self.weights)

    def log_likelihood(
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> np.ndarray:
        """Returns minus the compiled loss of each example for each sample, `[num_kept, rows]`.

        With chains the shape is `[num_kept, num_chains, rows]`. Arguments are those of `evaluate`.
        """
        evaluator = self._function(Evaluator)
        data = self._labelled(x, y, None, batch_size, steps, verbose)
        return evaluator.log_likelihood(self.samples, self.num_chains, data)

    def calibrate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> TemperatureScaling:
        """Returns the temperature of predicted probabilities that explains held-out labels best.

        The posterior predictive of a well-specified model needs none. A chain that is too hot or
        too cold, or a wrong model, may make predictions that are too sure or not sure enough.
        `calibration(prediction.mean)` gives the calibrated probabilities. Use other data than those
        that were sampled with, and others again to evaluate.

        Arguments are those of `evaluate`.

        Examples:
          >>> import keras, numpy as np
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
          >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
          >>> posterior = sgmcmc.keras.Posterior(  # three times as sure as the labels allow
          ...     model, model.trainable_variables, [np.array([[[3.]]], np.float32)])
          >>> generator = np.random.default_rng(0)
          >>> x = generator.normal(size=[10_000, 1]).astype(np.float32)
          >>> y = generator.uniform(size=x.shape) < 1 / (1 + np.exp(-x))
          >>> calibration = posterior.calibrate(x, y, batch_size=10_000)
          >>> round(calibration.temperature, 1)
          3.0
          >>> p = calibration(posterior.predict(x[:2]).mean)

        Raises:
          ModuleNotFoundError: SciPy is not installed.
          ValueError: not exactly one output has a crossentropy, or the labels determine no
            temperature.
        """
        evaluator = self._function(Evaluator)
        data = self._labelled(x, y, sample_weight, batch_size, steps, verbose)
        return evaluator.calibrate(self.samples, self.num_chains, data, self.weights)

    def _labelled(self, x: Any, y: Any, weight: Any, batch_size: Any, *given: Any) -> Batches:
        steps, verbose = given
        return Batches(
            self.model,
            x,
            y,
            weight,
            batch_size=batch_size,
            steps=steps,
            verbose=verbose,
            has_labels=True,
        )

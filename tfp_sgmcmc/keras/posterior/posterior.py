"""Samples of a model's variables: predictions, scores, summaries and files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.checks import integer, one_of, optional, positive
from tfp_sgmcmc.internal.extras import as_dataset, import_arviz, import_figure, inference_data
from tfp_sgmcmc.internal.tables import Table, shown_by
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior import sample_arrays
from tfp_sgmcmc.keras.posterior.averaged_model import averaged_model
from tfp_sgmcmc.keras.posterior.batches import Batches
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation, Evaluator, TemperatureScaling
from tfp_sgmcmc.keras.posterior.model_copy import Distilled, distil
from tfp_sgmcmc.keras.posterior.predict import (
    Activation,
    PosteriorPrediction,
    Predictor,
    check_activation,
    checked_levels,
    estimator,
)
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays, warn_if_changed
from tfp_sgmcmc.keras.posterior.summary import (
    Summary,
    plot,
    plot_calibration,
    plot_predictions,
    summarize,
)
from tfp_sgmcmc.sampling.programs import is_same, snapshot

_SHOWN = 20  # variables that are printed


class Posterior:
    r"""Samples \( \theta_1, \dots, \theta_S \) of a model's weights, as `SamplerCallback` draws.

    They approximate the posterior predictive

    \[
    p(y \mid x) = \sum_{s=1}^S w_s\, p(y \mid f_{\theta_s}(x)) \Big/ \sum_{s=1}^S w_s
    \]

    with the weights \( w_s \), which are equal unless the step size changed (Welling & Teh 2011,
    equation 11).

    Samples may be on disk. They are read in chunks, and rows are evaluated in batches. The model is
    evaluated in the mode in which it was compiled, with `training=False`. Its weights do not
    change.

    Examples:
      >>> import keras, numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> kernels = np.array([-1., 0., 1., 2.], np.float32).reshape(4, 1, 1)
      >>> posterior = sgmcmc.keras.Posterior(model, model.trainable_variables, [kernels])
      >>> x, y = np.array([[0.], [3.]]), np.array([[0.], [1.]])
      >>> prediction = posterior.predict(x)
      >>> prediction.mean[:, 0].round(3)
      array([0.5  , 0.624], dtype=float32)
      >>> prediction.entropy[:, 0].round(3)  # log 2 at most
      array([0.693, 0.662], dtype=float32)
      >>> prediction.mutual_information[:, 0].round(3)  # positive where the samples disagree
      array([0.   , 0.389], dtype=float32)
      >>> round(posterior.evaluate(x, y).log_predictive_density, 3)  # mean of log 0.5, log 0.624
      -0.582

    Args:
      model: a built model. Weights that are not sampled keep the values that it has; a warning
        tells if they change before the samples are used.
      variables: the variables of the model that the samples are values of.
      samples: one array `[num_kept, ...]` for each of `variables`, or `[num_kept, num_chains, ...]`
        with chains. NumPy arrays, or objects with `shape`, `dtype` and slices, such as
        `zarr.Array`. Samples of half-precision variables may be in single precision.
      num_chains: the number of chains, or None for samples without an axis of chains.
      weights: the weight of each sample in all averages, `[num_kept]`, such as the step sizes of a
        chain whose steps decrease. None weights all by 1.
      temperature: the temperature of the chain, 1 for the posterior itself. None if it changed
        along the run, as in an annealed ensemble, whose samples follow no law: such samples
        predict, and what would judge them as draws (`summary`, `plot`, `to_inference_data`) raises
        an error.

    Attributes:
      temperature: see above.

    Raises:
      TypeError: an argument is of another type.
      ValueError: there are no samples, their number, shapes or dtypes do not fit the variables, or
        NumPy arrays are not finite; the model is not built or lacks these variables.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: Sequence[keras.Variable],
        samples: Sequence[Any],
        num_chains: int | None = None,
        weights: Any = None,
        temperature: float | None = 1.0,
    ):
        internals.check_built(model)
        self.model, self.variables = model, sample_arrays.checked_variables(variables, model)
        self.num_chains = None if num_chains is None else integer("num_chains", num_chains, 1)
        self.samples = sample_arrays.checked(samples, self.variables, num_chains)
        self.weights = sample_arrays.checked_weights(weights, len(self))
        self.temperature = optional(positive, "temperature", temperature)
        self._rest = sample_arrays.checksum_of_rest(model, self.variables)
        self._functions: dict[Any, Any] = {}  # compiled functions, with what they depend on

    @property
    def is_tempered(self) -> bool:
        """Whether the samples are no draws from the posterior, but from a tempered or no law."""
        return self.temperature != 1

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
        with a `NegativeLogLikelihood` get the distribution of an observation (see `Predictive`).

        Args:
          x: what `model.predict` takes: an array or nest of arrays `[rows, ...]`, a
            `tf.data.Dataset`, a `keras.utils.PyDataset` or a Python generator of batches `x`,
            `(x,)`, `(x, y)` or `(x, y, sample_weight)`. Such data are read once, batch by batch.
          batch_size: the number of rows that are evaluated at once, 32 by default. None for data
            that come in batches.
          activation: "auto", None (outputs as they are), or a callable on the outputs.
          steps: the number of batches to take. None takes all, and data without an end need it.
          verbose: 0 is silent, 1 shows a progress bar, 2 one line at the end. "auto" is 1 in a
            terminal, and in a notebook the widget of `sample_chain`; elsewhere a call of more than
            ten seconds writes a line with the time left to stderr every ten seconds.
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
        return predictor(self._arrays(), data, levels)

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

        Takes the arguments of `predict`, and raises the same errors.

        Examples:
          >>> import keras, numpy as np, tensorflow_probability as tfp
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
          >>> model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=1.))
          >>> kernels = np.random.default_rng(0).normal(size=[400, 4, 1, 1]).astype(np.float32)
          >>> posterior = sgmcmc.keras.Posterior(
          ...     model, model.trainable_variables, [kernels], num_chains=4)
          >>> outputs = posterior.outputs(np.array([[1.], [2.], [3.]]))
          >>> outputs.shape
          (400, 4, 3, 1)
          >>> r_hat = tfp.mcmc.potential_scale_reduction(outputs, split_chains=True)
          >>> bool(np.max(r_hat) < 1.2)
          True
        """
        check_activation(activation)
        predictor = self._function(Predictor, activation)
        data = Batches(self.model, x, batch_size=batch_size, steps=steps, verbose=verbose)
        return predictor.outputs(self._arrays(), data)

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
        Crossentropies give classes, in the form of their labels. An output without a loss, beside
        others that have one, has no observations and gives None.

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
          ValueError: the loss of an output does not determine the distribution of its observations.
        """
        optional(integer, "num_draws", num_draws, 1)
        seed = random.as_seed(random.fresh_seed() if seed is None else seed)
        predictor = self._function(Predictor, "auto")
        data = Batches(self.model, x, batch_size=batch_size, steps=steps, verbose=verbose)
        return predictor.draw(self._arrays(), data, num_draws, seed)

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
        negative log likelihood that `SamplerCallback` samples with, without regularisers. A loss
        with `label_smoothing` or `loss_weights` gives densities that compare with those by the same
        loss only. For others, compile the model again. An example with several targets, such as
        the steps of a sequence or the pixels of an image, has their joint density, a sum of logs,
        where Keras shows the mean.

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
        data = self._labelled(x, y, sample_weight, batch_size, steps=steps, verbose=verbose)
        return evaluator(self._arrays(), data)

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

        With chains the shape is `[num_kept, num_chains, rows]`. Takes the arguments of `evaluate`.
        """
        evaluator = self._function(Evaluator)
        data = self._labelled(x, y, None, batch_size, steps=steps, verbose=verbose)
        return evaluator.log_likelihood(self._arrays(), data)

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
        """Fits a temperature for predicted probabilities to held-out labels.

        The posterior predictive of a well-specified model needs none. A chain that is too hot or
        too cold, or a wrong model, may make predictions over- or underconfident.
        `calibration(prediction.mean)` gives the calibrated probabilities. Use data that were not
        sampled with, and a third set to evaluate.

        Takes the arguments of `evaluate`.

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
        data = self._labelled(x, y, sample_weight, batch_size, steps=steps, verbose=verbose)
        return evaluator.calibrate(self._arrays(), data)

    def with_samples(self, samples: Sequence[Any], weights: Any = None) -> Posterior:
        """Returns a posterior of other samples, such as thinned ones, with the same functions.

        Their weights are `weights`, `[num_kept]`; None weights all by 1.
        """
        other = copy.copy(self)
        other.samples = sample_arrays.checked(samples, self.variables, self.num_chains)
        other.weights = sample_arrays.checked_weights(weights, len(other))
        return other

    def thin(self, k: int) -> Posterior:
        """Returns a posterior of every k-th sample of each chain, with their weights."""
        integer("k", k, 1)
        weights = None if self.weights is None else self.weights[::k]
        return self.with_samples([s[::k] for s in self.samples], weights)

    def to_dtype(self, dtype: str) -> Posterior:
        """Returns a posterior whose samples are stored in half precision, in half the memory.

        They are converted to the dtype of the variables one by one when the model is evaluated.
        Rounding changes each weight by at most 2^-11 (float16, above 6e-5) or 2^-8 (bfloat16) of
        its size. For a digits classifier (64-50-10, 250 samples), the mean probabilities of 297
        test digits changed by at most 0.00007 (float16) and 0.0005 (bfloat16), while their
        standard deviations over samples reach 0.29.

        Args:
          dtype: "float16" or "bfloat16". Only variables in `float32` or `float64` change.

        Raises:
          ValueError: another dtype, or samples that are too large for it.
        """
        one_of("dtype", dtype, ("float16", "bfloat16"))
        narrow = sample_arrays.in_half_precision(self.samples, self.variables, dtype)
        return self.with_samples(narrow, self.weights)

    def to_keras_model(
        self,
        name: str | None = None,
        inputs: Any = None,
        *,
        batched: bool = False,
        max_bytes: int | None = None,
    ) -> keras.Model:
        """Returns a `keras.Model` whose call averages the model's outputs over all samples.

        It has the inputs of the model, and returns a dict of outputs: "mean" and
        "standard_deviation" as in `predict`, and for outputs with a `NegativeLogLikelihood` of
        numbers "predictive_mean", "aleatoric" and "epistemic" (see `Predictive`). With several
        outputs, their names stand before these, as in "value_mean": the keys of a dict, or the
        names of the layers. Outputs of one layer are "output_0", "output_1" and so on.

        `model.save`, `load_model` (in a program that imports `tfp_sgmcmc.keras`) and `model.export`
        work. A SavedModel needs nothing but TensorFlow to load. Samples of `to_dtype("float16")`
        stay in half precision, which halves these files; `thin` makes them smaller, too.
        `model.quantize("int8")` stores kernels in 8 bits, in a quarter of single precision, with a
        scale for each sample and output channel. A kernel's entry changes by at most 1/254 of the
        largest one of its channel. The arithmetic stays in the dtypes of the variables. Keras'
        other modes are refused.

        Examples:
          >>> import keras, numpy as np, tempfile, tensorflow as tf
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
          >>> model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=1.))
          >>> posterior = sgmcmc.keras.Posterior(
          ...     model, model.trainable_variables, [np.array([[[1.]], [[3.]]], np.float32)])
          >>> shipped = posterior.to_keras_model()
          >>> found = shipped(np.array([[2.]], np.float32))
          >>> [float(found[k][0, 0]) for k in ("predictive_mean", "aleatoric", "epistemic")]
          [4.0, 1.0, 2.0]
          >>> wide = keras.Sequential([keras.Input([64]), keras.layers.Dense(64)])
          >>> samples = [np.ones([20, *v.shape], np.float32) for v in wide.trainable_variables]
          >>> shipped = sgmcmc.keras.Posterior(
          ...     wide, wide.trainable_variables, samples).to_keras_model()
          >>> def stored(model):
          ...     return sum(np.asarray(v).nbytes for v in model.variables)
          >>> before = stored(shipped)
          >>> shipped.quantize("int8", filters="posterior_average")
          >>> round(stored(shipped) / before, 2)
          0.28

        Args:
          name: the name of the model.
          inputs: a `keras.Input` or a nest of them, for a subclassed model, whose inputs are not
            known. Its class must be registered by `keras.saving.register_keras_serializable` if the
            new model is to be saved; `export` needs no registration. None takes the inputs of a
            Functional or Sequential model.
          batched: whether one pass evaluates all samples at once. It is faster for small networks,
            and takes the memory of all samples' hidden units. False takes one after another.
            Layers that TensorFlow cannot vectorize, such as recurrent ones, are looped over.
          max_bytes: the most bytes that the samples may take; they are thinned to fit. None takes
            all samples.

        Raises:
          TypeError: `name` is not a string, or `batched` is no boolean.
          ValueError: one sample of each chain takes more than `max_bytes`; `inputs` are missing, or
            the model cannot be made again from its configuration. When it is saved: a loss is a
            lambda.
          NotImplementedError: a subclassed model has no `get_config`.
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string. Received: {name!r}.")
        checks.boolean("batched", batched)
        k = 1 if max_bytes is None else sample_arrays.thinning(self.samples, max_bytes)
        kept = self.thin(k)
        arrays = SampleArrays(kept.samples, kept.num_chains, kept.weights)
        return averaged_model(self.model, self.variables, arrays, name, inputs, is_batched=batched)

    def distil(
        self,
        x: Any,
        validation_data: tuple[Any, Any],
        *,
        epochs: int = 50,
        batch_size: int = 32,
        seed: Any = None,
    ) -> Distilled:
        r"""Trains one network of the same architecture to predict as all samples together do.

        \[
        \min_w \; - \sum_i \mathbb E_{y \sim p(y \mid x_i)} \log p(y \mid f_w(x_i)), \qquad
        p(y \mid x) = \frac1S \sum_s p(y \mid f_{\theta_s}(x))
        \]

        is minimised by Adam, whose learning rate falls from 0.001 by a cosine, with a new draw of
        each y in each epoch. It begins at the last sample. The network takes the memory and the
        time of one, and does not tell its uncertainty about the weights from the noise.

        Examples:
          >>> import keras, numpy as np
          >>> import tfp_sgmcmc as sgmcmc
          >>> keras.utils.set_random_seed(0)
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
          >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
          >>> kernels = np.array([[[1.]], [[3.]]], np.float32)
          >>> posterior = sgmcmc.keras.Posterior(
          ...     model, model.trainable_variables, [kernels, np.zeros([2, 1], np.float32)])
          >>> x = np.random.default_rng(0).normal(size=[200, 1]).astype(np.float32)
          >>> found = posterior.distil(x, (x, (x > 0).astype(int)), epochs=10, seed=0)
          >>> found.nats_lost < 0.05
          True

        Args:
          x: inputs without labels, a nest of arrays `[rows, ...]`: the training inputs, or more.
          validation_data: inputs and labels that were not trained with, on which both are scored.
          epochs: passes over x.
          batch_size: rows of a step.
          seed: one or two integers. None draws a seed.

        Returns:
          The network with the scores of both, a `Distilled`; `nats_lost` is the difference.

        Raises:
          TypeError: `validation_data` is no tuple, or an array has no numbers.
          ValueError: the model cannot be copied from its configuration, or its loss does not
            determine the distribution of its observations.

        References:
          A. Korattikara, V. Rathod, K. Murphy and M. Welling. Bayesian dark knowledge. NeurIPS,
          2015.
        """
        return distil(self, x, validation_data, epochs, batch_size, seed)

    def to_estimator(self) -> Any:
        """Returns a regressor or classifier of scikit-learn that predicts by this posterior.

        MAPIE makes conformal intervals and sets from it, whose coverage holds for any model and
        posterior. It needs held-out data, `x_held_out` and `y_held_out` here:

            from mapie.regression import SplitConformalRegressor
            conformal = SplitConformalRegressor(
                posterior.to_estimator(), confidence_level=0.9, prefit=True)
            conformal.conformalize(x_held_out, y_held_out)
            mean, intervals = conformal.predict_interval(x)

        A classifier goes to `SplitConformalClassifier` in the same way.

        Raises:
          ModuleNotFoundError: scikit-learn is not installed.
          ValueError: the model has several outputs, or no number or class for each row.
        """
        return estimator(self)

    def plot_calibration(self, x: Any, y: Any, batch_size: int | None = None) -> Any:
        """Returns a `matplotlib.figure.Figure` of how often predictions hold at their probability.

        For classes, the share of right decisions against the probability given to them, in bins.
        For observations that are numbers, the share of them in the central interval against its
        probability. Calibrated predictions lie on the diagonal.

        Args:
          x: inputs, as arrays.
          y: labels or observations, as an array.
          batch_size: as in `predict`.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
          TypeError: y is no array of numbers.
          ValueError: the model has several outputs, or one that is neither a class nor has a
            `NegativeLogLikelihood`; y has another shape than predictions.
        """
        evaluator = self._function(Evaluator)

        def evaluated(labels: Any) -> Any:
            data = self._labelled(x, labels, None, batch_size, steps=None, verbose=0)
            return evaluator.each_batch(self._arrays(), data)

        return plot_calibration(self, evaluator, evaluated, x, y, batch_size)

    def plot_predictions(self, x: Any, y: Any = None, batch_size: int | None = None) -> Any:
        """Returns a `matplotlib.figure.Figure` of predicted numbers with 50 % and 90 % bands.

        Inputs of one column are the horizontal axis; otherwise rows are ordered by their mean.

        Args:
          x: inputs, as an array.
          y: observations to show beside the bands, or None.
          batch_size: as in `predict`.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
          TypeError: y is no array of numbers.
          ValueError: the model has no output that is a number with a `NegativeLogLikelihood`, or y
            has another shape than predictions.
        """
        return plot_predictions(self, x, y, batch_size)

    __repr__, _repr_html_ = shown_by(lambda self: self._table())

    def _table(self) -> Table:
        """Returns a row for each variable; summary() has single weights."""
        chains = "" if self.num_chains is None else f" of each of {self.num_chains} chains"
        rows = [
            (v.path, "x".join(map(str, v.shape)) or "scalar", "yes" if v.trainable else "no")
            for v in self.variables[:_SHOWN]
        ]
        rest = len(self.variables) - len(rows)
        size = sum(int(np.prod(v.shape)) for v in self.variables)
        notes = [f"{rest} more variables."] if rest else []
        if self.weights is not None:
            notes.append("The samples are weighted by their step sizes.")
        if self.temperature is None:
            notes.append("An annealed ensemble: predict() and evaluate() take its mean.")
        else:
            notes.append("summary() shows single weights, worst mixed first.")
        title = (
            f"Posterior of model {self.model.name!r}: {len(self):,} samples{chains}, "
            f"{size:,} numbers each"
        )
        return Table(title, ("variable", "shape", "trained"), rows, notes)

    def __copy__(self) -> Posterior:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises TypeError: deep copies and pickle would separate the samples from the model."""
        raise TypeError(
            "A Posterior cannot be pickled or copied deeply, because it belongs to its model. Use "
            "Posterior.save(path) and Posterior.load(path, model), and model.save for the model. "
            "posterior.with_samples(posterior.samples) is another Posterior of the same model."
        )

    def __len__(self) -> int:
        """Returns the number of samples in each chain."""
        return self.samples[0].shape[0]

    def summary(self, most_entries: int = 1000) -> Summary:
        """Returns mean, standard deviation, R-hat and effective sample size of single weights.

        The entries that mix worst come first. `print` shows them as a table.

        Args:
          most_entries: the largest number of entries of each trainable variable to include, taken
            evenly from all of them.

        Raises:
          ValueError: chains have fewer than 4 samples.
        """
        return self._summarized(most_entries)[0]

    def plot(self, num_entries: int = 4, most_entries: int = 1000) -> Any:
        """Returns a `matplotlib.figure.Figure` of traces and marginals of the worst entries.

        Each chain has its colour. Marginals are histograms by the samples' weights.

        Args:
          num_entries: the number of entries to show, in the order of `summary`.
          most_entries: as in `summary`.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
          ValueError: chains have fewer than 4 samples.
        """
        integer("num_entries", num_entries, 1)
        import_figure()
        found, traces = self._summarized(most_entries)
        return plot(found, traces, self.weights, num_entries)

    def _summarized(self, most_entries: int) -> tuple[Summary, np.ndarray]:
        self._check_law("R-hat, effective sample sizes and posterior moments")
        integer("most_entries", most_entries, 1)
        return summarize(self.variables, self._arrays(), most_entries)

    def named_draws(self) -> dict[str, np.ndarray]:
        """Returns the samples of trainable variables, `[samples, chains, ...]`, by path.

        Dots replace the slashes of paths. All samples are in memory at once.

        Raises:
          ValueError: several variables share a path.
        """
        pairs = zip(self.variables, self.samples, strict=True)
        trained = [(v.path, s) for v, s in pairs if v.trainable]
        with_chains = self._arrays().with_chains
        arrays = {path.replace("/", "."): with_chains(s) for path, s in trained}
        if len(arrays) < len(trained):
            raise ValueError(
                "Several variables share a path. Give their layers names that differ. Received: "
                f"{', '.join(path for path, _ in trained)}."
            )
        return arrays

    def to_inference_data(self, log_likelihood: np.ndarray | None = None) -> Any:
        """Returns the groups of this posterior, with dimensions chain and draw, for ArviZ.

        This is an `xarray.DataTree` for ArviZ 1, and an `arviz.InferenceData` before.

        Its group `posterior` has the trainable variables by path, with dots in place of slashes.
        All samples are in memory at once. ArviZ's estimates do not weight samples: weights are in
        the group `sample_stats` as "weight". Samples at equal distances in time
        (`Collect(mixing_distance=...)`) need none.

        Args:
          log_likelihood: the return value of the method `log_likelihood`. The group
            `log_likelihood` then has it as "y", for `arviz.loo` and the like.

        Raises:
          ModuleNotFoundError: ArviZ is not installed.
          ValueError: several variables share a path, or `log_likelihood` has another shape.
        """
        self._check_law("An ArviZ object, with what is computed from it,")
        import_arviz()
        lead = (len(self),) if self.num_chains is None else (len(self), self.num_chains)
        shape = None if log_likelihood is None else getattr(log_likelihood, "shape", ())
        if shape is not None and (tuple(shape[:-1]) != lead or not shape[-1:]):
            raise ValueError(
                f"log_likelihood must be an array of shape {[*lead, 'rows']}, as the method "
                f"log_likelihood returns it. Received: shape {list(shape)}."
            )

        arrays = {name: np.swapaxes(x, 0, 1) for name, x in self.named_draws().items()}
        groups = {"posterior": as_dataset(arrays)}
        if log_likelihood is not None:
            by_example = np.swapaxes(self._arrays().with_chains(log_likelihood), 0, 1)
            groups["log_likelihood"] = as_dataset({"y": by_example})
        if self.weights is not None:
            weight = np.broadcast_to(self.weights, [self.num_chains or 1, len(self)])
            groups["sample_stats"] = as_dataset({"weight": weight})
        return inference_data(groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the samples, but not the model, to a file that by convention is named `.npz`.

        The file has NumPy's format, with a header in JSON and without pickle. Save the model by
        `model.save`.
        """
        _check_path(path)
        own = self.model, self.variables, self._arrays(), self.temperature, self._rest
        sample_arrays.write_file(path, *own)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: keras.Model) -> Posterior:
        """Reads the samples that `save` wrote, for a model with the same variables.

        Args:
          path: the path of the file.
          model: a built model, either the one that was sampled or another, such as
            `keras.models.load_model` returns. Its variables must have the same paths (apart from
            the model's name, and from the numbers in names that Keras gives), shapes and dtypes.

        Raises:
          FileNotFoundError: the file does not exist.
          ValueError: the file is damaged, was not written by `save`, or has samples of another
            model.
        """
        internals.check_built(model)
        _check_path(path)
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"path must be a file that Posterior.save wrote. Received: {path}, which does not "
                "exist."
            )
        arguments, rest = sample_arrays.read_file(path, model)
        warn_if_changed(model, arguments[0], rest, stacklevel=2)
        return cls(model, *arguments)

    @classmethod
    def concatenate(cls, posteriors: Sequence[Posterior]) -> Posterior:
        """Returns a posterior that has the chains of several posteriors side by side, in memory.

        A posterior without an axis of chains is one chain. R-hat of `outputs` then compares
        several runs, such as `fit`s on other machines whose samples came by `save` and `load`.

        Examples:
          >>> import keras, numpy as np
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
          >>> runs = [
          ...     sgmcmc.keras.Posterior(model, model.trainable_variables, [x])
          ...     for x in np.random.default_rng(0).normal(size=[2, 50, 1, 1]).astype(np.float32)]
          >>> both = sgmcmc.keras.Posterior.concatenate(runs)
          >>> len(both), both.num_chains, both.samples[0].shape
          (50, 2, (50, 2, 1, 1))

        Args:
          posteriors: posteriors of one model and the same variables, with equally many samples in
            each chain and the same weights.

        Raises:
          ValueError: there are none, or they differ in one of these.
          TypeError: something is not a Posterior.
        """
        return cls(*sample_arrays.concatenated(posteriors, Posterior))

    def _check_law(self, what: str) -> None:
        """Raises ValueError if the samples follow no law."""
        if self.temperature is None:
            raise ValueError(
                f"{what} must come from draws of one law. Received: an annealed ensemble, whose "
                "temperature and prior changed along the run. It predicts, but its members are no "
                "posterior draws. For those give SamplerCallback a kernel, or "
                'SamplerCallback("posterior", prior=...).'
            )

    def _arrays(self) -> SampleArrays:
        return SampleArrays(self.samples, self.num_chains, self.weights)

    def _labelled(self, x: Any, y: Any, weight: Any, batch_size: Any, **given: Any) -> Batches:
        return Batches(self.model, x, y, weight, batch_size=batch_size, has_labels=True, **given)

    def _function(self, kind: Callable[..., Any], *arguments: Any) -> Any:
        """Returns `kind(model, variables, *arguments)`, cached until the model is compiled anew."""
        self._rest = warn_if_changed(self.model, self.variables, self._rest, stacklevel=3)
        key = snapshot((*arguments, *internals.compilation(self.model)))
        if kind not in self._functions or not is_same(self._functions[kind][0], key):
            self._functions[kind] = key, kind(self.model, self.variables, *arguments)
        return self._functions[kind][1]


def _check_path(path: Any) -> None:
    is_folder = checks.path("path", path).is_dir()
    checks.require("path", f"{path!r}, a directory", not is_folder, "the name of a file")

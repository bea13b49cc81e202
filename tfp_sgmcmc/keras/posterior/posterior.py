"""Samples of a model's variables, and what is computed from them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.diagnostics.arviz_import import import_arviz
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior import archive, sample_arrays
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation, Evaluator
from tfp_sgmcmc.keras.posterior.predict import Activation, PosteriorPrediction, Predictor


class Posterior:
    r"""Samples \( \theta_1, \dots, \theta_S \) of a model's weights, as `SamplerCallback` draws.

    They approximate the posterior predictive

    \[
    p(y \mid x) = \frac 1 S \sum_{s=1}^S p(y \mid f_{\theta_s}(x)).
    \]

    Samples may be on disk. They are read in chunks, and rows are evaluated in batches. The model is
    evaluated in the mode in which it was compiled, with `training=False`, and its weights stay as
    they are.

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
      model: a built model. Weights that are not sampled keep the values that it has.
      variables: the variables of the model that the samples are values of.
      samples: one array `[num_kept, ...]` for each of `variables`, or `[num_kept, num_chains, ...]`
        with chains. NumPy arrays, or objects with `shape`, `dtype` and slices, such as
        `zarr.Array`. Samples of half-precision variables may be in single precision.
      num_chains: the number of chains, or None for samples without an axis of chains.

    Raises:
      ValueError: there are no samples, or their number, shapes or dtypes do not fit the variables.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: Sequence[keras.Variable],
        samples: Sequence[Any],
        num_chains: int | None = None,
    ):
        self.model, self.variables, self.num_chains = model, list(variables), num_chains
        self.samples = sample_arrays.checked(samples, self.variables, num_chains)
        self._functions: dict[Any, Any] = {}  # compiled functions, with what they depend on

    def with_samples(self, samples: Sequence[Any]) -> Posterior:
        """Returns a posterior of other samples, such as thinned ones, with the same functions."""
        other = copy.copy(self)
        other.samples = sample_arrays.checked(samples, self.variables, self.num_chains)
        return other

    def __len__(self) -> int:
        """Returns the number of samples in each chain."""
        return self.samples[0].shape[0]

    def predict(
        self, x: Any, batch_size: int = 32, activation: Activation = "auto"
    ) -> PosteriorPrediction:
        """Returns mean, standard deviation and entropies of the outputs over samples and chains.

        The mean is one of probabilities, because a mean of logits would be wrong. With
        `activation="auto"`, outputs get a softmax or sigmoid where the compiled loss is a
        crossentropy object with `from_logits=True`. Entropies are given only with "auto", for
        outputs whose loss is a crossentropy of Keras, because these are probabilities.

        Args:
          x: an array or nest of arrays, `[rows, ...]`.
          batch_size: the number of rows that are evaluated at once.
          activation: "auto", None (outputs as they are), or a callable on the outputs.

        Raises:
          ValueError: `activation` is an unknown string, or "auto" for a model that is not compiled.
        """
        predictor = self._function(Predictor, activation)
        return predictor(self.samples, self.num_chains, x, batch_size)

    def outputs(self, x: Any, batch_size: int = 32, activation: Activation = "auto") -> Any:
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
        predictor = self._function(Predictor, activation)
        return predictor.outputs(self.samples, self.num_chains, x, batch_size)

    def evaluate(
        self, x: Any, y: Any, sample_weight: Any = None, batch_size: int = 32
    ) -> Evaluation:
        r"""Returns log predictive density, and accuracy and calibration error of classifications.

        The log predictive density of an example is

        \[
        \log \frac 1 S \sum_s \exp(-\ell(y_i, f_{\theta_s}(x_i))),
        \]

        where \( \ell \) is the compiled loss, summed over outputs by `loss_weights`. It is the
        negative log likelihood that `SamplerCallback` samples with, without regularisers.

        Args:
          x: an array or nest of arrays, `[rows, ...]`.
          y: labels, as `fit` takes them.
          sample_weight: weights `[rows]` of the examples in all averages. They do not weight the
            likelihoods, as they do in `fit`. None weights all examples by 1.
          batch_size: the number of rows that are evaluated at once.

        Raises:
          ValueError: the model's loss is not a negative log likelihood (see `SamplerCallback`),
            lengths differ, or weights are not finite, negative or all zero.
        """
        evaluator = self._function(Evaluator)
        return evaluator(self.samples, self.num_chains, (x, y), sample_weight, batch_size)

    def log_likelihood(self, x: Any, y: Any, batch_size: int = 32) -> np.ndarray:
        """Returns minus the compiled loss of each example for each sample, `[num_kept, rows]`.

        With chains the shape is `[num_kept, num_chains, rows]`. Arguments are those of `evaluate`.
        """
        evaluator = self._function(Evaluator)
        return evaluator.log_likelihood(self.samples, self.num_chains, (x, y), batch_size)

    def to_inference_data(self, log_likelihood: np.ndarray | None = None) -> Any:
        """Returns an `arviz.InferenceData` with dimensions chain and draw.

        Its group `posterior` has the trainable variables by path, with dots in place of slashes.
        All samples are in memory at once.

        Args:
          log_likelihood: the return value of the method `log_likelihood`. The group
            `log_likelihood` then has it as "y", for `arviz.loo` and the like.

        Raises:
          ModuleNotFoundError: ArviZ is not installed.
          ValueError: several variables share a path.
        """
        arviz = import_arviz()

        def by_chain(values: Any) -> np.ndarray:
            values = np.asarray(values[:])
            return values[np.newaxis] if self.num_chains is None else np.swapaxes(values, 0, 1)

        pairs = zip(self.variables, self.samples, strict=True)
        trained = [(v.path, s) for v, s in pairs if v.trainable]
        arrays = {path.replace("/", "."): by_chain(s) for path, s in trained}
        if len(arrays) < len(trained):
            raise ValueError(
                "Several variables share a path. Give their layers names that differ. Received: "
                f"{', '.join(path for path, _ in trained)}."
            )
        by_example = None if log_likelihood is None else {"y": by_chain(log_likelihood)}
        return arviz.from_dict(posterior=arrays, log_likelihood=by_example)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the samples, but not the model, to a file that by convention is named `.npz`.

        The file has NumPy's format, with a header in JSON and without pickle. Save the model by
        `model.save`.
        """
        archive.write(path, self.model, self.variables, self.samples, self.num_chains)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: keras.Model) -> Posterior:
        """Reads the samples that `save` wrote, for a model with the same variables.

        Args:
          path: the path of the file.
          model: a built model, either the one that was sampled or another, such as
            `keras.models.load_model` returns. Its variables must have the same paths (apart from
            the model's name), shapes and dtypes.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, was not written by `save`, or has samples of another
            model.
        """
        return cls(model, *archive.read(path, model))

    def _function(self, kind: Callable[..., Any], *arguments: Any) -> Any:
        """Returns `kind(model, variables, *arguments)`, cached until the model is compiled anew."""
        key = (*arguments, *internals.compilation(self.model))
        if kind not in self._functions or self._functions[kind][0] != key:
            self._functions[kind] = key, kind(self.model, self.variables, *arguments)
        return self._functions[kind][1]

"""What a fit leaves: samples of a model's variables, and what is computed from them."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior import archive
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation, Evaluator
from tfp_sgmcmc.keras.posterior.predict import PosteriorPrediction, Predictor


class Posterior:
    r"""Samples \( \theta_1, \dots, \theta_S \) of a model's weights, as `SamplerCallback` draws.

    They stand for the posterior predictive

    \[
    p(y \mid x) = \frac 1 S \sum_{s=1}^S p(y \mid f_{\theta_s}(x)).
    \]

    Samples may lie on a disk: they are read in chunks, rows are evaluated in batches, and the model
    is evaluated as it was compiled, with `training=False`. Its own weights are left as they are.

    #### Example

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
    >>> prediction.mutual_information[:, 0].round(3)  # only where the samples disagree
    array([0.   , 0.389], dtype=float32)
    >>> round(posterior.evaluate(x, y).log_predictive_density, 3)  # of log 0.5 and log 0.624
    -0.582

    Args:
      model: built. Weights that are not sampled keep the values that it has.
      variables: of the model, those that the samples are values of.
      samples: `[num_kept, ...]` for each of `variables`, with chains `[num_kept, num_chains, ...]`:
        NumPy arrays, or others with `shape`, `dtype` and slices, such as `zarr.Array`. Those of
        half-precision variables may be in single precision.
      num_chains: or None, for samples without an axis of chains.

    Raises:
      ValueError: samples whose number, shapes or dtypes do not fit the variables, or none at all.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: Sequence[keras.Variable],
        samples: Sequence[Any],
        num_chains: int | None = None,
    ):
        self.model, self.variables, self.num_chains = model, list(variables), num_chains
        self.samples = self._checked(samples)
        self._functions: dict[Any, Any] = {}  # compiled, by what they were compiled with

    def with_samples(self, samples: Sequence[Any]) -> Posterior:
        """The same with other samples, thinned ones, say; what is compiled is so for both."""
        other = copy.copy(self)
        other.samples = self._checked(samples)
        return other

    def __len__(self) -> int:
        """The number of samples that each chain left."""
        return self.samples[0].shape[0]

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        activation: Callable[[Any], Any] | str | None = "auto",
    ) -> PosteriorPrediction:
        """Mean, standard deviation and entropies of the model's outputs over samples and chains.

        Averages of logits would be wrong: probabilities are what is averaged. With
        `activation="auto"` outputs get a softmax or sigmoid where the compiled loss is a
        crossentropy object with `from_logits=True`. Entropies are given with "auto" only, of the
        outputs for which the loss is one of Keras' crossentropies: they are probabilities.

        Args:
          x: an array or nest of arrays, `[rows, ...]`.
          batch_size: rows evaluated at once.
          activation: "auto", None (outputs as they are), or a callable on the outputs.

        Raises:
          ValueError: an unknown `activation`; "auto" for a model that is not compiled.
        """
        predictor = self._function(Predictor, activation)
        return predictor(self.samples, self.num_chains, x, batch_size)

    def outputs(
        self,
        x: Any,
        batch_size: int = 32,
        activation: Callable[[Any], Any] | str | None = "auto",
    ) -> Any:
        """The model's outputs by each sample, `[num_kept, rows, ...]`.

        With chains `[num_kept, num_chains, rows, ...]`: in this layout `tfp.mcmc` has the R-hat
        and the effective sample size of predictions, as it has those of the weights in `samples`.
        All outputs are in memory at once; `predict` needs only their mean.

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

        Arguments and exceptions are those of `predict`.
        """
        predictor = self._function(Predictor, activation)
        return predictor.outputs(self.samples, self.num_chains, x, batch_size)

    def evaluate(
        self, x: Any, y: Any, sample_weight: Any = None, batch_size: int = 32
    ) -> Evaluation:
        r"""Log predictive density, and accuracy and calibration error of classifications.

        The log predictive density of an example is

        \[
        \log \frac 1 S \sum_s \exp(-\ell(y_i, f_{\theta_s}(x_i))),
        \]

        with the compiled loss \( \ell \), summed over outputs by `loss_weights`, as the minus log
        likelihood that `SamplerCallback` samples with; regularisers are none of it.

        Args:
          x: an array or nest of arrays, `[rows, ...]`.
          y: labels, as `fit` takes them.
          sample_weight: `[rows]`, of the examples in all averages (not of their likelihoods, as in
            `fit`); None is 1 for each.
          batch_size: rows evaluated at once.

        Raises:
          ValueError: a model whose loss is no negative log likelihood (see `SamplerCallback`);
            lengths that differ; unfit weights.
        """
        evaluator = self._function(Evaluator)
        return evaluator(self.samples, self.num_chains, x, y, sample_weight, batch_size)

    def log_likelihood(self, x: Any, y: Any, batch_size: int = 32) -> np.ndarray:
        """Of each example by each sample, `[num_kept, rows]`: minus the compiled loss.

        With chains `[num_kept, num_chains, rows]`. Arguments are those of `evaluate`.
        """
        evaluator = self._function(Evaluator)
        return evaluator.log_likelihood(self.samples, self.num_chains, x, y, batch_size)

    def to_inference_data(self, log_likelihood: np.ndarray | None = None) -> Any:
        """An `arviz.InferenceData` with dimensions chain and draw, for ArviZ' statistics and plots.

        Its group `posterior` has the trainable variables by path, with dots in place of slashes;
        all samples are in memory at once.

        Args:
          log_likelihood: what the method of this name returned; then the group `log_likelihood` has
            it as "y", for `arviz.loo` and the like.

        Raises:
          ImportError: ArviZ is not installed.
          ValueError: variables that share a path.
        """
        arviz = _arviz()
        pairs = [
            (v.path, s) for v, s in zip(self.variables, self.samples, strict=True) if v.trainable
        ]
        groups = {"posterior": {path.replace("/", "."): self._by_chain(s) for path, s in pairs}}
        if len(groups["posterior"]) < len(pairs):
            raise ValueError(
                "Several variables share a path; give their layers names of their own: "
                f"{', '.join(path for path, _ in pairs)}."
            )
        if log_likelihood is not None:
            groups["log_likelihood"] = {"y": self._by_chain(log_likelihood)}
        return arviz.from_dict(**groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the samples to a file, by convention `.npz`; the model is saved by `model.save`.

        The file is NumPy's, with a header in JSON, and holds no pickle.
        """
        archive.write(path, self.model, self.variables, self.samples, self.num_chains)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: keras.Model) -> Posterior:
        """Reads the samples that `save` wrote, for a model with the same variables.

        Args:
          path: of the file.
          model: built; the one that was sampled, or another whose variables have the same paths
            (but for the model's own name), shapes and dtypes, such as `keras.models.load_model`
            returns.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: a file that is damaged, or none of these; samples of another model.
        """
        return cls(model, *archive.read(path, model))

    def _by_chain(self, values: Any) -> np.ndarray:
        """`[num_chains, num_kept, ...]`."""
        values = np.asarray(values[:])
        return values[np.newaxis] if self.num_chains is None else np.swapaxes(values, 0, 1)

    def _checked(self, samples: Sequence[Any]) -> list[Any]:
        if len(samples) != len(self.variables) or not samples:
            raise ValueError(
                f"samples has {len(samples)} arrays for {len(self.variables)} variables; one for "
                "each, and at least one, is expected."
            )
        length = samples[0].shape[0] if samples[0].shape else 0
        chains = [] if self.num_chains is None else [self.num_chains]
        checked = []
        for variable, values in zip(self.variables, samples, strict=True):
            own = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
            if own.itemsize < 4 and values.dtype == np.float32:
                values = _Narrowed(values, own)
            expected = (max(length, 1), *chains, *variable.shape)
            if tuple(values.shape) != expected or values.dtype != own:
                raise ValueError(
                    f"The samples of {variable.path} are {values.dtype} of shape "
                    f"{tuple(values.shape)}; {own} of shape {expected} is expected."
                )
            checked.append(values)
        return checked

    def _function(self, kind: Callable[..., Any], *arguments: Any) -> Any:
        """`kind(model, variables, *arguments)`, kept until the model is compiled anew."""
        key = (*arguments, *internals.compilation(self.model))
        if kind not in self._functions or self._functions[kind][0] != key:
            self._functions[kind] = key, kind(self.model, self.variables, *arguments)
        return self._functions[kind][1]


class _Narrowed:
    """Half-precision samples that lie on a disk in single precision, as zarr has no bfloat16."""

    def __init__(self, values: Any, dtype: np.dtype):
        self._values, self.shape, self.dtype = values, values.shape, dtype

    def __getitem__(self, item: Any) -> np.ndarray:
        return np.asarray(self._values[item]).astype(self.dtype)


def _arviz() -> Any:
    with warnings.catch_warnings():
        # Once a day its import says that its interface is going to change.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        try:
            import arviz
        except ImportError as error:
            raise ImportError(
                'ArviZ is not installed: python -m pip install "tfp_sgmcmc[results]".'
            ) from error
    return arviz

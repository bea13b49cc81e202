"""Posterior predictive mean, spread and entropies of a model's outputs.

`estimator` makes them an estimator of scikit-learn, for libraries that take such estimators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import accepts, vector
from tfp_sgmcmc.internal.extras import advised
from tfp_sgmcmc.internal.nest import wide
from tfp_sgmcmc.internal.tables import Table, first_rows, shown_by
from tfp_sgmcmc.keras.model import compiled_loss, internals, likelihoods
from tfp_sgmcmc.keras.posterior import sample_loops
from tfp_sgmcmc.keras.posterior.batches import Batches, check_finite, no_tick, num_rows
from tfp_sgmcmc.keras.posterior.mixtures import Mixture, systematic
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays

_SHOWN_ROWS, _SHOWN_COLUMNS = 10, 4
_SHARE_OF_AVERAGES = 0.1  # of the time of a prediction with quantiles, for the progress bar
Activation = Callable[[Any], Any] | str | None


class Prediction(NamedTuple):
    """Posterior average of a model's outputs, and their spread over the samples.

    Attributes:
      mean: the average over samples, in the structure of the outputs, `[rows, ...]`.
      standard_deviation: the standard deviation over samples (the divisor is the sum of their
        weights). It measures the uncertainty about the weights, not the noise of an observation.
    """

    mean: Any
    standard_deviation: Any

    __repr__, _repr_html_ = shown_by(lambda self: prediction_table(self))


class Predictive(NamedTuple):
    r"""The posterior predictive of an observation that is a number, entry by entry.

    With means \( m_s \) and variances \( v_s \) of an observation by sample s, the law of total
    variance is

    \[
    \mathrm{Var}\, y = \underbrace{\frac 1 S \sum_s v_s}_{\text{aleatoric}^2}
      + \underbrace{\frac 1 S \sum_s (m_s - \bar m)^2}_{\text{epistemic}^2}.
    \]

    Attributes:
      mean: \( \bar m \), `[rows, ...]` in the shape of the observations. NaN where the mean of the
        distribution has no closed form, as for the next three.
      standard_deviation: the standard deviation of y.
      aleatoric: the part due to the noise of an observation.
      epistemic: the part due to uncertainty about the weights. More data make it smaller.
      quantiles: `[num_quantiles, rows, ...]`, the quantiles of the mixture over samples, or None.
        They are as exact as its CDF, or quantiles of draws if there is no CDF.
    """

    mean: Any
    standard_deviation: Any
    aleatoric: Any
    epistemic: Any
    quantiles: Any


class PosteriorPrediction(NamedTuple):
    r"""`Prediction`, with the entropies of outputs that are probabilities, in nats.

    Let \( p_s \) be the probabilities by sample s, \( \bar p \) their mean, and H the entropy over
    the classes, or over {0, 1} for an output that is the probability of 1. Then

    \[
    H[\bar p] = \underbrace{\frac 1 S \sum_s H[p_s]}_{\text{noise of an observation}}
      + \underbrace{I}_{\text{uncertainty about the weights}}.
    \]

    Attributes:
      mean: the average over samples, in the structure of the outputs, `[rows, ...]`.
      standard_deviation: the standard deviation of the outputs over samples, by their weights.
      entropy: \( H[\bar p] \), in the structure of the outputs and in their shapes without the axis
        of classes. Outputs that are probabilities of 1 have one entropy for each entry. None for
        outputs that are not probabilities.
      mutual_information: I, the mutual information of an observation and the weights, shaped as
        `entropy`. Active learning by disagreement maximises it.
      predictive: a `Predictive` of each output whose observations are numbers, in the structure of
        the outputs; None for other outputs.

    References:
      N. Houlsby, F. Huszár, Z. Ghahramani and M. Lengyel. Bayesian active learning for
      classification and preference learning. arXiv:1112.5745, 2011. Equation 2.
    """

    mean: Any
    standard_deviation: Any
    entropy: Any
    mutual_information: Any
    predictive: Any = None

    __repr__, _repr_html_ = shown_by(lambda self: prediction_table(self))


def prediction_table(prediction: Prediction | PosteriorPrediction) -> Table:
    """Returns the first rows of a prediction, of one output; shapes for several outputs."""
    flat = keras.tree.flatten(prediction.mean)
    shapes = ", ".join(str([*np.shape(x)]) for x in flat)
    title = f"{type(prediction).__name__} of {len(flat[0]):,} rows, outputs {shapes}"
    if len(flat) > 1:
        return Table(title)
    mean, sd = (np.asarray(x).reshape(len(flat[0]), -1) for x in prediction[:2])
    mean, sd = mean[:_SHOWN_ROWS], sd[:_SHOWN_ROWS]
    entropy = prediction.entropy if isinstance(prediction, PosteriorPrediction) else None
    if entropy is not None and np.ndim(flat[0]) == 2 and mean.shape[1] > 1:
        best = mean.argmax(axis=1)[:, np.newaxis]
        columns = ["likeliest class", "probability", "sd"]
        parts = (np.take_along_axis(x, best, axis=1) for x in (mean, sd))
        cells = [best.astype(str), *(np.char.mod("%.3f", x) for x in parts)]
    else:
        names = [str(i) for i in range(min(mean.shape[1], _SHOWN_COLUMNS))]
        columns = [*(f"mean {i}" for i in names), *(f"sd {i}" for i in names)]
        cells = [np.char.mod("%.4g", x[:, : len(names)]) for x in (mean, sd)]
    if entropy is not None:
        of_classes = (np.asarray(x).reshape(len(flat[0]), -1) for x in prediction[2:4])
        cells += [np.char.mod("%.3f", x[:_SHOWN_ROWS, :1]) for x in of_classes]
        columns += ["entropy", "mutual information"]
    texts = np.concatenate(cells, axis=1).T.tolist()
    return first_rows(title, dict(zip(columns, texts, strict=True)), len(flat[0]))


def checked_levels(quantiles: Any) -> tuple[float, ...] | None:
    """Returns levels of quantiles as floats; raises unless they are numbers in (0, 1) or None."""
    if quantiles is None:
        return None
    expected = "a list of numbers in (0, 1)"
    levels = vector("quantiles", quantiles, expected, lambda x: (x > 0) & (x < 1))
    return tuple(levels.astype(np.float64).tolist())


def check_activation(activation: Any) -> None:
    """Raises TypeError or ValueError unless it is "auto", None or a callable."""
    is_callable = callable(activation) and not isinstance(activation, type)
    if is_callable:
        accepts("activation", activation, "outputs")
    if activation is None or is_callable or isinstance(activation, str) and activation == "auto":
        return
    error = ValueError if isinstance(activation, str) else TypeError
    raise error(f"activation must be 'auto', None or a callable. Received: {activation!r}.")


class Predictor:
    """Averages `activation(model(x))` over samples of the variables; see `Posterior.predict`."""

    def __init__(self, model: keras.Model, variables: list[keras.Variable], activation: Activation):
        if activation == "auto" and not (model.compiled and model.loss):
            raise ValueError(
                "model must be compiled with a loss for activation='auto', because the loss "
                "determines if outputs are logits. Received: a model that is not compiled with a "
                "loss. Compile it, or pass activation=None or a callable."
            )
        self._model, self._variables, self._activation = model, variables, activation
        self._averages = sample_loops.AverageSamples(model, self._terms)
        self._outputs = sample_loops.MapSamples(model, self._output)

    def __call__(
        self, samples: SampleArrays, data: Batches, levels: tuple[float, ...] | None = None
    ) -> PosteriorPrediction:
        """Predicts for the inputs of `data`, with quantiles at the given levels."""
        averages: list[sample_loops.Averages] = []
        quantiles, rows = [], 0
        share = 1.0 if levels is None else _SHARE_OF_AVERAGES
        for block, tick in data.blocks():
            inputs = [x for x, *_ in block]
            found = self._averages(samples, inputs, lambda done, tick=tick: tick(share * done))
            check_finite([part.mean[0] for part in found], block, rows)
            if levels is not None:
                for i, (x, part) in enumerate(zip(inputs, found, strict=True)):
                    quantiles.append(self._quantiles(samples, x, part, levels, len(averages) + i))
                    tick(share + (1 - share) * (i + 1) / len(block))
            averages += found
            rows += sum(map(num_rows, inputs))
        (mean, means), (variance, spreads), (of_samples, noises), *_ = (
            sample_loops.joined([*parts], axis=0) for parts in zip(*averages, strict=True)
        )
        if self._activation == "auto":
            compiled_loss.check_probabilities(self._model, mean)
        flat = keras.tree.flatten(mean)
        entropies, information = {}, {}
        pairs = zip(self._probabilities(mean).items(), of_samples, strict=True)
        for (place, classes), of_sample in pairs:
            entropies[place] = entropy(flat[place], classes.axis).numpy()
            # Rounding may make it negative where all samples agree.
            information[place] = np.maximum(entropies[place] - of_sample, 0)
        of_levels = sample_loops.joined(quantiles, axis=1) if quantiles else [None] * len(means)
        numbers = zip(self._numbers(mean), means, spreads, noises, of_levels, strict=True)
        predictive = {
            place: Predictive(m, np.sqrt(noise + spread), np.sqrt(noise), np.sqrt(spread), q)
            for place, m, spread, noise, q in numbers
        }
        return PosteriorPrediction(
            mean,
            keras.tree.map_structure(np.sqrt, variance),
            internals.at_places(mean, entropies),
            internals.at_places(mean, information),
            internals.at_places(mean, predictive),
        )

    def _quantiles(
        self,
        samples: SampleArrays,
        x: Any,
        averages: sample_loops.Averages,
        levels: tuple[float, ...],
        number: int,
    ) -> list[np.ndarray]:
        """Returns the quantiles of each output that is a number, for the batch of this number."""
        numbers = self._numbers(averages.mean[0])
        if not numbers:
            raise ValueError(
                "quantiles and bands of predictions need an output whose loss is a "
                "NegativeLogLikelihood of numbers, and activation='auto'. Received: a model or an "
                "activation without."
            )
        outputs = keras.tree.flatten(self._outputs(samples, [x], no_tick))
        return [
            Mixture(observation, samples.flat(outputs[place]), samples.shares(), number)
            .quantiles(levels)
            .astype(outputs[place].dtype)
            for place, observation in numbers.items()
        ]

    def outputs(self, samples: SampleArrays, data: Batches) -> Any:
        """Returns the outputs of each sample, as `Posterior.outputs` does."""
        parts = [
            self._outputs(samples, [x for x, *_ in block], tick) for block, tick in data.blocks()
        ]
        return sample_loops.joined(parts, axis=1 if samples.num_chains is None else 2)

    def draw(
        self, samples: SampleArrays, data: Batches, num_draws: int | None, seed: tf.Tensor
    ) -> Any:
        """Draws observations, as `Posterior.sample_predictive` does."""
        shares = samples.shares()
        first, each = random.split(seed, 2)
        chosen = systematic(shares, num_draws or len(shares), first)
        parts = []
        for block, tick in data.blocks():
            for done, (x, *_) in enumerate(block, 1):
                outputs = self._outputs(samples, [x], no_tick)
                taken = keras.tree.map_structure(lambda y: samples.flat(y)[chosen], outputs)
                parts.append(self._draws_of(taken, random.fold_in(each, len(parts))))
                tick(done / len(block))
        return internals.at_places(outputs, sample_loops.joined(parts, axis=1))

    def _draws_of(self, outputs: Any, seed: tf.Tensor) -> dict[int, np.ndarray]:
        """Returns draws by place of the output, given outputs `[num_draws, rows, ...]`."""
        flat = keras.tree.flatten(outputs)
        joint = keras.tree.map_structure(lambda y: y.reshape(-1, *y.shape[2:]), outputs)
        observed = likelihoods.of_draws(self._model, joint)
        losses = {place for place, _ in compiled_loss.placed_losses(self._model, joint)}
        if not losses or losses - {*observed}:
            other = f"another loss of output {min(losses - {*observed})}" if losses else "no loss"
            raise ValueError(
                "Observations can be drawn if the loss of each output is a NegativeLogLikelihood, "
                "a crossentropy or the Poisson loss of Keras, or if it has none beside others. "
                f"Received: {other}, without a distribution."
            )
        found = {}
        for place, make in observed.items():
            rows = tf.convert_to_tensor(keras.tree.flatten(joint)[place])
            draws = make(rows).sample(seed=random.fold_in(seed, place)).numpy()
            found[place] = draws.reshape(*flat[place].shape[:2], *draws.shape[1:])
        return found

    def _output(self, values: list[tf.Tensor], batch: Any) -> Any:
        forward = internals.forward(self._model, self._variables, values, batch, training=False)
        if self._activation == "auto":
            return compiled_loss.activate(self._model, forward.outputs)
        if not callable(self._activation):
            return forward.outputs
        found = self._activation(forward.outputs)
        rows = keras.tree.flatten(forward.outputs)[0].shape[:1]
        for leaf in keras.tree.flatten(found) or [found]:
            shape = getattr(leaf, "shape", None)
            if shape is None or not tf.TensorShape(shape)[:1].is_compatible_with(rows):
                received = f"{leaf!r}" if shape is None else f"shape {shape}"
                raise ValueError(
                    "activation must return a tensor, or a nest of tensors, with one row for each "
                    f"row of the outputs. Received: {received}."
                )
        return found

    def _probabilities(self, outputs: Any) -> dict[int, compiled_loss.Classes]:
        return compiled_loss.classes(self._model, outputs) if self._activation == "auto" else {}

    def _numbers(self, outputs: Any) -> dict[int, likelihoods.ObservationModel]:
        if self._activation != "auto":
            return {}
        return likelihoods.of_numbers(self._model, outputs)

    def _terms(self, values: list[tf.Tensor], batch: Any) -> sample_loops.Terms:
        y = wide(self._output(values, batch))
        flat = keras.tree.flatten(y)
        entropies = [entropy(flat[i], c.axis) for i, c in self._probabilities(y).items()]
        found = [_moments_of(observed(flat[i])) for i, observed in self._numbers(y).items()]
        return sample_loops.Terms(
            wide((y, [m for m, _ in found])), (entropies, [v for _, v in found])
        )


def _moments_of(observed: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of a distribution, NaN where they have no closed form."""
    found = likelihoods.moments(observed)
    if found is None:
        shape = tf.concat([observed.batch_shape_tensor(), observed.event_shape_tensor()], axis=0)
        found = (tf.fill(shape, tf.constant(np.nan, observed.dtype)),) * 2
    return found


def entropy(probabilities: tf.Tensor, axis: int | None) -> tf.Tensor:
    """Returns entropies in nats over the classes along `axis`, or over {0, 1} if it is None.

    With None each entry of `probabilities` is the probability of 1.
    """
    minus_p_log_p = -tf.math.xlogy(probabilities, probabilities)
    if axis is None:
        return minus_p_log_p - tf.math.xlogy(1 - probabilities, 1 - probabilities)
    return tf.reduce_sum(minus_p_log_p, axis=axis)


def estimator(posterior: Any) -> Any:
    """Returns a scikit-learn estimator that predicts by a posterior.

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
    """
    install = 'python -m pip install "tfp_sgmcmc[conformal]"'
    with advised(f"to_estimator needs scikit-learn. Install it, with MAPIE, by {install}"):
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Estimator(BaseEstimator):
        """A posterior that was sampled already, with the methods of scikit-learn."""

        def __init__(self, posterior: Any):
            self.posterior = posterior
            self.is_fitted = True  # what MAPIE looks for

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def __deepcopy__(self, memo: Any) -> Any:
            return self  # a posterior belongs to its model

        def fit(self, x: Any, y: Any = None) -> Any:
            """Raises TypeError: `SamplerCallback` has sampled the posterior."""
            raise TypeError("The posterior was sampled already. Pass prefit=True.")

    class Regressor(RegressorMixin, Estimator):
        def predict(self, x: Any) -> np.ndarray:
            """Returns the predictive mean, `[rows]`."""
            predictive = self.posterior.predict(x, verbose=0).predictive
            mean = keras.tree.flatten(predictive)[0]  # also of a nest with one output
            if mean.ndim > 2 or mean.shape[1:] not in ((), (1,)):
                raise ValueError(
                    "The model must predict one number for each row. Received: predictions of "
                    f"shape {mean.shape}."
                )
            return mean.reshape(-1)

    class Classifier(ClassifierMixin, Estimator):
        def __init__(self, posterior: Any, num_classes: int):
            super().__init__(posterior)
            self.num_classes, self.classes_ = num_classes, np.arange(num_classes)

        def predict_proba(self, x: Any) -> np.ndarray:
            """Returns the mean probabilities of the classes, `[rows, classes]`."""
            (p,) = keras.tree.flatten(self.posterior.predict(x, verbose=0).mean)
            p = np.asarray(p, np.float64)
            p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
            return p / p.sum(axis=1, keepdims=True)

        def predict(self, x: Any) -> np.ndarray:
            """Returns the most probable classes, `[rows]`."""
            return self.predict_proba(x).argmax(axis=1)

    classes, is_regression = _kind(posterior.model)
    return Regressor(posterior) if is_regression else Classifier(posterior, classes)


def _kind(model: keras.Model) -> tuple[int, bool]:
    """Returns the number of classes, and whether the output is a number instead."""
    outputs = internals.symbolic_outputs(model)
    flat = keras.tree.flatten(outputs) if outputs is not None and model.compiled else []
    if len(flat) == 1:
        ((_, found),) = [*compiled_loss.classes(model, outputs).items()] or [(0, None)]
        width = flat[0].shape[-1]
        is_plain = len(flat[0].shape) == 2
        if found is not None and is_plain and (found.axis is not None or width == 1):
            return max(width, 2), False
        if found is None and likelihoods.with_moments(model, outputs):
            return 0, True
    raise ValueError(
        "The model must have a single output [rows, ...], with a crossentropy over one label for "
        "each row or with a NegativeLogLikelihood of a number with a known mean. Received: "
        "another model."
    )

"""A Keras model of a whole posterior: the average over samples as a layer, also in 8 bits."""

from __future__ import annotations

import math
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import wide
from tfp_sgmcmc.keras.model import compiled_loss, internals, likelihoods
from tfp_sgmcmc.keras.model.example_scores import Mapper
from tfp_sgmcmc.keras.posterior import model_copy
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays
from tfp_sgmcmc.keras.posterior.sample_loops import Terms, averaged, averaged_at_once

MODE = "int8"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def averaged_model(
    model: keras.Model,
    variables: list[keras.Variable],
    samples: SampleArrays,
    name: str | None = None,
    inputs: Any = None,
    is_batched: bool = False,
) -> keras.Model:
    """Returns a model whose call averages over samples, as `Posterior.to_keras_model` does."""
    inputs, copied, outputs = model_copy.copy_of(model, inputs)
    flat = keras.tree.flatten(outputs)
    by_variable = {
        id(v): samples.flat(np.asarray(x[:]))
        for v, x in zip(variables, samples.arrays, strict=True)
    }
    stacked = [by_variable.get(id(v)) for v in model.variables]
    is_compiled = model.compiled and model.loss
    classes = compiled_loss.classes(model, outputs) if is_compiled else {}
    observed = likelihoods.with_moments(model, outputs) if is_compiled else {}
    shares = samples.running_shares()
    layer = PosteriorAverage(
        copied,
        [None if x is None else keras.backend.standardize_dtype(x.dtype) for x in stacked],
        len(shares),
        [_link(classes.get(i)) for i in range(len(flat))],
        [observed.get(i) for i in range(len(flat))],
        _names(model, outputs),
        is_batched,
        name="posterior_average",
    )
    pairs = zip(model.variables, stacked, strict=True)
    layer.set_samples([v.numpy() if x is None else x for v, x in pairs], shares)
    batch = model_copy.random_batch(inputs)
    if batch is not None:
        first = [by_variable[id(v)][0] for v in variables]
        model_copy.check_copy(
            model,
            lambda: internals.forward(model, variables, first, batch, training=False).outputs,
            lambda: layer.outputs_of(batch, 0),
        )
    return keras.Model(inputs, layer(inputs), name=name or f"{model.name}_posterior")


def _names(model: keras.Model, outputs: Any) -> list[str]:
    """Returns a name for each output: its key in a dict, or the name of its layer."""
    paths = [path for path, _ in keras.tree.flatten_with_path(outputs)]
    names = [*getattr(model, "output_names", [])]
    if isinstance(outputs, dict) and all(len(path) == 1 for path in paths):
        names = [str(*path) for path in paths]
    is_unique = len(set(names)) == len(names) == len(paths)  # a layer may be called twice
    return names if is_unique else [f"output_{i}" for i in range(len(paths))]


def _link(classes: Any) -> Any:
    if classes is None or not classes.from_logits:
        return None
    return "sigmoid" if classes.axis is None else classes.axis


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class PosteriorAverage(keras.layers.Layer):
    """Evaluates a model with each sample of its variables, and returns mean and spread.

    The layer owns the samples, stacked as `[S, ...]`, and the values of the other variables. A loop
    takes one sample after the other, so that memory does not grow with their number, unless
    `is_batched`: then one pass takes all samples, where TensorFlow can vectorize it. `quantize`
    stores kernels in 8 bits, which are converted back one sample at a time. See
    `Posterior.to_keras_model`.

    Args:
      model: the model; only its architecture is used.
      sampled: by position in `model.variables`, the dtype of the stacked samples; None for a
        variable that is not sampled.
      num_samples: S.
      links: by output, the axis of the softmax that turns logits into probabilities, "sigmoid", or
        None.
      losses: by output, the `NegativeLogLikelihood` of a regression, or None.
      names: by output, its name.
      is_batched: whether one pass takes all samples.
    """

    def __init__(
        self,
        model: keras.Model,
        sampled: list[str | None],
        num_samples: int,
        links: list[Any],
        losses: list[Any],
        names: list[str],
        is_batched: bool = False,
        **arguments: Any,
    ):
        super().__init__(trainable=False, autocast=False, **arguments)
        # Keras tracks no attributes of this object, whose variables are never read. A SavedModel
        # contains only tracked tables, and Keras quantizes only layers that contain no layers.
        self._untracked = types.SimpleNamespace(model=model, losses=[*losses])
        self._tables = model_copy.tables(model)
        self._sampled, self._num_samples = [*sampled], num_samples
        self._links, self._names, self._is_batched = [*links], [*names], is_batched
        narrow = self._narrow() if self.quantization_mode else {}
        for i, dtype in enumerate(self._dtypes()):
            if i not in narrow:
                self._add(f"value_{i}", self._shape(i), dtype)
        self._shares = self.add_weight(
            shape=(num_samples,), dtype="float32", trainable=False, name="shares", autocast=False
        )
        if self.quantization_mode:
            self.quantized_build(None, self.quantization_mode)

    def quantized_build(self, input_shape: Any, mode: str, config: Any = None) -> None:
        """Adds the variables of the kernels in 8 bits and of their scales."""
        del input_shape, config
        check_mode(mode)
        for i, axes in self._narrow().items():
            shape = self._shape(i)
            scales = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
            self._add(f"value_{i}", shape, MODE)
            self._add(f"scale_{i}", scales, scale_dtype(self._dtypes()[i]))
        self._is_quantized = True  # as Keras' layers do

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        r"""Stores kernels w in 8 bits as integers q and scales s, such that \( w \approx q / s \).

        There is a scale for each sample and output channel. Keras' `AbsMaxQuantizer`, which is the
        default, takes s = 127 / max |w| over the other axes, so that the error is at most
        max |w| / 254 (with Keras' epsilon of 1e-7 added to the maximum).

        Args:
          mode: "int8".
          type_check: not used.
          config: a `keras.quantizers.Int8QuantizationConfig`, whose `weight_quantizer` is used.

        Raises:
          ValueError: the mode is not "int8".
        """
        del type_check
        check_mode(mode)
        quantizer = getattr(config, "weight_quantizer", None) or keras.quantizers.AbsMaxQuantizer()
        found = {}
        for i, axes in self._narrow().items():
            values = keras.ops.cast(self._value(i), scale_dtype(self._dtypes()[i]))
            found[i] = quantizer(values, axis=axes, to_numpy=True)
            delattr(self, f"value_{i}")
        self.quantized_build(None, mode, config)
        for i, (integers, scale) in found.items():
            self._value(i).assign(integers)
            getattr(self, f"scale_{i}").assign(scale)
        if self.dtype_policy.quantization_mode is None:
            self.dtype_policy = keras.dtype_policies.get(f"{mode}_from_{self.dtype_policy.name}")

    def quantized_call(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.call(*args, **kwargs)

    def _dtypes(self) -> list[str]:
        """Returns the dtypes of the values that are not quantized."""
        variables = self._untracked.model.variables
        return [x or v.dtype for x, v in zip(self._sampled, variables, strict=True)]

    def _shape(self, i: int) -> tuple[int, ...]:
        """Returns the shape of the values of variable i, with the axis of samples if it has one."""
        lead = () if self._sampled[i] is None else (self._num_samples,)
        return (*lead, *self._untracked.model.variables[i].shape)

    def _narrow(self) -> dict[int, tuple[int, ...]]:
        """Returns the variables that 8 bits can hold, each with the axes that share a scale."""
        found = {
            i: axes_of_scale(self._shape(i), dtype, self._sampled[i] is not None)
            for i, dtype in enumerate(self._dtypes())
        }
        return {i: axes for i, axes in found.items() if axes is not None}

    def _add(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        variable = self.add_weight(
            shape=shape, dtype=dtype, trainable=False, name=name, initializer="zeros",
            autocast=False,
        )  # fmt: skip
        setattr(self, name, variable)

    def _value(self, i: int) -> keras.Variable:
        return getattr(self, f"value_{i}")

    def _values(self, sample: Any) -> list[tf.Tensor]:
        """Returns the values of all variables in one sample."""
        values = []
        for i, dtype in enumerate(self._sampled):

            def taken(variable: keras.Variable, is_stacked: bool = dtype is not None) -> tf.Tensor:
                tensor = tf.convert_to_tensor(variable)
                return tensor[sample] if is_stacked else tensor

            scale = getattr(self, f"scale_{i}", None)
            value = taken(self._value(i))
            if scale is not None:
                value = tf.cast(value, scale.dtype) / taken(scale)
            values.append(value)
        return values

    def set_samples(self, values: list[Any], shares: np.ndarray) -> None:
        """Sets the samples `[S, ...]`, the other values, and each sample's share of the means."""
        for i, value in enumerate(values):
            self._value(i).assign(value)
        self._shares.assign(shares)

    def call(self, inputs: Any) -> dict[str, Any]:
        shares = tf.convert_to_tensor(self._shares)

        def terms(sample: Any) -> Terms:
            return self._terms(inputs, sample)

        if self._is_batched:
            found = Mapper(self._untracked.model)(terms, tf.range(self._num_samples))
            averages = averaged_at_once(found, shares)
        else:
            averages = averaged(terms, shares)
        (mean, predictive), (variance, epistemic), noise, *_ = averages
        kinds = {
            "mean": mean,
            "standard_deviation": _sqrt(variance),
            "predictive_mean": predictive,
            "aleatoric": _sqrt(noise),
            "epistemic": _sqrt(epistemic),
        }
        is_single = len(self._names) == 1  # a SavedModel returns flat dicts
        return {
            kind if is_single else f"{name}_{kind}": y
            for kind, by_name in kinds.items()
            for name, y in by_name.items()
        }

    def outputs_of(self, inputs: Any, sample: Any) -> Any:
        """Returns the model's outputs by one sample."""
        model, values = self._untracked.model, self._values(sample)
        with keras.StatelessScope(state_mapping=[*zip(model.variables, values, strict=True)]):
            for layer in model_copy.normalizations(model):
                layer.finalize_state()
        return internals.forward(model, model.variables, values, inputs, training=False).outputs

    def _terms(self, inputs: Any, sample: Any) -> Terms:
        """Returns outputs and means of observations, and variances of observations, by name."""
        flat = keras.tree.flatten(self.outputs_of(inputs, sample))
        means, noises = {}, {}
        for y, loss, name in zip(flat, self._untracked.losses, self._names, strict=True):
            if loss is not None:
                observed = loss.distribution(tf.cast(y, loss.dtype))
                means[name], noises[name] = observed.mean(), observed.variance()
        activated = [
            y if link is None else tf.sigmoid(y) if link == "sigmoid" else tf.nn.softmax(y, link)
            for y, link in zip(flat, self._links, strict=True)
        ]
        by_name = dict(zip(self._names, activated, strict=True))
        return Terms(wide((by_name, means)), wide(noises))

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; raises ValueError if a loss cannot be saved."""
        serialize, model = keras.saving.serialize_keras_object, self._untracked.model
        return {
            **super().get_config(),
            "model": serialize(model),
            "sampled": self._sampled,
            "num_samples": self._num_samples,
            "links": self._links,
            "losses": [None if x is None else serialize(x) for x in self._untracked.losses],
            "names": self._names,
            "is_batched": self._is_batched,
            "low_rank": model_copy.low_ranks(model),
            "vocabularies": model_copy.vocabularies(model),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PosteriorAverage:
        load = keras.saving.deserialize_keras_object
        losses = [None if x is None else load(x) for x in config["losses"]]
        model = load(config["model"])
        model_copy.set_vocabularies(model, config.get("vocabularies", []))
        model_copy.set_low_ranks(model, config.get("low_rank", []))
        config = {**config, "model": model, "losses": losses}
        for key in ("trainable", "autocast", "low_rank", "vocabularies"):
            config.pop(key, None)
        return cls(**config)


def _sqrt(nest: Any) -> Any:
    return tf.nest.map_structure(tf.sqrt, nest)


def axes_of_scale(shape: tuple[int, ...], dtype: str, is_stacked: bool) -> tuple[int, ...] | None:
    """Returns the axes whose entries share a scale; None if a variable is stored as it is.

    Kernels have a scale for each sample and output channel, which is the last axis, and with one
    output channel (as in a depthwise convolution) the axis before it. Vectors, such as biases, and
    kernels whose scales would serve single entries are stored as they are.

    >>> axes_of_scale((64, 50), "float32", is_stacked=False), axes_of_scale((50,), "float32", False)
    ((0,), None)
    >>> axes_of_scale((30, 3, 3, 8, 1), "float32", is_stacked=True)  # of 30 samples
    (1, 2)

    Args:
      shape: the shape of the variable, with the axis of the samples if it has one.
      dtype: its dtype.
      is_stacked: whether the first axis is the axis of samples.
    """
    first = int(is_stacked)
    rank = len(shape) - first
    last = len(shape) - (2 if rank > 2 and shape[-1] == 1 else 1)
    axes = tuple(range(first, last))
    is_worth_it = rank > 1 and math.prod(shape[a] for a in axes) > 1
    return axes if is_worth_it and dtype in _FLOATS else None


def scale_dtype(dtype: str) -> str:
    """Returns the dtype of the scales, which half precision could not hold."""
    return "float64" if dtype == "float64" else "float32"


def check_mode(mode: Any) -> None:
    """Raises ValueError unless the mode is "int8"."""
    if mode != MODE:
        raise ValueError(
            f'mode must be "{MODE}" for the samples of a posterior, which are then stored with a '
            f"scale for each sample and output channel. Received: {mode!r}."
        )

"""The posterior average of a model as a layer, so that a Keras model ships the whole posterior."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior import quantized
from tfp_sgmcmc.keras.posterior.sample_loops import running_mean, wide


class _Hidden:
    """Keeps Keras from tracking a model whose variables are never read."""

    def __init__(self, *values: Any):
        self.values = values


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class PosteriorAverage(keras.layers.Layer):
    """Evaluates a model with each sample of its variables, and returns mean and spread.

    The layer owns the samples, stacked as `[S, ...]`, and the values of the other variables. A loop
    takes one sample after the other, so that memory does not grow with their number. `quantize`
    stores kernels in 8 bits, which are turned back one sample at a time. See
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
    """

    def __init__(
        self,
        model: keras.Model,
        sampled: list[str | None],
        num_samples: int,
        links: list[Any],
        losses: list[Any],
        names: list[str],
        **arguments: Any,
    ):
        super().__init__(trainable=False, autocast=False, **arguments)
        self._averaged = _Hidden(model)
        # A SavedModel has only tables that are tracked. Keras quantises only layers without layers,
        # so the tables are kept, and not their layers.
        lookups = keras.layers.StringLookup, keras.layers.IntegerLookup
        self._tables = [x.lookup_table for x in internals.layers(model) if isinstance(x, lookups)]
        self._sampled, self._num_samples = [*sampled], num_samples
        self._links, self._names = [*links], [*names]
        self._likelihoods = _Hidden(*losses)
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
        """Adds the variables of the kernels in 8 bits, and of their scales."""
        del input_shape, config
        quantized.check_mode(mode)
        for i, axes in self._narrow().items():
            scale = quantized.scale_shape(self._shape(i), axes)
            self._add(f"value_{i}", self._shape(i), quantized.MODE)
            self._add(f"scale_{i}", scale, quantized.scale_dtype(self._dtypes()[i]))
        self._is_quantized = True  # as Keras' layers do

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Stores kernels in 8 bits, with a scale for each sample and output channel.

        Raises:
          ValueError: the mode is not "int8".
        """
        del type_check
        quantized.check_mode(mode)
        found = {}
        for i, axes in self._narrow().items():
            found[i] = quantized.quantize(self._value(i), axes, config)
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
        """Returns the dtypes in which values are stored that are not quantised."""
        (model,) = self._averaged.values
        return [x or v.dtype for x, v in zip(self._sampled, model.variables, strict=True)]

    def _shape(self, i: int) -> tuple[int, ...]:
        """Returns the shape of the values of variable i, with the axis of the samples."""
        (model,) = self._averaged.values
        lead = () if self._sampled[i] is None else (self._num_samples,)
        return (*lead, *model.variables[i].shape)

    def _narrow(self) -> dict[int, tuple[int, ...]]:
        """Returns the variables that 8 bits can hold, each with the axes that share a scale."""
        found = {
            i: quantized.axes_of_scale(self._shape(i), dtype, self._sampled[i] is not None)
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
            values.append(value if scale is None else quantized.dequantize(value, taken(scale)))
        return values

    def set_samples(self, values: list[Any], shares: np.ndarray) -> None:
        """Sets the samples `[S, ...]`, the other values, and each sample's share of the means."""
        for i, value in enumerate(values):
            self._value(i).assign(value)
        self._shares.assign(shares)

    def call(self, inputs: Any) -> dict[str, Any]:
        first = self._evaluated(inputs, 0)
        zeros = tf.nest.map_structure(tf.zeros_like, first[0])
        shares = tf.convert_to_tensor(self._shares)

        def add(i: tf.Tensor, mean: Any, variance: Any, noise: Any) -> Any:
            new, new_noise = self._evaluated(inputs, i)
            total = running_mean(mean, new, shares[i])
            squares = tf.nest.map_structure(lambda v, m, n: (v - m) * (v - n), new, mean, total)
            spread = running_mean(variance, squares, shares[i])
            return i + 1, total, spread, running_mean(noise, new_noise, shares[i])

        start = tf.constant(1), first[0], zeros, first[1]
        _, mean, variance, noise = tf.while_loop(
            lambda i, *_: i < self._num_samples, add, start, parallel_iterations=1
        )
        kinds = {
            "mean": mean[0],
            "standard_deviation": _sqrt(variance[0]),
            "predictive_mean": mean[1],
            "aleatoric": _sqrt(noise),
            "epistemic": _sqrt(variance[1]),
        }
        is_single = len(self._names) == 1  # a SavedModel returns flat dicts
        return {
            kind if is_single else f"{name}_{kind}": y
            for kind, by_name in kinds.items()
            for name, y in by_name.items()
        }

    def _evaluated(self, inputs: Any, i: Any) -> Any:
        """Returns outputs and means of observations, and their variances, by sample i."""
        (model,) = self._averaged.values
        called = internals.forward(model, model.variables, self._values(i), inputs, training=False)
        outputs = called.outputs
        flat = keras.tree.flatten(outputs)
        means, noises = {}, {}
        for y, loss, name in zip(flat, self._likelihoods.values, self._names, strict=True):
            if loss is not None:
                law = loss.distribution(tf.cast(y, loss.dtype))
                means[name], noises[name] = law.mean(), law.variance()
        activated = [
            y if link is None else tf.sigmoid(y) if link == "sigmoid" else tf.nn.softmax(y, link)
            for y, link in zip(flat, self._links, strict=True)
        ]
        by_name = dict(zip(self._names, activated, strict=True))
        return wide((by_name, means)), wide(noises)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; raises ValueError if a loss cannot be saved."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "model": serialize(self._averaged.values[0]),
            "sampled": self._sampled,
            "num_samples": self._num_samples,
            "links": self._links,
            "losses": [None if x is None else serialize(x) for x in self._likelihoods.values],
            "names": self._names,
            "low_rank": adapted(self._averaged.values[0]),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PosteriorAverage:
        load = keras.saving.deserialize_keras_object
        losses = [None if x is None else load(x) for x in config["losses"]]
        model = load(config["model"])
        adapt(model, config.get("low_rank", []))
        config = {**config, "model": model, "losses": losses}
        for key in ("trainable", "autocast", "low_rank"):
            config.pop(key, None)
        return cls(**config)


def adapted(model: keras.Model) -> list[list[Any]]:
    """Returns place, rank and scale of the layers that have an adaptation of low rank.

    The configuration of MultiHeadAttention does not tell of those of its layers.
    """
    layers = enumerate(internals.layers(model))
    enabled = [(i, x) for i, x in layers if getattr(x, "lora_enabled", False)]
    return [[i, x.lora_rank, getattr(x, "lora_alpha", x.lora_rank)] for i, x in enabled]


def adapt(model: keras.Model, adapted: list[list[Any]]) -> None:
    """Adds the adaptations that a model which was made from its configuration lacks."""
    layers = internals.layers(model)
    for place, rank, alpha in adapted:
        layer: Any = layers[place]
        if not layer.lora_enabled:
            layer.enable_lora(rank, **({} if alpha == rank else {"lora_alpha": alpha}))


def _sqrt(nest: Any) -> Any:
    return tf.nest.map_structure(tf.sqrt, nest)

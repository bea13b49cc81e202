"""The posterior average of a model as a layer, so that a Keras model ships the whole posterior."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import compiled_loss, internals, observations
from tfp_sgmcmc.keras.posterior.sample_loops import running_mean, wide


class _Hidden:
    """Keeps Keras from tracking a model whose variables are never read."""

    def __init__(self, *values: Any):
        self.values = values


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class PosteriorAverage(keras.layers.Layer):
    """Evaluates a model with each sample of its variables, and returns mean and spread.

    The layer owns the samples, stacked as `[S, ...]`, and the values of the other variables. A loop
    takes one sample after the other, so that memory does not grow with their number. See
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
        # A SavedModel has only tables that are tracked. These layers have no variables.
        lookups = keras.layers.StringLookup, keras.layers.IntegerLookup
        self._lookups = [layer for layer in internals.layers(model) if isinstance(layer, lookups)]
        self._sampled, self._num_samples = [*sampled], num_samples
        self._links, self._names = [*links], [*names]
        self._likelihoods = _Hidden(*losses)
        self._stacked = [
            self.add_weight(
                shape=v.shape if dtype is None else (num_samples, *v.shape),
                dtype=dtype or v.dtype,
                trainable=False,
                name=f"value_{i}",
                initializer="zeros",
                autocast=False,
            )
            for i, (v, dtype) in enumerate(zip(model.variables, sampled, strict=True))
        ]
        self._shares = self.add_weight(
            shape=(num_samples,), dtype="float32", trainable=False, name="shares", autocast=False
        )

    def set_samples(self, values: list[Any], shares: np.ndarray) -> None:
        """Sets the samples `[S, ...]`, the other values, and each sample's share of the means."""
        for variable, value in zip(self._stacked, values, strict=True):
            variable.assign(value)
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
        values = [
            tf.convert_to_tensor(v) if dtype is None else tf.convert_to_tensor(v)[i]
            for v, dtype in zip(self._stacked, self._sampled, strict=True)
        ]
        outputs = internals.forward(model, model.variables, values, inputs, training=False).outputs
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
            "low_rank": _adapted(self._averaged.values[0]),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PosteriorAverage:
        load = keras.saving.deserialize_keras_object
        losses = [None if x is None else load(x) for x in config["losses"]]
        model = load(config["model"])
        _adapt(model, config.get("low_rank", []))
        config = {**config, "model": model, "losses": losses}
        for key in ("trainable", "autocast", "low_rank"):
            config.pop(key, None)
        return cls(**config)


def keras_model(
    model: keras.Model,
    variables: list[keras.Variable],
    samples: list[Any],
    shares: np.ndarray,
    name: str | None,
    inputs: Any = None,
) -> keras.Model:
    """Returns what `Posterior.to_keras_model` does, for samples `[S, ...]`."""
    inputs, copied, outputs = _traced(model, inputs)
    flat = keras.tree.flatten(outputs)
    places = {id(v): samples[i] for i, v in enumerate(variables)}
    stacked = [places.get(id(v)) for v in model.variables]
    is_compiled = model.compiled and model.loss
    classes = compiled_loss.classes(model, outputs) if is_compiled else {}
    likelihoods = observations.with_moments(model, outputs) if is_compiled else {}
    links = [_link(classes.get(i)) for i in range(len(flat))]
    names = [*getattr(model, "output_names", [])]
    layer = PosteriorAverage(
        copied,
        [None if s is None else keras.backend.standardize_dtype(s.dtype) for s in stacked],
        len(shares),
        links,
        [likelihoods.get(i) for i in range(len(flat))],
        names if len(names) == len(flat) else [f"output_{i}" for i in range(len(flat))],
        name="posterior_average",
    )
    pairs = zip(model.variables, stacked, strict=True)
    layer.set_samples([v.numpy() if s is None else s for v, s in pairs], shares)
    made = keras.Model(inputs, layer(inputs), name=name or f"{model.name}_posterior")
    return made


def _traced(model: keras.Model, inputs: Any) -> tuple[Any, keras.Model, Any]:
    """Returns symbolic inputs, a copy of the model, and its symbolic outputs.

    The copy has the same architecture, and its variables are never read.
    """
    known = getattr(model, "inputs", None) and internals.symbolic_outputs(model) is not None
    if inputs is None and not known:
        raise ValueError(
            "inputs must be given unless the model is Functional or Sequential, whose inputs are "
            f"known. Received: None for a {type(model).__name__}. Pass "
            "to_keras_model(inputs=keras.Input(shape)), or a nest of them."
        )
    if inputs is None:
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), structure
        )
    copied = type(model).from_config(model.get_config())
    outputs = internals.symbolic_outputs(model) if known else copied(inputs)
    _adapt(copied, _adapted(model))
    same = [(v.shape, v.dtype) for v in model.variables]
    if [(v.shape, v.dtype) for v in copied.variables] != same:
        raise ValueError(
            f"The model {model.name!r} must be made again with the same variables by its "
            "get_config and from_config. Received: one that is not."
        )
    return inputs, copied, outputs


def _adapted(model: keras.Model) -> list[list[Any]]:
    """Returns place, rank and scale of the layers that have an adaptation of low rank.

    The configuration of MultiHeadAttention does not tell of those of its layers.
    """
    layers = enumerate(internals.layers(model))
    enabled = [(i, x) for i, x in layers if getattr(x, "lora_enabled", False)]
    return [[i, x.lora_rank, getattr(x, "lora_alpha", x.lora_rank)] for i, x in enabled]


def _adapt(model: keras.Model, adapted: list[list[Any]]) -> None:
    """Adds the adaptations that a model which was made from its configuration lacks."""
    layers = internals.layers(model)
    for place, rank, alpha in adapted:
        layer: Any = layers[place]
        if not layer.lora_enabled:
            layer.enable_lora(rank, **({} if alpha == rank else {"lora_alpha": alpha}))


def _link(classes: Any) -> Any:
    if classes is None or not classes.from_logits:
        return None
    return "sigmoid" if classes.axis is None else classes.axis


def _sqrt(nest: Any) -> Any:
    return tf.nest.map_structure(tf.sqrt, nest)

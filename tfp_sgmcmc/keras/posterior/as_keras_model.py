"""A Keras model of a whole posterior, made of a model and samples of its variables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.keras.model import compiled_loss, internals, observation_models
from tfp_sgmcmc.keras.posterior.averaged_model import PosteriorAverage, adapt, adapted


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
    likelihoods = observation_models.with_moments(model, outputs) if is_compiled else {}
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
    return keras.Model(inputs, layer(inputs), name=name or f"{model.name}_posterior")


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
    adapt(copied, adapted(model))
    same = [(v.shape, v.dtype) for v in model.variables]
    if [(v.shape, v.dtype) for v in copied.variables] != same:
        raise ValueError(
            f"The model {model.name!r} must be made again with the same variables by its "
            "get_config and from_config. Received: one that is not."
        )
    return inputs, copied, outputs


def _link(classes: Any) -> Any:
    if classes is None or not classes.from_logits:
        return None
    return "sigmoid" if classes.axis is None else classes.axis

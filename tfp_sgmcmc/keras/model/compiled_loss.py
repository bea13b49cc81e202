"""The compiled loss of a Keras model as a negative log likelihood.

Keras has no public way to evaluate a compiled loss with another reduction. The private names of
Keras used here, and why:

  `Model._compile_loss`, its `_flat_losses`: the resolved losses with their outputs and weights;
  its `_user_loss`, `_user_loss_weights`: the arguments of `compile` that they are resolved from;
  `Loss._fn_kwargs`: the arguments of `Loss.fn`, the function that a loss of Keras evaluates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals

LossFn = Callable[[Any, Any, Any], tf.Tensor]  # y_true, y_pred, sample_weight -> values

# The losses of Keras that are negative log likelihoods. The divergence differs from the
# crossentropy by a function of the labels only.
_LIKELIHOODS = (
    keras.losses.binary_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.poisson,
    keras.losses.kl_divergence,
    keras.losses.ctc,
)
# Those that divide the negative log likelihood of an example by its number of outputs.
_MEANS = (keras.losses.binary_crossentropy, keras.losses.poisson)
# Losses, not all of them likelihoods, whose outputs are probabilities or logits.
_BINARY = (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)
_SPARSE = keras.losses.sparse_categorical_crossentropy
_CATEGORICAL = (
    _SPARSE,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.kl_divergence,
)
_ROUNDING = 1e-6  # by which probabilities in y may leave 0 .. 1


_CROSSENTROPY = "Compile with a crossentropy, the likelihood of class labels, instead."
_NO_LIKELIHOOD = (
    "No likelihood of single examples belongs to it. For class labels compile with a crossentropy "
    "instead; otherwise with tfp_sgmcmc.keras.NegativeLogLikelihood."
)
_FUNCTION = "or with a function such as lambda y, f: 0.5 * (y - f)**2 / sigma**2 instead."
# Advice on a better loss, by the first of these parts that occurs in the name of a loss.
_ADVICE = {
    "focal": _CROSSENTROPY,
    "cross_entropy": _CROSSENTROPY,
    "hinge": _CROSSENTROPY,
    "dice": _NO_LIKELIHOOD,
    "tversky": _NO_LIKELIHOOD,
    "circle": _NO_LIKELIHOOD,
    "cosine": _NO_LIKELIHOOD,
    "absolute_error": (
        "It is one only for a known scale of the noise, which the loss does not state. Compile "
        "with tfp_sgmcmc.keras.NegativeLogLikelihood(lambda out: tfd.Laplace(out, scale)) instead."
    ),
    "": (
        "A mean squared error, for example, is one only for a known variance of the noise, which "
        "the loss does not state. Compile with tfp_sgmcmc.keras.losses.GaussianNLL(), for which "
        "the model has two outputs for each number, a mean and a scale; with "
        "GaussianNLL(scale=sigma); with tfp_sgmcmc.keras.NegativeLogLikelihood of another "
        "distribution, " + _FUNCTION
    ),
}


def check_likelihoods(model: keras.Model) -> None:
    """Raises as `check_model`, and ValueError if a loss is not a negative log likelihood."""
    internals.check_model(model)
    for path, loss in keras.tree.flatten_with_path(model.loss):
        try:
            fn = _function_of_keras(keras.losses.get(loss))
        except ValueError:  # a string that Keras resolves by the data, such as "crossentropy"
            continue
        if fn is not None and fn not in _LIKELIHOODS:
            output = f" of output {'/'.join(map(str, path))!r}" if path else ""
            advice = next(text for part, text in _ADVICE.items() if part in fn.__name__)
            raise ValueError(
                f"loss {fn.__name__!r}{output} is not a negative log likelihood. {advice}"
            )
    _check_activations(model)


def _check_activations(model: keras.Model) -> None:
    """Raises ValueError if a last layer's activation contradicts the compiled loss."""
    outputs = internals.symbolic_outputs(model)
    if outputs is None:
        return
    flat = keras.tree.flatten(outputs)
    for place, kind in classes(model, outputs).items():
        name = internals.activation_name(flat[place])
        if not kind.from_logits and name == "linear":
            raise ValueError(_wrong_outputs("probabilities", "a last layer without activation"))
        if kind.from_logits and name in ("softmax", "sigmoid"):
            raise ValueError(_wrong_outputs("logits", f"a last layer with a {name}"))


def _wrong_outputs(expected: str, received: str) -> str:
    is_logits = expected == "logits"
    mend = (
        "Compile with from_logits=False, or leave the activation out."
        if is_logits
        else "Give the layer a softmax, or a sigmoid for the probability of a single class; or "
        "compile with a crossentropy with from_logits=True."
    )
    return (
        f"The outputs of the model must be {expected}, as its loss takes them. Received: "
        f"{received}. {mend}"
    )


def check_probabilities(model: keras.Model, outputs: Any) -> None:
    """Raises ValueError unless outputs are probabilities where the compiled loss needs them.

    `outputs` are concrete, such as the outputs of a first batch. Non-finite outputs pass.
    """
    flat = keras.tree.flatten(outputs)
    for place, kind in classes(model, outputs).items():
        if kind.from_logits:
            continue
        p = np.asarray(keras.ops.convert_to_numpy(flat[place]), np.float64)
        error = internals.resolution(model) ** 0.5  # what rounding may do to a sum of many
        if p.size and (p.min() < -error or p.max() > 1 + error):
            received = f"outputs from {p.min():.3g} to {p.max():.3g}"
            raise ValueError(_wrong_outputs("probabilities", received))
        if kind.axis is not None:
            sums = p.sum(axis=kind.axis)
            sums = sums[np.isfinite(sums)]
            if sums.size and np.abs(sums - 1).max() > error:
                received = f"outputs that add up to {sums.min():.3g} .. {sums.max():.3g}"
                raise ValueError(_wrong_outputs("probabilities", received))


def check_labels(model: keras.Model, y: Any, outputs: Any) -> None:
    """Raises ValueError if labels are outside of the range that the compiled loss takes.

    Classes are those of the outputs, probabilities are in 0 .. 1, and counts at least 0. TensorFlow
    gives wrong classes the loss NaN on a GPU, and an error of its own on a CPU; other labels out of
    range have a loss that is no likelihood.
    """
    flat, given = keras.tree.flatten(outputs), labels(model, y, outputs)
    kinds = classes(model, outputs)
    for place, loss in placed_losses(model, outputs):
        shape, values = tuple(flat[place].shape), np.asarray(given[place])
        last, what = 1.0, "probabilities"
        if kind := kinds.get(place):
            if kind.axis is None or kind.is_sparse:
                last = shape[kind.axis] - 1 if kind.axis is not None else 1
                what = "numbers of classes" if kind.is_sparse else "probabilities or classes"
            what = f"{what} in 0 .. {last:g}"
        elif _function_of_keras(loss) is keras.losses.poisson or getattr(loss, "of_counts", False):
            last, what = np.inf, "counts, which are not negative"
        else:
            continue
        wrong = ~((values >= -_ROUNDING) & (values <= last + _ROUNDING))  # NaN is wrong, too
        if kind is not None and kind.ignored is not None:
            wrong &= values != kind.ignored
        if np.any(wrong):
            found = np.unique(values[wrong])[:3]
            raise ValueError(
                f"y must hold {what}, because the loss {loss.name!r} compares them with outputs of "
                f"shape {shape[1:]}. Received: "
                f"{'NaN' if np.isnan(found).any() else found.tolist()} in "
                f"{np.count_nonzero(wrong)} of {values.size} labels."
            )


def build(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates the variables that `fit` would create at a first batch of these shapes.

    Raises:
      ValueError: labels have not the form that the compiled crossentropy takes.
    """
    try:
        internals.build(model, x, y, sample_weight)
    except (TypeError, ValueError):
        _check_form(model, y, internals.symbolic_outputs(model))
        raise


def _check_form(model: keras.Model, y: Any, outputs: Any) -> None:
    """Raises ValueError if the labels of a single output have not the shape that its loss takes."""
    labels, flat = internals.array_leaves(y), keras.tree.flatten(outputs)
    if outputs is None or not len(labels) == len(flat) == 1:
        return
    kind, given, output = classes(model, outputs).get(0), labels[0].shape, flat[0].shape
    expected = output[1:-1] if kind is not None and kind.is_sparse else _bare(output)
    if kind is None or [*_bare(given)] == [*expected]:
        return
    form = " without the axis of classes" if kind.is_sparse else ""
    raise ValueError(
        f"y must have the shape of the outputs{form}, as the compiled loss takes it. Received: y "
        f"of shape {['rows', *given[1:]]} and outputs of shape {['rows', *output[1:]]}. Numbers of "
        "classes go with a SparseCategoricalCrossentropy, and one-hot labels with a "
        "CategoricalCrossentropy."
    )


def _bare(shape: Any) -> Any:
    """Returns a shape without the axis of rows and a last axis of length 1."""
    return shape[1:-1] if len(shape) > 1 and shape[-1] == 1 else shape[1:]


def counts(model: keras.Model, given: dict[int, Any], outputs: Any) -> np.ndarray:
    """Returns 0 for rows whose labels are all of the class that the loss ignores, else 1, `[rows]`.

    `given` are the labels by place (see `labels`).
    """
    kinds, found = classes(model, outputs), []
    for place, label in given.items():
        label, kind = np.asarray(label), kinds.get(place)
        if kind is None or kind.ignored is None:
            return np.ones(len(label))
        found.append((label != kind.ignored).reshape(len(label), -1).any(axis=1))
    return np.logical_or.reduce(found).astype(np.float64)


def _function_of_keras(loss: Any) -> Any:
    """Returns the function of Keras that a loss evaluates, or None for a loss of the user."""
    is_class = isinstance(loss, keras.losses.Loss)
    if is_class and not type(loss).call.__module__.startswith("keras."):
        return None
    fn, _ = _evaluated(loss)
    return fn if getattr(fn, "__module__", "").startswith("keras.") else None


def _evaluated(loss: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the function that a loss evaluates, also one of the user, and its arguments."""
    fn, arguments = getattr(loss, "fn", loss), getattr(loss, "_fn_kwargs", {})
    while isinstance(fn, functools.partial):
        fn, arguments = fn.func, {**fn.keywords, **arguments}
    return fn, arguments


def negative_log_likelihoods(
    model: keras.Model, y: Any, outputs: Any, sample_weight: Any = None
) -> tf.Tensor:
    """Returns the compiled loss of each example, shape `[rows]`, whatever its reduction."""
    return _call_compiled(model, y, outputs, sample_weight, _by_example)


def labels(model: keras.Model, y: Any, outputs: Any) -> dict[int, Any]:
    """Returns the labels that the compiled loss compares outputs with, by place (see `classes`)."""
    found: list[Any] = []

    def record(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        found.append(y_true)
        return tf.zeros([])

    _call_compiled(model, y, outputs, None, lambda loss: record)
    places = [place for place, _ in placed_losses(model, outputs)]
    return dict(zip(places, found, strict=True))


def _call_compiled(
    model: keras.Model, y: Any, outputs: Any, weight: Any, wrap: Callable[[Any], LossFn]
) -> tf.Tensor:
    """Returns the weighted sum over outputs of `wrap(loss)(y_true, y_pred, weight)`."""
    compiled = internals.shallow_copy(_built_loss(model, y, outputs))
    compiled._flat_losses = [e._replace(loss=wrap(e.loss)) for e in compiled._flat_losses]
    # With several outputs, each has a metric of its mean loss, which must not be updated.
    try:
        with keras.StatelessScope():
            return compiled(y, outputs, weight)
    except (TypeError, ValueError):
        _check_form(model, y, outputs)
        raise


def _by_example(loss: keras.losses.Loss) -> LossFn:
    """Returns the loss with the sum over entries, `[rows]`, in place of its reduction."""
    if not type(loss).__call__.__module__.startswith(("keras.", "tfp_sgmcmc.")):
        raise ValueError(
            f"The loss {type(loss).__name__} overrides __call__, which hides its values for single "
            "examples. Override call(y_true, y_pred) instead."
        )
    unreduced = internals.shallow_copy(loss)
    unreduced.reduction = "none"
    is_mean = type(loss).call.__module__.startswith("keras.") and _evaluated(loss)[0] in _MEANS

    def call(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        if sample_weight is not None:
            _check_weights(unreduced(y_true, y_pred).shape, sample_weight.shape, loss.name)
        values = unreduced(y_true, y_pred, sample_weight)
        if is_mean:  # over an axis that is last after a squeeze
            averaged = tf.maximum(tf.size(y_true), tf.size(y_pred)) / tf.size(values)
            values *= tf.cast(averaged, values.dtype)
        rows = keras.tree.flatten(y_pred)[0].shape[:1]
        if values.shape.rank == 0 or not values.shape[:1].is_compatible_with(rows):
            raise ValueError(
                f"The loss {loss.name!r} must return the negative log likelihood of each example, "
                f"shape [batch, ...]. Received: shape {values.shape} for a batch of {rows[0]} "
                "examples. Keras reduces these values, so the loss function must not."
            )
        if _function_of_keras(loss) is None:
            _check_entries(values.shape, y_true, y_pred, loss.name)
        rank = values.shape.rank
        return tf.reduce_sum(
            values, tf.range(1, tf.rank(values)) if rank is None else [*range(1, rank)]
        )

    return call


def _check_entries(values: tf.TensorShape, y: Any, outputs: Any, name: str) -> None:
    """Raises ValueError if the loss has paired the labels of one example with another's outputs.

    y of shape `[n]` and outputs of shape `[n, 1]`, for example, broadcast to `[n, n]` values. The
    axes of the values after the first must be axes of the entries of y or of the outputs.
    """
    shapes = [leaf.shape for leaf in keras.tree.flatten([y, outputs])]
    entries = [shape[1:].as_list() for shape in shapes if shape.rank]
    ranks = {shape.rank for shape in shapes}
    if len(ranks) == 1 and len(shapes) == 2:  # aligned, so that they broadcast within an example
        entries.append([b if a in (1, b) else a for a, b in zip(*entries, strict=True)])
    if values.rank is None or None in ranks or any(_is_part(values[1:], e) for e in entries):
        return
    raise ValueError(
        f"The loss {name!r} must return the negative log likelihood of each example, shape "
        f"[{values[0]}], or of each entry of its outputs. Received: shape {values} for y of shape "
        f"{shapes[0]} and outputs of shape {shapes[-1]}, which pairs labels with the outputs of "
        "other examples. Give y the shape of the outputs, or align them in the loss."
    )


def _is_part(shape: tf.TensorShape, entries: list[int | None]) -> bool:
    """Returns whether a shape has some of the axes of `entries`, in their order."""
    remaining = iter(entries)
    return all(n in remaining for n in shape.as_list())


def _check_weights(values: tf.TensorShape, weights: tf.TensorShape, name: str) -> None:
    """Raises ValueError if Keras would align the weights with the last axis, not the first."""
    if values.rank is None or weights.rank is None:
        return
    missing = values.rank - weights.rank
    longer = values if missing > 0 else weights
    if abs(missing) > 1 or (missing and longer[-1] != 1):
        raise ValueError(
            f"sample_weight must have the shape of the values of the loss {name!r}, {values}, up "
            f"to a last axis of length 1. Received: shape {weights}. Sum the loss over axes that "
            "have no weights."
        )


class Classes(NamedTuple):
    """How the compiled crossentropy encodes classes in an output.

    Attributes:
      axis: the axis of the classes; None if each entry is the probability of class 1.
      from_logits: whether the output is logits rather than probabilities.
      is_sparse: whether labels are numbers of classes rather than probabilities.
      ignored: the number of a class whose entries do not count, or None.
    """

    axis: int | None
    from_logits: bool
    is_sparse: bool
    ignored: int | None


def classes(model: keras.Model, outputs: Any) -> dict[int, Classes]:
    """Returns the encodings of outputs that the compiled loss takes for probabilities or logits.

    They are given by place, the position among the flattened outputs.
    """
    found = {}
    for place, loss in placed_losses(model, outputs):
        fn, arguments = _evaluated(loss)
        if fn in _BINARY or fn in _CATEGORICAL:
            found[place] = Classes(
                axis=None if fn in _BINARY else arguments.get("axis", -1),
                from_logits=bool(arguments.get("from_logits")),
                is_sparse=fn is _SPARSE,
                ignored=arguments.get("ignore_class"),
            )
    return found


def activate(model: keras.Model, outputs: Any) -> Any:
    """Turns outputs into probabilities where the compiled loss takes them for logits."""
    flat = keras.tree.flatten(outputs)
    for place, (axis, from_logits, *_) in classes(model, outputs).items():
        if from_logits:
            x = flat[place]
            flat[place] = keras.ops.sigmoid(x) if axis is None else keras.ops.softmax(x, axis=axis)
    return keras.tree.pack_sequence_as(outputs, flat)


def _built_loss(model: keras.Model, y: Any, outputs: Any) -> Any:
    """Returns the compiled loss; one for labels like y where `fit` has built none yet."""
    compiled = model._compile_loss
    if not compiled.built:
        names = compiled.output_names
        compiled = type(compiled)(compiled._user_loss, compiled._user_loss_weights, "sum", names)
        # It creates metrics, which are not used. A traced function may create no variables.
        with tf.Graph().as_default():
            compiled.build(y, outputs)
    return compiled


def placed_losses(model: keras.Model, outputs: Any) -> list[tuple[int, keras.losses.Loss]]:
    """Returns the losses, each with the place of its output among the flattened outputs."""
    if model._compile_loss is None:
        return []
    compiled = _built_loss(model, outputs, outputs)
    order = keras.tree.pack_sequence_as(outputs, list(range(len(keras.tree.flatten(outputs)))))
    placed = []
    for path, loss, *_ in compiled._flat_losses:
        place = order
        for key in path:
            by_name = isinstance(key, str) and not isinstance(place, dict)
            place = place[model.output_names.index(key) if by_name else key]
        # Keras gives no path to a single output in a nest.
        placed.append((keras.tree.flatten(place)[0], loss))
    return placed

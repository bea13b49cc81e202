"""The compiled loss of a Keras model as a negative log likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf


def check_likelihoods(model: keras.Model) -> None:
    """Raises ValueError if a loss of the model is not a negative log likelihood."""
    for path, loss in keras.tree.flatten_with_path(model.loss):
        _check_likelihood(loss, f" of output {'/'.join(map(str, path))!r}" if path else "")


def _check_likelihood(loss: Any, output: str) -> None:
    try:
        fn = _function_of_keras(keras.losses.get(loss))
    except ValueError:  # strings that Keras resolves when it sees the data ("crossentropy"), or not
        return
    if fn is not None and fn not in _LIKELIHOODS:
        raise ValueError(
            f"The loss {fn.__name__}{output} is no negative log likelihood: a mean squared error, "
            "for one, is that only for a known variance of the noise, which it does not tell. "
            "Compile with tfp_sgmcmc.keras.NegativeLogLikelihood(lambda out: tfd.Normal(out, "
            "sigma)), or another distribution, or with a function of your own: lambda y, f: "
            "0.5 * (y - f)**2 / sigma**2."
        )


def _function_of_keras(loss: Any) -> Any:
    """The function of Keras that a loss evaluates, or None where the loss is the user's own."""
    if isinstance(loss, keras.losses.Loss) and not type(loss).__module__.startswith("keras."):
        return None
    fn = getattr(loss, "fn", loss)
    return fn if getattr(fn, "__module__", "").startswith("keras.") else None


def negative_log_likelihood(
    model: keras.Model, y: Any, outputs: Any, sample_weight: Any
) -> tf.Tensor:
    """The compiled loss summed over the batch's examples, whatever reduction it was given."""
    return _call_compiled(model, y, outputs, sample_weight, _summed)


def negative_log_likelihoods(model: keras.Model, y: Any, outputs: Any) -> tf.Tensor:
    """The compiled loss of each example, `[rows]`."""

    def of_examples(loss: keras.losses.Loss) -> Callable[[Any, Any, Any], tf.Tensor]:
        values_of = _of_examples(loss)

        def call(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
            values = values_of(y_true, y_pred, sample_weight)
            return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))

        return call

    return _call_compiled(model, y, outputs, None, of_examples)


def labels(model: keras.Model, y: Any, outputs: Any) -> dict[int, Any]:
    """By place, as in `classes`, what the compiled loss compares with the output there."""
    found: list[Any] = []

    def noted(loss: keras.losses.Loss) -> Callable[[Any, Any, Any], tf.Tensor]:
        def call(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
            found.append(y_true)
            return tf.zeros([])

        return call

    _call_compiled(model, y, outputs, None, noted)
    places = [place for place, _ in _placed_losses(model, outputs)]
    return dict(zip(places, found, strict=True))


def _call_compiled(
    model: keras.Model,
    y: Any,
    outputs: Any,
    sample_weight: Any,
    wrap: Callable[[keras.losses.Loss], Callable[[Any, Any, Any], tf.Tensor]],
) -> tf.Tensor:
    """Weighted sum over outputs of `wrap(loss)(y_true, y_pred, sample_weight)`."""
    compiled = _shallow_copy(model._compile_loss)
    compiled._flat_losses = [e._replace(loss=wrap(e.loss)) for e in compiled._flat_losses]
    with keras.StatelessScope():  # of several outputs each has a metric, which wants the mean
        return compiled(y, outputs, sample_weight)


def _summed(loss: keras.losses.Loss) -> Callable[[Any, Any, Any], tf.Tensor]:
    values_of = _of_examples(loss)
    return lambda *arguments: tf.reduce_sum(values_of(*arguments))


def _of_examples(loss: keras.losses.Loss) -> Callable[[Any, Any, Any], tf.Tensor]:
    """The values that the loss would reduce, `[rows, ...]`."""
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        raise ValueError(
            f"The loss {type(loss).__name__} overrides __call__, so that its values for single "
            "examples cannot be had; override call(y_true, y_pred) instead."
        )
    unreduced = _shallow_copy(loss)
    unreduced.reduction = "none"
    is_mean = _function_of_keras(loss) in _MEANS
    axis = vars(loss).get("_fn_kwargs", {}).get("axis", -1)

    def call(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        if sample_weight is not None:
            _check_weights(unreduced(y_true, y_pred).shape, sample_weight.shape, loss.name)
        values = unreduced(y_true, y_pred, sample_weight)
        if is_mean:
            values *= tf.cast(tf.shape(y_pred)[axis], values.dtype)
        rows = keras.tree.flatten(y_pred)[0].shape[:1]
        if values.shape.rank == 0 or not values.shape[:1].is_compatible_with(rows):
            raise ValueError(
                f"The loss {loss.name!r} gave shape {values.shape} for a batch of {rows[0]} "
                "examples; the negative log likelihood of each example, shape [batch, ...], is "
                "expected (Keras reduces it, the loss function itself must not)."
            )
        return values

    return call


def _check_weights(values: tf.TensorShape, weights: tf.TensorShape, name: str) -> None:
    """Raises ValueError where Keras would broadcast weights from the last axis, not the first."""
    if values.rank is None or weights.rank is None:
        return
    missing = values.rank - weights.rank
    longer = values if missing > 0 else weights
    if abs(missing) > 1 or (missing and longer[-1] != 1):
        raise ValueError(
            f"sample_weight has shape {weights}, but the loss {name!r} shape {values} for a batch; "
            "a loss summed over what has no weights of its own is expected."
        )


def _shallow_copy(loss: keras.losses.Loss) -> keras.losses.Loss:
    """`copy.copy`, which for Keras objects means to serialise them, and many losses cannot."""
    copied = object.__new__(type(loss))
    vars(copied).update(vars(loss))
    return copied


class Classes(NamedTuple):
    """What a crossentropy says of an output.

    Attributes:
      axis: of the probabilities of classes; None where each entry is the probability of 1.
      from_logits: whether the output is logits, and not yet probabilities.
      is_sparse: whether labels are numbers of classes, and not probabilities as the output is.
      ignored: the number of a class whose entries do not count, or None.
    """

    axis: int | None
    from_logits: bool
    is_sparse: bool
    ignored: int | None


def classes(model: keras.Model, outputs: Any) -> dict[int, Classes]:
    """By its place among the flat outputs, each that the compiled loss takes for probabilities."""
    found = {}
    for place, loss in _placed_losses(model, outputs):
        fn, arguments = getattr(loss, "fn", None), getattr(loss, "_fn_kwargs", {})
        if fn in _BINARY or fn in _CATEGORICAL:
            found[place] = Classes(
                axis=None if fn in _BINARY else arguments.get("axis", -1),
                from_logits=bool(arguments.get("from_logits")),
                is_sparse=fn is _SPARSE,
                ignored=arguments.get("ignore_class"),
            )
    return found


def activate(model: keras.Model, outputs: Any) -> Any:
    """Turns outputs into probabilities where the compiled loss says that they are logits."""
    flat = keras.tree.flatten(outputs)
    for place, (axis, from_logits, *_) in classes(model, outputs).items():
        if from_logits:
            x = flat[place]
            flat[place] = keras.ops.sigmoid(x) if axis is None else keras.ops.softmax(x, axis=axis)
    return keras.tree.pack_sequence_as(outputs, flat)


def _placed_losses(model: keras.Model, outputs: Any) -> list[tuple[int, keras.losses.Loss]]:
    """The losses, each with the place of its output among the flat outputs."""
    compiled = model._compile_loss
    if compiled is None:
        return []
    if not compiled.built:  # by the first batch of a fit: a model that was loaded has had none
        names = compiled.output_names
        compiled = type(compiled)(compiled._user_loss, compiled._user_loss_weights, "sum", names)
        with tf.init_scope():  # the metrics it makes are not used
            compiled.build(outputs, outputs)
    order = keras.tree.pack_sequence_as(outputs, list(range(len(keras.tree.flatten(outputs)))))
    placed = []
    for path, loss, *_ in compiled._flat_losses:
        place = order
        for key in path:
            by_name = isinstance(key, str) and not isinstance(place, dict)
            place = place[model.output_names.index(key) if by_name else key]
        placed.append((place, loss))
    return placed


# Of Keras' own losses; the divergence is the crossentropy but for a function of the labels.
_LIKELIHOODS = (
    keras.losses.binary_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.poisson,
    keras.losses.kl_divergence,
    keras.losses.ctc,
)


# Of these, what divides the negative log likelihood of an example by its number of outputs.
_MEANS = (keras.losses.binary_crossentropy, keras.losses.poisson)


# Of the outputs of these, probabilities can be told, though not all are likelihoods.
_BINARY = (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)


_SPARSE = keras.losses.sparse_categorical_crossentropy


_CATEGORICAL = (
    _SPARSE,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.kl_divergence,
)

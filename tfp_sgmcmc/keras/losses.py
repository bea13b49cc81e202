"""The compiled loss as a negative log likelihood; all private names of Keras are used here only.

Keras has no public way to evaluate a compiled loss with another reduction, nor to build a model
from the first batch of `fit`. Used, and why:

  `Model._compile_loss`, its `_flat_losses`: the resolved losses with their outputs and weights;
  its `_user_loss`, `_user_loss_weights`: what these are resolved from;
  `Model._compile_metrics`: new with every `compile`, as `_compile_loss` is;
  `Model._symbolic_build`: creates variables of model, loss and metrics before the first step;
  `Model._loss_tracker`: the metric that reports `loss`;
  `Model._initial_epoch`: the epoch that a restored `fit` begins at, as `BackupAndRestore` sets it;
  `Layer._call_has_training_arg`: whether `training` may be passed;
  `Layer._flatten_layers`: all layers, those within layers too;
  `Loss.fn`, `Loss._fn_kwargs`: the function that a loss of Keras' own evaluates;
  `_keras_mask` of a tensor: what was masked;
  `_keras_logits` of a tensor: what it is the sigmoid or softmax of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc.keras import replicas


class Forward(NamedTuple):
    """A forward pass that left the model's variables as they were.

    Attributes:
      outputs: what the model returned.
      losses: regularisers and `add_loss` terms, scalars.
      updates: pairs of a variable that the pass would assign (moving statistics, seeds of dropout)
        and its new value.
      metrics: likewise, of the metrics that layers update themselves.
      marks: what Keras has hung on outputs; see `marks`.
    """

    outputs: Any
    losses: list[tf.Tensor]
    updates: list[tuple[keras.Variable, tf.Tensor]]
    metrics: list[tuple[keras.Variable, tf.Tensor]]
    marks: dict[str, dict[int, tf.Tensor]]


def check_model(model: keras.Model) -> None:
    """Raises ValueError for a model whose training step is not Keras' own."""
    if not model.compiled:
        raise ValueError("The model is not compiled; call model.compile(loss=...) before fit.")
    for name in ("train_step", "compute_loss"):
        if name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"{type(model).__name__} overrides {name}, from which no log likelihood can be "
                "read: pass the negative log likelihood to model.compile(loss=...)."
            )
    if getattr(model.optimizer, "use_ema", False):
        raise ValueError(
            "The model's optimizer has use_ema=True and would replace the weights by its "
            "averages after fit; the optimizer is not used, compile with any other."
        )
    if model._compile_loss is None:
        raise ValueError(
            "The model is compiled without a loss; the negative log likelihood is expected: "
            "model.compile(loss=...)."
        )
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


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Has the `fit` that is being set up begin at an epoch; None is as it was called."""
    model._initial_epoch = epoch


def compilation(model: keras.Model) -> tuple[Any, ...]:
    """What a train function is made of; it serves further fits until one of these changes."""
    return (
        model._compile_loss,
        model._compile_metrics,
        model.jit_compile,
        model.run_eagerly,
        model.steps_per_execution,
    )


def build(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates the variables that the first batch of `fit`, or one of its shapes, would create."""
    model._symbolic_build(data_batch=(x, y, sample_weight))


def layers(model: keras.Model) -> list[keras.Layer]:
    """The model, its layers and theirs, outermost first."""
    return list(model._flatten_layers())


def forward(
    model: keras.Model,
    variables: list[keras.Variable],
    values: list[tf.Tensor],
    x: Any,
    training: bool,
) -> Forward:
    """Calls the model with `values` in place of its `variables`."""
    mapping = list(zip(variables, values, strict=True))
    arguments = {"training": training} if model._call_has_training_arg else {}
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        outputs = model(x, **arguments)
        losses = [tf.reduce_sum(tf.cast(loss, keras.config.floatx())) for loss in model.losses]
    given = {id(v): value for v, value in mapping}

    def assigned(variables: list[keras.Variable]) -> list[tuple[keras.Variable, tf.Tensor]]:
        pairs = [(v, scope.get_current_value(v)) for v in variables]
        return [(v, new) for v, new in pairs if new is not None and new is not given.get(id(v))]

    updates, metrics = assigned(model.non_trainable_variables), assigned(model.metrics_variables)
    return Forward(outputs, losses, updates, metrics, marks(outputs))


def map_arrays(fn: Callable[[Any], Any], nest: Any) -> Any:
    """Maps the leaves of a nest but those that are None, which stay."""
    return keras.tree.map_structure(lambda a: None if a is None else fn(a), nest)


def changed_by_call(model: keras.Model, x: Any) -> list[keras.Variable]:
    """The variables that a forward pass in training assigns; of `x` the shapes count."""
    changed: list[keras.Variable] = []

    @tf.function(autograph=False)
    def trace(x: Any) -> None:
        variables = model.trainable_variables
        values = [keras.ops.convert_to_tensor(v) for v in variables]
        changed.extend(v for v, _ in forward(model, variables, values, x, training=True).updates)

    trace.get_concrete_function(map_arrays(lambda a: tf.TensorSpec(a.shape, a.dtype), x))
    return changed


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


def mask(outputs: tf.Tensor) -> tf.Tensor | None:
    """The mask that Keras has hung on outputs, `[rows, ...]`."""
    return getattr(outputs, "_keras_mask", None)


def marks(outputs: Any) -> dict[str, dict[int, tf.Tensor]]:
    """What Keras has hung on outputs, by name and their place among the flat ones.

    Logits are what they are the sigmoid or softmax of. Without them Keras' crossentropies clip the
    probabilities, and examples that are far out have no gradient.
    """
    flat = list(enumerate(keras.tree.flatten(outputs)))
    names = ("_keras_mask", "_keras_logits")
    return {n: {i: x for i, y in flat if (x := getattr(y, n, None)) is not None} for n in names}


def with_marks(outputs: Any, marks: dict[str, dict[int, tf.Tensor]]) -> Any:
    """Hangs them on outputs that have lost them."""
    flat = keras.tree.flatten(outputs)
    for name, own in marks.items():
        for place, x in own.items():
            setattr(flat[place], name, x)
    return outputs


def _shallow_copy(loss: keras.losses.Loss) -> keras.losses.Loss:
    """`copy.copy`, which for Keras objects means to serialise them, and many losses cannot."""
    copied = object.__new__(type(loss))
    vars(copied).update(vars(loss))
    return copied


def reported_loss(
    model: keras.Model, y: Any, evaluated: Forward, sample_weight: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Keras' own scaled loss, handed to the metric that reports it; layers' metrics are updated."""
    # Keras divides it by the number of replicas.
    compiled = replicas.count() * model._compile_loss(y, evaluated.outputs, sample_weight)
    loss = compiled + sum(tf.cast(x, compiled.dtype) for x in evaluated.losses)
    model._loss_tracker.update_state(loss, sample_weight=rows)
    for variable, value in evaluated.metrics:
        variable.assign(value)
    return loss


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

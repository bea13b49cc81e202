"""Checks of the training data and of the model's outputs for them, before the first step."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.likelihoods import NegativeLogLikelihood
from tfp_sgmcmc.keras.posterior.batches import bad_rows, checked_inputs
from tfp_sgmcmc.targets.validation.stream_check import MOST_RATIO, measure_order

tfd = tfp.distributions

_MOST_ROWS = 32  # for which outputs and losses are evaluated
_MOST_NATS = 1000.0  # a target's loss before the first step, beyond which units do not fit
_MOST_OF_COUNTS = 1e5  # the same, for whole numbers, which may be counts
_MOST_OF_LARGE = 100.0  # the same, where most targets are larger than this size:
_LARGE = 15.0
_SAME = 0.02  # relative difference of losses, up to which the other rows of a batch do not matter
_MOST_SECONDS = 3.0  # of reading for the order of batches


def check_data(model: keras.Model, source: Source, start: list[tf.Tensor] | None = None) -> None:
    """Raises ValueError if x does not suit the model, or outputs or y the loss, or if rows are NaN.

    Rows with NaN or infinite entries are accepted where the loss is finite nonetheless, as with a
    model that replaces missing inputs.

    Args:
      model: the compiled model.
      source: the data of `fit`.
      start: values of the trainable variables from which a chain starts; None: the model's.

    Warns:
      UserWarning: the loss of some rows is so large that x or y have other units than the network;
        the loss of a row depends on the others in its batch; a data set that is not shuffled has
        rows in an order.
    """
    batch = source.batch(_MOST_ROWS)
    if batch is None:
        return
    outputs = _outputs(model, checked_inputs(model, batch[0]), start)
    compiled_loss.check_probabilities(model, outputs)
    _check_rates(model, outputs)
    compiled_loss.check_labels(model, (source.arrays or batch)[1], outputs)
    for name, nest in zip("xy", source.arrays or (), strict=False):
        bad = bad_rows(nest)
        if len(bad) and not _has_finite_loss(model, source.rows(bad[:_MOST_ROWS])):
            raise ValueError(
                f"{name} must have finite entries wherever the loss depends on them. "
                f"Received: NaN or infinity in {len(bad)} of {source.num_examples} rows, first in "
                f"row {bad[0]}."
            )
    _check_units(model, batch, outputs)
    _check_sum(model, batch, outputs, start)
    _check_order(source)


def _check_order(source: Source) -> None:
    """Warns of a data set whose batches are in an order by y, and the same in each epoch."""
    if not source.is_never_shuffled or source.read is None:
        return
    labels = (internals.map_arrays(np.asarray, batch[1]) for batch in source.read())
    order = measure_order(labels, "y", _MOST_SECONDS)
    if order is not None and order.ratio > MOST_RATIO:
        warnings.warn(
            f"The data set must give random rows. Received: batches whose means of {order.column} "
            f"vary {order.ratio:.3g} times as much as those of random rows, in the same order in "
            "each epoch. Draws are then too wide. Shuffle it before it is batched, by "
            "dataset.shuffle(num_rows).batch(n) or the argument shuffle=True of the function that "
            "made it.",
            stacklevel=2,
        )


def _check_rates(model: keras.Model, outputs: Any) -> None:
    """Raises ValueError if outputs are negative where Keras' Poisson loss takes them for rates."""
    flat = keras.tree.flatten(outputs)
    for place, loss in compiled_loss.placed_losses(model, outputs):
        if getattr(loss, "fn", None) is not keras.losses.poisson:
            continue
        rates = np.asarray(keras.ops.convert_to_numpy(flat[place]), np.float64)
        if np.any(rates < 0):
            raise ValueError(
                "The outputs of the model must be rates, which are not negative, as Keras' Poisson "
                f"loss takes them. Received: outputs from {rates.min():.3g} to {rates.max():.3g}. "
                "Give the last layer the activation 'exponential' or 'softplus'; or compile with "
                "tfp_sgmcmc.keras.losses.PoissonNLL(), whose outputs are logarithms of rates."
            )


def _check_units(model: keras.Model, batch: Any, outputs: Any) -> None:
    """Warns if a target's loss is so large that no network with such weights fits the data."""
    x, y, weight = batch
    counts = internals.map_arrays(lambda a: tf.cast(a != 0, keras.config.floatx()), weight)
    losses = compiled_loss.negative_log_likelihoods(model, y, outputs, counts).numpy()
    targets = sum(np.size(a) for a in internals.array_leaves(y))
    each = float(np.median(losses)) * len(losses) / max(targets, 1)
    has_gaps = any(len(bad_rows(nest)) for nest in (x, y))
    is_whole = all(np.all(np.asarray(a) % 1 == 0) for a in internals.array_leaves(y))
    may_count = is_whole and not _has_density(model, outputs)
    most = _MOST_OF_LARGE if _typical(y) > _LARGE else _MOST_NATS
    most = _MOST_OF_COUNTS if may_count else most
    if each < most or (not np.isfinite(each) and has_gaps):  # gaps are told elsewhere
        return
    sizes = ", ".join(
        f"entries of {name} of up to {_largest(nest):.3g}" for name, nest in (("x", x), ("y", y))
    )
    warnings.warn(
        f"Before the first step a target has a loss of {each:.3g} nats, with {sizes}. Networks, "
        "their priors and steps expect inputs and targets of about 1. Standardise y to (y - mean) "
        "/ sd, and x likewise or by a keras.layers.Normalization that is adapted to it.",
        stacklevel=2,
    )


def _check_sum(model: keras.Model, batch: Any, outputs: Any, start: list[tf.Tensor] | None) -> None:
    """Warns if the loss of an example depends on the other examples of its batch."""

    def losses(y: Any, outputs: Any) -> np.ndarray:
        return compiled_loss.negative_log_likelihoods(model, y, outputs).numpy().astype(np.float64)

    def differs(others: np.ndarray) -> np.ndarray:
        some = each[: len(others)]
        with np.errstate(invalid="ignore"):  # infinite losses are told elsewhere
            return np.abs(others - some) > _SAME * (np.abs(some) + np.median(np.abs(each)))

    x, y, _ = batch
    each = losses(y, outputs)
    half = len(each) // 2
    first_x, first_y = internals.map_arrays(lambda a: a[:half], (x, y))
    try:
        alone = losses(first_y, _outputs(model, first_x, start)) if half else each
    except (ValueError, tf.errors.OpError):  # the model or the loss takes batches of one size
        return
    (places,) = np.nonzero(differs(alone))
    if not len(places) or differs(losses(y, _outputs(model, x, start))).any():
        return  # a random loss differs anyway
    row = places[0]
    warnings.warn(
        "The loss of an example must not depend on the others of its batch, because the likelihood "
        f"of all data is the product of those of examples. Received: for row {row} the loss "
        f"{each[row]:.3g} in a batch of {len(each)} rows, and {alone[row]:.3g} among {half} of "
        "them. So the posterior depends on the batch size. Ranks, pairs and contrasts within a "
        "batch, as in Cox' partial likelihood, are no sum over examples.",
        stacklevel=2,
    )


def _has_density(model: keras.Model, outputs: Any) -> bool:
    """Returns whether a loss is the likelihood of a continuous law, whose targets are no counts."""
    flat = keras.tree.flatten(outputs)
    laws = [
        loss.distribution(tf.cast(flat[place], loss.dtype))
        for place, loss in compiled_loss.placed_losses(model, outputs)
        if isinstance(loss, NegativeLogLikelihood)
    ]
    return any(d.reparameterization_type == tfd.FULLY_REPARAMETERIZED for d in laws)


def _largest(nest: Any) -> float:
    """Returns the largest size of an entry, 0 without numbers."""
    return max((float(a.max(initial=0)) for a in _sizes(nest)), default=0.0)


def _typical(nest: Any) -> float:
    """Returns the median size of the entries of the array with the largest one."""
    return max((float(np.median(a)) for a in _sizes(nest) if a.size), default=0.0)


def _sizes(nest: Any) -> list[np.ndarray]:
    """Returns the absolute values of the arrays that hold numbers."""
    arrays = map(np.asarray, internals.array_leaves(nest))
    return [np.abs(a.astype(np.float64)) for a in arrays if a.dtype.kind in "biuf"]


def cause_in_data(model: keras.Model, source: Source) -> str | None:
    """Returns in words which rows of data that are not arrays make the loss NaN or infinite.

    These are rows with such entries, or else labels out of range, which XLA and GPUs give the loss
    NaN. Returns None if there are none, or if the data cannot be read beside `fit`. Arrays have
    been checked before.
    """
    if source.arrays is not None or source.read is None:
        return None
    found, num_rows, wrong_labels = list[int](), 0, ""
    try:
        for batch in source.read():
            bad = np.union1d(*(bad_rows(nest) for nest in batch[:2]))
            rows = internals.map_arrays(lambda a, i=bad[:_MOST_ROWS]: tf.gather(a, i), batch)
            if len(bad) and not _has_finite_loss(model, rows):
                found += (num_rows + bad).tolist()
            elif not wrong_labels:
                wrong_labels = _wrong_labels(model, batch)
            num_rows += len(internals.array_leaves(batch)[0])
    except tf.errors.OpError:  # of reading them, or of evaluating the model on them
        return None
    if not found:
        return wrong_labels or None
    return (
        f"Read again, the data have NaN or infinity in x or y of {len(found)} of {num_rows} rows, "
        f"first in row {found[0]}."
    )


def _wrong_labels(model: keras.Model, batch: Any) -> str:
    """Returns which labels of a batch are out of range, in words; empty if there are none."""
    outputs = _outputs(model, internals.map_arrays(lambda a: a[:1], batch[0]))
    try:
        compiled_loss.check_labels(model, batch[1], outputs)
    except ValueError as error:
        return f"In a batch, {error}"
    return ""


def _has_finite_loss(model: keras.Model, batch: Any) -> bool:
    x, y, weight = batch
    loss = compiled_loss.negative_log_likelihoods(model, y, _outputs(model, x), weight)
    return bool(np.isfinite(loss).all())


def _outputs(model: keras.Model, x: Any, values: list[tf.Tensor] | None = None) -> Any:
    variables = model.trainable_variables
    if values is None:
        values = [tf.convert_to_tensor(v.value) for v in variables]
    return internals.forward(model, variables, values, x, training=False).outputs

"""Units of inputs and targets that no network fits are told before the first step."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.checks.data_check import check_data
from tfp_sgmcmc.keras.data.training_data import Source, source_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=[64, 3]).astype(np.float32)
Y = (X[:, 0] + 0.1 * RNG.normal(size=64)).astype(np.float32)


def told(
    x: np.ndarray, y: np.ndarray, loss: keras.losses.Loss, outputs: int, weight: object = None
) -> str:
    """Returns what is warned of, before the first step of a network on these arrays."""
    source = Source(kind="arrays", num_examples=len(x), arrays=(x, y, weight))
    return told_of(source, x, y, loss, outputs)


def told_of(
    source: Source, x: np.ndarray, y: np.ndarray, loss: keras.losses.Loss, outputs: int
) -> str:
    keras.utils.set_random_seed(0)
    layers = [keras.Input(x.shape[1:]), keras.layers.Dense(8, "relu"), keras.layers.Dense(outputs)]
    model = keras.Sequential(layers)
    model.compile("sgd", loss)
    model.test_on_batch(x[:1], y[:1])  # builds the loss, as fit does
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_data(model, source)
    return " ".join(str(w.message) for w in found)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, 5e4 * (Y + 3), "y of up to 2.*e.05"),
        (X, np.round(5e4 * (Y + 3)), "y of up to 2.*e.05"),
        (X * [1.0, 5e4, 1.0], Y, "x of up to 1.*e.05"),
        (X, 23 + 7 * Y, "y of up to 35"),
        (X, np.round(40 + 7 * Y), "y of up to 5."),  # ages
    ],
)
def test_other_units_than_those_of_a_network_are_told(x, y, words):
    found = told(x.astype(np.float32), y, sgmcmc.keras.losses.GaussianNLL(), 2)
    assert "Standardise y" in found
    assert re.search(words, found)


def test_usual_data_are_not():
    nll, classes = sgmcmc.keras.losses.GaussianNLL(), RNG.integers(0, 10, 64)
    softmax = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert not told(X, Y, nll, 2)
    assert not told(10 * X, 10 * Y, nll, 2)
    assert not told(RNG.uniform(0, 255, [64, 100]).astype(np.float32), classes, softmax, 10)
    counts = RNG.poisson(300, 64).astype(np.float32)
    assert not told(X, counts, sgmcmc.keras.losses.PoissonNLL(), 1)


def test_weights_have_no_units():
    nll, weight = sgmcmc.keras.losses.GaussianNLL(), RNG.uniform(1e4, 5e5, 64)
    assert not told(X, Y, nll, 2, weight)  # as those of a census
    missing = np.arange(64) % 4 > 0
    assert not told(X, np.where(missing, 1e9, Y), nll, 2, np.where(missing, 0, weight))
    assert "Standardise y" in told(X, 5e4 * (Y + 3), nll, 2, weight)
    assert "Standardise y" in told(X, 5e4 * (Y + 3), nll, 2, 1e-6 * weight)


def test_negative_rates_are_refused():
    counts = RNG.poisson(2, 64).astype(np.float32)
    with pytest.raises(ValueError, match=r"must be rates.* Received: outputs from -.*PoissonNLL"):
        told(X, counts, keras.losses.Poisson(), 1)
    assert not told(X, counts, sgmcmc.keras.losses.PoissonNLL(), 1)


ROWS = RNG.normal(size=[400, 3]).astype(np.float32)
LABELS = ROWS[:, 0] + RNG.normal(size=400).astype(np.float32)


@pytest.mark.parametrize(
    ("is_sorted", "shuffles", "is_told"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_data_set_in_an_order_by_y_is_told_if_nothing_shuffles_it(is_sorted, shuffles, is_told):
    """50 random batches have a ratio of chi^2(49) / 49, above 4 with probability 1e-18."""
    rows = np.argsort(LABELS) if is_sorted else np.arange(400)
    data = tf.data.Dataset.from_tensor_slices((ROWS[rows], LABELS[rows]))
    data = (data.shuffle(400, seed=0) if shuffles else data).batch(8).prefetch(1)
    source = source_of(data, None, 8, None)
    found = told_of(source, X, Y, sgmcmc.keras.losses.GaussianNLL(), 2)
    assert ("batches whose means of y vary" in found) == is_told


def test_numbers_that_are_not_finite_are_left_to_the_loss():
    y = Y.copy()
    y[40] = np.nan
    source = source_of(tf.data.Dataset.from_tensor_slices((X, y)).batch(2), None, 2, None)
    assert not told_of(source, X, Y, sgmcmc.keras.losses.GaussianNLL(), 2)


def cox(y, out):
    """Minus Cox' partial likelihood, whose risk sets are the later rows of the batch."""
    order = tf.argsort(-y[:, 0])
    risk = tf.math.cumulative_logsumexp(tf.gather(out[:, 0], order))
    return tf.scatter_nd(order[:, None], risk, tf.shape(risk)) - out[:, 0]


def one_pair_each(y, out):
    return 0.5 * (y[:, 0] - out[:, 0]) ** 2


def noisy(y, out):
    return one_pair_each(y, out) + tf.random.uniform(tf.shape(out)[:1])


@pytest.mark.parametrize(("loss", "is_told"), [(cox, True), (one_pair_each, False), (noisy, False)])
def test_a_loss_that_depends_on_the_other_rows_of_a_batch_is_told(loss, is_told):
    assert ("must not depend on the others of its batch" in told(X, Y[:, None], loss, 1)) == is_told


def test_outputs_that_depend_on_the_other_rows_of_a_batch_are_told():
    x = keras.Input([3])
    model = keras.Model(x, keras.layers.Lambda(lambda a: a - keras.ops.mean(a, axis=0))(x))
    model.compile("sgd", sgmcmc.keras.losses.GaussianNLL(scale=1.0))
    model.test_on_batch(X[:1], X[:1])
    with pytest.warns(UserWarning, match="must not depend on the others of its batch"):
        check_data(model, Source(kind="arrays", num_examples=64, arrays=(X, X, None)))

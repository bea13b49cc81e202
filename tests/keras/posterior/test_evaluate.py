"""Log predictive densities, accuracies and calibration errors against SciPy and by hand."""

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, linear
from tfp_sgmcmc.keras import expected_calibration_error
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation

tfd = tfp.distributions
N, S = 9, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
KERNELS = RNG.normal(size=[S, 3, 4]).astype(np.float32)
LOGITS = X @ KERNELS
CLASSES = np.random.default_rng(1).integers(0, 4, size=[N])
BITS = RNG.integers(0, 2, size=[N, 4]).astype(np.float32)
WEIGHTS = RNG.uniform(0.2, 3.0, size=[N])


def posterior_of(model, kernels=KERNELS, num_chains=None):
    return small_models.posterior_of(model, [kernels], num_chains)


def density(log_likelihood, weights=None):
    """Returns the log predictive density of log likelihoods `[S, N]`."""
    each = scipy.special.logsumexp(log_likelihood, axis=0) - np.log(len(log_likelihood))
    return np.average(each, weights=weights)


def of_classes(logits):
    return scipy.special.log_softmax(logits, axis=-1)[:, range(N), CLASSES]


def of_bits(logits):
    return scipy.stats.bernoulli.logpmf(BITS, scipy.special.expit(logits)).sum(axis=-1)


def error_by_hand(confidence, hit, weights):
    total = 0.0
    for b in range(15):
        inside = (b / 15 <= confidence) & (confidence < (b + 1) / 15)
        if inside.any():
            w = weights[inside]
            gap = np.average(hit[inside], weights=w) - np.average(confidence[inside], weights=w)
            total += w.sum() / weights.sum() * abs(gap)
    return total


@pytest.mark.parametrize(
    "form, weights",
    [
        ("column", WEIGHTS),
        ("one-hot", WEIGHTS),
        pytest.param("sparse", None, marks=pytest.mark.thorough),
        pytest.param("string", None, marks=pytest.mark.thorough),
        pytest.param("sparse", WEIGHTS, marks=pytest.mark.thorough),
        pytest.param("column", None, marks=pytest.mark.thorough),
        pytest.param("one-hot", None, marks=pytest.mark.thorough),
        pytest.param("string", WEIGHTS, marks=pytest.mark.thorough),
    ],
)
def test_classification(form, weights):
    one_hot_loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    loss, activation, y = {
        "sparse": (CROSSENTROPY, None, CLASSES),
        "column": (CROSSENTROPY, None, CLASSES[:, None]),
        "one-hot": (one_hot_loss, None, np.eye(4)[CLASSES]),
        "string": ("crossentropy", "softmax", CLASSES),
    }[form]
    found = posterior_of(linear(loss, activation=activation)).evaluate(X, y, weights, batch_size=4)
    w = np.ones([N]) if weights is None else weights
    np.testing.assert_allclose(
        found.log_predictive_density, density(of_classes(LOGITS), w), rtol=1e-5
    )
    p = scipy.special.softmax(LOGITS, axis=-1).mean(axis=0)
    hit = p.argmax(axis=-1) == CLASSES
    assert 0 < hit.mean() < 1
    assert found.accuracy == pytest.approx(np.average(hit, weights=w))
    expected = error_by_hand(p.max(axis=-1), hit, w)
    assert found.expected_calibration_error == pytest.approx(expected, rel=1e-4)


def test_binary_outputs_by_entry():
    """The likelihood sums over the entries of an output; Keras takes their mean."""
    model = linear(small_models.BINARY_CROSSENTROPY)
    found = posterior_of(model).evaluate(X, BITS, batch_size=4)
    assert found.log_predictive_density == pytest.approx(density(of_bits(LOGITS)), rel=1e-5)
    p = scipy.special.expit(LOGITS).mean(axis=0)
    hit = (p > 0.5) == (BITS > 0.5)
    assert found.accuracy == pytest.approx(hit.mean())
    expected = error_by_hand(np.maximum(p, 1 - p).ravel(), hit.ravel(), np.ones([hit.size]))
    assert found.expected_calibration_error == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
def test_a_regression_compiled_and_in_chunks_of_chains(monkeypatch):
    """Log densities differ by hundreds, and none of their sums underflows."""
    kernels = 10 * RNG.normal(size=[6, 2, 3, 1]).astype(np.float32)
    y = RNG.normal(size=[N, 1]).astype(np.float32)
    loss = sgmcmc.keras.NegativeLogLikelihood(lambda out: tfd.Normal(out, 0.5))
    posterior = posterior_of(linear(loss, 1, jit_compile=True), kernels, 2)
    log_p = scipy.stats.norm(X @ kernels, 0.5).logpdf(y)[..., 0]
    assert density(log_p.reshape(-1, N)) > log_p.mean() + 100
    assert np.exp(log_p.astype(np.float32)).min() == 0
    for draws in (6, 4):
        monkeypatch.setattr(
            "tfp_sgmcmc.keras.posterior.sample_loops._CHUNK_BYTES", draws * 2 * 3 * 4
        )
        found = posterior.evaluate(X, y)
        expected = density(log_p.reshape(-1, N))
        assert found.log_predictive_density == pytest.approx(expected, rel=1e-4)
    assert found[1:3] == (None, None)
    each = posterior.log_likelihood(X, y)
    assert each.shape == (6, 2, N)
    np.testing.assert_allclose(each, log_p, rtol=1e-4)


@pytest.mark.thorough
def test_several_outputs_with_loss_weights():
    inputs = keras.Input([3])
    dense = [keras.layers.Dense(n, use_bias=False, name=k) for k, n in (("a", 4), ("b", 1))]
    model = keras.Model(inputs, [layer(inputs) for layer in dense])
    normal = sgmcmc.keras.NegativeLogLikelihood(lambda out: tfd.Normal(out, 1.0))
    model.compile(loss=[CROSSENTROPY, normal], loss_weights=[0.5, 2.0], run_eagerly=True)
    values = RNG.normal(size=[S, 3, 1]).astype(np.float32)
    y = RNG.normal(size=[N, 1]).astype(np.float32)
    posterior = small_models.posterior_of(model, [KERNELS, values])
    log_p = 0.5 * of_classes(LOGITS) + 2 * scipy.stats.norm(X @ values, 1.0).logpdf(y)[..., 0]
    np.testing.assert_allclose(posterior.log_likelihood(X, [CLASSES, y]), log_p, rtol=1e-4)
    found = posterior.evaluate(X, [CLASSES, y])
    assert found.log_predictive_density == pytest.approx(density(log_p), rel=1e-5)
    hit = scipy.special.softmax(LOGITS, axis=-1).mean(axis=0).argmax(axis=-1) == CLASSES
    assert found.accuracy == [pytest.approx(hit.mean()), None]
    assert found.expected_calibration_error[1] is None


def test_each_score_of_each_output_is_shown():
    shown = str(Evaluation(-1.0, {"a": 1 / 3, "b": None}, [0.5, None], *3 * [None]))
    lines = [line.rsplit(maxsplit=1) for line in shown.splitlines()[1:]]
    assert lines == [
        ["log predictive density", "-1.0000"],
        ["accuracy of a", "0.3333"],
        ["expected calibration error of output 0", "0.5000"],
    ]


def test_masked_steps_and_ignored_classes_do_not_count():
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    y = np.array([[1, 9, 1], [0, 1, 1]])  # 9 is ignored
    embedding = keras.layers.Embedding(4, 2, mask_zero=True)
    model = keras.Sequential([keras.Input([3], dtype="int32"), embedding])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=9)
    model.compile(loss=loss, run_eagerly=True)
    tables = RNG.normal(size=[S, 4, 2]).astype(np.float32)
    found = posterior_of(model, tables).evaluate(tokens, y)
    log_p = scipy.special.log_softmax(tables, axis=-1)
    expected = density(np.stack([log_p[:, 1, 1], log_p[:, 3, 0]], axis=1))
    assert found.log_predictive_density == pytest.approx(expected, rel=1e-5)
    decided = np.exp(log_p).mean(axis=0).argmax(axis=-1)
    assert found.accuracy == np.mean([decided[1] == 1, decided[3] == 0])


def test_an_impossible_example_has_density_minus_infinity():
    model = linear(lambda y, f: tf.where(y > 0, np.inf, 1.0) + 0.0 * f[:, :1])
    y = np.zeros([N, 1], np.float32)
    assert posterior_of(model).evaluate(X, y).log_predictive_density == pytest.approx(-1)
    y[3] = 1
    weights = np.arange(N) != 3
    assert posterior_of(model).evaluate(X, y).log_predictive_density == -np.inf
    found = posterior_of(model).evaluate(X, y, weights)
    assert found.log_predictive_density == pytest.approx(-1)


def test_calibration_error_against_numbers_and_tfp():
    confidence = np.array([0.5, 0.52, 0.9, 0.91, 1.0])  # bins 7, 7, 13, 13, 14
    hit = np.array([True, False, True, True, False])
    by_hand = (abs(1 - 1.02) + abs(2 - 1.81) + abs(0 - 1.0)) / 5
    assert expected_calibration_error(confidence, hit) == pytest.approx(by_hand)
    logits = 2 * RNG.normal(size=[500, 4]).astype(np.float32)
    classes = RNG.integers(0, 4, size=[500])
    p = scipy.special.softmax(logits, axis=-1)
    found = expected_calibration_error(p.max(axis=-1), p.argmax(axis=-1) == classes)
    expected = tfp.stats.expected_calibration_error(15, logits, classes)
    assert found == pytest.approx(float(expected), rel=1e-4)
    assert expected_calibration_error([1 + 1e-7, 0.5], [1, 1]) == 0.25  # above 1 by rounding


def test_a_loss_that_is_no_likelihood():
    with pytest.raises(ValueError, match="is not a negative log likelihood"):
        posterior_of(linear("mse")).evaluate(X, LOGITS[0])


@pytest.mark.parametrize(
    "y, weights, words",
    [
        (CLASSES[:5], None, r"\[5, 9\] rows"),
        (
            CLASSES,
            WEIGHTS[:, None],
            r"sample_weight .* \[9\]. Received: shape \(9, 1\).*ignore_class",
        ),
        (CLASSES, -WEIGHTS, "not negative"),
        (CLASSES, 0 * WEIGHTS, "not all zero"),
    ],
)
def test_unfit_data(y, weights, words):
    with pytest.raises(ValueError, match=words):
        posterior_of(linear()).evaluate(X, y, weights)


def test_lists_are_no_arrays():
    posterior = posterior_of(linear())
    with pytest.raises(TypeError, match="Received: a float"):
        posterior.predict(X.tolist())
    with pytest.raises(TypeError, match="Received: an int"):
        posterior.evaluate(X, CLASSES.tolist())


def test_labels_of_another_rank_spoil_nothing():
    posterior = posterior_of(linear(run_eagerly=False, jit_compile=False))
    expected = posterior.evaluate(X, CLASSES[:, None])
    assert posterior.evaluate(X, CLASSES) == expected
    assert posterior.evaluate(X, CLASSES[:, None]) == expected


def test_rows_of_the_ignored_class_do_not_count():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    posterior, kept = posterior_of(linear(loss=loss)), np.arange(N) % 2 == 0
    found = posterior.evaluate(X, np.where(kept, CLASSES, -1), WEIGHTS)
    np.testing.assert_allclose(
        found[:3], posterior.evaluate(X[kept], CLASSES[kept], WEIGHTS[kept])[:3]
    )

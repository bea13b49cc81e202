"""Laplace's approximation of the last layer against closed forms, and what is refused."""

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.statistics import Rejected, check_covariance
from tests.keras.small_models import CROSSENTROPY, assert_close, assert_equal, sequential

N, F, K = 60, 3, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
SCALE, PRIOR = 0.5, 0.8  # standard deviations of the noise and of the prior
NUM_DRAWS = 40_000


def normal():
    return tfp.distributions.Normal(0.0, PRIOR)


def network(last, loss):
    """Returns a model whose weights are not at the mode."""
    layers = [keras.layers.Dense(F, "tanh"), keras.layers.Dropout(0.5), last]
    return sequential(*layers, inputs=2, loss=loss, optimizer="sgd", jit_compile=False)


def design(model):
    """Returns the inputs of the last layer and a column of ones, `[N, F + 1]`."""
    kernel, bias = (v.numpy().astype(np.float64) for v in model.trainable_variables[:2])
    return np.concatenate([np.tanh(X @ kernel + bias), np.ones([N, 1])], axis=1)


def draws_of(model, y, **arguments):
    """Returns draws `[S, 1, (F + 1) outputs]`, the kernel's rows first."""
    posterior = sgmcmc.keras.last_layer_laplace(
        model, X, y, normal(), num_samples=NUM_DRAWS, seed=1, **arguments
    )
    assert [v.path for v in posterior.variables] == [v.path for v in model.trainable_variables[2:]]
    kernel, bias = posterior.samples
    return np.concatenate([kernel, bias[:, None]], axis=1).reshape(NUM_DRAWS, 1, -1)


@pytest.mark.slow
def test_a_regression_has_its_exact_posterior():
    model = network(keras.layers.Dense(1), sgmcmc.keras.losses.GaussianNLL(scale=SCALE))
    y = RNG.normal(size=[N, 1]).astype(np.float32)
    before = model.get_weights()
    draws = draws_of(model, y)
    assert_equal(model.get_weights(), before)
    phi = design(model)
    covariance = np.linalg.inv(phi.T @ phi / SCALE**2 + np.eye(F + 1) / PRIOR**2)
    mean = covariance @ phi.T @ y[:, 0] / SCALE**2
    check_covariance(draws, mean, covariance, 0.1)
    for wrong in (covariance * 1.15, np.diag(np.diag(covariance))):
        with pytest.raises(Rejected):
            check_covariance(draws, mean, wrong, 0.1)
    with pytest.raises(Rejected):  # where training has left the layer
        check_covariance(draws, np.append(before[2], before[3]), covariance, 0.1)


@pytest.mark.parametrize("from_logits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_classifier_has_the_generalised_gauss_newton_matrix(from_logits):
    """It is sum_i (diag(p_i) - p_i p_i^T) x phi_i phi_i^T + 1/s^2 at the mode."""
    last = keras.layers.Dense(K, None if from_logits else "softmax")
    model = network(last, keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits))
    y, phi = RNG.integers(0, K, size=[N]), design(model)

    def negative(theta):
        logits = phi @ theta.reshape(F + 1, K)
        p = scipy.special.softmax(logits, axis=1)
        value = (scipy.special.logsumexp(logits, axis=1) - logits[np.arange(N), y]).sum()
        gradient = phi.T @ (p - np.eye(K)[y])
        value += (theta**2).sum() / 2 / PRIOR**2
        return value, gradient.ravel() + theta / PRIOR**2

    size = (F + 1) * K
    mode = scipy.optimize.minimize(negative, np.zeros(size), jac=True, tol=1e-10).x
    p = scipy.special.softmax(phi @ mode.reshape(F + 1, K), axis=1)
    curved = p[:, :, None] * np.eye(K) - p[:, :, None] * p[:, None]
    ggn = np.einsum("nf,ng,nkl->fkgl", phi, phi, curved).reshape(size, size)
    covariance = np.linalg.inv(ggn + np.eye(size) / PRIOR**2)
    draws = draws_of(model, y, batch_size=7)
    check_covariance(draws, mode, covariance, 0.1)
    with pytest.raises(Rejected):
        check_covariance(draws, mode, np.linalg.inv(ggn + np.eye(size)), 0.1)


@pytest.mark.slow
def test_regularisers_count_as_a_prior():
    """0.5 w^2 / (N s^2) beside a mean loss is the prior N(0, s^2) of the kernel."""
    y = RNG.normal(size=[N, 1]).astype(np.float32)
    loss = sgmcmc.keras.losses.GaussianNLL(scale=SCALE)
    penalised = keras.regularizers.L2(0.5 / N / PRIOR**2)
    by_prior = network(keras.layers.Dense(1), loss)
    by_penalty = network(keras.layers.Dense(1, kernel_regularizer=penalised), loss)
    by_penalty.set_weights(by_prior.get_weights())
    prior = {"kernel": None, "bias": normal()}
    one = sgmcmc.keras.last_layer_laplace(by_prior, X, y, normal(), num_samples=3, seed=0)
    other = sgmcmc.keras.last_layer_laplace(by_penalty, X, y, prior, num_samples=3, seed=0)
    assert_close(one.samples, other.samples, rtol=1e-3, atol=1e-3)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(K)

    def call(self, inputs):
        return self.dense(inputs)


def test_models_without_a_last_dense_layer_are_refused():
    y = RNG.integers(0, K, size=[N])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    frozen = network(keras.layers.Dense(K, trainable=False), loss)
    subclassed = Subclassed()
    subclassed.compile(loss=loss)
    subclassed(X)
    uncompiled = keras.Sequential([keras.Input([2]), keras.layers.Dense(K)])
    sequence = keras.Sequential(
        [keras.Input([2]), keras.layers.Reshape([2, 1]), keras.layers.Dense(K)]
    )
    sequence.compile(loss=loss)
    labels = np.stack([y, y], axis=1)
    cases = [
        (network(keras.layers.Activation("relu"), loss), y, "must come from a trainable Dense"),
        (frozen, y, "must come from a trainable Dense"),
        (subclassed, y, "must be Functional or Sequential"),
        (uncompiled, y, "must be compiled with a loss"),
        (network(keras.layers.Dense(K), "mse"), y, "is not a negative log likelihood"),
        (network(keras.layers.Dense(K), loss), y[1:], "same number of rows"),
        (sequence, labels, r"must have shape \[rows, features\]"),
    ]
    for model, labels, message in cases:
        with pytest.raises(ValueError, match=message):
            sgmcmc.keras.last_layer_laplace(model, X, labels, normal())


@pytest.mark.slow
def test_a_flat_prior_of_a_softmax_is_refused():
    """The same number added to all logits changes no probability."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = network(keras.layers.Dense(K), loss)
    with (
        pytest.warns(UserWarning, match="not negative definite"),
        pytest.raises(ValueError, match="[Hh]essian|curved|definite") as caught,
    ):
        sgmcmc.keras.last_layer_laplace(model, X, RNG.integers(0, K, size=[N]), None)
    assert "Received: prior=None" in str(caught.value)
    with pytest.raises(TypeError, match="y must hold numbers. Received: strings"):
        sgmcmc.keras.last_layer_laplace(model, X, np.full([N], "a"), normal())


@pytest.mark.parametrize(
    ("adapt", "received"),
    [
        (lambda layer: layer.enable_lora(1), r"\['bias', 'lora_kernel_a', 'lora_kernel_b'\]"),
        (lambda layer: setattr(layer.kernel, "trainable", False), r"\['bias'\]"),
        (lambda layer: setattr(layer.bias, "trainable", False), r"\['kernel'\]"),
    ],
    ids=["LoRA", "frozen kernel", "frozen bias"],
)
def test_a_last_layer_that_is_partly_frozen_is_refused(adapt, received):
    model = network(keras.layers.Dense(K), keras.losses.SparseCategoricalCrossentropy(True))
    adapt(model.layers[-1])
    with pytest.raises(ValueError, match=f"must have a trainable kernel and bias.*{received}"):
        sgmcmc.keras.last_layer_laplace(model, X, RNG.integers(0, K, size=[N]), normal())


def test_features_may_be_of_half_precision():
    policy = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = network(keras.layers.Dense(4, dtype="float32"), CROSSENTROPY)
    finally:
        keras.mixed_precision.set_global_policy(policy)
    found = sgmcmc.keras.last_layer_laplace(model, X, np.arange(N) % 4, prior=normal(), seed=0)
    assert len(found) > 1


def test_an_activity_regularizer_of_the_last_layer_is_refused():
    last = keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(1.0))
    with pytest.raises(ValueError, match="must have no activity_regularizer"):
        sgmcmc.keras.last_layer_laplace(network(last, CROSSENTROPY), X, np.zeros(N), prior=normal())


def test_targets_may_have_the_name_of_the_only_output():
    inputs = keras.Input([2])
    model = keras.Model(inputs, {"class": keras.layers.Dense(4, name="class")(inputs)})
    model.compile(loss={"class": CROSSENTROPY})
    y = np.arange(N) % 4
    found, plain = (
        sgmcmc.keras.last_layer_laplace(model, X, given, prior=normal(), num_samples=2, seed=0)
        for given in ({"class": y}, y)
    )
    assert_equal(found.samples, plain.samples)

"""Log priors by patterns of variables' paths, and lists of values by the same patterns."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras.small_models import sampler, sgld
from tfp_sgmcmc.keras.model.priors import as_log_prior, check_prior

tfd = tfp.distributions

RNG = np.random.default_rng(0)
SHAPES = {"conv_1/kernel": (3, 2), "conv_1/bias": (2,), "head/kernel": (2, 2), "head/bias": (2,)}
VALUES = [RNG.normal(size=s).astype(np.float32) for s in SHAPES.values()]
STANDARD = tfd.Normal(0.0, 1.0)


class ConvNet(keras.Model):
    """A model named conv_net, whose variables all have paths conv_net/..."""

    def __init__(self):
        super().__init__(name="conv_net")
        self.conv = keras.layers.Dense(2, name="conv_1")
        self.head = keras.layers.Dense(2, name="head")

    def call(self, x):
        return self.head(self.conv(x))


@pytest.fixture(scope="module")
def model():
    made = ConvNet()
    made(np.zeros([1, 3], np.float32))
    assert [v.path for v in made.trainable_variables] == [f"conv_net/{path}" for path in SHAPES]
    made.set_weights(VALUES)
    return made


def log_normal(x, scale=1.0, loc=0.0):
    return scipy.stats.norm(loc, scale).logpdf(x).sum()


@pytest.mark.parametrize(
    "values, default, expected",
    [
        ({"*": 1}, None, [1, 1, 1, 1]),
        ({"bias": 1, "*": 2}, None, [2, 1, 2, 1]),
        ({"conv_1": 1, "head": 2}, None, [1, 1, 2, 2]),
        ({"conv*": 1}, 9, [1, 1, 9, 9]),
        ({"conv*/kernel": 1}, 9, [1, 9, 9, 9]),
        ({"conv_net/conv_1/bias": 1}, 9, [9, 1, 9, 9]),
        ({"conv_net/*/kernel": 1}, 9, [1, 9, 1, 9]),
        ({"kernel": 1, "head": 2}, 9, [1, 9, 1, 2]),
        ({"head": 2, "kernel": 1}, 9, [1, 9, 2, 2]),
        ({"[ch]*/b?as": 1}, 9, [9, 1, 9, 1]),
    ],
)
def test_first_match_wins(model, values, default, expected):
    assert sgmcmc.keras.by_variable(model, values, default) == expected


@pytest.mark.parametrize(
    "values, error, words",
    [
        ({"conv*": 1}, ValueError, "no pattern that matches conv_net/head/kernel, conv_net/h"),
        ({"*": 1, "dense": 2}, ValueError, r"'dense'.*conv_net/conv_1/kernel, conv_net/conv_1/bi"),
        ({"*": 1, "head": 2}, ValueError, "Received: 'head', .* earlier"),
        ({"Conv_1": 1, "*": 2}, ValueError, "match no variable"),
        ({"conv": 1, "*": 2}, ValueError, "match no variable"),
        ({"conv_net": 1, "*": 2}, ValueError, "match no variable"),
        ({}, ValueError, "empty dict"),
        ([1, 2, 3, 4], TypeError, "values must be a dict.*Received: a list"),
        ({0: 1}, TypeError, "the key 0"),
    ],
)
def test_patterns_that_are_refused(model, values, error, words):
    with pytest.raises(error, match=words):
        sgmcmc.keras.by_variable(model, values)


def test_a_model_that_is_not_built():
    with pytest.raises(ValueError, match="not built"):
        sgmcmc.keras.by_variable(keras.Sequential([keras.layers.Dense(1)]), {"*": 1.0})


def marginals():
    """Returns priors, and the log priors of `VALUES` by SciPy."""
    k1, b1, k2, b2 = VALUES
    scales = np.array([0.5, 2.0], np.float32)
    covariance = np.array([[2.0, 0.6], [0.6, 1.0]], np.float32)
    correlated = tfd.MultivariateNormalTriL([1.0, -1.0], np.linalg.cholesky(covariance))
    multivariate = scipy.stats.multivariate_normal([1.0, -1.0], covariance)
    entries = tfd.Independent(tfd.Normal(VALUES[2] + 1.0, 2.0), reinterpreted_batch_ndims=2)
    all_ = sum(map(log_normal, VALUES))
    return {
        "none": (None, 0.0),
        "scalar": (tfd.Normal(1.0, 2.0), sum(log_normal(x, 2.0, 1.0) for x in VALUES)),
        "callable": (lambda state: -tf.reduce_sum(state[1] ** 2), -np.sum(b1**2)),
        "flat biases": ({"bias": None, "*": STANDARD}, log_normal(k1) + log_normal(k2)),
        "two layers": (
            {"conv*": tfd.Laplace(0.0, 0.5), "head": STANDARD},
            sum(scipy.stats.laplace(0, 0.5).logpdf(x).sum() for x in (k1, b1))
            + log_normal(k2) + log_normal(b2),
        ),
        "batch of columns": (
            {"conv_1/kernel": tfd.Normal(0.0, scales), "*": None},
            log_normal(k1[:, 0], 0.5) + log_normal(k1[:, 1], 2.0),
        ),
        "batch of rows and columns": (
            {"head/kernel": tfd.Normal(tf.constant(k2) - 1.0, scales[:, None]), "*": None},
            log_normal(np.ones(2), 0.5) + log_normal(np.ones(2), 2.0),
        ),
        "event of a vector": (
            {"head/bias": correlated, "*": STANDARD},
            all_ - log_normal(b2) + multivariate.logpdf(b2),
        ),
        "event of rows": ({"conv_1/kernel": correlated, "*": None}, multivariate.logpdf(k1).sum()),
        "event of a matrix": ({"head/kernel": entries, "*": None}, log_normal(np.ones(4), 2.0)),
        "flat": ({"*": None}, 0.0),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(marginals()))
def test_log_prior(model, name):
    prior, expected = marginals()[name]
    check_prior(prior)
    log_prior = as_log_prior(prior, model)
    state = [tf.constant(x) for x in VALUES]
    np.testing.assert_allclose(log_prior(state), expected, rtol=1e-5)


def test_log_prior_of_each_chain(model):
    """The log prior sees no axis of chains inside a compiled `vectorized_map`, as in the target."""
    prior, expected = marginals()["event of a vector"]
    log_prior = as_log_prior(prior, model)
    stacked = [tf.stack([x, x + 1.0]) for x in VALUES]
    run = tf.function(lambda s: tf.vectorized_map(log_prior, s), jit_compile=True)
    got = run(stacked)
    assert got.shape == [2]
    np.testing.assert_allclose(got[0], expected, rtol=1e-5)
    np.testing.assert_allclose(got[1], log_prior([x + 1.0 for x in VALUES]), rtol=1e-5)
    assert abs(got[1] - got[0]) > 1.0


JOINT = tfd.JointDistributionSequential([STANDARD])


@pytest.mark.parametrize(
    "prior, error, words",
    [
        ({"*": 1.0}, TypeError, r"prior\['\*'\] must be .* Received: a float"),
        ({"*": lambda x: x}, TypeError, r"prior\['\*'\] must be .* Received: a function"),
        ({}, ValueError, "empty dict"),
        (JOINT, TypeError, "joint distribution.*log_prob"),
        ({"*": JOINT}, TypeError, "joint distribution"),
        (tfd.Normal([0.0, 1.0], 1.0), ValueError, "a scalar distribution.*dict"),
    ],
)
def test_what_the_constructor_refuses(prior, error, words):
    with pytest.raises(error, match=words):
        sampler(sgld(), 8, prior)


def normal(shape):
    return tfd.Normal(tf.zeros(shape), 1.0)


@pytest.mark.parametrize(
    "prior, error, words",
    [
        ({"head": STANDARD}, ValueError, "no pattern that matches conv_net/conv_1/kernel"),
        ({"*": STANDARD, "dense": None}, ValueError, "'dense'"),
        ({"conv_1/kernel": normal([3]), "*": None}, ValueError, r"\(3, 2\), must .* shape \(3,"),
        ({"head/bias": normal([2, 2]), "*": None}, ValueError, r"batch shape \(2, 2\)"),
        ({"*": normal([1, 2])}, ValueError, "conv_net/conv_1/bias"),
        ({"*": tfd.MultivariateNormalDiag(tf.zeros([3]))}, ValueError, r"event shape \(3,\)"),
        ({"*": tfd.Independent(normal([3, 2]), 2)}, ValueError, "conv_net/conv_1/bias"),
        ({"*": tfd.Normal(np.float64(0.0), 1.0)}, TypeError, "float32. Received: float64"),
        (lambda state: state[1], ValueError, r"prior must return a scalar.*shape \(2,\)"),
        (tfd.HalfNormal(1.0), ValueError, "log prior of the model's weights.*-inf"),
        ({"head": tfd.Uniform(5.0, 6.0), "*": None}, ValueError, "bounded support"),
    ],
)
def test_what_does_not_fit_the_model(model, prior, error, words):
    with pytest.raises(error, match=words):
        as_log_prior(prior, model)


def fit(model, make_kernel_fn, prior=None, **arguments):
    """Returns the states before and after one batch of all 8 examples."""
    x = np.ones([8, 3], np.float32)
    initial = model.get_weights()
    callback = sampler(make_kernel_fn, 8, prior, **arguments)
    model.fit(x, np.zeros([8, 2]), batch_size=8, verbose=0, callbacks=[callback])
    return initial, [s[0] for s in callback.samples]


def flat(y, f):
    return 0.0 * f


def test_a_step_by_a_dict_of_priors(model):
    """With a flat likelihood, a step is eps/2 times the gradient of the log prior."""
    model.set_weights(VALUES)
    model.compile(loss=flat, run_eagerly=True)
    prior = {"bias": None, "conv*": tfd.Normal(0.0, 0.5), "*": tfd.Normal(3.0, 1.0)}
    initial, moved = fit(model, sgld(0.1, temperature=0.0), prior)
    gradients = [-initial[0] / 0.25, 0.0, 3.0 - initial[2], 0.0]
    for before, after, g in zip(initial, moved, gradients, strict=True):
        np.testing.assert_allclose(after, before + 0.05 * g, rtol=1e-5)


def test_a_model_whose_weights_come_with_the_first_batch():
    model = keras.Sequential([keras.layers.Dense(2, name="a"), keras.layers.Dense(2, name="b")])
    model.compile(loss=flat, run_eagerly=True)
    with pytest.raises(ValueError, match="matches .*b/kernel, .*b/bias"):
        fit(model, sgld(0.1), {"a": STANDARD})


STEPS = {"conv*": 1e-2, "head/kernel": np.float32([[1e-3], [2e-3]]), "head/bias": 4e-3}
KERNELS = {
    "step sizes": lambda steps: sgld(steps, temperature=0.0),
    "diagonal": lambda steps: sgld(
        1.0, temperature=0.0, preconditioner=sgmcmc.preconditioners.Diagonal(steps)
    ),
}


@pytest.mark.parametrize(
    "kernel, num_chains",
    [
        ("step sizes", None),
        pytest.param("diagonal", 2, marks=pytest.mark.thorough),
        pytest.param("step sizes", 2, marks=pytest.mark.thorough),
        pytest.param("diagonal", None, marks=pytest.mark.thorough),
    ],
)
def test_each_variable_has_its_own_step(model, kernel, num_chains):
    """With a flat likelihood and the prior N(0, 1), x becomes x (1 - eps/2)."""
    model.set_weights(VALUES)
    model.compile(loss=flat, run_eagerly=True)
    steps = sgmcmc.keras.by_variable(model, STEPS)
    arguments = {"num_chains": num_chains, "initial_states": "model"}
    initial, moved = fit(model, KERNELS[kernel](steps), STANDARD, **arguments)
    for before, after, eps in zip(initial, moved, steps, strict=True):
        want = np.broadcast_to(before * (1 - eps / 2), after.shape)
        np.testing.assert_allclose(after, want, rtol=1e-6)
        assert np.abs(want / before - 1).min() > 4e-4

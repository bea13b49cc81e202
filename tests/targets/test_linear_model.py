"""Linear models in closed form: equal to automatic differentiation, and without bias."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments, give_every_minibatch
from tfp_sgmcmc.random import AliasTable
from tfp_sgmcmc.targets import linear_model_scores
from tfp_sgmcmc.targets.laplace.quadratic import weight

tfb, tfd = tfp.bijectors, tfp.distributions
RNG = np.random.default_rng(0)
N, D, C = 24, 3, 4
X = RNG.standard_normal([N, D]) + 0.3
COUNTS = RNG.poisson(np.exp(0.3 * X.sum(axis=1)))
RESPONSE = 0.2 * X.sum(axis=1) + 0.3 * RNG.standard_t(4.0, N)
NUMBERS = tf.constant([0.5, 4.0], tf.float64)  # a scale, and degrees of freedom
SEED = tf.constant([0, 1])


def bernoulli(eta: Any, y: Any) -> Any:
    return tfd.Bernoulli(logits=eta).log_prob(y)


def poisson(eta: Any, y: Any) -> Any:
    return tfd.Poisson(log_rate=eta).log_prob(y)


def normal(eta: Any, y: Any) -> Any:
    return tfd.Normal(eta, tf.cast(NUMBERS[0], eta.dtype)).log_prob(y)


def student(eta: Any, y: Any) -> Any:
    scale, degrees = tf.unstack(tf.cast(NUMBERS, eta.dtype))
    return tfd.StudentT(degrees, eta, scale).log_prob(y)


def categorical(eta: Any, y: Any) -> Any:
    return tfd.Categorical(logits=eta).log_prob(y)


FAMILIES = {
    "Bernoulli": (bernoulli, COUNTS % 2.0, None),
    "Poisson": (poisson, 1.0 * COUNTS, None),
    "normal": (normal, RESPONSE, None),
    "Student's t": (student, RESPONSE, None),
    "categorical": (categorical, RNG.integers(0, C, N), C),
}


def models(
    family: str, num_examples: int = N, batch_size: int = 6, dtype: Any = tf.float64, **options: Any
) -> tuple[sgmcmc.MinibatchLogProb, sgmcmc.MinibatchLogProb, tf.Tensor]:
    """Returns the closed form, the same model as a plain function, and a state near the mode."""
    fn, y, num_outputs = FAMILIES[family]
    linear = sgmcmc.LinearModel(fn, num_outputs)
    axes = [-1] if num_outputs is None else [-2, -1]

    def log_prior(w: Any) -> Any:
        return -0.5 * tf.reduce_sum(w**2, axis=axes)

    data = (X[:num_examples], y[:num_examples])
    targets = (
        sgmcmc.MinibatchLogProb(log_prior, f, data, batch_size, dtype=dtype, **options)
        for f in (linear, lambda w, batch: linear(w, batch))
    )
    shape = [D] if num_outputs is None else [D, num_outputs]
    return *targets, tf.cast(np.random.default_rng(1).normal(0.2, 0.2, shape), dtype)


def estimates(target: Any, state: Any, with_scores: bool) -> Any:
    run = tf.function(
        lambda s: target.estimate(s, SEED, target.bootstrap(s), with_scores=with_scores)[:3],
        autograph=False,
        jit_compile=state.dtype == tf.float32,  # elsewhere scores come one after another
    )
    return run(state)


def check_equal(
    closed: Any,
    plain: Any,
    center: tf.Tensor,
    *chains: int,
    rtol: float,
    scores: tuple[bool, ...] = (False, True),
) -> None:
    noise = tf.random.stateless_normal([*chains, *center.shape], [2, 3], dtype=center.dtype)
    for with_scores in scores:
        found, expected = (
            tf.nest.flatten(estimates(t, center + 0.4 * noise, with_scores))
            for t in (closed, plain)
        )
        for a, b in zip(found, expected, strict=True):
            scale = np.abs(b).max() + 1
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=rtol)


def whitened(
    family: str, center: tf.Tensor, **options: Any
) -> tuple[sgmcmc.MinibatchLogProb, sgmcmc.MinibatchLogProb, tf.Tensor]:
    closed, plain, _ = models(family, **options)
    origin = tf.zeros([center.shape.num_elements()], center.dtype)
    return sgmcmc.whiten(closed, center)[0], sgmcmc.whiten(plain, center)[0], origin


def slow_unless(*fast: str) -> list[Any]:
    marks = {family: [] if family in fast else [pytest.mark.slow] for family in FAMILIES}
    return [pytest.param(family, marks=marks[family]) for family in FAMILIES]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_equal_automatic_differentiation(family: str) -> None:
    """Scores, differences and remainders, also whitened, agree to a few rounding errors."""
    closed, plain, state = models(family)
    check_equal(closed, plain, state, 2, rtol=1e-12, scores=(True,))
    first = (sgmcmc.ControlVariate(t, state) for t in (closed, plain))
    check_equal(*first, state, 2, rtol=1e-12, scores=(False,))
    second = [sgmcmc.ControlVariate(t, state, 2, "pilot") for t in (closed, plain)]
    check_equal(*second, state, 2, rtol=1e-12, scores=(True,))
    q = [t.second_order.probabilities for t in second]
    np.testing.assert_allclose(*q, atol=2.0**-24)  # the unit of the alias table
    *pair, origin = whitened(family, state)
    second = [sgmcmc.ControlVariate(t, origin, 2) for t in pair]
    check_equal(*second, origin, 2, rtol=1e-11)


@pytest.mark.parametrize("family", slow_unless("Bernoulli"))
@pytest.mark.parametrize(
    ("options", "chains"),
    [
        pytest.param(dict(), (), marks=pytest.mark.slow),
        pytest.param(dict(num_groups=2), (2, 2), marks=pytest.mark.slow),
        (dict(replacement=True, shared_batch=True, num_groups=3), (2,)),
    ],
    ids=["one chain", "groups", "groups of a shared batch"],
)
def test_options_of_minibatches(family: str, options: Any, chains: Any) -> None:
    *_, center = models(family)
    *pair, state = whitened(family, center, **options)
    second = (sgmcmc.ControlVariate(t, state, 2, np.arange(1.0, N + 1)) for t in pair)
    check_equal(*second, state, *chains, rtol=1e-11)


@pytest.mark.slow
def test_expansions_of_low_rank() -> None:
    """With fewer eigenpairs than dimensions, quadratic terms keep a part of the offset."""
    *pair, state = models("categorical")
    low = [sgmcmc.ControlVariate(t, state, 2, "pilot", hessian="low_rank") for t in pair]
    for control in low:
        full = control.second_order.quadratic
        control.second_order.quadratic = dataclasses.replace(
            full,
            vectors=full.vectors[:, :5],
            values=full.values[:5],
            products=full.products[:, :5],
        )
    check_equal(*low, state, 2, rtol=1e-11)
    q = [t.second_order.probabilities for t in low]
    np.testing.assert_allclose(*q, atol=2.0**-24)


@pytest.mark.slow
def test_single_precision_and_svrg() -> None:
    *pair, state = models("Bernoulli", dtype=tf.float32)
    *white, origin = whitened("Bernoulli", state, dtype=tf.float32)
    second = (sgmcmc.ControlVariate(t, origin, 2) for t in white)
    check_equal(*second, origin, 2, rtol=1e-5, scores=(False,))
    check_equal(*(sgmcmc.SVRG(t) for t in pair), state, 2, rtol=1e-5, scores=(False,))


def test_no_bias_over_all_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and covariance of all minibatches are exact; another table of predictors has a bias."""
    for whiten in (False, True):
        base, plain, center = models("Poisson", 5, 3)
        if whiten:
            base, _, center = whitened("Poisson", center, num_examples=5, batch_size=3)
        for order in (1, 2):
            target = sgmcmc.ControlVariate(base, center, order)
            with monkeypatch.context() as patch:
                count = give_every_minibatch(patch, base)
                theta = center + 0.3
                value, gradient = tfp.math.value_and_gradient(target, theta)
                many = tf.broadcast_to(theta, [count, D])
                check_moments(target.estimate(many, [0, 0]), value, gradient)
                quick = target.estimate(many, [0, 0], with_scores=False).gradient
                np.testing.assert_allclose(np.mean(quick, axis=0), gradient, rtol=1e-10)
                if order == 2:
                    target.second_order._linear[0].at_center += 0.1
                    wrong = target.estimate(many, [0, 0], with_scores=False).gradient
                    assert np.abs(np.mean(wrong, axis=0) - gradient).max() > 1e-2


def test_no_bias_with_unequal_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    base, _, center = models("categorical", 4, 3)
    base, _, center = whitened("categorical", center, num_examples=4, batch_size=3)
    target = sgmcmc.ControlVariate(base, center, 2, [0.5, 1.0, 2.0, 4.0])
    draws = np.array(list(itertools.product(range(4), repeat=3)))
    chance = target.second_order.probabilities[draws].prod(axis=1)
    monkeypatch.setattr(AliasTable, "draw", lambda *_: tf.constant(draws, tf.int32))
    theta = center + np.linspace(-2, 2, D * C)  # there w < 1
    assert weight(target.second_order.quadratic, theta) < 1
    value, gradient = tfp.math.value_and_gradient(target, theta)
    many = tf.broadcast_to(theta, [len(draws), *theta.shape])
    for with_scores in (False, True):
        estimate = target.estimate(many, [0, 0], with_scores=with_scores)
        np.testing.assert_allclose(chance @ estimate.gradient.numpy(), gradient, rtol=1e-10)
        np.testing.assert_allclose(chance @ estimate.log_prob.numpy(), value, rtol=1e-10)


@pytest.mark.thorough
def test_a_bijector_that_is_not_affine_is_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, plain, state = models("normal", bijector=tfb.Exp())
    assert closed.linear_model is None
    check_equal(*(sgmcmc.SVRG(t) for t in (closed, plain)), state, 2, rtol=1e-14)
    affine = models("normal", bijector=tfb.Scale(tf.constant(2.0, tf.float64)))[0]
    assert affine.linear_model is not None
    called: list[str] = []
    real = linear_model_scores.differences
    monkeypatch.setattr(
        linear_model_scores, "differences", lambda *a: [called.append("closed"), real(*a)][1]
    )
    sgmcmc.SVRG(affine).bootstrap(state)
    sgmcmc.ControlVariate(affine, state).estimate(state, SEED, with_scores=False)
    assert called == ["closed"]  # the control: it is the closed form that is compared above


@pytest.mark.slow
def test_compiled_chains_and_named_weights() -> None:
    linear = sgmcmc.LinearModel(bernoulli)
    target = sgmcmc.MinibatchLogProb(
        lambda weights: -0.5 * tf.reduce_sum(weights**2, -1), linear, (X, COUNTS % 2.0), 6
    )
    center, _ = sgmcmc.find_center(target, {"weights": tf.zeros([D], tf.float64)})
    control = sgmcmc.ControlVariate(target, center, 2, "pilot")
    state = {"weights": tf.ones([2, D], tf.float64)}
    eager = control.estimate(state, SEED)
    compiled = tf.function(
        lambda s: control.estimate(s, SEED)[:3], autograph=False, jit_compile=True
    )(state)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), eager[:3], compiled
    )


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "log_prob_fn must be a callable", lambda: sgmcmc.LinearModel(None)),
        (ValueError, "num_outputs must be at least 1", lambda: sgmcmc.LinearModel(poisson, 0)),
        (TypeError, "num_outputs must be an integer", lambda: sgmcmc.LinearModel(poisson, 2.5)),
        (TypeError, "a pair of features", lambda: sgmcmc.LinearModel(poisson)(X[0], X)),
        (
            ValueError,
            r"weights of shape \(4,\)",
            lambda: sgmcmc.LinearModel(poisson)(np.ones(4), (X, COUNTS)),
        ),
        (
            ValueError,
            r"weights of shape \[D, 4\]",
            lambda: sgmcmc.LinearModel(categorical, C)(np.ones([D, 3]), (X, COUNTS)),
        ),
    ],
)
def test_wrong_arguments(error: Any, message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()

"""preflight accepts right targets, and says what is wrong with others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal(50).astype(np.float32)


def normal(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * (batch - theta[..., tf.newaxis]) ** 2


def target(log_likelihood: Callable, batch_size: int = 7, **options: Any) -> Any:
    return sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * theta**2, log_likelihood, X, batch_size, **options
    )


def size_of(batch: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(batch)[-1], batch.dtype)


BUGS = {
    "divided by n": lambda t, x: normal(t, x) / size_of(x),
    "times N / n": lambda t, x: normal(t, x) * 50 / size_of(x),
    "mean repeated": lambda t, x: (
        tf.reduce_mean(normal(t, x), axis=-1, keepdims=True) / size_of(x) + 0 * normal(t, x)
    ),
    "batch normalised": lambda t, x: normal(t, x - tf.reduce_mean(x, axis=-1, keepdims=True)),
    "shifted by the first example": lambda t, x: normal(t, x - x[..., :1]),
    "weighted by the batch": lambda t, x: normal(t, x) * tf.reduce_max(x, axis=-1, keepdims=True),
}


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("batch_size", [7, pytest.param(25, marks=pytest.mark.slow), 50])
def test_likelihoods_that_depend_on_the_batch(name: str, batch_size: int) -> None:
    with pytest.raises(ValueError, match="do not add up to the full one: .* over all N = 50"):
        sgmcmc.preflight(target(BUGS[name], batch_size), tf.constant([0.7, -0.2]))


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (sgmcmc.GrowingBatch, "divided by n"),
        pytest.param(sgmcmc.SVRG, "shifted by the first example", marks=pytest.mark.slow),
    ],
)
def test_wrapped_targets_are_checked(wrap: Any, name: str) -> None:
    with pytest.raises(ValueError, match="do not add up to the full one"):
        sgmcmc.preflight(wrap(target(BUGS[name])), tf.constant(0.7))
    sgmcmc.preflight(wrap(target(normal)), tf.constant(0.7))


def test_the_part_whose_gradient_is_nan_is_named() -> None:
    """sqrt(b) has a value at 0, but no gradient."""
    broken = sgmcmc.MinibatchLogProb(
        lambda a, b: -(a**2) - b**2,
        lambda a, b, batch: normal(a, batch) + tf.sqrt(b * 0.0)[..., tf.newaxis],
        X,
        7,
    )
    a, b = tf.constant(1.0), tf.constant(0.0)
    for state, name in (([a, b], r"state\[1\]"), ({"a": a, "b": b}, r"state\['b'\]")):
        message = rf"gradient of the log posterior is NaN or infinite .* \({name}\)"
        with pytest.raises(ValueError, match=message):
            sgmcmc.preflight(broken, state)


def test_an_infinite_log_posterior() -> None:
    infinite = target(lambda t, x: tf.math.log(t)[..., tf.newaxis] + 0 * x)
    with pytest.raises(ValueError, match="The log posterior is NaN or infinite at the initial"):
        sgmcmc.preflight(infinite, tf.constant(-1.0))


STATES = [0.3, [0.3, -2.0], [[0.1, 0.2], [3.0, 100.0]]]
CHUNKS = [{}, {"chunk_size": 3}, {"chunk_size": 50}]


@pytest.mark.parametrize("chains", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_right_targets_pass(size: int, chains: int) -> None:
    """Tests a Latin square of the 27 triples of state, batch size and chunks."""
    options = CHUNKS[(size + chains) % 3]
    sgmcmc.preflight(target(normal, [1, 7, 50][size], **options), tf.constant(STATES[chains]))


@pytest.mark.parametrize("options", [{"replacement": True}, {"reshuffle": "epoch"}])
def test_every_way_of_drawing_passes(options: dict[str, Any]) -> None:
    sgmcmc.preflight(target(normal, **options), tf.constant(0.3))


def test_float32_near_the_mode_of_many_examples_passes() -> None:
    """The terms of 1e5 examples cancel in the gradient; rounding must not look like a bug."""
    model = GaussianMean(num_examples=100_000)
    state = tf.constant(np.tile(model.mean, [3, 1]), tf.float32)
    sgmcmc.preflight(model.target(500), state)
    sgmcmc.preflight(model.target(77, chunk_size=10_000), state)


def test_small_errors_of_float64_are_seen() -> None:
    """Finds a relative error of 1e-6 in the likelihood, which is rounding in float32."""
    leak = GaussianMean(num_examples=1000)
    right = leak.target(50, tf.float64)
    wrong = sgmcmc.MinibatchLogProb(
        right.log_prior,
        lambda theta, x: (
            -0.5
            * tf.reduce_sum((x - theta[..., tf.newaxis, :]) ** 2, axis=-1)
            * (1 + 1e-6 * 1000 / tf.cast(tf.shape(x)[-2], x.dtype))
        ),
        leak.data,
        50,
    )
    state = tf.zeros([3], tf.float64)
    sgmcmc.preflight(right, state)
    with pytest.raises(ValueError, match="do not add up"):
        sgmcmc.preflight(wrong, state)


def test_dict_states_bijectors_and_chains_pass() -> None:
    model = sgmcmc.MinibatchLogProb(
        lambda loc, scale: -0.5 * loc**2 - scale,
        lambda loc, scale, batch: tfd.Normal(loc[..., None], scale[..., None]).log_prob(batch),
        X,
        7,
        bijector={"loc": None, "scale": tfb.Softplus()},
    )
    sgmcmc.preflight(model, {"loc": tf.zeros([2, 3]), "scale": tf.ones([2, 3])})


@pytest.mark.parametrize("fn", [tf.math.log, sgmcmc.FullDataLogProb(tf.math.log)])
def test_plain_targets_pass_if_finite(fn: Any) -> None:
    sgmcmc.preflight(fn, tf.constant(2.0))
    with pytest.raises(ValueError, match="The log posterior is NaN or infinite"):
        sgmcmc.preflight(fn, tf.constant(-2.0))
    with pytest.raises(TypeError, match="target_log_prob_fn must be a callable, .* a int"):
        sgmcmc.preflight(3, tf.constant(0.5))


def test_tolerance_is_taken() -> None:
    slightly = target(lambda t, x: normal(t, x) * (1 + 0.02 / size_of(x)))
    sgmcmc.preflight(slightly, tf.constant(0.7), rtol=0.1)
    with pytest.raises(ValueError, match="do not add up"):
        sgmcmc.preflight(slightly, tf.constant(0.7), rtol=1e-4)

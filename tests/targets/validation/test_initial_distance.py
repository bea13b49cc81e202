"""Warnings of far starts of samplers that noise slows down, with the steps that they take."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.validation.step_size_check import estimate_initial_distance

tfd = tfp.distributions

N, D, SIZE = 2_000, 4, 10
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = (X @ np.ones(D) + RNG.normal(size=[N])).astype(np.float32)
PRECISION = X.T.astype(np.float64) @ X + np.eye(D)
MODE = np.linalg.solve(PRECISION, X.T @ Y.astype(np.float64))
ROOT = np.linalg.cholesky(np.linalg.inv(PRECISION))

EXACT = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2))


def regression(size: int = SIZE) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        lambda theta: tf.reduce_sum(tfd.Normal(0.0, 1.0).log_prob(theta), axis=-1),
        lambda theta, rows: tfd.Normal(tf.linalg.matvec(rows[0], theta), 1.0).log_prob(rows[1]),
        (X, Y),
        size,
    )


def test_other_minibatches_have_noise_of_their_own() -> None:
    """Also those of a control variate, whose copies share the programs of estimates."""
    center = tf.constant(MODE, tf.float32)
    control, state = sgmcmc.ControlVariate(regression(5), center), away(130.0)
    for size in (5, 1_000):
        control = control.with_batch_size(size)
        kernel = sgmcmc.NOGIN(control, 0.005, friction=10.0)
        estimate_initial_distance(kernel, control, state)
        assert any(f"estimates from {size} examples" in key for key in control._programs)


def away(distance: float) -> tf.Tensor:
    """Returns a state `distance` standard deviations from the mode."""
    return tf.constant(MODE + ROOT @ np.full(D, distance / D**0.5), tf.float32)


def step_matrix(h: float, friction: float, a: float, s: float, temperature: float) -> np.ndarray:
    """Returns one step of NOGIN without noise, of (theta, p), as the product of its five maps."""
    square, damping = np.tanh(friction * h / 2), h**2 * s / (4 * temperature)
    scale = (1 - square - damping) / (1 + square + damping)
    theta, p = np.array([1.0, h / 2]), np.array([0.0, 1.0])  # after half a drift
    kick = -h / 2 * a * theta  # before and after the damping
    p = scale * (p + kick) + kick
    return np.array([theta + h / 2 * p, p])


@pytest.mark.parametrize("h", [0.01, 0.3, 1.5])
@pytest.mark.parametrize(("a", "s"), [(1.0, 0.0), (1.5, 3.0), (0.2, 400.0)])
def test_the_number_of_steps_follows_from_the_matrix_of_a_step(
    h: float, a: float, s: float
) -> None:
    kernel = sgmcmc.NOGIN(EXACT, h, 0.7, temperature=1.3)
    radius = max(abs(np.linalg.eigvals(step_matrix(h, 0.7, a, s, 1.3))))
    assert kernel.relaxation_steps(a, s) == pytest.approx(-1 / np.log(radius), rel=1e-6)


def test_where_noise_dominates_the_number_depends_on_no_step() -> None:
    for h in (0.1, 0.3, 1.0):
        kernel = sgmcmc.NOGIN(EXACT, h, 0.1)
        assert kernel.relaxation_steps(1.0, 2e4) == pytest.approx(1e4, rel=0.02)
    unstable = sgmcmc.NOGIN(EXACT, 2.1)
    assert np.isinf(unstable.relaxation_steps(1.0, 0.0))


def warnings_of(start: tf.Tensor, kernel: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sgmcmc.preflight(kernel.parameters["target_log_prob_fn"], start, kernel=kernel)
    return [str(w.message) for w in found]


@pytest.mark.thorough
@pytest.mark.parametrize("chains", [[], pytest.param([3], marks=pytest.mark.slow)])
def test_a_far_start_is_warned_of_and_takes_as_long_as_stated(chains: list[int]) -> None:
    kernel = sgmcmc.NOGIN(regression(), 0.005, 10.0)
    start = tf.broadcast_to(away(130.0), [*chains, D])
    (message,) = warnings_of(start, kernel)
    found = estimate_initial_distance(kernel, regression(), start)
    assert found is not None
    assert f"{found.distance:.0f} standard deviations" in message
    assert 100 < found.distance < 170  # along the gradient, from eight minibatches
    run = sgmcmc.sample_chain(
        kernel, start, 3_000, seed=0, progress_bar=False, preflight_check=False
    )
    deviations = np.linalg.solve(ROOT, (run.states - MODE).reshape(-1, D).T)
    distances = np.linalg.norm(deviations, axis=0).reshape(3_000, -1)
    taken = np.argmax(distances < distances[0] / np.e, axis=0)
    # Noise falls with the distance, so that the way takes less than at the noise of the start. The
    # minibatches' own noise falls on the other side.
    assert np.all(taken > found.num_steps / 4)
    assert np.all(taken < 2 * found.num_steps)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "distance", "size"),
    [
        (lambda target: sgmcmc.NOGIN(target, 0.005, 10.0), 2.0, SIZE),
        pytest.param(
            lambda target: sgmcmc.NOGIN(target, 0.005, 10.0), 130.0, 500, marks=pytest.mark.thorough
        ),
        pytest.param(
            lambda target: sgmcmc.SGLD(target, 1e-4), 130.0, SIZE, marks=pytest.mark.thorough
        ),
    ],
    ids=["near", "little noise", "SGLD"],
)
def test_other_starts_pass(make: Callable[[Any], Any], distance: float, size: int) -> None:
    assert warnings_of(away(distance), make(regression(size))) == []


@pytest.mark.parametrize(
    ("size", "count"), [(SIZE, 1), pytest.param(500, 0, marks=pytest.mark.thorough)]
)
def test_fit_warns_of_a_far_start(size: int, count: int) -> None:
    layers = [
        keras.Input([D]),
        keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(8.0)),
    ]
    model = keras.Sequential(layers)
    model.compile(loss=sgmcmc.keras.NegativeLogLikelihood(lambda f: tfd.Normal(f, 1.0)))
    callback = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.NOGIN(target, 0.005, 10.0),
        prior=tfd.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=N,
    )
    data = sgmcmc.keras.IndependentBatches(X, Y[:, None], batch_size=size)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(data, epochs=1, verbose=0, callbacks=[callback])
    assert sum("initial_state" in str(w.message) for w in found) == count

"""One step of CCAdL equals the formula of its docstring, for the draws of that step.

theta <- theta + h p / m
p     <- p + h g(theta) - h^2 / (2 T) Sigma p / m - h xi p + sqrt(2 A T h m) z
xi    <- xi + h / mu (p.p / (m d) - T)
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import flat, two_parts
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.known_covariance import KnownCovariance
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import Full, RunningMean

MODEL = GaussianMean(num_examples=12)
HAND = by_hand.ByHand(MODEL)
BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=False)
START = np.array([[0.3, -0.5, 1.0], [2.0, 0.1, -0.7]])  # two chains
MOMENTUM = np.array([[0.2, 1.0, -0.4], [0.3, -1.5, 0.8]])
MASS = np.array([0.5, 1.0, 2.0])
SEED = tf.constant([5, 6])
H = 0.05


def step(
    theta: np.ndarray,
    p: np.ndarray,
    xi: np.ndarray,
    draws: by_hand.Draws,
    noise: Any = NOISE,
    mass: Any = 1.0,
    **numbers: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = {"h": H, "friction": 3.0, "temperature": 1.0, "mu": 1.0, **numbers}
    h, friction, temperature, mu = (
        np.reshape(values[k], [-1, 1]) for k in ("h", "friction", "temperature", "mu")
    )
    theta = theta + h * p / mass
    g = HAND.gradient(theta, draws.batch)
    drag = h**2 / (2 * temperature) * np.einsum("...ij,...j->...i", noise, p / mass)
    drawn = np.sqrt(2 * friction * temperature * h * mass) * draws.z
    p = p + h * g - drag - h * xi[:, np.newaxis] * p + drawn
    energy = (p**2 / mass).mean(axis=-1)
    return theta, p, xi + (h / mu)[:, 0] * (energy - temperature[:, 0])


OPTIONS = {
    "plain": {},
    "mass": dict(mass=MASS),
    "temperature": dict(temperature=0.7),
    "mass, temperature and thermal mass": dict(mass=MASS, temperature=1.7, mu=4.0),
    "numbers of each chain": dict(
        h=np.array([0.05, 0.02]),
        friction=np.array([3.0, 5.0]),
        temperature=np.array([1.0, 0.5]),
        mu=np.array([1.0, 3.0]),
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_three_steps(name: str) -> None:
    options = OPTIONS[name]
    mass = options.get("mass", np.ones(3))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.CCAdL(
        target,
        options.get("h", H),
        options.get("friction", 3.0),
        KnownCovariance(NOISE / target.noise_scale),
        options.get("mu", 1.0),
        [mass[:1], mass[1:]],
        options.get("temperature", 1.0),
        initial_momentum=two_parts(MOMENTUM),
    )
    state, theta, p = two_parts(START), START, MOMENTUM
    xi = np.broadcast_to(options.get("friction", 3.0), [2])
    results = kernel.bootstrap_results(state)
    for t in range(3):
        draws = by_hand.draws(target, state, SEED + t)
        state, results = kernel.one_step(state, results, SEED + t)
        theta, p, xi = step(theta, p, xi, draws, **options)
        np.testing.assert_allclose(flat(state), theta, rtol=1e-11)
        np.testing.assert_allclose(flat(results.momentum), p, rtol=1e-11)
        np.testing.assert_allclose(results.thermostat, xi, rtol=1e-11)
        np.testing.assert_allclose(results.kinetic_temperature, (p**2 / mass).mean(axis=-1))
    assert results.step.numpy() == 3


@pytest.mark.parametrize("include_current", [False, True])
def test_average_of_the_paper(include_current: bool) -> None:
    """Weights kappa_t = 1 / t, with the current minibatch as in the paper, or without it."""
    target = MODEL.target(BATCH, tf.float64)
    covariance = Full(RunningMean(), include_current=include_current)
    kernel = sgmcmc.CCAdL(target, H, 3.0, covariance, initial_momentum=MOMENTUM)
    state, theta, p, xi = tf.constant(START), START, MOMENTUM, np.full([2], 3.0)
    results, average = kernel.bootstrap_results(state), np.zeros([2, 3, 3])
    for t in range(1, 4):
        draws = by_hand.draws(target, state, SEED + t)
        state, results = kernel.one_step(state, results, SEED + t)
        rows = HAND.scores(theta + H * p, draws.batch)
        own = np.stack([np.cov(r, rowvar=False) for r in rows]) * target.noise_scale
        after = (1 - 1 / t) * average + own / t
        used = after if include_current or t == 1 else average
        theta, p, xi = step(theta, p, xi, draws, noise=used)
        average = after
        np.testing.assert_allclose(results.momentum, p, rtol=1e-10)


def test_schedules() -> None:
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.CCAdL(
        target,
        lambda t: 0.05 / (1 + tf.cast(t, tf.float64)),
        lambda t: 3.0 + tf.cast(t, tf.float64),
        KnownCovariance(NOISE / target.noise_scale),
        thermal_mass=lambda t: 1.0 + tf.cast(t, tf.float64),
        temperature=lambda t: 2.0 - 0.5 * tf.cast(t, tf.float64),
    )
    state, theta, p, xi = tf.constant(START), START, np.zeros([2, 3]), np.full([2], 3.0)
    results = kernel.bootstrap_results(state)
    for t in range(3):
        draws = by_hand.draws(target, state, SEED + t)
        state, results = kernel.one_step(state, results, SEED + t)
        theta, p, xi = step(
            theta, p, xi, draws,
            h=0.05 / (1 + t), friction=3.0 + t, mu=1.0 + t, temperature=2.0 - 0.5 * t,
        )  # fmt: skip
        np.testing.assert_allclose(state, theta, rtol=1e-10)
        np.testing.assert_allclose(results.momentum, p, rtol=1e-10)


def test_a_plain_log_density_is_that_of_sgnht() -> None:
    """Without gradient noise CCAdL and SGNHT are the same sampler."""
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    state = tf.constant(START)
    kernels = sgmcmc.CCAdL(target, H, 3.0), sgmcmc.SGNHT(target, H, 3.0)
    steps = [k.one_step(state, k.bootstrap_results(state), SEED) for k in kernels]
    for name in ("momentum", "thermostat", "kinetic_temperature"):
        ours, theirs = (getattr(results, name) for _, results in steps)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "block", "diag", "low_rank"])
def test_results_keep_their_structure_shapes_and_dtypes(covariance: str) -> None:
    for dtype, shape in ((tf.float32, []), (tf.float64, [2, 5])):
        kernel = sgmcmc.CCAdL(MODEL.target(BATCH, dtype, parts=True), H, 3.0, covariance)
        state = {"a": tf.zeros([*shape, 1], dtype), "b": tf.zeros([*shape, 2], dtype)}
        before = kernel.bootstrap_results(state)
        moved, after = kernel.one_step(state, before, SEED)
        tf.nest.assert_same_structure(moved, state)
        tf.nest.assert_same_structure(before, after)
        for x, y in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert after.thermostat.shape == shape


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_every_mode_takes_the_step_of_its_own_draws(jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64)
    covariance = KnownCovariance(NOISE / target.noise_scale)
    kernel = sgmcmc.CCAdL(target, H, 3.0, covariance, initial_momentum=MOMENTUM)
    state = tf.constant(START)

    @tf.function(jit_compile=jit, autograph=False)
    def run(state: Any, seed: tf.Tensor) -> Any:
        moved, results = kernel.one_step(state, kernel.bootstrap_results(state), seed)
        batch_seed, noise_seed = random.split(seed, 2)
        indices = target.draw(batch_seed, tf.range(BATCH), [2])
        return moved, results.momentum, indices, random.normal_like(state, noise_seed)

    moved, momentum, indices, z = (x.numpy() for x in run(state, SEED))
    draws = by_hand.Draws(indices, z)
    theta, p, _ = step(START, MOMENTUM, np.full([2], 3.0), draws)
    np.testing.assert_allclose(moved, theta, rtol=1e-10)
    np.testing.assert_allclose(momentum, p, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(friction=0.0), "friction must be a positive finite number. Received: 0.0"),
        (dict(thermal_mass=-1.0), "thermal_mass must be a positive finite number. Received: -1.0"),
        (dict(temperature=np.nan), "temperature must be a positive finite number. Received: nan"),
        (dict(mass=0.0), "mass must be a positive finite number. Received: 0.0"),
        (dict(covariance="dense"), "covariance must be one of full.* Received: 'dense'"),
        (dict(covariance=None), "covariance must be one of full.* Received: None"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.CCAdL(MODEL.target(BATCH), **{"step_size": H, **options})


def test_parameters_rebuild_the_kernel() -> None:
    kernel = sgmcmc.CCAdL(MODEL.target(BATCH), 0.01, 2.0, "diag", thermal_mass=3.0)
    copy = kernel.copy(friction=3.0)
    assert copy.parameters["friction"] == 3.0 and copy.parameters["thermal_mass"] == 3.0
    assert copy.target_log_prob_fn is kernel.target_log_prob_fn

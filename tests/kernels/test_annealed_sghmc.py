"""`AnnealedSGHMC`: its law with constant settings, what it clips, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL, SEED
from tests.harness.chains import run_chains
from tfp_sgmcmc.kernels import annealed_sghmc
from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC

N, CHAINS = 50, 400
VALUES = np.random.default_rng(0).normal(1.0, 1.0, size=[N]).astype(np.float32)


def flat_prior(theta: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(theta)


def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * (batch - theta[..., tf.newaxis]) ** 2


TARGET = sgmcmc.MinibatchLogProb(flat_prior, log_likelihood, VALUES, batch_size=N)


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_with_constant_settings_it_samples_the_tempered_posterior(temperature: float) -> None:
    """The mean of 50 numbers of unit variance, under a prior of variance 0.04 x 0.5.

    They are told by the means of five tens. The learning rate 0.001 with the mass 2 makes 150 steps
    forget the momentum and most of the place: 8,000 draws have standard errors of at most 0.02 sds
    for the mean and 2 % for the variance. The tolerances are five times as large (false alarms
    below 1e-5), and the variance has 2 % more for the error of the step. Without the prior the
    variance is twice as large, and with the other temperature five times as large or small.
    """
    tens = sgmcmc.MinibatchLogProb(
        flat_prior, lambda theta, batch: 10.0 * log_likelihood(theta, batch),
        VALUES.reshape(5, 10).mean(axis=1), batch_size=5,
    )  # fmt: skip
    kernel = AnnealedSGHMC(
        tens, 0.001, mass=2.0, prior_variance=0.04, prior_scale=0.5, temperature=temperature,
        noise_limit=1e6,
    )  # fmt: skip
    draws = run_chains(kernel, tf.zeros([CHAINS]), 3000, 600, seed=1)[:, 149::150]
    precision = N + 1 / 0.02
    sd = np.sqrt(temperature / precision)
    assert abs(draws.mean() - VALUES.sum() / precision) < 5 * 0.02 * sd
    assert abs(draws.var() / sd**2 - 1) < 5 * 0.02 + 0.02


def test_large_gradients_are_clipped_and_shorten_the_step() -> None:
    kernel = AnnealedSGHMC(TARGET, 1.0, temperature=1e-12, noise_limit=0.2, prior_variance=1e12)
    near, far = tf.constant([VALUES.mean() + 0.1]), tf.constant([VALUES.mean() + 100.0])
    _, results = kernel.one_step(near, kernel.bootstrap_results(near), seed=SEED)
    np.testing.assert_allclose(results.squared_gradient, [0.01], rtol=1e-3)
    np.testing.assert_allclose(results.step_size, [1.0])
    moved, after = kernel.one_step(far, results._replace(momentum=tf.zeros([1])), seed=SEED)
    mean = 0.01 + 0.05 * (0.04 - 0.01)
    np.testing.assert_allclose(after.squared_gradient, [mean], rtol=1e-3)
    np.testing.assert_allclose(after.step_size, [1.0])
    np.testing.assert_allclose(far - moved, [2 * 0.1], rtol=1e-3)  # clipped to Q = 4 S
    _, first = kernel.one_step(far, kernel.bootstrap_results(far), seed=SEED)
    np.testing.assert_allclose(first.step_size, [0.2 / 100.0**2], rtol=1e-3)


@pytest.mark.parametrize(("dtype", "chains"), [(tf.float32, [2]), (tf.float64, [])], ids=str)
def test_results_keep_their_form(dtype: Any, chains: list[int]) -> None:
    schedule = sgmcmc.schedules.GeometricDecay(0.3, 0.01, 10)
    kernel = AnnealedSGHMC(
        MODEL.target(5, dtype, parts=True), schedule, {"a": 2.0, "b": [1.0, 3.0]},
        {"a": 1.0, "b": 2.0}, schedule, schedule,
    )  # fmt: skip
    state = {"a": tf.zeros([*chains, 1], dtype), "b": tf.zeros([*chains, 2], dtype)}
    before = kernel.bootstrap_results(state)
    moved, after = kernel.one_step(state, before, SEED)
    for x, y in zip(*(tf.nest.flatten(z) for z in ((state, before), (moved, after))), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": 0.0}, "step_size must be"),
        ({"mass": -1.0}, "mass must be"),
        ({"prior_variance": 0.0}, "prior_variance must be"),
        ({"momentum_loss": 1.5}, "momentum_loss must be"),
        ({"averaging": 0.0}, "averaging must be"),
        ({"mass_averaging": 2.0}, "mass_averaging must be"),
        ({"noise_limit": 0.0}, "noise_limit must be"),
    ],
)
def test_bad_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnealedSGHMC(TARGET, **{"step_size": 0.1, **arguments})


def test_with_centers_a_step_is_that_of_centred_inputs() -> None:
    """Two chains fit a line through inputs around 100, with the mean input known and not."""
    x = (100 + np.random.default_rng(1).normal(size=[N, 2])).astype(np.float32)
    y, c = VALUES[:, np.newaxis], np.float32([[99.0], [101.0]])

    def target(offset: Any) -> Any:
        return sgmcmc.MinibatchLogProb(
            lambda w, a: tf.zeros(tf.shape(w)[:-2]),
            lambda w, a, batch: -0.5 * tf.reduce_sum(
                (batch[1] - batch[0] @ w - a[..., None, :]) ** 2, -1),
            (x - offset, y), N)  # fmt: skip

    w = tf.constant(np.random.default_rng(2).normal(size=[2, 2, 1]).astype(np.float32) / 10)
    b = tf.constant([[1.0], [2.0]])
    a = b + tf.reduce_sum(c * w, axis=1)
    arguments = {"step_size": 0.1, "mass": [3.0, 1.0], "prior_variance": [0.5, 100.0]}
    plain = AnnealedSGHMC(target(c[:, 0]), **arguments)
    centred = AnnealedSGHMC(target(0.0), centers=[(0, 1, c)], **arguments)
    for _ in range(3):
        (w_plain, a), _ = plain.one_step([w, a], plain.bootstrap_results([w, a]), seed=SEED)
        (w, b), _ = centred.one_step([w, b], centred.bootstrap_results([w, b]), seed=SEED)
        np.testing.assert_allclose(w, w_plain, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(b + tf.reduce_sum(c * w, axis=1), a, rtol=1e-3, atol=1e-3)


def test_masses_that_follow_the_gradients_are_those_of_the_equations() -> None:
    """Two chains with weights and a bias take two steps without noise; here in double precision."""
    x = np.random.default_rng(1).normal(size=[N, 2]) * [1.0, 30.0]
    target = sgmcmc.MinibatchLogProb(
        lambda w, a: tf.zeros_like(a),
        lambda w, a, batch: -0.5 * (batch[1] - tf.linalg.matvec(batch[0], w) - a[..., None]) ** 2,
        (x, VALUES.astype(np.float64)), N)  # fmt: skip
    m0, s, cap, w, gamma = [np.array([3.0, 2.0]), 1.0], [0.5, 2.0], 0.01, 4.0, 0.25
    kernel = AnnealedSGHMC(
        target, cap, m0, s, w, temperature=1e-30, noise_limit=0.2, mass_averaging=gamma
    )
    theta = [np.array([[0.3, -0.2], [1.0, 0.5]]), np.array([2.0, -1.0])]
    state = [tf.constant(part) for part in theta]
    results = kernel.bootstrap_results(state)
    assert [u.shape for u in results.squares] == [part.shape for part in state]
    v, u, mean = [np.zeros_like(part) for part in theta], [], 0.0
    for k in range(2):
        state, results = kernel.one_step(state, results, seed=SEED)
        off = theta[0] @ x.T + theta[1][:, np.newaxis] - VALUES
        g = [off @ x / N, off.mean(axis=1)]
        if k == 0:
            u = [np.mean(g[0] ** 2 / m0[0], axis=1, keepdims=True) * m0[0], g[1] ** 2]
        u = [a + gamma * (b**2 - a) for a, b in zip(u, g, strict=True)]
        m = [np.sqrt(a * b) + cap / (0.1 * N * c * w) for a, b, c in zip(u, m0, s, strict=True)]
        q = np.sum(g[0] ** 2 / m[0], axis=1) + g[1] ** 2 / m[1]
        mean = q if k == 0 else mean + 0.05 * (q - mean)
        rate = np.minimum(cap, 0.2 / mean)
        rates = rate[:, np.newaxis], rate
        for j in range(2):
            v[j] = 0.9 * v[j] - rates[j] * (g[j] + theta[j] / (N * s[j] * w)) / m[j]
            theta[j] = theta[j] + v[j]
        for found, want in zip([*state, *results.squares], [*theta, *u], strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-9)
    constant = AnnealedSGHMC(target, cap, m0, s, w, temperature=1e-30).bootstrap_results(state)
    assert constant.squares == ()


def test_units_make_no_difference_to_masses_that_follow_the_gradients() -> None:
    """Columns in other units, with masses and prior variances in them, give the same predictions.

    Control: a mass that is the same for all columns.
    """
    x = np.random.default_rng(1).normal(size=[N, 3])
    units = np.array([1e-3, 1.0, 1e4])

    def moved(x: np.ndarray, unit: Any, mass: Any) -> np.ndarray:
        target = sgmcmc.MinibatchLogProb(
            lambda w: tf.zeros_like(w[..., 0]),
            lambda w, batch: -0.5 * (batch[1] - tf.linalg.matvec(batch[0], w)) ** 2,
            (x, VALUES.astype(np.float64)), N)  # fmt: skip
        kernel = AnnealedSGHMC(
            target, 0.1, mass, 2.0 / np.asarray(mass), temperature=0.1, mass_averaging=0.01
        )
        w = tf.constant([[0.5, -1.0, 2.0]], tf.float64) / unit
        results = kernel.bootstrap_results(w)
        for k in range(5):
            w, results = kernel.one_step(w, results, seed=SEED + k)
        return (w * unit).numpy()

    want = moved(x, 1.0, np.full(3, 3.0))
    np.testing.assert_allclose(moved(x * units, units, 3 * units**2), want, rtol=1e-9)
    assert np.abs(moved(x * units, units, 3.0) - want).max() > 0.01


def test_without_gradient_the_prior_takes_a_share_of_the_state() -> None:
    """Weights of a deep network whose gradients vanish must not be lost in the first step."""
    target = sgmcmc.MinibatchLogProb(
        lambda theta: tf.zeros_like(theta[..., 0]),
        lambda theta, batch: 0.0 * batch * theta[..., :1],
        VALUES.astype(np.float64), N)  # fmt: skip
    kernel = AnnealedSGHMC(
        target, 0.01, 3.0, 0.5, 4.0, temperature=1e-30, momentum_loss=0.2, mass_averaging=0.25
    )
    state = tf.constant([[1.0, -2.0]], tf.float64)
    moved, _ = kernel.one_step(state, kernel.bootstrap_results(state), seed=SEED)
    np.testing.assert_allclose(moved, (1 - 0.2) * state, rtol=1e-9)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("mass_averaging", [pytest.param(None, marks=pytest.mark.thorough), 0.25])
def test_parts_that_move_as_one_move_as_they_do_alone(
    mass_averaging: float | None, jit_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four parts of two chains, with settings by part and a center, without noise."""
    sizes = [3, 1, 2, 3]
    x = np.random.default_rng(3).normal(size=[N, sum(sizes)])

    def line(*theta: Any) -> tf.Tensor:
        *parts, batch = theta
        return -0.5 * tf.linalg.matvec(batch, tf.concat(parts, -1)) ** 2

    target = sgmcmc.MinibatchLogProb(lambda *theta: tf.zeros_like(theta[0][..., 0]), line, x, N)
    state = [tf.random.stateless_normal([2, n], [n, 1], dtype=tf.float64) for n in sizes]
    kernel = AnnealedSGHMC(
        target, 0.1, [1.0, 2.0, 3.0, 4.0], [tf.range(1.0, 1 + n) for n in sizes], 4.0,
        temperature=1e-30, centers=[(0, 3, 0.5)], mass_averaging=mass_averaging,
    )  # fmt: skip

    def moved(fewest: int) -> Any:
        monkeypatch.setitem(annealed_sghmc._PACKED, "fewest", fewest)
        step = tf.function(
            lambda *x: kernel.one_step(*x, seed=SEED), jit_compile=jit_compile, autograph=False
        )
        theta, results = state, kernel.bootstrap_results(state)
        for _ in range(3):
            theta, results = step(theta, results)
        return theta, results

    (alone, before), (together, results) = moved(5), moved(4)
    assert len(before.momentum) == 4 and [p.shape for p in results.momentum] == [[2, sum(sizes)]]
    for found, want in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9)
    for name in ("kinetic_temperature", "squared_gradient", "gradient_norm", "step_size"):
        np.testing.assert_allclose(getattr(results, name), getattr(before, name), rtol=1e-9)


def test_a_large_state_moves_as_one_operation_of_a_graph() -> None:
    """XLA compiles its arithmetic alone; it is that of eager steps. Control: a small state."""

    def of_mean(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return log_likelihood(tf.reduce_mean(theta, axis=-1), batch)

    def no_prior(theta: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(0 * theta, axis=-1)

    target = sgmcmc.MinibatchLogProb(no_prior, of_mean, VALUES, batch_size=N)
    kernel = AnnealedSGHMC(target, 0.1, temperature=1e-12, mass_averaging=0.1)
    step = tf.function(lambda x, results: kernel.one_step(x, results, SEED), autograph=False)

    def compiled(*given: Any) -> list[str]:
        library = step.get_concrete_function(*given).graph.as_graph_def().library.function
        names = [f.signature.name for f in library if f.attr["_XlaMustCompile"].b]
        return [name for name in names if "draw" not in name]  # the rest draws normals

    state = tf.random.stateless_normal([2, 50_000], SEED)
    before = kernel.bootstrap_results(state)
    for found, expected in zip(
        tf.nest.flatten(step(state, before)),
        tf.nest.flatten(kernel.one_step(state, before, SEED)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    assert len(compiled(state, before)) == 1
    few = state[:, :10]
    assert compiled(few, kernel.bootstrap_results(few)) == []


def test_a_gradient_of_zero_at_the_start_does_not_end_the_learning():
    """Steps are clipped by the mean square of gradients, which must be able to grow from 0."""
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
    kernel = AnnealedSGHMC(target, 0.1, prior_variance=100.0, noise_limit=np.inf)
    state = tf.zeros([])
    results = kernel.bootstrap_results(state)
    for step in range(5):
        state, results = kernel.one_step(state, results, seed=[0, step])
    assert float(results.squared_gradient) > 0.0

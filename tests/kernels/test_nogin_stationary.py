"""NOGIN samples a Gaussian posterior exactly, with minibatches and nearly unstable steps.

On the Gaussian-mean model every step is linear and the gradient noise has one covariance Sigma.
The first tests read the matrices of a step off the code, and compare their law with closed forms to
rounding, without sampling. Then chains are compared with them, with a false-alarm rate of 1e-6 for
each test and a stated power, which the checks verify. Broken samplers go through the same checks.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import block_diag

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import PRECISION, GaussianMean
from tests.harness.known_scores import KnownScores
from tests.harness.mutation import changed, copies, forgets_momentum, frozen_part, mutant
from tests.harness.phase_space import (
    LinearScheme,
    Run,
    linear_scheme,
    run_phase_space,
)
from tests.harness.statistics import Rejected, check_covariance, check_means
from tfp_sgmcmc.covariance import Diag, Full, History, LowRank, RunningMean

MODEL = GaussianMean(num_examples=12)
MASS = np.array([0.5, 1.0, 2.0])
BATCH = 5
NOISE = MODEL.noise(BATCH, replacement=True)
FRICTION = 3.0
BURNIN = 100
CHAINS = 3000
VARIANCE_ERROR = 0.08


def limit(model: GaussianMean = MODEL, mass: Any = 1.0) -> float:
    """Returns the largest stable step, where h^2 times the largest eigenvalue of m^-1 A is 4."""
    scaled = model.hessian / np.broadcast_to(mass, [3])[:, np.newaxis]
    return 2 / np.sqrt(np.linalg.eigvals(scaled).real.max())


STEP = 0.9 * limit()


def scheme(
    step_size: float = STEP,
    friction: float = FRICTION,
    noise: np.ndarray = NOISE,
    model: GaussianMean = MODEL,
    kernel: Any = sgmcmc.NOGIN,
    **options: Any,
) -> LinearScheme:
    """Returns the matrices of NOGIN whose Sigma is `noise`."""
    return linear_scheme(
        lambda target, **momentum: kernel(
            KnownScores(target, noise), step_size, friction, **options, **momentum
        ),
        model.hessian,
    )


def exact(
    step_size: float = STEP,
    mass: Any = 1.0,
    temperature: float = 1.0,
    model: GaussianMean = MODEL,
) -> np.ndarray:
    """Independent theta ~ N(., T A^-1) and p ~ N(0, T (m^-1 - h^2/4 m^-1 A m^-1)^-1)."""
    inverse_mass = np.diag(1 / np.broadcast_to(mass, [3]))
    drag = step_size**2 / 4 * inverse_mass @ model.hessian @ inverse_mass
    return temperature * block_diag(
        np.linalg.inv(model.hessian), np.linalg.inv(inverse_mass - drag)
    )


def assert_same(law: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(law, expected, rtol=1e-7, atol=1e-10)


# The closed form


def heat(errors: np.ndarray, drag: np.ndarray) -> np.ndarray:
    """The mean of (1 + L')^-1 (L - L') (1 + L')^-1 over L' = L + e."""
    damped = np.linalg.inv(np.eye(len(drag)) + drag + errors)
    return -np.mean(damped @ errors @ damped, axis=0)


@pytest.mark.parametrize("num_scores", [400, pytest.param(1600, marks=pytest.mark.thorough)])
def test_heat_of_a_noisy_sigma(num_scores: int) -> None:
    """It is 2 G E[e G e] G, with E[e G e] = (L G L + tr(G L) L) / m for Gaussian scores.

    L is h^2 Sigma / 4 without lambda. Terms of third order are below a fifth. Power: the factor 2,
    and the trace, without which the heat would be a third. The 4000 averages give 5 %.
    """
    rng, drag = np.random.default_rng(0), np.diag([0.1, 0.5, 1.0, 3.0, 10.0])
    scores = rng.standard_normal([4000, num_scores, 5]) * np.sqrt(np.diag(drag))
    errors = np.einsum("kmi,kmj->kij", scores, scores) / num_scores - drag
    gain = np.linalg.inv(np.eye(5) + drag)
    product = gain @ drag
    second = (drag @ product + np.trace(product) * drag) / num_scores
    found, predicted = heat(errors, drag), 2 * gain @ second @ gain
    np.testing.assert_allclose(np.diag(found), np.diag(predicted), rtol=0.2)
    lone = 2 * gain @ (drag @ product / num_scores) @ gain
    assert np.all(np.diag(found) > 2 * np.diag(lone))


@pytest.mark.parametrize("of_limit", [0.3, 0.99])
@pytest.mark.parametrize("friction", [0.3, 30.0])
@pytest.mark.parametrize("batch_size", [2, 5, 11])
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 0.3)])
def test_law_is_exact_at_every_stable_step(
    of_limit: float,
    friction: float,
    batch_size: int,
    replacement: bool,
    mass: Any,
    temperature: float,
) -> None:
    h = of_limit * limit(mass=mass)
    noise = MODEL.noise(batch_size, replacement)
    matrices = scheme(h, friction, noise, mass=mass, temperature=temperature)
    assert matrices.spectral_radius < 1
    assert_same(matrices.covariance(noise), exact(h, mass, temperature))


@pytest.mark.parametrize(
    "covariance",
    ["full", "low_rank"]
    + [Full(solver=s) for s in ("cg", "cholesky", "lagged_cholesky")]
    + [LowRank(solver=s) for s in ("cg", "woodbury")],
)
def test_law_is_exact_with_every_form_of_sigma_and_solver(covariance: Any) -> None:
    assert_same(scheme(covariance=covariance).covariance(NOISE), exact())


@pytest.mark.parametrize("covariance", ["diag", Diag()])
def test_a_diagonal_sigma_has_the_law_of_its_diagonal(covariance: Any) -> None:
    law = scheme(covariance=covariance).covariance(NOISE)
    assert_same(law, scheme(noise=np.diag(np.diag(NOISE))).covariance(NOISE))
    assert np.abs(np.linalg.solve(exact(), law) - np.eye(6)).max() > 0.05


def test_ten_examples_of_a_thousand_are_stable_and_exact() -> None:
    """The gradient noise of a step, h^2 Sigma, is up to 500 times the variance of the momenta."""
    model = GaussianMean(num_examples=1000)
    noise = model.noise(10, replacement=False)
    for of_limit in (0.5, 0.99):
        h = of_limit * limit(model)
        matrices = scheme(h, 10.0, noise, model)
        assert matrices.spectral_radius < 1
        assert_same(matrices.covariance(noise), exact(h, model=model))
    assert 300 < h**2 * np.linalg.eigvalsh(noise)[-1] < 600


def test_without_its_correction_the_error_is_of_first_order() -> None:
    """With Sigma near zero in the kernel. With the right Sigma there is no error to halve."""
    posterior = np.linalg.inv(MODEL.hessian)
    errors = [
        np.linalg.norm(scheme(h, noise=1e-12 * NOISE).position(NOISE) - posterior)
        for h in (2e-3, 1e-3)
    ]
    np.testing.assert_allclose(errors[0] / errors[1], 2.0, rtol=0.01)


@pytest.mark.parametrize("of_limit", fast_settings([0.2, 0.4], 0.4))
@pytest.mark.parametrize("batch_size", fast_settings([5, 11], 5))
@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (2.0, 0.7)])
@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_law_is_exact_with_a_matrix_lambda(
    of_limit: float, batch_size: int, mass: float, temperature: float, covariance: str
) -> None:
    """The law and, unlike with a scalar lambda, the matrix of a step do not depend on Sigma."""
    h = of_limit * limit(mass=mass)
    noise = MODEL.noise(batch_size, replacement=True)
    needed = h**2 / (4 * temperature * mass) * np.linalg.eigvalsh(noise)[-1]
    assert needed < 0.6
    friction = 2 / h * np.arctanh(1.5 * needed)
    options = dict(mass=mass, temperature=temperature, covariance=covariance)
    matrices = scheme(h, friction, noise, matrix_lambda=True, **options)
    np.testing.assert_allclose(
        matrices.covariance(noise), exact(h, mass, temperature), rtol=1e-6, atol=1e-7
    )
    without = scheme(h, friction, 1e-12 * noise, **options)
    np.testing.assert_allclose(matrices.step, without.step, rtol=1e-8, atol=1e-10)
    with_scalar = scheme(h, friction, noise, **options)
    assert np.abs(with_scalar.step - without.step).max() > 1e-3
    for wrong in (0.8 * noise, 1.2 * noise):
        with pytest.raises(AssertionError):
            assert_same(matrices.covariance(wrong), exact(h, mass, temperature))


def test_a_small_friction_is_raised_for_a_matrix_lambda() -> None:
    """The law stays exact up to the error of the power iteration, at any friction."""
    for friction in (0.01, 1.0):
        matrices = scheme(0.5 * limit(), friction, matrix_lambda=True)
        law = np.linalg.solve(exact(0.5 * limit()), matrices.covariance(NOISE))
        np.testing.assert_allclose(law, np.eye(6), atol=0.01)
    kernel = sgmcmc.NOGIN(target(), 0.5 * limit(), np.float32([0.01, 30.0]), matrix_lambda=True)
    state = tf.ones([2, 3])
    _, results = kernel.one_step(state, kernel.bootstrap_results(state), seed=1)
    np.testing.assert_array_equal(results.num_small_friction, [1, 0])


def correlation_time(matrices: LinearScheme, noise: np.ndarray) -> float:
    """Returns the integrated autocorrelation time of the only entry of theta, in steps."""
    law = matrices.covariance(noise)
    summed = np.linalg.solve(np.eye(2) - matrices.step, law)  # the sum of F^k S from k = 0
    return 2 * summed[0, 0] / law[0, 0] - 1


@pytest.mark.parametrize(
    ("mass", "temperature"), [pytest.param(1.0, 1.0, marks=pytest.mark.thorough), (2.0, 0.7)]
)
def test_a_small_minibatch_gives_one_effective_sample_an_epoch(
    mass: float, temperature: float
) -> None:
    """Correlation times are (s + 4 T m tanh(friction h / 2) / h^2) / (a T) steps.

    With a = N v, s = N^2 v / n and T = 1 the first term is N / n steps or one epoch, at every n. So
    smaller minibatches than those that it dominates bring nothing. A matrix lambda leaves the
    second term.
    """
    total, v = 10_000, 1.0
    h = 0.5 * 2 / np.sqrt(total * v / mass)

    def times(n: int, friction: float, **options: Any) -> float:
        noise = np.array([[total**2 * v / n]])
        options |= dict(friction=friction, mass=mass, temperature=temperature)
        matrices = linear_scheme(
            lambda target, **momentum: sgmcmc.NOGIN(
                KnownScores(target, noise), h, **options, **momentum
            ),
            np.array([[total * v]]),
        )
        return correlation_time(matrices, noise)

    def drawn(friction: float) -> float:
        return 4 * mass * np.tanh(friction * h / 2) / h**2 / (total * v)

    for n in (1, 100, 5000):
        expected = total / n / temperature + drawn(1.0)
        np.testing.assert_allclose(times(n, 1.0), expected, rtol=1e-7)
    friction = 2 / h * np.arctanh(0.8)
    few = times(5000, friction, matrix_lambda=True)
    np.testing.assert_allclose(few, drawn(friction), rtol=1e-6)
    np.testing.assert_allclose(times(10_000, friction, matrix_lambda=True), few, rtol=1e-6)


def broken(old: str, new: str) -> dict[str, Any]:
    return dict(kernel=mutant(sgmcmc.NOGIN, (old, new)))


LINEAR_MUTATIONS: dict[str, dict[str, Any]] = {
    "momentum resampled to zero": dict(kernel=forgets_momentum(sgmcmc.NOGIN)),
    "sign of the correction": broken("h**2 / (4 * temperature)", "-(h**2) / (40 * temperature)"),
    "momentum reversed": broken("2 * m * x - p + k", "p - 2 * m * x + k"),
    "a weaker second half kick": broken("2 * m * x - p + k", "2 * m * x - p + 0.9 * k"),
    "lambda for lambda^2": broken("tf.sqrt(lambda2 * temperature)", "lambda2 * temperature**0.5"),
    "one half drift": broken("drift(theta, p, mass, h / 2)", "drift(theta, p, mass, 0 * h)"),
    "Sigma forgotten": dict(noise=1e-9 * NOISE),
    "Sigma of single scores": dict(noise=NOISE / 12),
    "Sigma of draws without replacement": dict(noise=MODEL.noise(BATCH, replacement=False)),
}


@pytest.mark.parametrize("name", LINEAR_MUTATIONS)
def test_laws_of_broken_samplers_are_not_exact(name: str, near_the_limit: Run) -> None:
    """Both the comparison to rounding and the check for chains reject them."""
    matrices = scheme(**LINEAR_MUTATIONS[name])
    assert matrices.spectral_radius < 1
    law = matrices.covariance(NOISE)
    with pytest.raises(AssertionError):
        assert_same(law, exact())
    with pytest.raises(Rejected):
        check(near_the_limit, law)


# Chains


def start(chains: int = CHAINS) -> tf.Tensor:
    return tf.ones([chains, 3])


def target(**options: Any) -> KnownScores:
    wrapped = MODEL.target(BATCH, replacement=True, **options)
    return KnownScores(wrapped, NOISE / wrapped.noise_scale)


def check(run: Run, law: np.ndarray, error: float = VARIANCE_ERROR) -> None:
    mean = np.concatenate([MODEL.mean, np.zeros(3)])
    check_covariance(run.samples, mean, law, error)


def check_temperature(run: Run, temperature: float = 1.0) -> None:
    values = run.kinetic_temperature.mean(axis=1) / temperature
    check_means(values, 1.0, VARIANCE_ERROR, "kinetic temperature")


@pytest.fixture(scope="module")
def near_the_limit() -> Run:
    return run_phase_space(
        sgmcmc.NOGIN(target(), STEP, FRICTION), start(), 50, BURNIN, seed=0, jit=True
    )


def test_near_the_largest_stable_step_under_xla(near_the_limit: Run) -> None:
    assert scheme().spectral_radius ** BURNIN < 1e-6
    check(near_the_limit, exact())
    check_temperature(near_the_limit)


def test_momenta_at_the_ends_of_a_step_are_hotter(near_the_limit: Run) -> None:
    """Control: the temperature p^T m^-1 p / d is not T."""
    p = near_the_limit.samples[..., 3:]
    with pytest.raises(Rejected):
        check_temperature(near_the_limit._replace(kinetic_temperature=np.mean(p**2, axis=-1)))


@pytest.mark.slow
def test_chains_with_their_own_step_sizes_frictions_and_temperatures() -> None:
    of_limit, frictions, temperatures = [0.4, 0.8], [6.0, 1.0], [1.0, 2.0]

    def each(values: Any) -> np.ndarray:
        return np.repeat(np.float32(values), CHAINS)

    kernel = sgmcmc.NOGIN(
        target(),
        each(of_limit) * np.float32(limit()),
        each(frictions),
        temperature=each(temperatures),
    )
    everything = run_phase_space(kernel, start(2 * CHAINS), 50, BURNIN, seed=1)
    groups = zip(of_limit, frictions, temperatures, strict=True)
    for i, (f, friction, temperature) in enumerate(groups):
        run = Run(*(x[i * CHAINS : (i + 1) * CHAINS] for x in everything))
        assert scheme(f * limit(), friction).spectral_radius ** BURNIN < 1e-6
        check(run, exact(f * limit(), temperature=temperature))
        check_temperature(run, temperature)


@pytest.mark.slow
def test_two_parts_in_blocks_with_masses() -> None:
    h = 0.9 * limit(mass=MASS)
    kernel = sgmcmc.NOGIN(
        target(parts=True),
        h,
        FRICTION,
        covariance="block",
        mass=[MASS[:1], MASS[1:]],
    )
    state = [tf.ones([CHAINS, 1]), tf.ones([CHAINS, 2])]
    run = run_phase_space(kernel, state, 50, BURNIN, seed=2)
    blocks = scheme(h, noise=block_diag(NOISE[:1, :1], NOISE[1:, 1:]), mass=MASS)
    check(run, blocks.covariance(NOISE))
    with pytest.raises(Rejected):
        check(run, exact(h, MASS))


@pytest.mark.thorough
def test_all_examples_leave_no_noise() -> None:
    """Power: 15% of a variance."""
    kernel = sgmcmc.NOGIN(MODEL.target(MODEL.num_examples), STEP, FRICTION)
    run = run_phase_space(kernel, start(CHAINS // 3), 50, BURNIN, seed=3)
    check(run, exact(), error=0.15)


@pytest.mark.parametrize(
    "covariance",
    [
        pytest.param(Full(RunningMean()), marks=pytest.mark.thorough),
        pytest.param(LowRank(History(40)), marks=pytest.mark.slow),
    ],
    ids=["full", "low_rank"],
)
def test_estimated_covariance(covariance: Any) -> None:
    """Each chain's Sigma has a random error, which causes an error of second order in the law.

    Sigma is wrong by about 3% after 500 minibatches, by 10% after 40. Power: 12% of a variance.
    """
    kernel = sgmcmc.NOGIN(MODEL.target(BATCH, replacement=True), STEP, FRICTION, covariance)
    num_burnin = 500 if isinstance(covariance, Full) else BURNIN
    run = run_phase_space(kernel, start(CHAINS // 2), 50, num_burnin, seed=4, jit=True)
    check(run, exact(), error=0.12)


@pytest.mark.slow
def test_ten_examples_of_a_thousand_with_the_default_estimate() -> None:
    """Sigma is averaged over past minibatches with decay 0.99. Power: 25% of a variance."""
    model = GaussianMean(num_examples=1000)
    h = 0.5 * limit(model)
    noise = model.noise(10, replacement=False)
    assert scheme(h, 10.0, noise, model).spectral_radius ** 800 < 1e-6
    kernel = sgmcmc.NOGIN(model.target(10), h, friction=10.0)
    run = run_phase_space(kernel, start(110), 1500, 800, seed=5, jit=True)
    mean = np.concatenate([model.mean, np.zeros(3)])
    check_covariance(run.samples, mean, exact(h, model=model), 0.25)


class Skewed(GaussianMean):
    """One example lies far off. Minibatches with it have noise of one sign and a large V."""

    def __init__(self) -> None:
        super().__init__(num_examples=12)
        self.data[0] += 4.0
        self.mean = np.linalg.solve(self.hessian, PRECISION @ self.data.sum(axis=0))


@pytest.mark.slow
def test_the_minibatch_of_the_gradient_must_not_estimate_sigma() -> None:
    """The noise of a minibatch and its estimate of Sigma are dependent, which shifts the mean.

    Shifts are in posterior standard deviations, with standard errors below 0.02.
    """
    model = Skewed()
    whitener = np.linalg.cholesky(model.hessian).T

    def shift(include_current: bool) -> np.ndarray:
        covariance = Full(RunningMean(0.5), include_current)
        target = model.target(6, replacement=True)
        kernel = sgmcmc.NOGIN(target, 0.5 * limit(model), FRICTION, covariance)
        run = run_phase_space(kernel, start(500), 50, BURNIN, seed=6, jit=True)
        means = run.samples[..., :3].mean(axis=1) - model.mean
        deviations = means @ whitener.T
        assert np.all(deviations.std(axis=0) < 0.02 * 500**0.5)
        return np.abs(deviations.mean(axis=0)).max()

    assert shift(include_current=True) > 0.4
    assert shift(include_current=False) < 0.1


# Negative controls that are not linear


MUTATIONS = {
    "frozen part": changed(sgmcmc.NOGIN, frozen_part),
    "copies": changed(sgmcmc.NOGIN, copies),
    "another z in the second half kick": mutant(
        sgmcmc.NOGIN,
        (
            "        p = map_parts(lambda p, x, m, k: 2",
            "        z = [random.normal_like(state, s) for s in (noise_seed, batch_seed)]\n"
            "        kick += tf.sqrt(lambda2 * temperature) * (z[1] - z[0])\n"
            "        p = map_parts(lambda p, x, m, k: 2",
        ),
    ),
}


@pytest.mark.parametrize("name", fast_settings(MUTATIONS, "copies"))
def test_broken_samplers_are_rejected(name: str) -> None:
    """A third of the chains is enough to reject these."""
    kernel = MUTATIONS[name](target(), STEP, FRICTION)
    run = run_phase_space(kernel, start(CHAINS // 3), 50, BURNIN, seed=7)
    with pytest.raises(Rejected):
        check(run, exact())

"""CCAdL dissipates the gradient noise by its covariance, and samples the law of its scheme.

With a large thermal mass xi stays at its mean. On the Gaussian-mean model (theta, p) then has the
law of a linear scheme (`tests/harness/thermostats.py`), minibatch noise and bias included.
False-alarm rate: 1e-6 for each test. The power is stated at each check, which verifies it.
"""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.known_covariance import KnownCovariance
from tests.harness.mutation import mutant
from tests.harness.phase_space import linear_scheme
from tests.harness.statistics import Rejected, check_cdf, check_covariance, check_means
from tests.harness.thermostats import Run, adodab_law, balanced, euler_law, run_thermostat
from tfp_sgmcmc.covariance import Full, RunningMean
from tfp_sgmcmc.kernels.linear_theory import nogin_law, split_friction_law

MODEL = GaussianMean(num_examples=12)
HESSIAN = MODEL.hessian
BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=True)
NONE = np.zeros([3, 3])
MASS = np.array([0.5, 1.0, 2.0])
H, FRICTION = 0.04, 4.0
CHAINS = 4000


def law(
    h: float = H, noise: np.ndarray = NOISE, friction: float = FRICTION, **options: Any
) -> tuple[float, np.ndarray]:
    """The mean of xi and the covariance of (theta, p)."""
    options = {"known": NOISE, **options}
    return balanced(lambda xi: euler_law(HESSIAN, h, xi, friction, noise, **options))


def target(batch_size: int = BATCH, **options: Any) -> sgmcmc.MinibatchLogProb:
    return MODEL.target(batch_size, **{"replacement": True, **options})


def check(run: Run, covariance: np.ndarray, error: float = 0.08) -> None:
    check_covariance(run.samples, np.concatenate([MODEL.mean, np.zeros(3)]), covariance, error)


def sample(
    kernel: sgmcmc.CCAdL, first: float | None, chains: int = CHAINS, jit: bool = True
) -> Run:
    return run_thermostat(kernel, tf.ones([chains, 3]), 200, 250, seed=1, first=first, jit=jit)


# The law with a large thermal mass, where xi varies by 1%, and the law by less than 0.1%


@pytest.fixture(scope="module")
def run() -> Run:
    covariance = KnownCovariance(NOISE / target().noise_scale)
    kernel = sgmcmc.CCAdL(target(), H, FRICTION, covariance, thermal_mass=100.0, scheme="euler")
    return sample(kernel, law()[0])


@pytest.mark.thorough
def test_law_of_minibatch_chains(run: Run) -> None:
    """Power: 8% of a variance."""
    check(run, law()[1])
    check_means(run.kinetic_temperature.mean(axis=1), 1.0, 0.03)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wrong",
    [dict(known=NONE), dict(noise=NONE), dict(known=2 * NOISE), dict(temperature=1.1)],
    ids=["SGNHT", "no noise", "h for h / 2 in the correction", "another temperature"],
)
def test_wrong_laws_are_rejected(wrong: dict[str, Any], run: Run) -> None:
    with pytest.raises(Rejected):
        check(run, law(**wrong)[1])


@pytest.mark.slow
def test_estimated_covariance_mass_and_temperature() -> None:
    """Averages with weights 1/t, without replacement. They are unbiased, with errors of 5%."""
    noise = MODEL.noise(5, replacement=False)
    options = dict(mass=MASS, temperature=1.5)
    xi, covariance = law(noise=noise, known=noise, **options)
    kernel = sgmcmc.CCAdL(
        target(5, replacement=False),
        H,
        FRICTION,
        Full(RunningMean()),
        thermal_mass=100.0,
        mass=np.float32(MASS),
        temperature=1.5,
        scheme="euler",
    )
    check(sample(kernel, xi), covariance)


@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 0.7)])
def test_closed_form_is_that_of_the_code(mass: Any, temperature: float) -> None:
    """With xi = A, which a large thermal mass holds there."""
    matrices = linear_scheme(
        lambda quadratic, **momentum: sgmcmc.CCAdL(
            quadratic,
            H,
            5.0,
            KnownCovariance(NOISE),
            1e30,
            mass,
            temperature,
            scheme="euler",
            **momentum,
        ),
        HESSIAN,
    )
    expected = euler_law(HESSIAN, H, 5.0, 5.0, NOISE, mass, temperature, NOISE).covariance
    np.testing.assert_allclose(matrices.covariance(NOISE), expected, rtol=1e-9, atol=1e-12)


def test_order_of_the_error_of_theta() -> None:
    """The error is of first order, and depends neither on the shape nor on the size of the noise.

    The thermostat causes it. It holds the momenta at the ends of steps at T, and they are hotter
    than theta by a factor 1 / (1 - h xi / 2). With xi fixed at A the error is of second order.
    """
    posterior = np.linalg.inv(HESSIAN)

    def errors(covariance: Any) -> list[float]:
        return [np.linalg.norm(covariance(h)[:3, :3] - posterior) for h in (2e-3, 1e-3)]

    held = errors(lambda h: law(h)[1])
    np.testing.assert_allclose(held[0] / held[1], 2.0, rtol=0.02)
    relative = held[1] / np.linalg.norm(posterior)
    np.testing.assert_allclose(relative, 1e-3 * FRICTION / 2, rtol=0.05)
    fixed = errors(
        lambda h: euler_law(HESSIAN, h, FRICTION, FRICTION, NOISE, known=NOISE).covariance
    )
    np.testing.assert_allclose(fixed[0] / fixed[1], 4.0, rtol=0.02)


# The midpoint scheme


def midpoint_position(
    noise: np.ndarray, h: float, kernel: Any = sgmcmc.CCAdL, known: Any = None
) -> np.ndarray:
    """The covariance of theta with xi at A, in units of T H^-1, which is the identity if exact."""
    scheme = linear_scheme(
        lambda quadratic, **momentum: kernel(
            quadratic, h, 5.0, KnownCovariance(noise if known is None else known), 1e30, 2.0, 0.7,
            **momentum,
        ),
        HESSIAN,
    )  # fmt: skip
    assert scheme.spectral_radius < 1
    return scheme.position(noise) @ HESSIAN / 0.7


def noise_of_size(x: float, h: float = H) -> np.ndarray:
    """Returns a covariance with x = h^2 / 2 times its largest eigenvalue."""
    return 2 * x / h**2 * NOISE / np.linalg.eigvalsh(NOISE)[-1]


@pytest.mark.parametrize("x", [0.1, 1.0, 10.0, 100.0])
def test_the_law_of_the_midpoint_is_exact(x: float) -> None:
    """At every size of the noise. Controls: Sigma wrong by 1 %, and friction by 2 Sigma."""
    noise = noise_of_size(x)
    np.testing.assert_allclose(midpoint_position(noise, H), np.eye(3), atol=1e-9)
    wrong = midpoint_position(noise, H, known=0.99 * noise)
    assert np.abs(wrong - np.eye(3)).max() > 5e-4
    broken = mutant(sgmcmc.CCAdL, ("scale = h**2 / (4 *", "scale = h**2 / (2 *"))
    wrong = midpoint_position(noise, H, broken)
    assert np.abs(wrong - np.eye(3)).max() > 0.05


def test_friction_by_an_exponential_is_stable_and_wrong() -> None:
    """Why the scheme has a midpoint. tau is exact at 1, with x = h^2 s / 2.

    An exponential of Sigma on both sides of the kick forgets the force as fast as the noise. The
    factor exp(-asinh(x) / 2) keeps the momenta at T and has the same fault.
    """
    h, friction, curvature, x = 0.1, 1.0, 1.0, np.array([0.1, 1.0, 10.0])
    noise = 2 * x / h**2
    laws = {
        "explicit": split_friction_law(h, friction, curvature, noise, noise),
        "exponential": split_friction_law(
            h, friction, curvature, noise, noise, lambda x: np.exp(-x / 2)
        ),
        "balanced": split_friction_law(
            h, friction, curvature, noise, noise, lambda x: np.exp(-np.arcsinh(x) / 2)
        ),
        "midpoint": nogin_law(h, friction, curvature, noise, noise),
    }
    tau = {name: law.temperature for name, law in laws.items()}
    np.testing.assert_allclose(tau["midpoint"], 1)
    for name, expected in (
        ("explicit", [0.989, 0.713, np.inf]),
        ("exponential", [1.002, 0.978, 3.596]),
        ("balanced", [1.002, 1.101, 2.353]),
    ):
        np.testing.assert_allclose(tau[name], expected, atol=6e-4)


@pytest.mark.thorough
def test_law_of_minibatch_chains_of_the_midpoint() -> None:
    """Power: 8% of a variance. Controls: the Euler scheme's law, and noise that is not known."""
    h = 0.1  # x is 1.9, where the Euler scheme is all but unstable
    covariance = KnownCovariance(NOISE / target().noise_scale)
    kernel = sgmcmc.CCAdL(target(), h, FRICTION, covariance, thermal_mass=100.0)
    found = sample(kernel, FRICTION)
    exact = linear_scheme(
        lambda quadratic, **momentum: sgmcmc.CCAdL(
            quadratic, h, FRICTION, KnownCovariance(NOISE), 1e30, **momentum
        ),
        HESSIAN,
    )
    check(found, exact.covariance(NOISE))
    np.testing.assert_allclose(exact.position(NOISE), np.linalg.inv(HESSIAN), rtol=1e-9)
    check_means(found.kinetic_temperature.mean(axis=1), 1.0, 0.05)
    with pytest.raises(Rejected):
        check(found, exact.covariance(1.3 * NOISE))


# The symmetric splitting

SPLIT = "adodacbc"
SPLIT_H = 0.04  # where the variances of the Euler scheme are off by 11 %


def split_law(h: float, noise: np.ndarray = NOISE, **options: Any) -> tuple[float, np.ndarray]:
    options = {"known": noise, **options}
    return balanced(lambda xi: adodab_law(HESSIAN, h, xi, FRICTION, noise, **options))


@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 0.7)])
def test_closed_form_of_the_splitting_is_that_of_the_code(mass: Any, temperature: float) -> None:
    """With xi = A, which a large thermal mass holds there."""
    matrices = linear_scheme(
        lambda quadratic, **momentum: sgmcmc.CCAdL(
            quadratic, SPLIT_H, 5.0, KnownCovariance(NOISE), 1e30, mass, temperature,
            scheme=SPLIT, **momentum,
        ),
        HESSIAN,
    )  # fmt: skip
    expected = adodab_law(HESSIAN, SPLIT_H, 5.0, 5.0, NOISE, mass, temperature, NOISE).covariance
    np.testing.assert_allclose(matrices.covariance(NOISE), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_law_of_minibatch_chains_of_the_splitting() -> None:
    """Power: 8% of a variance. Controls: no friction by Sigma, and Euler's law."""
    covariance = KnownCovariance(NOISE / target().noise_scale)
    kernel = sgmcmc.CCAdL(target(), SPLIT_H, FRICTION, covariance, thermal_mass=100.0, scheme=SPLIT)
    found = sample(kernel, split_law(SPLIT_H)[0])
    check(found, split_law(SPLIT_H)[1])
    for wrong in (split_law(SPLIT_H, known=NONE)[1], law(SPLIT_H)[1]):
        with pytest.raises(Rejected):
            check(found, wrong)


def errors_of_theta(covariance: Any) -> list[float]:
    posterior = np.linalg.inv(HESSIAN)
    return [
        np.linalg.norm(covariance(h)[:3, :3] - posterior) / np.linalg.norm(posterior)
        for h in (0.02, 0.01)
    ]


def test_order_of_the_splitting() -> None:
    """Third order at a fixed Sigma, where Euler has the first; exact without noise.

    Negative control: friction by Sigma on one side of the kick alone is of second order.
    """
    split = errors_of_theta(lambda h: split_law(h)[1])
    assert split[0] / split[1] > 7
    euler = errors_of_theta(lambda h: law(h)[1])
    assert 2 < euler[0] / euler[1] < 2.3
    assert split[1] < euler[1] / 1000
    exact = split_law(0.1, NONE)[1][:3, :3]
    np.testing.assert_allclose(exact, np.linalg.inv(HESSIAN), rtol=1e-9, atol=1e-12)

    def one_sided(h: float) -> np.ndarray:
        broken = mutant(sgmcmc.CCAdL, *ONE_SIDED)

        def at(xi: float) -> Any:
            matrices = linear_scheme(
                lambda quadratic, **momentum: broken(
                    quadratic, h, xi, KnownCovariance(NOISE), 1e30, scheme=SPLIT, **momentum
                ),
                HESSIAN,
            )
            return matrices.covariance(NOISE)

        return at(FRICTION)

    wrong = errors_of_theta(one_sided)
    right = errors_of_theta(
        lambda h: adodab_law(HESSIAN, h, FRICTION, FRICTION, NOISE, known=NOISE).covariance
    )
    assert wrong[1] > 10 * right[1]


@pytest.mark.parametrize("drag", [0.9, 1.1])
def test_largest_stable_step_of_the_splitting(drag: float) -> None:
    """By the eigenvalues of a step without noise, where Sigma sets the limit and where H does."""
    for known, curvature in ((NOISE, 1.0), (1e-3 * NOISE, 30.0)):
        kernel = sgmcmc.CCAdL(
            target(), 1.0, 0.01, KnownCovariance(known / target().noise_scale),
            scheme=SPLIT,
        )  # fmt: skip
        results = kernel.bootstrap_results(tf.zeros([3]))
        h = drag * float(kernel.largest_stable_step(curvature, results=results))
        matrices = linear_scheme(
            lambda quadratic, h=h, known=known, **momentum: sgmcmc.CCAdL(
                quadratic, h, 0.01, KnownCovariance(known), 1e30, scheme=SPLIT, **momentum
            ),
            curvature * np.eye(3),
        )
        assert (matrices.spectral_radius < 1) == (drag < 1)


# Temperature


@pytest.fixture(scope="module")
def thermal() -> Run:
    """Runs 4000 chains of three coordinates with a thermal mass of one."""
    covariance = KnownCovariance(NOISE / target().noise_scale)
    kernel = sgmcmc.CCAdL(target(), 0.01, 2.0, covariance, initial_momentum=1.0, scheme="euler")
    return run_thermostat(kernel, tf.ones([CHAINS, 3]), 330, 1200, seed=2)


@pytest.mark.thorough
def test_kinetic_temperature(thermal: Run) -> None:
    """Its mean is T at every step size. Power: 3%."""
    check_means(thermal.kinetic_temperature.mean(axis=1), 1.0, 0.03)


def test_kinetic_temperature_has_its_chi_square_law(thermal: Run) -> None:
    """Tests d K / T of independent last states. Power: a Kolmogorov distance of 0.08."""
    check_cdf(3 * thermal.kinetic_temperature[:, -1], stats.chi2(3).cdf, error=0.08)


def test_thermostat_stays_at_the_friction(thermal: Run) -> None:
    """Its mean is A = 2, up to O(h). Power: 4%. Control: that of SGNHT absorbs the mean noise."""
    xi = thermal.thermostat.mean(axis=1)
    expected, _ = law(0.01, friction=2.0)
    np.testing.assert_allclose(expected, 2.0, rtol=0.03)
    check_means(xi, expected, 0.08)
    with pytest.raises(Rejected):
        check_means(xi, law(0.01, friction=2.0, known=NONE)[0], 0.08)


# Stability


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("drag", "is_stable"), [(0.2, True), pytest.param(3.0, False, marks=pytest.mark.thorough)]
)
def test_beyond_the_largest_stable_step_the_chain_is_lost_and_told_of(
    drag: float, is_stable: bool
) -> None:
    """With `drag`, h^2 / 2 times the largest eigenvalue of Sigma."""
    h = np.float32((2 * drag / np.linalg.eigvalsh(NOISE)[-1]) ** 0.5)
    covariance = KnownCovariance(NOISE / target().noise_scale)
    kernel = sgmcmc.CCAdL(target(), h, 1.0, covariance, scheme="euler")
    run = run_thermostat(kernel, tf.ones([10, 3]), 300, 0, seed=3, jit=False)
    samples = np.moveaxis(run.samples, 1, 0)
    if is_stable:
        sgmcmc.check_finite(samples)
        return
    with pytest.raises(sgmcmc.NonFiniteChainError) as error:
        sgmcmc.check_finite(samples)
    assert 0 < error.value.step < 300


@pytest.mark.parametrize(
    "scheme", ["midpoint", pytest.param("adodacbc", marks=pytest.mark.thorough), "euler"]
)
def test_preflight_tells_of_a_sigma_beyond_the_explicit_schemes(scheme: Any) -> None:
    """Curvature allows a step that is ten times as large."""
    few = MODEL.target(2, replacement=True)
    h = float((2 * 3.0 / np.linalg.eigvalsh(MODEL.noise(2, replacement=True))[-1]) ** 0.5)
    for size, is_told in ((h, scheme != "midpoint"), (h / 20, False)):
        kernel = sgmcmc.CCAdL(few, np.float32(size), 1.0, scheme=scheme)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            sgmcmc.preflight(few, tf.constant(MODEL.mean, tf.float32), kernel=kernel)
        found = [str(x.message) for x in told if "step_size must be below" in str(x.message)]
        assert len(found) == is_told
        assert all("eigenvalue of Sigma" in x and "midpoint" in x for x in found)


# Negative controls

# All friction by Sigma before the kick.
ONE_SIDED = (
    (
        """p = dissipated(p, h**2 / 2)
            p = kick(""",
        """p = dissipated(p, h**2)
            p = kick(""",
    ),
    (
        """estimate.gradient, h)
            p = dissipated(p, h**2 / 2)""",
        "estimate.gradient, h)",
    ),
)
MUTATIONS = {
    "noise of twice the variance": (
        "tf.sqrt(2 * friction * temperature * h)", "tf.sqrt(4 * friction * temperature * h)"
    ),
    "noise without the mass": ("(state, mass, tf.sqrt(2", "(state, 1.0 + 0 * mass, tf.sqrt(2"),
    "h for h / 2 in the correction": ("dissipated(p, h**2), noise", "dissipated(p, 2*h**2), noise"),
    "no correction": ("dissipated(p, h**2), noise", "p, noise"),
    "Sigma p for Sigma p / m": ("sigma.multiply(velocity)", "sigma.multiply(p)"),
    "gradient at the old theta": (
        """drift(state, p, mass, h)
            estimate, sigma, covariance_state = self._noise.estimate(theta,""",
        """drift(state, p, mass, h)
            estimate, sigma, covariance_state = self._noise.estimate(state,""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_steps_have_another_law(name: str) -> None:
    """With xi held at A by a large thermal mass."""
    broken = mutant(sgmcmc.CCAdL, MUTATIONS[name])
    matrices = linear_scheme(
        lambda quadratic, **momentum: broken(
            quadratic, 0.03, 5.0, KnownCovariance(NOISE), 1e30, MASS, scheme="euler", **momentum
        ),
        HESSIAN,
    )
    expected = euler_law(HESSIAN, 0.03, 5.0, 5.0, NOISE, MASS, known=NOISE).covariance
    assert matrices.spectral_radius < 1
    assert np.abs(matrices.covariance(NOISE) / expected - 1).max() > 0.1


THERMOSTAT_MUTATIONS = {
    "thermostat fed |p|": (
        "(kinetic_temperature(p, mass, chain_ndims) - ",
        "(tf.reduce_mean(tf.abs(p), -1) - ",
    ),
    "thermostat off": ("xi + h / mu *", "xi + 0 *"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "thermostat off"))
        for name in THERMOSTAT_MUTATIONS
    ],
)
@pytest.mark.thorough
def test_broken_thermostats_are_rejected(name: str) -> None:
    """Sigma is halved, so that the thermostat has to absorb the rest. A tenth of the chains."""
    broken = mutant(sgmcmc.CCAdL, THERMOSTAT_MUTATIONS[name])
    covariance = KnownCovariance(NOISE / 2 / target().noise_scale)
    kernels = (k(target(), 0.02, 1.0, covariance, scheme="euler") for k in (sgmcmc.CCAdL, broken))
    right, wrong = (
        run_thermostat(
            k, tf.ones([CHAINS // 10, 3]), 400, 600, seed=4, jit=False
        ).kinetic_temperature
        for k in kernels
    )
    check_means(right.mean(axis=1), 1.0, 0.06)
    with pytest.raises(Rejected):
        check_means(wrong.mean(axis=1), 1.0, 0.06)

"""Predictive laws of numbers: exact posteriors in closed form, and mixtures against SciPy.

In Bayesian linear regression, y = x . theta + N(0, sigma^2) with theta ~ N(0, I), posterior and
predictive are normal. The posterior is drawn exactly, so that all that can be wrong is what the
library makes of the samples.
"""

import re

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.statistics import FALSE_ALARM, Rejected, check_means
from tests.keras import small_models
from tests.keras.small_models import linear
from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.keras.posterior.mixtures import Mixture, systematic

tfd = tfp.distributions
SIGMA, S = 0.5, 20_000
RNG = np.random.default_rng(0)
DESIGN = RNG.normal(size=[12, 3])
COVARIANCE = np.linalg.inv(np.eye(3) + DESIGN.T @ DESIGN / SIGMA**2)
MEAN = COVARIANCE @ DESIGN.T @ (DESIGN @ [1.0, -0.5, 0.2] + SIGMA * RNG.normal(size=12)) / SIGMA**2
X = RNG.normal(size=[6, 3]).astype(np.float32)
CENTRE = X @ MEAN
KNOWLEDGE = np.sqrt(np.einsum("ij,jk,ik->i", X, COVARIANCE, X))
TOTAL = np.hypot(KNOWLEDGE, SIGMA)
CRITICAL = scipy.stats.norm.isf(FALSE_ALARM / 2 / len(X))  # two-sided, over all rows


def exact(count=S, spread=1.0, scale=SIGMA, loss=None, seed=1):
    """A posterior of exact draws; other arguments than these break it."""
    draws = np.random.default_rng(seed).multivariate_normal(MEAN, spread * COVARIANCE, size=count)
    model = linear(loss or losses.GaussianNLL(scale), 1, run_eagerly=False, jit_compile=False)
    return small_models.posterior_of(model, [draws[..., np.newaxis].astype(np.float32)])


def test_long_calls_without_a_terminal_show_lines(monkeypatch, capsys):
    """Each batch's quantiles take their part of the time, of which the averages take a tenth."""
    clock = iter(range(0, 10_000, 11))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    posterior = exact(50)
    posterior.predict(X, batch_size=1, quantiles=[0.1])
    posterior.predict(X, batch_size=1, quantiles=[0.1], verbose=0)
    lines = capsys.readouterr().err.splitlines()
    pattern = r"(\d+) % of 6 batches in [\d.]+ s, \d+ s left, 0.0\d+ batches/s"
    assert [int(re.fullmatch(pattern, line)[1]) for line in lines][-5:] == [25, 40, 55, 69, 84]


def check_moments(posterior):
    """The mean is normal, and the variance of the means is chi-square; rate 3e-6."""
    found = posterior.predict(X).predictive
    assert found.mean.shape == (6, 1)
    z = (found.mean[:, 0] - CENTRE) / (KNOWLEDGE / np.sqrt(S))
    ratio = S * (found.epistemic[:, 0] / KNOWLEDGE) ** 2
    tail = FALSE_ALARM / 2 / len(X)
    law = scipy.stats.chi2(S - 1)
    np.testing.assert_allclose(found.aleatoric, SIGMA, rtol=1e-5)
    total = np.hypot(found.aleatoric, found.epistemic)
    np.testing.assert_allclose(found.standard_deviation, total, rtol=1e-6)
    assert np.abs(z).max() < CRITICAL and found.quantiles is None
    assert (law.ppf(tail) < ratio).all() and (ratio < law.isf(tail)).all()


def check_quantiles(posterior):
    """The quantile of S draws is normal by the delta method, as CDFs are averages; rate 2e-6."""
    levels = [0.05, 0.95]
    found = posterior.predict(X, quantiles=levels).predictive.quantiles[..., 0]
    for level, quantiles in zip(levels, found, strict=True):
        z = scipy.stats.norm.ppf(level)
        # The variance of Phi((q - m_s) / sigma) over the posterior, by quadrature over m_s.
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        means = CENTRE[:, None] + KNOWLEDGE[:, None] * nodes
        cdfs = scipy.stats.norm.cdf(((CENTRE + z * TOTAL)[:, None] - means) / SIGMA)
        weights = weights / weights.sum()
        variance = cdfs**2 @ weights - (cdfs @ weights) ** 2
        error = np.sqrt(variance / S) / (scipy.stats.norm.pdf(z) / TOTAL)
        assert np.abs(quantiles - (CENTRE + z * TOTAL)).max() > 0
        assert (np.abs(quantiles - (CENTRE + z * TOTAL)) < CRITICAL * error + 1e-5).all()


@pytest.mark.thorough
def test_mean_noise_knowledge_and_quantiles_of_bayesian_linear_regression():
    posterior = exact()
    check_moments(posterior)
    check_quantiles(posterior)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [{"spread": 1.2}, {"scale": 1.05 * SIGMA}])
def test_wrong_posteriors_are_noticed(broken):
    posterior = exact(**broken)
    with pytest.raises(AssertionError):
        check_moments(posterior)
    with pytest.raises(AssertionError):
        check_quantiles(posterior)


def expected_crps(y, count):
    """The mean CRPS over posteriors of `count` draws: each draw is its own partner once in count.

    The CRPS of N(m, s^2) at y is s (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)), z = (y - m) / s.
    """
    normal, z = scipy.stats.norm, (y - CENTRE) / TOTAL
    near = TOTAL * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z))
    return near - ((1 - 1 / count) * TOTAL + SIGMA / count) / np.sqrt(np.pi)


def opaque(sigma):
    """A normal that does not say that it is one."""
    return lambda out: tfd.MixtureSameFamily(
        tfd.Categorical(logits=tf.zeros_like(out)[..., np.newaxis]),
        tfd.Normal(out[..., np.newaxis], sigma),
    )


@pytest.mark.parametrize(
    "is_known, count",
    [
        pytest.param(True, 100, id="all pairs"),
        pytest.param(True, 200, id="drawn partners"),
        pytest.param(False, 100, id="draws"),
    ],
)
@pytest.mark.slow
def test_crps_of_bayesian_linear_regression_has_no_bias(is_known, count):
    """40 posteriors give independent scores, whose mean is known exactly."""

    def scores(sigma):
        law = losses.GaussianNLL(sigma).distribution if is_known else opaque(sigma)
        generator = np.random.default_rng(2)
        for number in range(40):
            theta = generator.multivariate_normal(MEAN, COVARIANCE, size=count)
            outputs = (theta @ X.T)[..., np.newaxis].astype(np.float32)
            mixture = Mixture(law, outputs, np.full([count], 1 / count), number)
            yield mixture.crps(y[:, np.newaxis])[:, 0]

    y = CENTRE + TOTAL * np.linspace(-2, 2, 6)
    check_means([*scores(SIGMA)], expected_crps(y, count), error=0.12)
    with pytest.raises(Rejected):
        check_means([*scores(1.5 * SIGMA)], expected_crps(y, count), error=0.12)


def labels(generator, noise=SIGMA, rows=1000):
    """Rows, and observations that each have weights of their own from the posterior."""
    x = generator.normal(size=[rows, 3]).astype(np.float32)
    theta = generator.multivariate_normal(MEAN, COVARIANCE, size=rows)
    return x, (np.sum(x * theta, axis=1) + noise * generator.normal(size=rows))[:, np.newaxis]


def check_scores(found, x):
    """Coverage is binomial; squared errors and log densities are averages; rate 3e-6.

    1000 rows and 1000 samples, whose own error is below a tenth of that of the rows.
    """
    rows, scale = len(x), np.hypot(SIGMA, np.sqrt(np.einsum("ij,jk,ik->i", x, COVARIANCE, x)))
    low, high = scipy.stats.binom(rows, 0.9).interval(1 - FALSE_ALARM)
    assert low <= found.coverage * rows <= high
    critical = scipy.stats.norm.isf(FALSE_ALARM / 2) * 1.1
    error = np.sqrt(2 * np.mean(scale**4) / rows)
    assert abs(found.root_mean_squared_error**2 - np.mean(scale**2)) < critical * error
    density = -np.mean(np.log(scale)) - 0.5 * np.log(2 * np.pi * np.e)
    assert abs(found.log_predictive_density - density) < critical * np.sqrt(0.5 / rows)


@pytest.mark.slow
def test_scores_of_bayesian_linear_regression():
    posterior = exact(1000)
    x, y = labels(np.random.default_rng(3))
    found = posterior.evaluate(x, y, batch_size=500)
    check_scores(found, x)
    assert found.accuracy is found.expected_calibration_error is None
    with pytest.raises(AssertionError):
        x, y = labels(np.random.default_rng(3), 2 * SIGMA)
        check_scores(posterior.evaluate(x, y, batch_size=500), x)


@pytest.mark.thorough
def test_draws_of_bayesian_linear_regression():
    """Exact samples give independent draws, with the mean and variance of the predictive."""
    posterior = exact()
    draws = posterior.sample_predictive(X, seed=3)
    assert draws.shape == (S, 6, 1)
    z = (draws[..., 0] - CENTRE) / TOTAL
    check_means(np.concatenate([z, z**2], axis=1), [0] * 6 + [1] * 6, error=0.1)
    with pytest.raises(Rejected):
        wide = posterior.with_samples(exact(spread=1.5).samples)
        z = (wide.sample_predictive(X, seed=3)[..., 0] - CENTRE) / TOTAL
        check_means(z**2, 1, error=0.1)
    # Rows of a draw share their sample of the weights: x . theta at x and at -x sum to the noise.
    sums = posterior.sample_predictive(np.stack([X[0], -X[0]]), seed=3).sum(axis=1)
    check_means(sums**2, 2 * SIGMA**2, error=0.1)


KERNELS = np.random.default_rng(4).normal(size=[7, 2, 3, 2]).astype(np.float32)
WEIGHTS = np.array([1.0, 0.0, 2.0, 0.5, 1.0, 1.0, 3.0])
SHARES = np.repeat(WEIGHTS, 2) / (2 * WEIGHTS.sum())
OUTPUTS = (X @ KERNELS).reshape(14, 6, 2)


def weighted(loss, kernels=KERNELS, weights=WEIGHTS):
    """A posterior of two chains with weights."""
    made = small_models.posterior_of(
        linear(loss, kernels.shape[-1], jit_compile=False), [kernels], 2
    )
    return made.with_samples(made.samples, weights)


def average(values):
    return np.tensordot(SHARES, values, 1)


LAWS = {  # loss -> distributions of y by SciPy, for each sample and row
    "normal": (losses.GaussianNLL(), lambda m, s: scipy.stats.norm(m, s)),
    "Student's t": (losses.StudentTNLL(5.0), lambda m, s: scipy.stats.t(5.0, m, s)),
    "Laplace": (
        sgmcmc.keras.NegativeLogLikelihood(
            lambda out: tfd.Laplace(out[..., :1], tf.nn.softplus(out[..., 1:]))
        ),
        lambda m, s: scipy.stats.laplace(m, s),
    ),
    "gamma": (
        sgmcmc.keras.NegativeLogLikelihood(
            lambda out: tfd.Gamma(1.0 + tf.exp(out[..., :1]), 1.0 + tf.nn.softplus(out[..., 1:]))
        ),
        lambda m, s: scipy.stats.gamma(1.0 + np.exp(m), scale=1 / (1.0 + s)),
    ),
    "negative binomial": (
        losses.NegativeBinomialNLL(),
        lambda m, s: scipy.stats.nbinom(s, s / (s + np.exp(m))),
    ),
    "vector": (
        sgmcmc.keras.NegativeLogLikelihood(
            lambda out: tfd.MultivariateNormalDiag(out[..., :1], tf.nn.softplus(out[..., 1:]))
        ),
        lambda m, s: scipy.stats.norm(m, s),
    ),
}


@pytest.mark.parametrize(
    "name",
    ["normal", *(pytest.param(n, marks=pytest.mark.slow) for n in LAWS if n != "normal")],
)
def test_mixtures_with_chains_and_weights_against_scipy(name):
    loss, make = LAWS[name]
    m, s = OUTPUTS[..., :1].astype(np.float64), np.log1p(np.exp(OUTPUTS[..., 1:], dtype=np.float64))
    law, posterior = make(m, s), weighted(loss)
    levels = [0.05, 0.5, 0.975]
    found = posterior.predict(X, 4, quantiles=levels).predictive
    mean, noise = average(law.mean()), average(law.var())
    np.testing.assert_allclose(found.mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.aleatoric, np.sqrt(noise), rtol=1e-4)
    knowledge = average((law.mean() - mean) ** 2)
    np.testing.assert_allclose(found.epistemic, np.sqrt(knowledge), rtol=1e-3)
    np.testing.assert_allclose(found.standard_deviation, np.sqrt(noise + knowledge), rtol=1e-3)
    np.testing.assert_allclose(
        posterior.predict(X).mean, average(OUTPUTS), rtol=1e-4, atol=1e-5
    )  # of the outputs, as ever
    is_discrete = name == "negative binomial"
    for level, quantile in zip(levels, found.quantiles, strict=True):
        at = average(law.cdf(quantile))
        if is_discrete:
            assert (at >= level).all() and (average(law.cdf(quantile - 1)) < level).all()
        else:
            np.testing.assert_allclose(at, level, atol=2e-5)  # single precision
    y = found.quantiles[2] + np.array([-1.0, 0.0, 1.0, -0.5, 0.5, 2.0])[:, np.newaxis].round()
    counts = np.array([1.0, 2.0, 0.0, 1.0, 1.0, 3.0])
    scores = posterior.evaluate(X, y, counts, batch_size=4)
    error = np.average((mean - y)[:, 0] ** 2, weights=counts) ** 0.5
    assert scores.root_mean_squared_error == pytest.approx(error, rel=1e-4)
    below = average(law.cdf(y - 1 if is_discrete else y))
    is_covered = (average(law.cdf(y)) >= 0.05) & (below <= 0.95)
    assert scores.coverage == pytest.approx(np.average(is_covered[:, 0], weights=counts))
    if name in ("normal", "vector"):
        assert scores.crps == pytest.approx(np.average(crps_of_pairs(m, s, y), weights=counts))
    else:  # from at least 2000 draws
        by_integral = np.average(crps_by_integral(law, y), weights=counts)
        assert scores.crps == pytest.approx(by_integral, rel=0.1)


def crps_of_pairs(m, s, y):
    def size(m, s):
        return m * (2 * scipy.stats.norm.cdf(m / s) - 1) + 2 * s * scipy.stats.norm.pdf(m / s)

    pairs = size(m[:, None] - m, np.hypot(s[:, None], s))
    far = np.einsum("s,t,str->r", SHARES, SHARES, pairs[..., 0])
    return average(size(m - y, s))[:, 0] - far / 2


def crps_by_integral(law, y):
    """Integrates (F(z) - 1[z >= y])^2 by the rule of rectangles."""
    low, high = min(law.ppf(1e-6).min(), y.min()) - 1, max(law.isf(1e-6).max(), y.max()) + 1
    grid, width = np.linspace(low, high, 4001, retstep=True)
    cdf = np.stack([average(law.cdf(z))[:, 0] for z in grid])
    return width * np.sum((cdf - (grid[:, None] >= y[:, 0])) ** 2, axis=0)


def test_poisson_and_the_loss_of_keras_agree():
    kernels = KERNELS[..., :1]
    rate = np.exp(OUTPUTS[..., :1])
    mine = weighted(losses.PoissonNLL(), kernels).predict(X, quantiles=[0.9]).predictive
    model = linear(keras.losses.Poisson(), 1, "exponential", jit_compile=False)
    theirs = small_models.posterior_of(model, [kernels], 2)
    theirs = theirs.with_samples([kernels], WEIGHTS).predict(X, quantiles=[0.9]).predictive
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(mine.mean, average(rate), rtol=1e-4)
    law = scipy.stats.poisson(rate)
    assert (average(law.cdf(mine.quantiles[0])) >= 0.9).all()
    assert (average(law.cdf(mine.quantiles[0] - 1)) < 0.9).all()


@pytest.mark.slow
def test_distributions_without_cdf_or_moments():
    """Quantiles are those of draws; the moments of sinh-normals are unknown in closed form."""
    flow = sgmcmc.keras.NegativeLogLikelihood(
        lambda out: tfd.TransformedDistribution(
            tfd.Normal(out, 0.1), tfp.bijectors.Chain([tfp.bijectors.Exp()])
        )
    )
    found = weighted(flow, KERNELS[..., :1]).predict(X, quantiles=[0.5]).predictive
    assert np.isnan(found.mean).all() and np.isfinite(found.quantiles).all()
    full = sgmcmc.keras.NegativeLogLikelihood(
        lambda out: tfd.Independent(tfd.VonMises(out, 4.0), 1)
    )
    posterior = weighted(full)
    y = np.zeros([6, 2], np.float32)
    assert np.isfinite(posterior.evaluate(X, y)[3:]).all()


def test_several_outputs_and_masks():
    """Masked steps do not count; classes and numbers get their own scores."""
    inputs = keras.Input([3], dtype="int32")
    hidden = keras.layers.Embedding(4, 2, mask_zero=True)(inputs)
    model = keras.Model(inputs, {"steps": hidden, "same": keras.layers.Identity()(hidden)})
    model.compile(loss={"steps": losses.GaussianNLL(), "same": small_models.CROSSENTROPY},
                  run_eagerly=True)  # fmt: skip
    tables = RNG.normal(size=[5, 4, 2]).astype(np.float32)
    posterior = small_models.posterior_of(model, [tables])
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    y = {"steps": RNG.normal(size=[2, 3, 1]), "same": np.array([[0, 1, 1], [1, 0, 0]])}
    found = posterior.evaluate(tokens, y)
    mean = tables[:, tokens, 0].mean(axis=0)
    kept = (tokens > 0) * 1.0
    error = np.average((mean - y["steps"][..., 0]) ** 2, weights=kept) ** 0.5
    assert found.root_mean_squared_error["steps"] == pytest.approx(error, rel=1e-5)
    assert found.root_mean_squared_error["same"] is found.accuracy["steps"] is None
    assert 0 <= found.accuracy["same"] <= 1
    prediction = posterior.predict(tokens, quantiles=[0.5])
    assert prediction.predictive["same"] is prediction.entropy["steps"] is None
    assert prediction.predictive["steps"].quantiles.shape == (1, 2, 3, 1)
    draws = posterior.sample_predictive(tokens, num_draws=7, seed=0)
    again = posterior.sample_predictive(tokens, num_draws=7, seed=0)
    np.testing.assert_array_equal(draws["steps"], again["steps"])
    assert draws["steps"].shape == (7, 2, 3, 1) and draws["same"].shape == (7, 2, 3)
    assert {*np.unique(draws["same"])} <= {0, 1}


@pytest.mark.parametrize(
    "labels", ["numbers", pytest.param("one-hot", marks=pytest.mark.thorough), "bits"]
)
def test_draws_of_classes(labels):
    loss = {
        "numbers": small_models.CROSSENTROPY,
        "one-hot": keras.losses.CategoricalCrossentropy(from_logits=True),
        "bits": small_models.BINARY_CROSSENTROPY,
    }[labels]
    posterior = weighted(loss)
    draws = posterior.sample_predictive(X, num_draws=20_000, seed=0)
    p = posterior.predict(X).mean
    if labels == "numbers":
        draws = np.eye(2)[draws]
    assert draws.shape == (20_000, 6, 2)
    check_means(draws.reshape(20_000, -1), p.ravel(), error=0.05)
    with pytest.raises(Rejected):
        check_means(draws.reshape(20_000, -1), p[::-1].ravel(), error=0.05)


def test_systematic_resampling_takes_samples_by_their_weights():
    seed = sgmcmc.random.as_seed(3)
    for count in (1, 14, 1000):
        times = np.bincount(systematic(SHARES, count, seed), minlength=14)
        assert (np.floor(count * SHARES) <= times).all()
        assert (times <= np.ceil(count * SHARES)).all()
    for size in (3, 7, 1000):
        np.testing.assert_array_equal(
            systematic(np.full([size], 1 / size), size, seed), np.arange(size)
        )


def test_errors():
    posterior = weighted(small_models.unit_normal)
    with pytest.raises(ValueError, match="quantiles and .* need an output whose loss is"):
        posterior.predict(X, quantiles=[0.5])
    with pytest.raises(
        ValueError, match="Observations can be drawn if .* another loss of output 0"
    ):
        posterior.sample_predictive(X, seed=0)
    posterior = weighted(losses.GaussianNLL())
    with pytest.raises(ValueError, match="quantiles .* need .* activation"):
        posterior.predict(X, activation=None, quantiles=[0.5])
    for wrong in ([0.0, 0.5], [1.5], [[0.5]], 0.5):
        with pytest.raises(ValueError, match="quantiles must"):
            posterior.predict(X, quantiles=wrong)
    with pytest.raises(TypeError, match="quantiles must"):
        posterior.predict(X, quantiles=["a"])
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        posterior.sample_predictive(X, 0)

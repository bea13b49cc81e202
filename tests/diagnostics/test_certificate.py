"""Pareto's k, weighted samples and certificates, against laws that are known."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics import pareto_shape
from tfp_sgmcmc.diagnostics.certificate import Certificate
from tfp_sgmcmc.diagnostics.weighted_sample import (
    FIRST_SHARE,
    Proposal,
    WeightedSample,
    fit_proposal,
)

tfb, tfd = tfp.bijectors, tfp.distributions

MEAN = np.array([1e6, -3e-4, 0.0])
SD = np.array([1e5, 1e-6, 2.0])


def normal(x: np.ndarray) -> np.ndarray:
    return -0.5 * (((x - MEAN) / SD) ** 2).sum(axis=-1)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_shape_of_pareto_weights(k: float) -> None:
    """u^-k has the shape k. 4,000 weights have a tail of 190; k's error is below 0.25 (5 sd)."""
    uniform = np.random.default_rng(1).uniform(size=4000)
    assert abs(pareto_shape(-k * np.log(uniform)) - k) < 0.25


def test_the_shape_is_that_of_arviz() -> None:
    log_weights = np.random.default_rng(2).standard_normal(1000) * 1.5
    arviz = pytest.importorskip("arviz")
    if hasattr(arviz, "psislw"):  # before 1.0
        _, expected = arviz.psislw(log_weights)
    else:  # of log likelihoods
        _, expected = importlib.import_module("arviz_stats.base").array_stats.psislw(-log_weights)
    np.testing.assert_allclose(pareto_shape(log_weights), expected, atol=0.02)


def test_shapes_of_weights_that_are_no_numbers() -> None:
    assert pareto_shape(np.zeros(1000)) == -np.inf
    assert pareto_shape(np.array([*np.zeros(1000), np.nan])) == np.inf
    assert pareto_shape(np.array([*np.full(1000, -np.inf), 0.0])) == np.inf
    assert pareto_shape(np.zeros(10)) == np.inf


@pytest.mark.parametrize(
    ("k", "words"), [(0.321, "Pareto k 0.32"), (-0.2, "Pareto k below 0"), (-np.inf, "k below 0")]
)
def test_the_shape_in_words(k: float, words: str) -> None:
    names = [field.name for field in dataclasses.fields(Certificate)]
    assert words in str(Certificate(**dict.fromkeys(names, 1.0) | {"pareto_k": k}))


def test_the_times_of_independence_metropolis() -> None:
    """They are those of its transition matrix, and weights of zero or equal ones are no trouble."""
    rng = np.random.default_rng(5)
    draws, log_weights = rng.standard_normal([40, 3]), 1.5 * rng.standard_normal(40)
    log_weights[7] = -np.inf
    draws[:, 2] = np.exp(log_weights)  # an entry that is large where the chain stays
    sample = WeightedSample(Proposal(np.zeros(3), np.eye(3), 0.2), draws, log_weights)
    w = sample.weights
    transition = np.minimum(1, w / np.maximum(w[:, np.newaxis], 1e-300)) / 40
    transition += np.diag(1 - transition.sum(axis=1))
    f = draws - w @ draws
    sums = np.linalg.solve(np.eye(40) - transition + w, f)  # over all lags
    variance = np.einsum("s,sd,sd->d", w, f, f)
    expected = 2 * np.einsum("s,sd,sd->d", w, f, sums) / variance - 1
    np.testing.assert_allclose(sample.autocorrelation_times, expected, rtol=1e-9)
    from_efficiency = 2 / sample.efficiency - 1  # of draws that know nothing of their weights
    assert expected[2] > 1.5 * from_efficiency
    equal = WeightedSample(sample.proposal, draws, np.zeros(40))
    np.testing.assert_allclose(equal.autocorrelation_times, 1)


def of_exact_draws(target: sgmcmc.MinibatchLogProb) -> Certificate:
    """Draws of one unconstrained entry, by the inverse of its distribution function."""
    z = np.linspace(-2, 2, 4001).astype(np.float32)
    log_prob = target(tf.constant(z[:, np.newaxis])).numpy().astype(np.float64)
    below = np.cumsum(np.exp(log_prob - log_prob.max()))
    u = np.random.default_rng(1).uniform(size=[500, 4])
    exact = np.interp(u, below / below[-1], z).astype(np.float32)
    return sgmcmc.certify(target.constrain(tf.constant(exact[..., np.newaxis])), target)


def of_a_run(target: sgmcmc.MinibatchLogProb) -> Certificate:
    return sgmcmc.sample(target, tf.zeros([1]), 500, seed=0, progress_bar=False).certificate


@pytest.mark.parametrize(
    "certificate", [of_exact_draws, pytest.param(of_a_run, marks=pytest.mark.thorough)]
)
def test_constants_are_no_difference(certificate: Callable[..., Certificate]) -> None:
    """A Cholesky factor of correlations has a 1 and zeros, whose weighted mean is rounded."""
    target = sgmcmc.MinibatchLogProb(
        lambda c: tfp.distributions.CholeskyLKJ(2, 2.0).log_prob(c),
        lambda c, x: tfp.distributions.MultivariateNormalTriL(
            tf.zeros([2]), c[..., None, :, :]).log_prob(x),
        np.random.default_rng(0).normal(size=[100, 2]).astype(np.float32), 10,
        bijector=tfp.bijectors.CorrelationCholesky(),
    )  # fmt: skip
    found, constant = certificate(target), [[True, True], [False, False]]
    np.testing.assert_array_equal(found.sd == 0, constant)
    np.testing.assert_array_equal(np.isnan([found.mean_offset, found.sd_ratio]), [constant] * 2)
    for largest in (found.largest_offset, found.largest_ratio):
        assert 0 < largest[0] < 0.5 and 0 < largest[1] < 0.2


def test_a_proposal_is_fitted_in_any_units() -> None:
    """The first proposal is 1 sd off and 0.7 times as wide; the last has the exact moments."""
    rng = np.random.default_rng(0)
    sample, num_rounds = fit_proposal(
        normal, Proposal(MEAN + SD, np.diag(0.7 * SD), FIRST_SHARE), 1000, rng
    )
    assert sample.is_reliable and sample.efficiency > 0.8 and 1 < num_rounds < 8
    mean, mean_error, sd, sd_error = sample.moments(sample.draws)
    # Six standard errors are exceeded with probability 2e-9 each.
    np.testing.assert_array_less(np.abs(mean - MEAN), 6 * mean_error + 1e-3 * SD)
    np.testing.assert_array_less(np.abs(sd - SD), 6 * sd_error)
    assert np.all(mean_error < 0.05 * SD) and np.all(sd_error < 0.05 * SD)


def funnel(x: np.ndarray) -> np.ndarray:
    v, rest = x[:, 0], x[:, 1:]
    return -(v**2) / 18 - 0.5 * (rest**2).sum(axis=-1) * np.exp(-v) - 0.5 * v * rest.shape[-1]


def test_a_bad_fit_is_told() -> None:
    """The negative control: no normal distribution fits a funnel in six dimensions."""
    rng = np.random.default_rng(0)
    sample, _ = fit_proposal(funnel, Proposal(np.zeros(6), np.eye(6), FIRST_SHARE), 1000, rng)
    assert not (sample.is_reliable and sample.efficiency > 0.2)
    assert sample.pareto_k > 0.3


def test_standard_errors_count_antithetic_pairs() -> None:
    """The mean of a symmetric posterior is exact; treating draws as independent would give 0.03."""
    proposal = Proposal(np.zeros(1), np.eye(1), 0.1)
    draws = proposal.sample(1000, np.random.default_rng(0))
    log_prob = -0.5 * (draws**2).sum(axis=-1)
    sample = WeightedSample(proposal, draws, log_prob - proposal.log_prob(draws))
    mean, mean_error, _, sd_error = sample.moments(draws)
    assert abs(mean[0]) < 1e-12 and mean_error[0] < 1e-12
    assert 0.01 < sd_error[0] < 0.05


X = np.random.default_rng(0).normal(3.0, 2.0, size=[50])


def positive(value: float = 1.0) -> sgmcmc.MinibatchLogProb:
    """The scale of 50 normal numbers with a flat prior of its logarithm: s^-2 is gamma."""
    return sgmcmc.MinibatchLogProb(
        lambda scale: -tf.math.log(scale),
        lambda scale, x: value * tfd.Normal(tf.zeros([], tf.float64), scale[..., None]).log_prob(x),
        X,
        10,
        bijector=tfb.Exp(),
    )


def exact_draws(rng: np.random.Generator, shape: list[int]) -> np.ndarray:
    return (rng.gamma(len(X) / 2, 1 / ((X**2).sum() / 2), size=shape)) ** -0.5


def test_exact_draws_are_certified_and_false_alarms_are_rare() -> None:
    """The 95 % intervals of two figures of 50 certificates miss the truth 5 times on average.

    By the binomial law more than 18 have probability 5e-7. A score above 5 has probability 6e-7.
    """
    target, rng = positive(), np.random.default_rng(3)
    missed, alarms = 0, 0
    for seed in range(50):
        found = sgmcmc.certify(exact_draws(rng, [250, 4]), target, num_draws=1000, seed=seed)
        assert found.is_reliable and found.efficiency > 0.7
        scores = (
            found.mean_offset / found.mean_offset_error,
            (found.sd_ratio - 1) / found.sd_ratio_error,
        )
        missed += sum(abs(score) > 1.96 for score in scores)
        alarms += sum(abs(score) > 5 for score in scores)
    assert missed <= 18 and alarms == 0


@pytest.mark.parametrize("bias", ["wide", "off"])
def test_a_bias_is_told_with_its_size(bias: str) -> None:
    """Draws 20 % too wide around their mean, or 0.5 sd off; six standard errors, 2e-9."""
    draws = exact_draws(np.random.default_rng(4), [1000, 4])
    sd = draws.std()
    draws = {"wide": draws.mean() + 1.2 * (draws - draws.mean()), "off": draws + 0.5 * sd}[bias]
    found = sgmcmc.certify(draws, positive())
    size = {"wide": (0.0, 1.2), "off": (0.5, 1.0)}[bias]
    assert found.is_reliable and "believed" in str(found)
    assert abs(found.mean_offset - size[0]) < 6 * found.mean_offset_error
    assert abs(found.sd_ratio - size[1]) < 6 * found.sd_ratio_error
    assert found.mean_offset_error < 0.06 and found.sd_ratio_error < 0.05


def test_chains_that_are_copies_have_the_error_of_one() -> None:
    """Four copies of 1,000 draws: their errors are those of one chain, not half as large."""
    draws = exact_draws(np.random.default_rng(8), [1000, 1])
    one, four = (sgmcmc.certify(x, positive()) for x in (draws, np.tile(draws, [1, 4])))
    assert four.mean_offset_error == pytest.approx(float(one.mean_offset_error), rel=0.1)
    assert four.sd_ratio_error == pytest.approx(float(one.sd_ratio_error), rel=0.1)


def test_a_likelihood_of_another_power_is_told() -> None:
    """The draws of the likelihood to the power 0.5 are about 1.4 times too wide."""
    tempered = exact_draws(np.random.default_rng(5), [1000, 4])
    found = sgmcmc.certify(tempered, positive(2.0))
    assert found.is_reliable and 1.3 < found.sd_ratio < 1.6


def test_the_draws_of_a_run_are_those_of_its_states() -> None:
    """A kernel's states are unconstrained, and the certificate is about the parameters."""
    run = sgmcmc.sample_chain(
        sgmcmc.CorrectedLangevin(positive(), 0.02),
        np.log(exact_draws(np.random.default_rng(6), [4])),
        1000,
        seed=0,
        progress_bar=False,
        preflight_check=False,
        jit_compile=False,
    )
    found = sgmcmc.certify(run, positive())
    assert abs(found.mean / exact_draws(np.random.default_rng(7), [100_000]).mean() - 1) < 0.01
    assert abs(found.mean_offset) < 5 * found.mean_offset_error + 0.2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([np.zeros([10, 2])], {}), "at least 50 draws"),
        (([np.zeros([100, 4])], {}), "finite draws that differ"),
        (([np.ones([100, 4])], {"num_draws": 101}), "num_draws must be even"),
        (([np.ones([100, 4])], {"num_draws": 10}), "num_draws must be at least 100"),
    ],
)
def test_wrong_arguments(arguments: tuple, told: str) -> None:
    (draws,), options = arguments
    with pytest.raises(ValueError, match=told):
        sgmcmc.certify(draws, lambda x: -(x**2), **options)


def test_draws_of_a_stream_are_certified_by_one_pass() -> None:
    """The posterior is normal. Draws that are 1.3 times too wide and 0.5 sd off are seen as such.

    False alarms 1e-6 for five standard errors each, with a fixed seed.
    """
    rng, passes = np.random.default_rng(0), []
    x = rng.normal(1.0, 1.0, [20_000]).astype(np.float32)

    def read() -> Iterator[np.ndarray]:
        passes.append(1)
        yield from np.array_split(x, 7)

    rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None]))
    target = sgmcmc.StreamedLogProb(
        lambda t: -0.5 * t**2,
        lambda t, x: -0.5 * (x - t[..., None]) ** 2,
        rows,
        len(x),
        batch_size=10,
    )
    mean, sd = x.sum(dtype=np.float64) / 20_001, 20_001**-0.5
    draws = mean + sd * (0.5 + 1.3 * rng.normal(size=[1_000, 4]))
    before = len(passes)
    found = sgmcmc.certify(draws.astype(np.float32), target)
    assert len(passes) == before + 1 and found.is_reliable
    assert abs(found.mean_offset - 0.5) < 5 * found.mean_offset_error < 0.3
    assert abs(found.sd_ratio - 1.3) < 5 * found.sd_ratio_error < 0.4
    assert abs(found.mean - mean) < 5 * found.mean_error and abs(found.sd - sd) < 5 * found.sd_error

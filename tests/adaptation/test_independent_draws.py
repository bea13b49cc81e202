"""Independent draws of `sample`: right, certified, and compiled once."""

import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.independent_draws import independent_draws, proposals_at_once
from tfp_sgmcmc.adaptation.pilot import PilotRuns, seconds_of_second
from tfp_sgmcmc.sampling.result import Flag

tfb, tfd = tfp.bijectors, tfp.distributions
INCOMES = 60_000 + 30_000 * np.random.default_rng(0).standard_normal(100)


def incomes() -> sgmcmc.MinibatchLogProb:
    """Incomes in dollars with flat priors of the mean and of the log of the scale.

    The mean has a t distribution of 99 degrees of freedom, and 99 s^2 / scale^2 is chi-square.
    """
    return sgmcmc.MinibatchLogProb(
        lambda mu, sigma: 0 * mu - tf.math.log(sigma),
        lambda mu, sigma, y: tfd.Normal(mu[..., None], sigma[..., None]).log_prob(y),
        INCOMES,
        10,
        bijector=[None, tfb.Exp()],
    )


@pytest.fixture(scope="module")
def target() -> sgmcmc.MinibatchLogProb:
    return incomes()


@pytest.fixture(scope="module")
def result(target: sgmcmc.MinibatchLogProb) -> sgmcmc.SampleResult:
    start = [tf.zeros([], tf.float64), tf.zeros([], tf.float64)]
    return sgmcmc.sample(target, start, 1000, seed=0, progress_bar=False)


def test_draws_in_dollars_have_the_exact_law(result: sgmcmc.SampleResult) -> None:
    """Every fourth draw is nearly independent: two tests of 1,000 at 1e-6."""
    assert result.choices.sampler == "IndependentMetropolis" and result.is_trusted
    assert any("= sgmcmc.IndependentMetropolis(" in x for x in result.choices.program())
    mu, sigma = (np.asarray(x)[::4].ravel() for x in result.states)
    size, mean, sd = len(INCOMES), INCOMES.mean(), INCOMES.std(ddof=1)
    exact = stats.t(size - 1, mean, sd / size**0.5)
    assert stats.kstest(mu, exact.cdf).pvalue > 1e-6
    assert stats.kstest((size - 1) * (sd / sigma) ** 2, stats.chi2(size - 1).cdf).pvalue > 1e-6
    wrong = stats.norm(mean, 1.3 * sd / size**0.5)  # the negative control: 30 % wider
    assert stats.kstest(np.asarray(result.states[0]).ravel(), wrong.cdf).pvalue < 1e-6


def test_the_certificate_holds_the_exact_moments(result: sgmcmc.SampleResult) -> None:
    """Six standard errors, 2e-9 each."""
    found, size = result.certificate, len(INCOMES)
    assert found.is_reliable and found.efficiency > 0.7 and found.num_starts >= 16
    sd = INCOMES.std(ddof=1) * (size - 1) ** 0.5 / size**0.5 / (size - 3) ** 0.5
    assert abs(found.mean[0] - INCOMES.mean()) < 6 * found.mean_error[0] + 1e-3
    assert abs(found.sd[0] - sd) < 6 * found.sd_error[0]
    assert all(abs(x) < 0.2 for x in found.mean_offset)


def test_a_second_call_compiles_nothing(
    target: sgmcmc.MinibatchLogProb, result: sgmcmc.SampleResult, monkeypatch: Any
) -> None:
    """Another seed and more results run the programs of the first call."""
    made, is_control = [], False
    build = tf.__internal__.FuncGraph.__init__

    class Traced(Exception):
        pass

    def counted(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
        made.append(name)
        if is_control:
            raise Traced
        build(self, name, *args, **kwargs)

    monkeypatch.setattr(tf.__internal__.FuncGraph, "__init__", counted)
    start = [tf.zeros([], tf.float64), tf.zeros([], tf.float64)]
    again = sgmcmc.sample(target, start, 1500, seed=1, progress_bar=False)
    assert again.num_results == 1500 and again.is_trusted
    assert made == []
    is_control = True  # another target has other programs
    with pytest.raises(Traced):
        sgmcmc.sample(incomes(), start, 100, seed=1, min_ess=1, progress_bar=False)


@pytest.mark.thorough
def test_a_run_on_disk_keeps_its_certificate(tmp_path: Path, target: Any) -> None:
    start = [tf.zeros([], tf.float64), tf.zeros([], tf.float64)]
    options: dict[str, Any] = {"seed": 2, "progress_bar": False, "min_ess": 100}
    options["directory"] = tmp_path / "run"
    first = sgmcmc.sample(target, start, 200, **options)
    more = sgmcmc.sample(target, start, 400, **options)
    np.testing.assert_array_equal(np.asarray(more.states[0])[:200], np.asarray(first.states[0]))
    assert more.certificate.is_reliable and first.certificate.is_reliable


def test_poor_weights_leave_the_draws_to_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a funnel in five dimensions are poor. On few data NUTS follows at once.

    On more data HMC is tried first, and reasons are noted.
    """
    target = sgmcmc.MinibatchLogProb(
        lambda v, x: tfd.Normal(0.0, 3.0).log_prob(v),
        lambda v, x, y: tfd.Normal(0.0, tf.exp(v[..., None] / 2)).log_prob(x) + 0 * y,
        np.zeros([4], np.float32),
        1,
    )
    center = [tf.zeros([]), tf.zeros([4])]
    found = Coordinates(target, None, center, np.eye(5), np.eye(5), "hessian", 1)
    runs = PilotRuns(4, 5, tf.float32, tf.constant([0, 1]), True)
    with pytest.raises(NotNearGaussian, match="the weights of a normal distribution"):
        independent_draws(target, found, runs, np.zeros(2), 100)
    monkeypatch.setattr("tfp_sgmcmc.adaptation.independent_draws._MOST_FOR_NUTS", 19)
    assert independent_draws(target, found, runs, np.zeros(2), 100) == (None, found)
    assert "were dropped, because the weights" in runs.dropped[0]
    monkeypatch.setattr("tfp_sgmcmc.adaptation.independent_draws._MOST_ENTRIES", 19)  # N D is 20
    assert independent_draws(target, found, runs, np.zeros(2), 100) == (None, found)
    assert "were not tried" in runs.dropped[1] and "N D is 20, above 19" in runs.dropped[1]


@pytest.mark.parametrize("form", fast_settings([dict, list, tuple], dict))
def test_states_of_several_parts_without_a_bijector(form: Any) -> None:
    """Six standard errors of 400 nearly independent draws: 2e-9 each."""
    target = sgmcmc.MinibatchLogProb(
        lambda a, b: -0.5 * a**2 - 0.5 * tf.reduce_sum(b**2, axis=-1),
        lambda a, b, batch: -0.5 * (batch - a[..., None] - b[..., :1]) ** 2,
        np.full([10], 3.0, np.float32),
        10,
    )
    start: Any = {"a": tf.zeros([]), "b": tf.zeros([2])}
    start = start if form is dict else form([start["a"], start["b"]])
    result = sgmcmc.sample(
        target, start, 200, seed=0, min_ess=200, progress_bar=False, jit_compile=False
    )
    assert result.choices.sampler == "IndependentMetropolis" and result.is_trusted
    a, b = tf.nest.flatten(result.states)
    assert a.shape == (200, 4) and b.shape == (200, 4, 2)
    for draws, mean in ((a, 30 / 21), (b[..., 0], 30 / 21), (b[..., 1], 0.0)):
        assert abs(draws.mean() - mean) < 6 * draws.std() / 400**0.5


def test_other_work_on_the_machine_does_not_count() -> None:
    """A call that waits takes none of the processor's time."""

    assert 0 <= seconds_of_second(lambda: time.sleep(0.1)) < 0.05


def test_flags_have_grades() -> None:
    flag = Flag("doubt", "It was not checked.", "Check it.")
    assert flag == "It was not checked. Check it." and flag.grade == "doubt"
    assert (flag.cause, flag.remedy) == ("It was not checked.", "Check it.")


@pytest.mark.parametrize(
    ("num_examples", "num_steps", "expected"),
    [
        (1_000, 510, 250),  # all proposals of a block are evaluated by one call
        (100_000, 510, 170),  # three equal blocks in place of 250, 250 and 10 of 250
        (100_000, 500, 250),
        (100_000, 30, 30),
        (100_000, 251, 126),
    ],
)
def test_blocks_of_a_large_target_leave_few_proposals_over(
    num_examples: int, num_steps: int, expected: int
) -> None:
    target: Any = types.SimpleNamespace(num_examples=num_examples)
    size = proposals_at_once(target, 4, num_steps)
    assert size == expected and -(-num_steps // size) == -(-num_steps // 250)

"""A pinned joint distribution in `tfp.mcmc.TransformedTransitionKernel` over every kernel.

Its default bijector has the state as a structure with names, and calls the log posterior by
position. Through the bijectors exp and the identity both posteriors below are Gaussian, so the law
of each scheme is exact. False-alarm rate: 1e-6 a test. An error of 10% in the variance of any
whitened direction is found with probability 0.999.
"""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import by_chain
from tests.harness.gaussian_mean import sgld_covariance
from tests.harness.statistics import Rejected, check_covariance

tfd = tfp.distributions
SIZE, CHAINS = 6, 4_000
X = np.random.default_rng(0).normal(0.5, 1.0, SIZE).astype(np.float32)
PRECISION = np.array([1.0 + SIZE, 0.25 + SIZE])  # of log(scale) and of loc
MEAN = np.array([X.sum(), 2 * X.sum()]) / PRECISION  # x is seen with mean log(scale), 2x with loc
POSTERIOR = np.diag(1 / PRECISION)


def pinned() -> Any:
    """Two conjugate models side by side: a log-normal scale, and a normal loc."""

    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        scale = yield tfd.LogNormal(0.0, 1.0, name="scale")
        loc = yield tfd.Normal(0.0, 2.0, name="loc")
        yield tfd.Sample(tfd.LogNormal(tf.math.log(scale), 1.0), SIZE, name="x")
        yield tfd.Sample(tfd.Normal(loc, 1.0), SIZE, name="y")

    return joint.experimental_pin(x=np.exp(X), y=2 * X)


def transformed(make: Any) -> tuple[Any, Any]:
    """Returns a transformed kernel over all chains, and the state where they start."""
    model = pinned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the full data are meant here
        kernel = make(model.unnormalized_log_prob)
        bijector = model.experimental_default_event_space_bijector()
        kernel = tfp.mcmc.TransformedTransitionKernel(kernel, bijector)
    start = model.sample_unpinned(CHAINS, seed=1)
    return kernel, start


STEP = 0.1
LAWS = {
    "SGLD": (
        lambda target: sgmcmc.SGLD(target, STEP),
        sgld_covariance(np.diag(PRECISION), np.zeros([2, 2]), STEP),
    ),
    "NOGIN": (lambda target: sgmcmc.NOGIN(target, 0.5, friction=3.0), POSTERIOR),
}


def check(name: str, law: np.ndarray) -> None:
    kernel, start = transformed(LAWS[name][0])

    @tf.function(jit_compile=True, autograph=False)
    def run(state: Any) -> Any:
        return tfp.mcmc.sample_chain(
            10, state, kernel=kernel, num_burnin_steps=60, trace_fn=None, seed=[0, 1]
        )

    samples = run(start)
    assert samples._fields == ("scale", "loc")
    check_covariance(by_chain([tf.math.log(samples.scale), samples.loc]), MEAN, law, 0.1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "NOGIN" else []) for n in LAWS]
)
def test_samples_follow_the_law_of_the_scheme(name: str) -> None:
    check(name, LAWS[name][1])


@pytest.mark.slow
def test_the_law_of_another_step_is_rejected() -> None:
    with pytest.raises(Rejected):
        check("SGLD", POSTERIOR)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        *(
            pytest.param(kernel, {}, marks=pytest.mark.slow)
            for kernel in (sgmcmc.ModifiedSGLD, sgmcmc.SGNHT, sgmcmc.CCAdL)
        ),
        (sgmcmc.SGHMC, {}),
        pytest.param(sgmcmc.UnderdampedLangevin, {}, marks=pytest.mark.thorough),
        pytest.param(
            sgmcmc.ReplicaExchangeSGLD,
            dict(temperatures=[1.0, 2.0]),
            marks=pytest.mark.thorough,
        ),
        (sgmcmc.CorrectedLangevin, {}),
    ],
)
def test_every_kernel_moves(kernel: Any, options: dict[str, Any]) -> None:
    made, start = transformed(lambda target: kernel(target, 0.01, **options))
    state, results = made.one_step(start, made.bootstrap_results(start), seed=0)
    state, _ = made.one_step(state, results, seed=1)  # the first moves momenta at rest
    assert state._fields == start._fields
    assert np.mean(state.loc != start.loc) > 0.5

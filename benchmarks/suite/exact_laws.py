r"""Linear problems whose stationary law each kernel and each target has in closed form.

N examples \( x_i \), the entries of a Hadamard matrix, have uncorrelated columns of mean zero. The
log likelihood \( -\tfrac a2 \sum_j (\theta_j - x_{ij})^2 \) with a = 1/N and a flat prior gives the
posterior N(0, I). The noise of a minibatch does not depend on theta, and has the covariance
(N - n) / n times the identity. So the variance of every coordinate is the temperature \( \tau \) of
the kernel's law in `tfp_sgmcmc.kernels.linear_theory`, its bias included.

A figure is the relative error of that variance, over many chains with minibatches of their own. Its
Monte Carlo error is about 0.2 %, so that an error of 2 % is ten of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from tfp_sgmcmc.kernels import linear_theory

EXAMPLES, DIMENSIONS, BATCH = 16, 15, 8
CHAINS = 1500
BURN_IN, KEPT, BETWEEN = 300, 40, 10  # steps, draws of each chain, steps from one to the next
HEAVY = 1e8  # a thermal mass that keeps the thermostat at the friction


class Setting(NamedTuple):
    """A kernel on a target, and what a figure of its chains must be.

    Attributes:
      kernel: target -> kernel.
      expected: variance s of the gradient noise -> the value of the figure.
      target: makes the target.
      noise: the factor of s that the target has.
      figure: "variance" of theta, or of the "momentum", which a thermostat holds.
    """

    kernel: Callable[[Any], Any]
    expected: Callable[[float], float]
    target: Callable[[], Any]
    noise: float = 1.0
    figure: str = "variance"


class Found(NamedTuple):
    """A figure's relative error, and the standard error of that."""

    error: float
    standard_error: float


def examples() -> np.ndarray:
    """Returns the data, `[N, D]`, with variance N (divisor N - 1) in each column."""
    x = scipy.linalg.hadamard(EXAMPLES)[:, 1:] * np.sqrt(EXAMPLES - 1.0)
    return x.astype(np.float32)


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return 0.0 * tf.reduce_sum(theta, axis=-1)


def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum((theta[..., tf.newaxis, :] - x) ** 2, axis=-1)
    return -0.5 / EXAMPLES * squares


def score(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return (x - theta[..., tf.newaxis, :]) / EXAMPLES


def minibatches(**options: Any) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, examples(), BATCH, score_fn=score, **options
    )


def whitened() -> sgmcmc.MinibatchLogProb:
    """Returns the target in whitened coordinates, which takes no `score_fn`."""
    target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, examples(), BATCH)
    return sgmcmc.whiten(target, np.zeros(DIMENSIONS, np.float32))[0]


def all_data() -> sgmcmc.FullDataLogProb:
    return sgmcmc.FullDataLogProb(lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1))


NOISE = (EXAMPLES - BATCH) / BATCH  # s


Expected = Callable[[float], float]  # variance s of the gradient noise -> value of the figure


def _tau(law: Callable[..., Any], *settings: float, known: bool = False) -> Expected:
    """Returns the temperature of a law as a function of s, which the kernel knows or does not."""
    return lambda s: float(law(*settings, 1.0, s, *([s] * known)).temperature)


def _modified(epsilon: float) -> Expected:
    """mSGLD draws noise with the factor 1 - epsilon s / 8."""
    return lambda s: (
        (epsilon**2 / 4 * s + epsilon * (1 - epsilon / 8 * s) ** 2) / (1 - (1 - epsilon / 2) ** 2)
    )


def _one(s: float) -> float:
    return 1.0


SGLD_STEP = 0.2
# Settings at which each fault of `benchmarks.robustness.planted` changes the law by more than 1 %.
KERNELS: dict[str, Setting] = {
    "SGLD": Setting(
        lambda t: sgmcmc.SGLD(t, SGLD_STEP),
        _tau(linear_theory.overdamped_law, SGLD_STEP),
        minibatches,
    ),
    "ModifiedSGLD": Setting(
        lambda t: sgmcmc.ModifiedSGLD(t, 0.2, "diag"), _modified(0.2), minibatches
    ),
    "SGFS": Setting(lambda t: sgmcmc.SGFS(t, alpha=6.0, covariance="diag"), _one, minibatches),
    "UnderdampedLangevin": Setting(
        lambda t: sgmcmc.UnderdampedLangevin(t, 0.3, 1.0),
        _tau(linear_theory.splitting_law, 0.3, 1.0),
        minibatches,
    ),
    # SGHMC draws less noise by what the gradient brings, as if that brought none.
    "SGHMC": Setting(
        lambda t: sgmcmc.SGHMC(t, 0.2, 1.0, "diag"),
        lambda s: float(linear_theory.euler_law(0.2, 1.0, 1.0).temperature),
        minibatches,
    ),
    "SGNHT": Setting(
        lambda t: sgmcmc.SGNHT(t, 0.2, 1.0, thermal_mass=HEAVY),
        _tau(linear_theory.euler_law, 0.2, 1.0),
        minibatches,
    ),
    "SGNHT, adodab": Setting(
        lambda t: sgmcmc.SGNHT(t, 0.3, 1.0, "adodab", thermal_mass=HEAVY),
        _tau(linear_theory.splitting_law, 0.3, 1.0),
        minibatches,
    ),
    "SGNHT, thermostat": Setting(
        lambda t: sgmcmc.SGNHT(t, 0.1, 1.0), _one, minibatches, figure="momentum"
    ),
    "CCAdL": Setting(
        lambda t: sgmcmc.CCAdL(t, 0.4, 2.0, "diag", thermal_mass=HEAVY), _one, minibatches
    ),
    "CCAdL, euler": Setting(
        lambda t: sgmcmc.CCAdL(t, 0.2, 1.0, "diag", thermal_mass=HEAVY, scheme="euler"),
        _tau(linear_theory.euler_law, 0.2, 1.0, known=True),
        minibatches,
    ),
    "CCAdL, thermostat": Setting(
        lambda t: sgmcmc.CCAdL(t, 0.1, 1.0, "diag", scheme="euler"),
        _one,
        minibatches,
        figure="momentum",
    ),
    "NOGIN": Setting(lambda t: sgmcmc.NOGIN(t, 0.4, 2.0, "diag"), _one, minibatches),
    # Without noise all replicas have the law of SGLD at their temperatures, and swaps keep it but
    # for the order of the step.
    "ReplicaExchangeSGLD": Setting(
        lambda t: sgmcmc.ReplicaExchangeSGLD(t, 0.1, (1.0, 1.3)),
        _tau(linear_theory.overdamped_law, 0.1),
        lambda: sgmcmc.ControlVariate(minibatches(), np.zeros(DIMENSIONS, np.float32)),
        0.0,
    ),
    "CorrectedLangevin": Setting(lambda t: sgmcmc.CorrectedLangevin(t, 0.3), _one, all_data, 0.0),
    "IndependentMetropolis": Setting(
        lambda t: sgmcmc.IndependentMetropolis(
            t,
            np.zeros(DIMENSIONS, np.float32),
            -np.eye(DIMENSIONS, dtype=np.float32),
            block_size=20,
        ),
        _one,
        all_data,
        0.0,
    ),
}


def _sgld(target: Callable[[], Any], noise: float) -> Setting:
    return KERNELS["SGLD"]._replace(target=target, noise=noise)


TARGETS: dict[str, Setting] = {
    # (N - 1) / N of N^2 / n times the variance with the divisor N - 1.
    "MinibatchLogProb, replacement": _sgld(
        lambda: minibatches(replacement=True), (EXAMPLES - 1) / BATCH
    ),
    "MinibatchLogProb, groups": _sgld(
        lambda: sgmcmc.MinibatchLogProb(log_prior, log_likelihood, examples(), BATCH, num_groups=4),
        1.0,
    )._replace(kernel=KERNELS["NOGIN"].kernel, expected=_one),
    "FullDataLogProb": _sgld(all_data, 0.0),
    "ControlVariate": _sgld(
        lambda: sgmcmc.ControlVariate(minibatches(), np.full(DIMENSIONS, 0.5, np.float32)), 0.0
    ),
    "SVRG": _sgld(lambda: sgmcmc.SVRG(minibatches()), 0.0),
    "GrowingBatch": _sgld(lambda: sgmcmc.GrowingBatch(minibatches(), 1.1), 0.0),
    "GrowingBatch, constant": _sgld(
        lambda: sgmcmc.GrowingBatch(minibatches(), 1.0, float(BATCH)), 1.0
    ),
    "whiten": _sgld(whitened, 1.0),
}
SETTINGS = {**KERNELS, **TARGETS}


class Measurement:
    """A setting's compiled chains, which can run for several seeds."""

    def __init__(self, setting: Setting, wrap: Callable[[Any], Any] = lambda target: target):
        """`wrap` changes the target, for planted faults."""
        self._setting = setting
        kernel = setting.kernel(wrap(setting.target()))
        # Draws of IndependentMetropolis are independent.
        short = isinstance(kernel, sgmcmc.IndependentMetropolis)
        burn_in, between = (10, 1) if short else (BURN_IN, BETWEEN)
        self._start = tf.zeros([CHAINS, DIMENSIONS])
        self._results = kernel.bootstrap_results(self._start)
        self._run = compiled(kernel, KEPT, between, burn_in, self._trace)

    def _trace(self, state: tf.Tensor, results: Any) -> tf.Tensor:
        is_momentum = self._setting.figure == "momentum"
        return tf.reduce_mean((results.momentum if is_momentum else state) ** 2, axis=-1)

    def __call__(self, seed: int) -> Found:
        found = self._run(self._start, self._results, tf.constant([seed, 0])).trace.numpy()
        expected = self._setting.expected(self._setting.noise * NOISE)
        of_chains = found.astype(np.float64).mean(axis=0) / expected - 1
        return Found(float(of_chains.mean()), float(of_chains.std(ddof=1) / len(of_chains) ** 0.5))


def seed_of(name: str, seed: int) -> int:
    """Returns a seed for the draws of one setting."""
    return zlib.crc32(name.encode()) % 10_000 + 10_000 * seed


def measure(name: str, seed: int = 0) -> Found:
    """Returns the figure of a setting by its name, with draws of its own for each."""
    return Measurement(SETTINGS[name])(seed_of(name, seed))

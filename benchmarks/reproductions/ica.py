"""Independent component analysis of MEG: SGLD with the natural gradient against an exact chain.

After Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011, section
5.3: the unmixing matrix W of N = 17730 recordings x has the likelihood

  p(x | W) = |det W| prod_i 1 / (4 cosh(w_i.x / 2)^2),   w_i the rows of W,

a Gaussian prior, and the preconditioner G -> G W^T W. SGLD takes minibatches of 100 and step sizes
a (b + t)^-0.55. The exact chain is `CorrectedLangevin` on all data, with the same M and a constant
step. Both start from FastICA's estimate. They are compared by the instability of each source,

  I_i = 1/d sum_j var(W_ij) var(x_j),

with var(W_ij) over the posterior and var(x_j) over the data, and by the Amari distance of the
samples from the exact chain's mean, which ignores order and scale of the sources. The paper finds
"very similar" indices on its MEG data.

Three things differ. The paper has ten of the 122 channels; here are five, centred and whitened,
with the prior N(0, 1) on each entry. The paper runs one chain each, with 500,000 steps 0.1/N
t^-0.55 and with 100,000 steps 1/N. The data hardly determine the rotation of two nearly Gaussian
sources: in relative changes of W, the posterior's precision has eigenvalues from 0.014 N to 2.2 N
here, and a chain with such small steps would not forget its start. Here the steps are larger, and
there are several chains. So the law of SGLD is too wide, by epsilon N^2 / 4n times the variance of
the scores. Linear theory gives about twice the posterior's variance in the narrowest directions,
but only 6 to 8 % more in the index, which depends on the wide directions. The paper omits div M =
(d + 1) W, which is included here. Samples of SGLD are weighted by their step sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.stats import kurtosis
from sklearn.decomposition import PCA, FastICA

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled

PRIOR_SCALE = 1.0  # standard deviation of every entry of W


class Posterior(NamedTuple):
    """Estimates from the samples of W."""

    mean: np.ndarray  # posterior mean, [d, d]
    deviation: np.ndarray  # standard deviations of the entries, [d, d]
    mean_error: np.ndarray  # Monte Carlo error of `mean`, from the spread of the chains, [d, d]
    instability: np.ndarray  # I, [d]
    # Monte Carlo error of `instability`, from the spread of the chains, [d].
    instability_error: np.ndarray
    weights: np.ndarray  # weights of the draws, [draws]
    amari: np.ndarray  # Amari distances of the draws from the exact chain's mean, [draws, chains]
    passes: float  # passes over the data of each chain

    @property
    def mean_amari(self) -> float:
        return float(np.average(self.amari.mean(axis=1), weights=self.weights))


class Result(NamedTuple):
    """Both posteriors, and their common start."""

    stochastic: Posterior  # the posterior by SGLD
    corrected: Posterior  # the posterior by the exact chain
    acceptance: float  # acceptance rate of the exact chain
    start: np.ndarray  # FastICA's estimate of W, scaled to the likelihood's sources
    kurtosis: np.ndarray  # excess kurtosis of the sources of `start`, [d]


def log_likelihood(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns log p(x | W) of each row of `x`."""
    y = tf.abs(tf.linalg.matmul(w, x, transpose_b=True))  # [chains..., d, n]: XLA's faster layout
    log_cosh = tf.reduce_sum(y + 2 * tf.math.log1p(tf.exp(-y)), axis=-2)  # log 4 cosh(y / 2)^2
    return _log_abs_det(w)[..., tf.newaxis] - log_cosh


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 / PRIOR_SCALE**2 * tf.reduce_sum(w**2, axis=[-2, -1])


def _log_abs_det(w: tf.Tensor) -> tf.Tensor:
    """Returns log |det W| by Gram-Schmidt: XLA lacks `slogdet`, and its QR is 30 times slower."""
    total, basis = 0.0, []
    for row in tf.unstack(w, axis=-2):
        for direction in basis:
            row -= tf.reduce_sum(row * direction, axis=-1, keepdims=True) * direction
        length = tf.norm(row, axis=-1, keepdims=True)
        basis.append(row / length)
        total += tf.math.log(length[..., 0])
    return total


def run(
    *,
    batch_size: int = 100,
    first_step_size: float = 0.03,
    last_step_size: float = 0.005,
    num_chains: int = 32,
    num_steps: int = 150_000,
    corrected_step_size: float = 0.6,
    num_corrected_chains: int = 16,
    num_corrected_steps: int = 4_000,
    thinning: int = 50,
    seed: int = 0,
) -> Result:
    """Samples with both; a fifth of each chain is burn-in. Step sizes are in units of 1/N."""
    x = PCA(whiten=True).fit_transform(datasets.ica5(np.float64).x).astype(np.float32)
    ica = FastICA(whiten=False, fun="logcosh", random_state=seed, max_iter=1000).fit(x)
    start = ica.components_ * np.pi / np.sqrt(3)  # the likelihood's sources have this sd
    target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, batch_size, replacement=True)
    natural = sgmcmc.preconditioners.NaturalGradientICA()
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        first_step_size / len(x), last_step_size / len(x), num_steps
    )

    def sample(kernel: Any, chains: int, steps: int, thinning: int, trace: Any, stream: int) -> Any:
        num_results, traced = steps * 4 // 5 // thinning, lambda _, results: trace(results)
        draw = compiled(kernel, num_results, thinning, steps // 5, traced)
        initial = tf.constant(np.tile(start, [chains, 1, 1]), tf.float32)
        found = draw(initial, None, tf.constant([seed, stream]))
        return found.all_states.numpy(), found.trace.numpy()

    kernel = sgmcmc.SGLD(target, schedule, preconditioner=natural)
    samples, weights = sample(kernel, num_chains, num_steps, thinning, lambda r: r.step_size, 0)
    kernel = sgmcmc.CorrectedLangevin(target, corrected_step_size / len(x), natural)
    exact, accepted = sample(
        kernel, num_corrected_chains, num_corrected_steps, 1, lambda r: r.is_accepted, 1
    )
    center = exact.mean(axis=(0, 1), dtype=np.float64)
    return Result(
        _posterior(samples, weights, x, center, num_steps * batch_size / len(x)),
        _posterior(exact, np.ones(len(exact)), x, center, num_corrected_steps),
        float(accepted.mean()),
        start,
        kurtosis(x @ start.T),
    )


def _posterior(
    samples: np.ndarray, weights: np.ndarray, data: np.ndarray, center: np.ndarray, passes: float
) -> Posterior:
    samples = samples.astype(np.float64)
    means = np.average(samples, axis=0, weights=weights)  # of the chains
    mean = means.mean(axis=0)
    squares = np.average((samples - mean) ** 2, axis=0, weights=weights)
    instability = sgmcmc.diagnostics.instability_index(
        samples, data, weights=weights, mean=mean, reduction="sum"
    )
    root = np.sqrt(len(means))
    return Posterior(
        mean,
        np.sqrt(squares.mean(axis=0)),
        means.std(axis=0, ddof=1) / root,
        instability.mean(axis=0),
        instability.std(axis=0, ddof=1) / root,
        weights,
        sgmcmc.diagnostics.amari_distance(samples, center),
        passes,
    )


def plot(result: Result, path: str) -> None:
    """Draws Amari distances, and sorted instabilities with errors, as in the paper's figures."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    order = np.argsort(result.corrected.instability)
    for name, posterior in (("SGLD", result.stochastic), ("corrected", result.corrected)):
        weights = np.broadcast_to(posterior.weights[:, None], posterior.amari.shape).ravel()
        left.hist(
            posterior.amari.ravel(), 50, density=True, weights=weights, histtype="step", label=name
        )
        right.errorbar(
            np.arange(1, len(order) + 1),
            posterior.instability[order],
            posterior.instability_error[order],
            fmt="o",
            capsize=3,
            label=name,
        )
    left.set(xlabel="Amari distance from the exact mean", ylabel="density of samples")
    right.set(xlabel="source, by stability", ylabel="instability")
    left.legend()
    right.legend()
    figure.savefig(path)


def show(result: Result) -> None:
    sgld, exact = result.stochastic, result.corrected
    print(f"corrected Langevin: {exact.passes:.0f} passes, acceptance {result.acceptance:.2f}")
    print(f"SGLD: {sgld.passes:.0f} passes")
    ratio = sgld.instability / exact.instability
    error = ratio * np.hypot(
        sgld.instability_error / sgld.instability, exact.instability_error / exact.instability
    )
    command_line.print_table(
        {"kurtosis": ".2f", "I, corrected": ".2e", "I, SGLD": ".2e", "ratio": ".2f", "+-": ".2f"},
        sorted(
            zip(result.kurtosis, exact.instability, sgld.instability, ratio, error, strict=True),
            key=lambda row: row[1],
        ),
    )
    shift = np.abs(sgld.mean - exact.mean) / exact.deviation
    print(f"largest difference of the means: {shift.max():.2f} posterior standard deviations")
    print(f"mean Amari distance: corrected {exact.mean_amari:.3f}, SGLD {sgld.mean_amari:.3f}")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, plot)

"""Every sampler on a logistic regression, its step size in units of the posterior.

A step h is a multiple of a unit that differs from sampler to sampler by one formula,

  unit = 1 / sqrt(largest eigenvalue of the posterior's precision + that of Sigma),

with Sigma the covariance of the gradient that the sampler is given, at the mode: 0 on all data.
Overdamped samplers take epsilon = h^2 (SGFS: alpha = 2 / h). The friction is the square root of the
smallest eigenvalue of the precision, the rate at which momenta cross the widest direction best, and
for SGHMC h times the largest eigenvalue of Sigma more, twice what its noise needs. All masses are
1, but for "HMC whitened".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.special import expit

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.control_variates import synthetic
from benchmarks.logistic import as_batch, log_likelihood, score
from benchmarks.reference import logistic_laplace
from benchmarks.samplers import PRIOR_PRECISION
from benchmarks.suite import problems

LEAPFROG_STEPS = 10
WHITENED_LEAPFROG_STEPS = 3
MAX_TREE_DEPTH = 7
THINNING = 2  # of samplers on minibatches


class Cost(NamedTuple):
    """Examples whose gradient was evaluated, divided by N, and seconds."""

    passes: float
    seconds: float


class Method(NamedTuple):
    """A sampler, where it starts and what it costs.

    Attributes:
      make_kernel: step h -> kernel.
      unit: of h.
      count: results of a step -> examples whose gradient it evaluated.
      examples: that number, at most.
      thinning: steps for a draw.
      start: first state, `[D]`.
      once: cost of what precedes the first step.
    """

    make_kernel: Callable[[Any], Any]
    unit: float
    count: Callable[[Any], Any]
    examples: int
    thinning: int
    start: np.ndarray
    once: Cost = Cost(0.0, 0.0)


class Posterior(NamedTuple):
    """A logistic regression with prior N(0, I / prior_precision), and its Laplace approximation."""

    x: np.ndarray
    y: np.ndarray
    prior_precision: float
    mode: np.ndarray
    covariance: np.ndarray

    def target(self, batch_size: int) -> sgmcmc.MinibatchLogProb:
        """The target, with scores in closed form; all data at once, which is faster than chunks."""
        return sgmcmc.MinibatchLogProb(
            lambda theta: -self.prior_precision / 2 * tf.reduce_sum(theta**2, axis=-1),
            log_likelihood,
            as_batch(self.x, self.y),
            batch_size,
            chunk_size=len(self.x),
            score_fn=score,
        )

    def curvatures(self) -> np.ndarray:
        """Eigenvalues of the precision, ascending."""
        return 1 / np.linalg.eigvalsh(self.covariance)[::-1]

    def noise(self, scale: float, centered: bool) -> float:
        """Largest eigenvalue of Sigma = scale V at a draw, with control variates or without."""
        rng = np.random.default_rng(0)
        theta = rng.multivariate_normal(self.mode, self.covariance)
        rows = rng.choice(len(self.x), min(len(self.x), 20_000), replace=False)
        x = self.x[rows]
        there = expit(x @ self.mode) if centered else self.y[rows]
        scores = x * (there - expit(x @ theta))[:, np.newaxis]
        return scale * float(np.linalg.eigvalsh(np.cov(scores, rowvar=False))[-1])


def posterior(x: np.ndarray, y: np.ndarray, prior_precision: float = 1.0) -> Posterior:
    """Finds the mode, by Newton."""
    return Posterior(x, y, prior_precision, *logistic_laplace(x, y, prior_precision))


# D is 129, 51, 123, 17, and 20 for those of N examples.
POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "mnist_7v9": lambda: posterior(*problems.data("mnist_7v9"), PRIOR_PRECISION),
    "mnist_7v9_random": lambda: posterior(*datasets.mnist_7v9()[:2]),
    "a9a": lambda: posterior(*datasets.a9a()[:2]),
    "synthetic": lambda: posterior(*problems.data("synthetic"), PRIOR_PRECISION),
    "synthetic_1e4": lambda: posterior(*synthetic(10**4, 20, 0)),
    "synthetic_1e5": lambda: posterior(*synthetic(10**5, 20, 0)),
    "synthetic_1e6": lambda: posterior(*synthetic(10**6, 20, 0)),
}


def named(name: str) -> Posterior:
    """A posterior by its name.

    Raises:
      ValueError: an unknown name.
    """
    if name not in POSTERIORS:
        raise ValueError(f"data is {name!r}; one of {', '.join(POSTERIORS)} is expected.")
    return POSTERIORS[name]()


def methods(p: Posterior, batch_size: int) -> dict[str, Method]:
    """All samplers and baselines by name; "+ CV" has control variates at the mode.

    All start from the origin. Those that need the mode go there by L-BFGS, whose cost is theirs.
    """
    plain = p.target(batch_size)
    n, total = batch_size, plain.num_examples
    curvatures = p.curvatures()
    friction = curvatures[0] ** 0.5
    mode, search = find_mode(plain, len(p.mode))
    to_mode = Cost(search.passes + 1, search.seconds * (1 + 1 / search.passes))
    origin, nothing, svrg = np.zeros_like(mode), Cost(0.0, 0.0), sgmcmc.SVRG(plain)
    control = sgmcmc.ControlVariate(plain, tf.constant(mode))
    targets: dict[str, tuple[Any, int, np.ndarray, Cost]] = {
        "": (plain, n, origin, nothing),
        " + CV": (control, 2 * n, mode, to_mode),
        " + SVRG": (svrg, 2 * n + total // svrg.update_every, origin, nothing),
    }
    found = {}
    for suffix, (target, examples, start, once) in targets.items():
        noise = p.noise(target.noise_scale, centered=target is not plain)
        unit = (curvatures[-1] + noise) ** -0.5
        makers = samplers(target, friction, noise)
        if target is plain:
            makers |= fisher_scoring(target)
        for name, make in makers.items():
            found[name + suffix] = Method(
                make, unit, constant(examples), examples, THINNING, start, once
            )
    return found | on_all_data(p, plain, search)


def samplers(target: Any, friction: float, noise: float) -> dict[str, Callable[[Any], Any]]:
    """Step -> kernel, for targets of any kind; `noise` is the largest eigenvalue of Sigma."""
    found: dict[str, Callable[[Any], Any]] = {
        "SGD": lambda h: sgmcmc.SGLD(target, h**2, temperature=0.0),
        "SGLD": lambda h: sgmcmc.SGLD(target, h**2),
        "SGNHT": lambda h: sgmcmc.SGNHT(target, h, friction),
        "underdamped Langevin": lambda h: sgmcmc.UnderdampedLangevin(target, h, friction),
    }
    steps = estimation_steps(target)
    for kind, c in covariances(target).items():
        found |= {
            f"mSGLD {kind}": lambda h, c=c: sgmcmc.ModifiedSGLD(target, h**2, c),
            f"SGHMC {kind}": lambda h, c=c: sgmcmc.SGHMC(target, h, friction + h * noise, c),
            f"CCAdL {kind}": lambda h, c=c: sgmcmc.CCAdL(target, h, friction, c),
            f"NOGIN {kind}": lambda h, c=c: sgmcmc.NOGIN(
                target, h, friction, c, num_estimation_steps=steps
            ),
        }
    return found


def fisher_scoring(target: Any) -> dict[str, Callable[[Any], Any]]:
    """SGFS, for which scores are those of examples, not differences. An infinite h is alpha = 0."""
    kinds = {"full": "full", "diag": "diag", "low_rank": covariances(target)["low_rank"]}
    return {
        f"SGFS {kind}": lambda h, c=c: sgmcmc.SGFS(
            target, alpha=2 / h, covariance=c, num_estimation_steps=estimation_steps(target)
        )
        for kind, c in kinds.items()
    }


def covariances(target: Any) -> dict[str, Any]:
    """Sigma from as many scores at every n: 50,000, or 4,000 of them themselves."""
    covariance, n = sgmcmc.covariance, target.num_scores
    average = covariance.RunningMean(decay=1 - n / 50_000)
    history = covariance.History(max(1, 4000 // n), lag=max(1, 4000 // n))
    return {
        "full": covariance.Full(average),
        "diag": covariance.Diag(average),
        "low_rank": covariance.LowRank(history),
    }


def estimation_steps(target: Any) -> int:
    """Steps that bring 10,000 examples before the chain moves."""
    return 10_000 // target.num_scores


def on_all_data(p: Posterior, target: sgmcmc.MinibatchLogProb, search: Cost) -> dict[str, Method]:
    """Exact baselines. The whitened one has Laplace's covariance for its inverse mass matrix.

    It starts from a draw of Laplace's approximation: in many dimensions the mode is so far from
    where the posterior's mass is that HMC rejects its first proposals there.
    """
    total, dimension = target.num_examples, len(p.mode)
    unit, origin = p.curvatures()[-1] ** -0.5, np.zeros_like(p.mode)
    once = with_hessian(search, dimension)
    return {
        "corrected Langevin": Method(
            lambda h: sgmcmc.CorrectedLangevin(target, h**2),
            unit, constant(total), total, 1, origin,
        ),
        "HMC": Method(
            lambda h: tfp.mcmc.HamiltonianMonteCarlo(target, h, LEAPFROG_STEPS),
            unit, constant(LEAPFROG_STEPS * total), LEAPFROG_STEPS * total, 1, origin,
        ),
        "NUTS": Method(
            lambda h: tfp.mcmc.NoUTurnSampler(target, h, max_tree_depth=MAX_TREE_DEPTH),
            unit, lambda results: results.leapfrogs_taken * total, 2**MAX_TREE_DEPTH * total, 1,
            origin,
        ),
        "HMC whitened": Method(
            lambda h: whitened_hmc(p, target, h, WHITENED_LEAPFROG_STEPS),
            1.0, constant(WHITENED_LEAPFROG_STEPS * total), WHITENED_LEAPFROG_STEPS * total, 1,
            np.random.default_rng(0).multivariate_normal(p.mode, p.covariance), once,
        ),
    }  # fmt: skip


def whitened_hmc(p: Posterior, target: Any, h: Any, num_leapfrog_steps: int) -> Any:
    """HMC in coordinates in which Laplace's approximation is standard normal."""
    factor = np.linalg.cholesky(p.covariance)
    whiten = tfp.bijectors.Chain(
        [
            tfp.bijectors.Shift(tf.constant(p.mode, tf.float32)),
            tfp.bijectors.ScaleMatvecTriL(tf.constant(factor, tf.float32)),
        ]
    )
    hmc = tfp.mcmc.HamiltonianMonteCarlo(target, h, num_leapfrog_steps)
    return tfp.mcmc.TransformedTransitionKernel(hmc, whiten)


def with_hessian(search: Cost, dimension: int) -> Cost:
    """Cost of the mode and the Hessian there: N D^2 multiplications, a gradient takes 2 N D."""
    hessian = dimension / 2
    return Cost(search.passes + hessian, search.seconds * (1 + hessian / search.passes))


def constant(examples: int) -> Callable[[Any], Any]:
    """A count that does not depend on the results."""
    return lambda _: tf.constant(examples)


def find_mode(target: sgmcmc.MinibatchLogProb, dimension: int) -> tuple[np.ndarray, Cost]:
    """The mode by L-BFGS from the origin; seconds are those of its compiled gradients."""
    mode, report = sgmcmc.find_center(target, tf.zeros([dimension]))

    @tf.function(jit_compile=True, autograph=False)
    def gradient(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(target, theta)

    gradient(mode)
    begin = time.process_time()
    for _ in range(5):
        gradient(mode)[1].numpy()
    seconds = (time.process_time() - begin) / 5
    return mode.numpy(), Cost(report.num_passes, report.num_passes * seconds)

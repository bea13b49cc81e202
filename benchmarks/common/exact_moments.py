r"""Exact posterior moments from HMC on all data, with most of the Monte Carlo error removed.

Let g be the gradient of the log posterior. Stein's identity says \( E g = 0 \) and
\( E\, g (\theta - m)^T = -I \) for every m. So for every S,

\[
E\, \theta = E \left[ \theta + S g \right], \qquad
E\, \delta \delta^T = E \left[ \delta \delta^T
  + \tfrac12 (S g \delta^T + \delta g^T S) + S \right], \quad \delta = \theta - m.
\]

For a Gaussian posterior with covariance S and mean m the right hand sides do not vary at all.

A. Mira, R. Solgi and D. Imparato. Zero variance Markov chain Monte Carlo for Bayesian estimators.
Statistics and Computing 23, 2013.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.common.posteriors import Posterior, whitened_hmc
from benchmarks.common.reference import NUM_CHAINS, Moments, Reference, summarized

STEP_SIZE = 0.3  # in standard deviations; five such steps make draws nearly independent
LEAPFROG_STEPS = 5


def exact_moments(p: Posterior, *, num_results: int) -> Reference:
    """Returns moments from chains that start from Laplace's approximation.

    Burn-in takes a fifth of `num_results` in addition.
    """
    target = p.target(1)
    kernel = whitened_hmc(p, target, STEP_SIZE, LEAPFROG_STEPS)
    z = np.random.default_rng(0).standard_normal([NUM_CHAINS, len(p.mode)])
    start = p.mode + z @ np.linalg.cholesky(p.covariance).T
    run = compiled(
        kernel,
        num_results,
        num_burnin_steps=num_results // 5,
        trace_fn=lambda _, results: results.inner_results.is_accepted,
    )
    found = run(tf.constant(start, tf.float32), None, tf.constant([0, 1]))
    gradients = np.asarray(sgmcmc.diagnostics.gradients_at(target, found.all_states))
    samples = found.all_states.numpy()
    halves = [controlled_moments(p, samples[:, i::2], gradients[:, i::2]) for i in range(2)]
    return summarized(controlled_moments(p, samples, gradients), halves, samples, found.trace)


def exact(p: Posterior, num_results: int, kept: Path | None = None) -> Reference:
    """Returns and prints the exact moments, read from the file `kept`, or written if it is new."""
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            found = Reference(**{name: file[name] for name in file})
    else:
        found = exact_moments(p, num_results=num_results)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.savez(kept, **found._asdict())
    print(found, flush=True)
    return found


def controlled_moments(p: Posterior, samples: Any, gradients: Any) -> Moments:
    """Returns mean `[D]` and covariance `[D, D]` of draws `[..., D]` with their gradients.

    m and S start as Laplace's and are then replaced by the result. The moments of the draws
    themselves would bring the noise back: S would have as much noise as the product that removes
    it.
    """
    samples, gradients = (
        np.asarray(x, np.float64).reshape(-1, len(p.mode)) for x in (samples, gradients)
    )
    mean, covariance = p.mode, p.covariance
    for _ in range(2):
        delta, pull = samples - mean, gradients @ covariance
        shift = np.mean(delta + pull, axis=0)
        cross = delta.T @ (delta + pull) / len(delta)
        mean = mean + shift
        covariance = (cross + cross.T) / 2 + covariance - np.outer(shift, shift)
    return mean, covariance

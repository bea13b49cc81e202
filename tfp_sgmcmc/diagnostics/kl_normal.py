"""The normal distribution nearest to a posterior, from gradients at its own draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_PAIRS_PER_ENTRY, _LEAST_PAIRS = 2, 200  # the slope has D^2 entries, a pair gives D numbers
_MOST_ROUNDS = 8
_CLOSE = 0.1  # nats that a round moves the normal, within which it is not moved again
_CURVATURES = 0.25, 4.0  # between which a round lets a precision change


class KLNormal(NamedTuple):
    """A normal distribution near a posterior.

    Attributes:
      mean: m, `[D]`.
      factor: a Cholesky factor L of the covariance, `[D, D]`.
      num_rounds: number of rounds that were made.
      converged: whether the last round hardly moved it.
    """

    mean: np.ndarray
    factor: np.ndarray
    num_rounds: int
    converged: bool


def num_gradients(dim: int) -> int:
    """Returns the number of gradients of a round.

    >>> num_gradients(20), num_gradients(129)
    (400, 516)
    """
    return 2 * max(_LEAST_PAIRS, _PAIRS_PER_ENTRY * dim)


def fit_kl_normal(
    value_and_gradient_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    mean: np.ndarray,
    factor: np.ndarray,
    rng: np.random.Generator,
) -> KLNormal:
    r"""Returns the normal distribution q that minimises KL(q, p), about.

    Where the divergence is least, \( \operatorname{E}_q[\nabla \log p] = 0 \) and
    \( -\operatorname{E}_q[\nabla^2 \log p] = C^{-1} \) for \( q = N(m, C) \). With
    \( \theta = m \pm L z \), \( L L^T = C \), g the gradient with respect to z, and
    \( d = (g(z) - g(-z)) / 2 \), a round makes Newton's step for these equations,

    \[
    A = -\Big( \sum z z^T \Big)^{-1} \sum z d^T, \qquad
    C \leftarrow L A^{-1} L^T, \qquad m \leftarrow m + L A^{-1} \bar g.
    \]

    A is the mean Hessian by Stein's identity. As a regression of d on z it is exact for a normal
    posterior, and pairs leave out all even terms, so that a few D pairs are enough where a sample
    covariance would need many times D^2 draws.

    Args:
      value_and_gradient_fn: theta, `[S, D]` -> log posteriors, `[S]`, and gradients, `[S, D]`.
      mean: m to begin with, `[D]`.
      factor: L to begin with, `[D, D]`.
      rng: a generator of random numbers.

    Returns:
      The distribution, of the last round whose gradients were finite.

    References:
      M. Opper and C. Archambeau. The variational Gaussian approximation revisited. Neural
      Computation, 2009. Equations 7 and 8.
    """
    before = mean, factor
    for number in range(1, _MOST_ROUNDS + 1):
        z = rng.standard_normal([num_gradients(len(mean)) // 2, len(mean)])
        _, gradients = value_and_gradient_fn(mean + np.concatenate([z, -z]) @ factor.T)
        with np.errstate(over="ignore", invalid="ignore"):  # told by the next line
            gradients = gradients @ factor
        if not np.isfinite(gradients).all():
            return KLNormal(*before, number, False)
        before = mean, factor
        plus, minus = np.split(gradients, 2)
        slope = -np.linalg.lstsq(z, (plus - minus) / 2, rcond=None)[0]
        values, vectors = np.linalg.eigh((slope + slope.T) / 2)
        values = np.clip(values, *_CURVATURES)
        step = vectors @ ((vectors.T @ gradients.mean(axis=0)) / values)
        mean = mean + factor @ step
        scale = np.sqrt((factor**2).sum(axis=1, keepdims=True))  # no unit of a parameter matters
        root = factor / scale @ (vectors / np.sqrt(values))
        factor = scale * np.linalg.cholesky(root @ root.T)
        # KL(new, old) of normal distributions.
        if (step @ step + np.sum(1 / values - 1 + np.log(values))) / 2 < _CLOSE:
            return KLNormal(mean, factor, number, True)
    return KLNormal(mean, factor, _MOST_ROUNDS, False)

"""Distributions that importance sampling draws from: normals with heavy tails, and mixtures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.kernels.independent_metropolis import (
    defensive_normal_log_prob_at,
    draw_defensive_normal,
)
from tfp_sgmcmc.targets.laplace.quadratic import lower_factor

_SHARES = (0.05, 0.2, 0.9)  # of heavy tails
FIRST_SHARE = _SHARES[1]
_LEAST_WEIGHT = 0.05  # of a component, or half of its share of one if there are many


class Proposal(NamedTuple):
    """A defensive normal distribution at a place.

    Attributes:
      mean: `[D]`.
      factor: a Cholesky factor of the covariance of the normal, `[D, D]`.
      tail_share: the share with heavy tails.
    """

    mean: np.ndarray
    factor: np.ndarray
    tail_share: float

    def whitened(self, x: np.ndarray) -> np.ndarray:
        """Returns z of x = mean + L z, `[S, D]`."""
        scale = np.diag(self.factor)[:, np.newaxis]  # no unit of a parameter matters
        return ((x - self.mean) / scale.T) @ np.linalg.inv(self.factor / scale).T

    def log_prob(self, x: np.ndarray) -> np.ndarray:
        return self.log_prob_at(self.squares(x))

    def squares(self, x: np.ndarray) -> np.ndarray:
        """Returns the squared lengths of z, `[S]`."""
        z = self.whitened(x)
        return np.einsum("si,si->s", z, z)

    def log_prob_at(self, squares: np.ndarray) -> np.ndarray:
        """Returns log densities where z has these squared lengths."""
        share = tf.constant(self.tail_share, tf.float64)
        found = defensive_normal_log_prob_at(tf.constant(squares), len(self.mean), share)
        return found.numpy() - np.log(np.diag(self.factor)).sum()

    def sample(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Returns antithetic draws, `[num_draws, D]`: the second half mirrors the first."""
        z = draw_defensive_normal((num_draws // 2, len(self.mean)), self.tail_share, rng)
        return self.mean + np.concatenate([z, -z]) @ self.factor.T

    def as_one(self) -> Proposal:
        """Returns itself."""
        return self

    def refitted(
        self, x: np.ndarray, log_probs: np.ndarray, log_mixture: np.ndarray
    ) -> tuple[Proposal, np.ndarray] | None:
        """Returns a proposal with the weighted moments of draws, and its log densities there.

        Args:
          x: the draws, `[S, D]`.
          log_probs: their log posteriors, `[S]`, up to a constant.
          log_mixture: log densities of the distribution that they were drawn from, `[S]`.

        Returns:
          None if there are no such moments.
        """
        return _fitted(x, log_probs, clipped_weights(log_probs - log_mixture))


class MixtureProposal(NamedTuple):
    """A mixture of normal distributions with heavy tails, one for each mode of a posterior.

    Attributes:
      components: the distributions, K.
      weights: their weights, `[K]`, which add up to 1.
    """

    components: tuple[Proposal, ...]
    weights: np.ndarray

    @classmethod
    def of(
        cls, means: np.ndarray, factors: np.ndarray, tail_shares: np.ndarray, weights: np.ndarray
    ) -> MixtureProposal:
        """Returns the mixture of arrays with a leading axis of components, of any precision."""
        parts = zip(means.astype(np.float64), factors.astype(np.float64), tail_shares, strict=True)
        weights = weights.astype(np.float64)
        return cls(tuple(Proposal(*part) for part in parts), weights / weights.sum())

    @classmethod
    def with_masses(cls, components: tuple[Proposal, ...], masses: np.ndarray) -> MixtureProposal:
        """Returns the mixture whose weights are in proportion to `masses`, but none is small.

        The weight of a mode with little mass is larger, so that the mass is well known.
        """
        weights = masses / masses.sum()
        weights = np.maximum(weights, min(_LEAST_WEIGHT, 0.5 / len(components)))
        return cls(components, weights / weights.sum())

    def as_one(self) -> Proposal:
        """Returns one distribution with the mean and the covariance of the mixture's normals."""
        means = np.stack([q.mean for q in self.components])
        mean = self.weights @ means
        offsets = (means - mean)[..., np.newaxis]
        roots = np.concatenate([offsets, [q.factor for q in self.components]], axis=2)
        roots *= np.sqrt(self.weights)[:, np.newaxis, np.newaxis]
        return Proposal(mean, lower_factor(np.concatenate([*roots], axis=1)), FIRST_SHARE)

    def log_probs(self, x: np.ndarray) -> np.ndarray:
        """Returns log densities of the components times their weights, `[K, S]`."""
        densities = np.stack([q.log_prob(x) for q in self.components])
        return densities + np.log(self.weights)[:, np.newaxis]

    def log_prob(self, x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(self.log_probs(x))

    def sample(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Returns antithetic draws, `[num_draws, D]`: each of the second half mirrors one."""
        chosen = rng.choice(len(self.components), num_draws // 2, p=self.weights)
        draws = np.zeros([2, len(chosen), len(self.components[0].mean)])
        for k, component in enumerate(self.components):
            (at,) = np.nonzero(chosen == k)
            draws[:, at] = np.split(component.sample(2 * len(at), rng), 2)
        return np.concatenate([*draws])

    def refitted(
        self, x: np.ndarray, log_probs: np.ndarray, log_mixture: np.ndarray
    ) -> tuple[MixtureProposal, np.ndarray] | None:
        r"""Returns the mixture after a step of the EM algorithm, and its log densities at x.

        \[
        \rho_k(x) = \frac{\alpha_k q_k(x)}{\sum_j \alpha_j q_j(x)}, \qquad
        \alpha_k \leftarrow \sum_i w_i \rho_k(x_i),
        \]

        and component k gets the moments of the draws with the weights \( w_i \rho_k(x_i) \). One
        that has most of its weights where others have more stays as it is: it has found nothing of
        its own. Arguments are those of `Proposal.refitted`.
        """
        weights = clipped_weights(log_probs - log_mixture)
        if not weights.sum() > 0:
            return None
        memberships = self._memberships(x)
        by_component, components = weights * memberships, list(self.components)
        for k, share in enumerate(by_component):
            fitted = _fitted(x, log_probs, share)
            if fitted is not None and share[memberships[k] > 0.5].sum() > 0.5 * share.sum():
                components[k] = fitted[0]
        mixture = MixtureProposal.with_masses(tuple(components), by_component.sum(axis=1))
        return mixture, mixture.log_prob(x)

    def shares(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the shares of weighted draws that belong to the components, `[K]`."""
        return self._memberships(x) @ weights

    def _memberships(self, x: np.ndarray) -> np.ndarray:
        densities = self.log_probs(x)
        return np.exp(densities - np.logaddexp.reduce(densities))


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Returns weights that add up to 1; all equal if none is finite."""
    largest = log_weights.max()
    if not np.isfinite(largest):
        return np.full(len(log_weights), 1 / len(log_weights))
    weights = np.exp(log_weights - largest)
    return weights / weights.sum()


def clipped_weights(log_weights: np.ndarray) -> np.ndarray:
    """Returns weights that add up to 1 before as many of the largest as the root are cut off."""
    exact = normalized(log_weights)
    return np.minimum(exact, np.sort(exact)[-int(len(exact) ** 0.5)])


def _fitted(
    x: np.ndarray, log_probs: np.ndarray, weights: np.ndarray
) -> tuple[Proposal, np.ndarray] | None:
    """Returns a proposal with the moments of weighted draws and the best share of heavy tails."""
    if not weights.sum() > 0:
        return None
    weights = weights / weights.sum()
    mean = weights @ x
    offsets = x - mean
    covariance = offsets.T @ (weights[:, np.newaxis] * offsets)
    scale = np.sqrt(np.diag(covariance))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    scaled = covariance / np.outer(scale, scale)
    scaled += len(scale) / len(x) * np.eye(len(scale))
    factor = scale[:, np.newaxis] * np.linalg.cholesky(scaled)
    candidates = [Proposal(mean, factor, share) for share in _SHARES]
    squares, counts = candidates[0].squares(x), weights > 0
    densities = [q.log_prob_at(squares) for q in candidates]
    # The mean of p / q under the posterior is 1 / efficiency, up to a constant.
    ratios = [log_probs[counts] - density[counts] for density in densities]
    costs = [np.logaddexp.reduce(np.log(weights[counts]) + r) for r in ratios]
    best = int(np.argmin(costs))
    return candidates[best], densities[best]

"""Importance sampling: proposals with heavy tails, and draws with weights of a posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import array
from tfp_sgmcmc.kernels.independent_metropolis import (
    defensive_normal_log_prob_at,
    draw_defensive_normal,
)
from tfp_sgmcmc.targets.laplace.quadratic import lower_factor

_SHARES = (0.05, 0.2, 0.9)  # of heavy tails
FIRST_SHARE = _SHARES[1]
_LEAST_WEIGHT = 0.05  # of a component, or half of its share of one if there are many
MOST_K = 0.5  # of weights with a finite variance
_LEAST_TAIL = 5  # weights from which its shape is fitted
_ENOUGH, _BETTER = 0.7, 1.1  # efficiency that is not improved, and gain that is worth a round
_HARDLY_MORE = 2.0  # than the mean: weights so equal that the shape of their tail is no matter
_MOST_ROUNDS = 8
_MOST_IN_VAIN, _HARDLY_ANY = 3, 0.02  # rounds without a gain, at such efficiencies
_LEAST_DRAWS, _DRAWS_PER_SQUARE = 1000, 4  # a covariance of D^2 entries needs as many draws


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


class WeightedSample(NamedTuple):
    """Draws from a proposal q and their weights w = p / q, up to a constant.

    Attributes:
      proposal: q, which was chosen before these draws were made.
      draws: `[S, D]`, in antithetic halves.
      log_weights: `[S]`.
    """

    proposal: Proposal | MixtureProposal
    draws: np.ndarray
    log_weights: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """The weights, which add up to 1."""
        return normalized(self.log_weights)

    @property
    def efficiency(self) -> float:
        r"""The effective share of draws, \( 1 / (S \sum_i w_i^2) \); 0 if no weight is finite."""
        if not np.isfinite(self.log_weights.max()):
            return 0.0
        return float(1 / np.sum(self.weights**2) / len(self.weights))

    @property
    def pareto_k(self) -> float:
        """Shape of the largest weights; minus infinity if they hardly exceed the mean."""
        if not np.isfinite(self.log_weights.max()):
            return np.inf
        if self.weights.max() * len(self.weights) <= _HARDLY_MORE:
            return -np.inf
        return pareto_shape(self.log_weights)

    @property
    def most_k(self) -> float:
        """The bound of `pareto_k`: 0.5, of a finite variance, or 0.7 where most weights are equal.

        Few large weights tell the shape only roughly then, and averages are accurate up to k = 0.7
        (Vehtari et al. 2024).
        """
        return 0.7 if self.efficiency >= _ENOUGH else MOST_K

    @property
    def is_reliable(self) -> bool:
        """Whether `pareto_k` is below its bound."""
        return self.pareto_k < self.most_k

    @property
    def autocorrelation_times(self) -> np.ndarray:
        r"""Steps of an independence Metropolis chain that are worth one independent draw, `[D]`.

        They are those of the chain that proposes the S draws alone. In the order of falling weights

        \[
        \tau = \sum_k c_k \frac{2 - a_k}{a_k}, \qquad
        a_k = \frac{k - 1}{S} + \frac{S_k}{S w_k}, \qquad
        c_k \propto \frac{w_k S_{k+1}}{S_k} \left( x_k - m_{k+1} \right)^2,
        \]

        where \( S_k \) is the sum of the weights from the k-th on, and \( m_k \) the weighted mean
        of their draws: draw k is left at the rate \( a_k \) (Liu 1996).

        References:
          J. S. Liu. Metropolized independent sampling with comparisons to rejection sampling and
          importance sampling. Statistics and Computing, 1996.
        """
        size, order = len(self.draws), np.argsort(-self.log_weights)
        weights = np.maximum(self.weights[order], 1e-300)
        x = self.draws[order] - self.weights @ self.draws
        rest = np.cumsum(weights[::-1])[::-1]  # S_k
        means = np.cumsum((weights[:, np.newaxis] * x)[::-1], axis=0)[::-1] / rest[:, np.newaxis]
        rates = (np.arange(size) + rest / weights) / size
        shares = weights[:-1] * rest[1:] / rest[:-1]
        squares = shares[:, np.newaxis] * (x[:-1] - means[1:]) ** 2
        return (2 / rates[:-1] - 1) @ squares / squares.sum(axis=0)

    def moments(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        r"""Returns mean and standard deviation of `values`, `[S, ...]`, and their standard errors.

        \[
        \hat\mu = \sum_i w_i f_i, \qquad
        \operatorname{se}(\hat\mu)^2 = \sum_{\text{pairs}}
        \left( \sum_{i \in \text{pair}} w_i (f_i - \hat\mu) \right)^2
        \]

        The standard error of the standard deviation is that of the mean of
        \( (f_i - \hat\mu)^2 \), divided by twice the standard deviation.
        """
        w = self.weights.reshape(-1, *[1] * (values.ndim - 1))

        def mean_and_error(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean = (w * x).sum(axis=0)
            first, second = np.split(w * (x - mean), 2)
            return mean, np.sqrt(((first + second) ** 2).sum(axis=0))

        mean, mean_error = mean_and_error(values)
        variance, variance_error = mean_and_error((values - mean) ** 2)
        sd = np.sqrt(variance)
        return mean, mean_error, sd, variance_error / (2 * np.maximum(sd, 1e-300))


def num_draws_for(dim: int) -> int:
    """Returns the number of draws of a round, which give D x D covariances well enough.

    >>> num_draws_for(3), num_draws_for(50)
    (1000, 10000)
    """
    return max(_LEAST_DRAWS, _DRAWS_PER_SQUARE * dim**2)


def weigh(
    log_prob_fn: Callable[[np.ndarray], np.ndarray],
    proposal: Proposal | MixtureProposal,
    num_draws: int,
    rng: np.random.Generator,
) -> tuple[WeightedSample, np.ndarray]:
    """Returns draws of a proposal with their weights, and their log posteriors, NaN as -inf."""
    draws = proposal.sample(num_draws, rng)
    log_probs = log_prob_fn(draws).astype(np.float64)
    log_probs = np.where(np.isnan(log_probs), -np.inf, log_probs)
    return WeightedSample(proposal, draws, log_probs - proposal.log_prob(draws)), log_probs


def fit_proposal(
    log_prob_fn: Callable[[np.ndarray], np.ndarray],
    proposal: Proposal | MixtureProposal,
    num_draws: int,
    rng: np.random.Generator,
    most_points: float = np.inf,
) -> tuple[WeightedSample, int]:
    """Fits a proposal to a posterior in rounds, and returns the best sample.

    A round draws from a proposal. All draws so far, weighted against the mixture of the proposals
    so far, give the next means and covariances (Cappé et al. 2008, with the largest weights cut
    off) and the best of a few shares of heavy tails. Rounds end when the weights of the best
    proposal have a finite variance and the efficiency is at least 0.7, or no longer rises by a
    tenth. They also end when it is below 0.02 and three in a row were no better than one before,
    and when no weights have a finite variance after `most_points`.

    Args:
      log_prob_fn: x, `[num_draws, D]` -> log posterior, `[num_draws]`, up to a constant. NaN counts
        as minus infinity.
      proposal: the first proposal.
      num_draws: S, even.
      rng: a generator of random numbers.
      most_points: the sum of the numbers of points to which rounds fit.

    Returns:
      The best sample, and the number of rounds.

    References:
      O. Cappé, R. Douc, A. Guillin, J.-M. Marin and C. P. Robert. Adaptive importance sampling in
      general mixture classes. Statistics and Computing, 2008.
      A. Owen and Y. Zhou. Safe and effective importance sampling. JASA, 2000.
    """
    best, proposals, points, values = None, [], [], []
    densities = list[np.ndarray]()  # of all points, by each proposal
    at_old = np.zeros(0)  # of the points so far, by the present one
    number_of_best = 1
    for number in range(1, _MOST_ROUNDS + 1):
        sample, log_probs = weigh(log_prob_fn, proposal, num_draws, rng)
        gain = sample.efficiency / best.efficiency if best and best.efficiency else np.inf
        if best is None or (sample.is_reliable, sample.efficiency) > (
            best.is_reliable,
            best.efficiency,
        ):
            best, number_of_best = sample, number
        if number - number_of_best >= _MOST_IN_VAIN and best.efficiency < _HARDLY_ANY:
            break
        if best.is_reliable and (best.efficiency >= _ENOUGH or gain < _BETTER):
            break
        if not best.is_reliable and number * (number + 1) / 2 * num_draws > most_points:
            break
        proposals.append(proposal)
        points.append(sample.draws)
        values.append(log_probs)
        old = *densities, at_old
        densities = [
            np.concatenate([known, q.log_prob(sample.draws)])
            for q, known in zip(proposals, old, strict=True)
        ]
        log_mixture = np.logaddexp.reduce(densities) - np.log(len(densities))
        following = proposal.refitted(np.concatenate(points), np.concatenate(values), log_mixture)
        if following is None:
            break
        proposal, at_old = following
    return best, number


def pareto_shape(log_weights: np.ndarray) -> float:
    r"""Returns k of a generalized Pareto distribution fitted to the largest of S weights.

    The tail has \( M = \min(0.2 S, 3 \sqrt S) \) weights (Vehtari et al. 2024, equation 10), whose
    exceedances \( x_1 \le \dots \le x_M \) over the largest other weight are fitted by the mean of
    the profile posterior of Zhang and Stephens (2009, section 4), and k is shrunk towards 1/2 by
    ten observations. Weights have a finite variance if k < 1/2, and averages with S weights are
    accurate up to about k = 0.7.

    Examples:
      >>> uniform = np.random.default_rng(0).uniform(size=4000)
      >>> bool(abs(pareto_shape(-0.3 * np.log(uniform)) - 0.3) < 0.15)  # weights u^-0.3
      True

    Args:
      log_weights: `[S]`, minus infinity for a weight of zero.

    Returns:
      k: infinity if a weight is NaN or infinite or fewer than five exceed the others, and minus
      infinity if the weights of the tail are equal.

    References:
      J. Zhang and M. A. Stephens. A new and efficient estimation method for the generalized Pareto
      distribution. Technometrics, 2009.
      A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry. Pareto smoothed importance sampling.
      Journal of Machine Learning Research, 2024.
    """
    log_weights = array("log_weights", log_weights, finite=False).astype(np.float64)
    size = log_weights.size
    num_tail = math.ceil(min(0.2 * size, 3 * size**0.5))
    if num_tail < _LEAST_TAIL or not np.isfinite(log_weights.max()):  # NaN if one is
        return np.inf
    ordered = np.sort(log_weights)
    weights = np.exp(ordered[-num_tail - 1 :] - ordered[-1])
    x = weights[1:] - weights[0]
    if x[-1] <= np.finfo(float).eps:
        return -np.inf
    if x[_LEAST_TAIL - 1 - len(x)] <= 0:
        return np.inf
    k = _tail_shape(np.maximum(x, np.finfo(float).tiny))
    return (num_tail * k + 5) / (num_tail + 10)


def _tail_shape(x: np.ndarray) -> float:
    """Returns k of ascending exceedances by the estimator of Zhang and Stephens."""
    count = len(x)
    num_points = 30 + int(count**0.5)
    quartile = x[int(count / 4 + 0.5) - 1]
    points = 1 - np.sqrt(num_points / (np.arange(1, num_points + 1) - 0.5))
    theta = points / (3 * quartile) + 1 / x[-1]
    shapes = np.log1p(-theta[:, np.newaxis] * x).mean(axis=1)
    log_likelihood = count * (np.log(-theta / shapes) - shapes - 1)
    with np.errstate(over="ignore"):  # of points that have no weight
        posterior = 1 / np.exp(log_likelihood - log_likelihood[:, np.newaxis]).sum(axis=1)
    mean = float(np.sum(theta * posterior))
    return float(np.log1p(-mean * x).mean())

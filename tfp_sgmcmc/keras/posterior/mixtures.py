"""The posterior predictive of observations that are numbers: a mixture over the samples."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.keras.model import likelihoods

_MOST_PAIRS = 2**14  # of samples in the CRPS: all pairs of up to 128 samples
_LEAST_DRAWS = 2000  # where there is no closed form
_MOST_ENTRIES = 2**20  # levels times outputs of all samples, whose CDFs are evaluated at once
_SEED = 0x5EED  # of estimates by draws


class Mixture:
    r"""The mixture \( \sum_s w_s\, p(y \mid f_{\theta_s}(x)) \) for a batch of rows.

    All methods return values for single entries of an observation, `[rows, ...]`.

    Args:
      observation: maps outputs `[n, ...]` to the distribution of their observations.
      outputs: outputs of all samples, `[S, rows, ...]`.
      weights: weights of the samples, `[S]`, which add up to 1.
      number: the number of the batch, which draws depend on.
    """

    def __init__(
        self,
        observation: likelihoods.ObservationModel,
        outputs: Any,
        weights: np.ndarray,
        number: int = 0,
    ):
        self._size, self._weights = outputs.shape[0], weights
        self._observed = observation(tf.reshape(outputs, [-1, *outputs.shape[2:]]))
        self._entries: Any = likelihoods.entries(self._observed)
        shape = self._observed.batch_shape + self._observed.event_shape
        self.shape = [outputs.shape[1], *shape.as_list()[1:]]
        self._seed = random.fold_in(random.as_seed(_SEED), number)
        self._is_discrete = likelihoods.is_discrete(self._entries or self._observed)

    def mean(self) -> np.ndarray:
        """Returns the mean, or the mean of draws if there is no closed form."""
        found = likelihoods.moments(self._observed)
        if found is None:
            draws, weights = self._draws(0)
            return _average(draws, weights)
        return _average(self._by_sample(found[0]), self._weights)

    def quantiles(self, levels: tuple[float, ...]) -> np.ndarray:
        """Returns the smallest numbers whose CDF reaches the levels, `[num_levels, rows, ...]`.

        They are found by bisection of the mixture's CDF, or from draws if there is no CDF.
        """
        if not self._has_cdf:
            draws, weights = self._draws(0)
            weights = np.broadcast_to(weights.reshape(-1, *[1] * len(self.shape)), draws.shape)
            return np.quantile(draws, levels, axis=0, weights=weights, method="inverted_cdf")
        entries = self._size * math.prod(self.shape)
        at_once = max(1, _MOST_ENTRIES // entries)
        column = np.reshape(levels, [-1, *[1] * len(self.shape)])
        parts = np.split(column, range(at_once, len(levels), at_once))
        return np.concatenate([self._solve(part) for part in parts])

    def coverage(self, y: np.ndarray, level: float) -> np.ndarray:
        """Returns whether y lies in the central interval of this probability."""
        lower, upper = (1 - level) / 2, (1 + level) / 2
        if self._has_cdf:
            up_to = self._cdf(y)
            below = self._cdf(y - 1) if self._is_discrete else up_to
        else:
            draws, weights = self._draws(0)
            up_to, below = _average(draws <= y, weights), _average(draws < y, weights)
        return (up_to >= lower) & (below <= upper)

    def crps(self, y: np.ndarray) -> np.ndarray:
        r"""Returns \( E |Y - y| - \frac 1 2 E |Y - Y'| \) with Y, Y' from the mixture.

        For normals both have a closed form: \( E |m + s z| = m\, \mathrm{erf}(m / s \sqrt 2) + 2 s
        \varphi(m/s) \). The second takes all pairs of up to 128 samples. Beyond, each sample gets
        partners drawn by the weights, 16384 pairs in all. Other distributions take two independent
        sets of draws, each with as many draws from each sample. All are unbiased.
        """
        if isinstance(self._entries, tfp.distributions.Normal):
            loc, scale = (self._by_sample(x).astype(np.float64) for x in
                          (self._entries.mean(), self._entries.stddev()))  # fmt: skip
            return _crps_of_normals(y, loc, scale, self._weights, *self._partners()).numpy()
        (one, weights), (other, _) = self._draws(1), self._draws(2)
        near = _average(np.abs(one - y) + np.abs(other - y), weights) / 2
        return near - _mean_distance(one, other, weights) / 2

    def _by_sample(self, values: Any) -> np.ndarray:
        return np.asarray(values).reshape(self._size, *self.shape)

    def _draws(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns draws `[J S, rows, ...]`, J from each sample, and their weights."""
        copies = math.ceil(_LEAST_DRAWS / self._size)
        draws = np.asarray(self._observed.sample(copies, seed=random.fold_in(self._seed, number)))
        draws = draws.reshape(-1, *self.shape).astype(np.float64)
        return draws, np.tile(self._weights / copies, copies)

    @functools.cached_property
    def _first(self) -> np.ndarray:
        """One draw from each sample, `[S, rows, ...]`."""
        return self._by_sample(self._observed.sample(seed=random.fold_in(self._seed, 0)))

    @functools.cached_property
    def _has_cdf(self) -> bool:
        try:
            return self._entries is not None and self._cdf(np.zeros(self.shape)) is not None
        except NotImplementedError:
            return False

    def _cdf(self, y: np.ndarray) -> np.ndarray:
        """Returns the CDF at y, `[..., rows, ...]`; raises NotImplementedError without one."""
        axis = y.ndim - len(self.shape)  # of the samples, behind those of levels
        y = np.expand_dims(y, axis)
        repeated = np.broadcast_to(y, [*y.shape[:axis], self._size, *self.shape])
        flat = repeated.reshape(*y.shape[:axis], -1, *self.shape[1:])
        values = np.asarray(self._entries.cdf(tf.cast(flat, self._entries.dtype)))
        values = values.reshape(repeated.shape)
        if np.isnan(values).any():  # outside of the support
            values = np.where(np.isnan(values), y > self._first, values)
        return _average(np.moveaxis(values, axis, 0), self._weights)

    def _bracket(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns numbers with F(low) < level <= F(high), whole ones if the distribution is."""
        low, high = self._first.min(axis=0), self._first.max(axis=0)
        low, high = (x + 0 * levels for x in (low, high))
        width = np.maximum(high - low, 1e-3 * np.abs(high) + np.finfo(np.float32).tiny)
        if self._is_discrete:
            low, high, width = low - 1, high, np.ceil(width)
        for _ in range(200):
            too_high, too_low = self._cdf(low) >= levels, self._cdf(high) < levels
            if not (too_high | too_low).any():
                break
            low, high = np.where(too_high, low - width, low), np.where(too_low, high + width, high)
            width = 2 * width
        return low, high

    def _solve(self, levels: np.ndarray) -> np.ndarray:
        """Returns quantiles by bisection at all levels, `[num_levels, 1, ...]`, at once."""
        low, high = self._bracket(levels)
        accuracy = 0.5 if self._is_discrete else 1e-7 * (high - low)
        while (high - low > 2 * accuracy).any():
            middle = (low + high) / 2
            middle = np.floor(middle) if self._is_discrete else middle
            reaches = self._cdf(middle) >= levels
            low, high = np.where(reaches, low, middle), np.where(reaches, middle, high)
        return high

    def _partners(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns partners of each sample, `[K, S]`, and their weights."""
        numbers = np.arange(self._size)
        if self._size**2 <= _MOST_PAIRS:
            partners = (numbers[:, np.newaxis] + numbers) % self._size
            return partners, self._weights[partners]
        generator = np.random.default_rng(self._seed.numpy().view(np.uint32))
        count = max(1, _MOST_PAIRS // self._size)
        partners = generator.choice(self._size, [count, self._size], p=self._weights)
        return partners, np.full(partners.shape, 1 / count)


def systematic(weights: np.ndarray, num_draws: int, seed: tf.Tensor) -> np.ndarray:
    """Returns numbers of samples, `[num_draws]`, drawn by weights that add up to 1.

    Sample s comes floor(w_s n) or ceil(w_s n) times (systematic resampling). With equal weights and
    as many draws as samples, each comes once.
    """
    start = tf.random.stateless_uniform([], seed, dtype=tf.float64).numpy()
    ends = np.cumsum(weights) / weights.sum()
    ends[-1] = 1.0
    # Rounding must not count a sample whose share is a whole number of draws twice.
    return np.searchsorted(np.round(ends, 12), (np.arange(num_draws) + start) / num_draws, "right")


@tf.function(reduce_retracing=True)
def _crps_of_normals(
    y: Any, loc: Any, scale: Any, weights: Any, partners: Any, partner_weights: Any
) -> tf.Tensor:
    near = tf.tensordot(weights, _mean_size(loc - y, scale), 1)

    def add(pair: Any) -> tf.Tensor:
        partner, weight = pair
        distance = loc - tf.gather(loc, partner)
        size = _mean_size(distance, tf.sqrt(scale**2 + tf.gather(scale, partner) ** 2))
        return tf.tensordot(weights * weight, size, 1)

    total = tf.foldl(
        lambda a, pair: a + add(pair), (partners, partner_weights), tf.zeros_like(near)
    )
    return near - total / 2


def _mean_size(m: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
    """Returns E |m + s z| for a standard normal z."""
    ratio = m / s
    density = tf.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return m * tf.math.erf(ratio / math.sqrt(2)) + 2 * s * density


def _mean_distance(one: np.ndarray, other: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the sum of w_i w_j |one_i - other_j|, the integral of F (1 - G) + G (1 - F)."""
    both = np.concatenate([one, other])
    order = np.argsort(both, axis=0)
    sorted_draws = np.take_along_axis(both, order, axis=0)
    shares = np.concatenate([weights, 0 * weights]), np.concatenate([0 * weights, weights])
    f, g = (np.cumsum(share[order], axis=0)[:-1] for share in shares)
    return np.sum(np.diff(sorted_draws, axis=0) * (f * (1 - g) + g * (1 - f)), axis=0)


def _average(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.tensordot(weights, values, axes=1)

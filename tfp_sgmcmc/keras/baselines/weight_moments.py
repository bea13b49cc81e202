"""Mean, variances and last deviations of weights along a training run, and draws by them."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random


class WeightMoments:
    r"""The moments of iterates \( \theta_1, \dots, \theta_T \), each a list of arrays.

    They are running averages in double precision. Variances come from sums of squared deviations
    (Welford 1962), which equal \( \overline{\theta^2} - \bar\theta^2 \) without its cancellation.

    Attributes:
      count: T.
      mean: the means, one array for each part.
      deviations: the last K, at most `rank`, of \( \theta_i - \bar\theta_i \), with \(
        \bar\theta_i \) the mean of the first i iterates; lists of arrays.
    """

    def __init__(self, rank: int):
        self.count = 0
        self.mean: list[np.ndarray] = []
        self.deviations: collections.deque[list[np.ndarray]] = collections.deque(maxlen=rank)
        self._squares: list[np.ndarray] = []
        self._dtypes: list[np.dtype] = []

    def add(self, values: Sequence[np.ndarray]) -> None:
        """Takes in the next iterate."""
        if not self.count:
            self.mean = [np.zeros(x.shape) for x in values]
            self._squares = [np.zeros(x.shape) for x in values]
            self._dtypes = [x.dtype for x in values]
        self.count += 1
        last = []
        for x, mean, squares in zip(values, self.mean, self._squares, strict=True):
            before = x - mean
            mean += before / self.count
            after = x - mean
            squares += before * after
            last.append(after.astype(x.dtype))
        self.deviations.append(last)

    @property
    def variance(self) -> list[np.ndarray]:
        """The variances of single weights, with divisor T."""
        return [squares / self.count for squares in self._squares]

    def draws(self, num_samples: int, seed: tf.Tensor, scale: float) -> list[np.ndarray]:
        r"""Returns draws `[num_samples, ...]` of each part, in the dtypes of the iterates.

        Their mean is `mean`, and their covariance `scale` times \( \Sigma_\mathrm{diag} + \hat D
        \hat D^\top / (K - 1) \), with the deviations as columns of \( \hat D \).
        """
        rank_seed, *seeds = random.split(seed, len(self.mean) + 1)
        num_columns, drawn = len(self.deviations), []
        shared = random.normal((num_samples, num_columns), tf.float32, rank_seed).numpy()
        for i, (mean, variance) in enumerate(zip(self.mean, self.variance, strict=True)):
            dtype = tf.float64 if self._dtypes[i] == np.float64 else tf.float32
            noise = random.normal((num_samples, *mean.shape), dtype, seeds[i]).numpy()
            noise *= np.sqrt(variance)
            if num_columns:
                columns = np.stack([part[i] for part in self.deviations])
                noise += np.tensordot(shared, columns, axes=1) / math.sqrt(num_columns - 1)
            noise *= math.sqrt(scale)
            drawn.append((noise + mean).astype(self._dtypes[i]))
        return drawn

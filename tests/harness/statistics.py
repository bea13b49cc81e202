"""Statistical checks with a stated false-alarm rate, which verify their own power.

A check raises `Rejected` where the null hypothesis is rejected; the probability of that under the
null is at most `FALSE_ALARM` (exactly, or to the accuracy of a central limit theorem over
thousands of independent values). A check is told the size of an error that it must find, and raises
`Underpowered` where it would miss that error with a probability above `MISS`: no test passes for
want of samples. Negative controls feed broken samplers to the same checks and expect `Rejected`.
"""

import math
from typing import Any

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
MISS = 1e-3


class Rejected(AssertionError):
    """The sample does not follow the law it should."""


class Underpowered(AssertionError):
    """The sample is too small to find the error that the test promises to find."""


def check_means(values: Any, expected: Any, error: Any, name: str = "values") -> None:
    """Checks that the means of K quantities are as expected, from S independent rows.

    K two-sided z-tests with estimated standard errors, Bonferroni corrected. For S rows of skewness
    s the false-alarm rate is FALSE_ALARM up to a factor of about exp(20 s / sqrt(S)).

    Args:
      values: `[S, K]` (or `[S]`), rows independent.
      expected: `[K]`.
      error: the deviation from `expected` that must be found, positive, broadcast to `[K]`.
      name: for messages.

    Raises:
      Rejected: a mean is not as expected; NaN among the values.
      Underpowered: a deviation of size `error` could be missed.
    """
    values = np.asarray(values, np.float64)
    values = values.reshape(len(values), -1)
    expected = np.broadcast_to(np.asarray(expected, np.float64), values.shape[1:])
    if not np.all(np.isfinite(values)):
        raise Rejected(f"{name}: NaN or infinite values")
    deviation = values.mean(axis=0) - expected
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    critical = stats.norm.isf(FALSE_ALARM / 2 / values.shape[1])
    # Rows that are all equal (copies, a frozen chain) have no error: they must hit the mean.
    rounding = 1e-12 * (1 + np.abs(expected))
    off = np.abs(deviation) > critical * standard_error + rounding
    if off.any():
        k = int(np.argmax(np.abs(deviation) / (standard_error + rounding)))
        raise Rejected(
            f"{name}[{k}]: mean {expected[k] + deviation[k]:.6g}, expected {expected[k]:.6g} "
            f"+- {standard_error[k]:.2g}; {critical:.2f} standard errors are allowed"
        )
    found = (critical + stats.norm.isf(MISS)) * standard_error
    error = np.broadcast_to(error, found.shape)
    if np.any(found > error):
        k = int(np.argmax(found / error))
        raise Underpowered(f"{name}[{k}]: finds errors of {found[k]:.3g}, {error[k]:.3g} wanted")


def check_covariance(
    samples: Any, mean: Any, covariance: Any, relative_error: float, name: str = "covariance"
) -> None:
    """Checks mean and covariance of S independent runs by their whitened first and second moments.

    Args:
      samples: `[S, T, D]`: S independent runs of T (dependent) samples.
      mean: `[D]`, exact.
      covariance: `[D, D]`, exact.
      relative_error: of the variance in any direction, to be found.
      name: for messages.

    Raises:
      Rejected, Underpowered: as `check_means`.
    """
    samples = np.asarray(samples, np.float64)
    white = np.linalg.solve(np.linalg.cholesky(covariance), np.moveaxis(samples - mean, -1, -2))
    size = len(mean)
    rows, columns = np.tril_indices(size)
    first = white.mean(axis=-1)
    second = np.einsum("sit,sjt->sij", white, white)[:, rows, columns] / samples.shape[1]
    check_means(
        np.concatenate([first, second], axis=1),
        np.concatenate([np.zeros(size), (rows == columns).astype(float)]),
        relative_error,
        name,
    )


def check_cdf(samples: Any, cdf: Any, error: float, name: str = "samples") -> None:
    """Checks independent samples against a distribution function, by the DKW inequality.

    Massart's constant makes the false-alarm rate at most FALSE_ALARM for every sample size.

    Args:
      samples: `[S]`, independent.
      cdf: callable, exact distribution function.
      error: Kolmogorov distance that must be found.
      name: for messages.

    Raises:
      Rejected, Underpowered: as `check_means`.
    """
    samples = np.sort(np.asarray(samples, np.float64))
    if not np.all(np.isfinite(samples)):
        raise Rejected(f"{name}: NaN or infinite values")
    size = len(samples)
    expected = cdf(samples)
    steps = np.arange(size + 1) / size
    distance = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * size))
    if distance > allowed:
        raise Rejected(f"{name}: Kolmogorov distance {distance:.4g}, {allowed:.4g} is allowed")
    if allowed + math.sqrt(math.log(2 / MISS) / (2 * size)) > error:
        raise Underpowered(f"{name}: {size} samples do not find a distance of {error}")


def check_counts(counts: Any, probabilities: Any, error: float, name: str = "counts") -> None:
    """Checks counts of independent draws against probabilities, by Pearson's chi-square test.

    Args:
      counts: `[K]`.
      probabilities: `[K]`.
      error: relative error of a single category's probability that must be found.
      name: for messages.

    Raises:
      Rejected, Underpowered: as `check_means`.
    """
    counts, probabilities = np.asarray(counts, np.float64), np.asarray(probabilities, np.float64)
    probabilities = np.broadcast_to(probabilities, counts.shape).ravel()
    counts = counts.ravel()
    expected = counts.sum() * probabilities
    statistic = np.sum((counts - expected) ** 2 / expected)
    freedom = len(counts) - 1
    critical = stats.chi2.isf(FALSE_ALARM, freedom)
    if statistic > critical:
        raise Rejected(f"{name}: chi-square {statistic:.1f} of {freedom}, {critical:.1f} allowed")
    noncentrality = np.min(expected) * error**2
    if stats.ncx2.cdf(critical, freedom, noncentrality) > MISS:
        raise Underpowered(f"{name}: {counts.sum():.0f} draws do not find an error of {error}")

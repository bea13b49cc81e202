"""Statistical checks with a stated false-alarm rate, which also verify their power.

A check raises `Rejected` if it rejects the null hypothesis. Under the null hypothesis, the
probability of a rejection is at most `FALSE_ALARM` (exactly, or to the accuracy of a central limit
theorem over thousands of independent values). Each check takes the size of an error that it must
find. It raises `Underpowered` if it would miss that error with a probability above `MISS`, so no
test passes because it has too few samples. Negative controls run the same checks on broken samplers
and expect `Rejected`.
"""

import math
from typing import Any

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
MISS = 1e-3


class Rejected(AssertionError):
    """Raised if the sample does not follow the expected law."""


class Underpowered(AssertionError):
    """Raised if the sample is too small to find the error that the test must find."""


def check_means(values: Any, expected: Any, error: Any, name: str = "values") -> None:
    """Checks the means of K quantities against expected values, from S independent rows.

    The check makes K two-sided z-tests with estimated standard errors and Bonferroni correction.
    For S rows of skewness s, the false-alarm rate is FALSE_ALARM up to a factor of about
    exp(20 s / sqrt(S)).

    Args:
      values: independent rows, `[S, K]` or `[S]`.
      expected: expected means, `[K]`.
      error: deviation from `expected` that must be found, positive, broadcast to `[K]`.
      name: name of the values in messages.

    Raises:
      Rejected: a mean is not as expected, or a value is NaN or infinite.
      Underpowered: a deviation of size `error` could be missed.
    """
    values = np.asarray(values, np.float64)
    values = values.reshape(len(values), -1)
    expected = np.broadcast_to(np.asarray(expected, np.float64), values.shape[1:])
    if not np.all(np.isfinite(values)):
        raise Rejected(f"{name} must be finite. Received: NaN or infinite values.")
    deviation = values.mean(axis=0) - expected
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    critical = stats.norm.isf(FALSE_ALARM / 2 / values.shape[1])
    # Equal rows (copies, a frozen chain) have no standard error and must equal the mean.
    rounding = 1e-12 * (1 + np.abs(expected))
    off = np.abs(deviation) > critical * standard_error + rounding
    if off.any():
        k = int(np.argmax(np.abs(deviation) / (standard_error + rounding)))
        raise Rejected(
            f"{name}[{k}] must have the mean {expected[k]:.6g} +- {critical:.2f} standard errors "
            f"of {standard_error[k]:.2g}. Received: {expected[k] + deviation[k]:.6g}."
        )
    found = (critical + stats.norm.isf(MISS)) * standard_error
    error = np.broadcast_to(error, found.shape)
    if np.any(found > error):
        k = int(np.argmax(found / error))
        raise Underpowered(f"{name}[{k}]: finds errors of {found[k]:.3g}, not of {error[k]:.3g}.")


def check_covariance(
    samples: Any, mean: Any, covariance: Any, relative_error: float, name: str = "covariance"
) -> None:
    """Checks the mean and covariance of S independent runs by whitened first and second moments.

    Args:
      samples: S independent runs of T (dependent) samples, `[S, T, D]`.
      mean: exact mean, `[D]`.
      covariance: exact covariance, `[D, D]`.
      relative_error: relative error of the variance in any direction that must be found.
      name: name of the samples in messages.

    Raises:
      Rejected, Underpowered: see `check_means`.
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
    """Checks independent samples against a distribution function by the DKW inequality.

    With Massart's constant, the false-alarm rate is at most FALSE_ALARM for every sample size.

    Args:
      samples: independent samples, `[S]`.
      cdf: exact distribution function.
      error: Kolmogorov distance that must be found.
      name: name of the samples in messages.

    Raises:
      Rejected, Underpowered: see `check_means`.
    """
    samples = np.sort(np.asarray(samples, np.float64))
    if not np.all(np.isfinite(samples)):
        raise Rejected(f"{name} must be finite. Received: NaN or infinite values.")
    size = len(samples)
    expected = cdf(samples)
    steps = np.arange(size + 1) / size
    distance = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * size))
    if distance > allowed:
        limit = f"{name}: the Kolmogorov distance must be at most {allowed:.4g}."
        raise Rejected(f"{limit} Received: {distance:.4g}.")
    if allowed + math.sqrt(math.log(2 / MISS) / (2 * size)) > error:
        raise Underpowered(f"{name}: {size} samples are too few to find a distance of {error}.")


def check_counts(counts: Any, probabilities: Any, error: float, name: str = "counts") -> None:
    """Checks counts of independent draws against probabilities by Pearson's chi-square test.

    Args:
      counts: counts of each category, `[K]`.
      probabilities: probabilities of each category, `[K]`.
      error: relative error of the probability of a single category that must be found.
      name: name of the counts in messages.

    Raises:
      Rejected, Underpowered: see `check_means`.
    """
    counts, probabilities = np.asarray(counts, np.float64), np.asarray(probabilities, np.float64)
    probabilities = np.broadcast_to(probabilities, counts.shape).ravel()
    counts = counts.ravel()
    expected = counts.sum() * probabilities
    statistic = np.sum((counts - expected) ** 2 / expected)
    freedom = len(counts) - 1
    critical = stats.chi2.isf(FALSE_ALARM, freedom)
    if statistic > critical:
        limit = f"{name}: chi-square of {freedom} must be at most {critical:.1f}."
        raise Rejected(f"{limit} Received: {statistic:.1f}.")
    noncentrality = np.min(expected) * error**2
    if stats.ncx2.cdf(critical, freedom, noncentrality) > MISS:
        raise Underpowered(f"{name}: {counts.sum():.0f} draws are too few for an error of {error}.")

"""Independent component analysis: distances of unmixing matrices, stability of sources."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from tfp_sgmcmc.diagnostics.arrays import real_array
from tfp_sgmcmc.diagnostics.weighted import checked_step_sizes
from tfp_sgmcmc.internal.checks import one_of


def amari_distance(w: Any, v: Any) -> Any:
    r"""Computes the Amari distance of two unmixing matrices.

    \[
    \sum_i \left( \frac{\sum_j |P_{ij}|}{\max_j |P_{ij}|} - 1 \right)
      + \sum_j \left( \frac{\sum_i |P_{ij}|}{\max_i |P_{ij}|} - 1 \right), \qquad P = W V^{-1}
    \]

    It is zero if the sources differ only in order and scale, and at most 2 d (d - 1).

    Examples:
      >>> amari_distance([[0., 3.], [-1., 0.]], [[1., 0.], [0., 1.]])
      0.0

    Args:
      w: W, `[..., d, d]`.
      v: V, `[..., d, d]`, with full rank.

    Returns:
      Distances, `[...]`.

    Raises:
      ValueError: the shapes do not fit together, or v has no inverse.
      TypeError: an argument is not an array of real numbers.

    References:
      S. Amari, A. Cichocki and H. Yang. A new algorithm for blind signal separation. NIPS, 1996.
    """
    w, v = real_array("w", w), real_array("v", v)
    if w.ndim < 2 or v.ndim < 2 or len({*w.shape[-2:], *v.shape[-2:]}) > 1 or 0 in w.shape:
        raise ValueError(
            "w and v must be square matrices [..., d, d] of equal size. Received: shapes "
            f"{w.shape} and {v.shape}."
        )
    if not (np.isfinite(w).all() and np.isfinite(v).all()):
        raise ValueError("w and v must be finite. Received: NaN or infinite entries.")
    try:
        p = np.abs(w @ np.linalg.inv(v))
    except np.linalg.LinAlgError as error:
        raise ValueError("v must have full rank. Received: a singular matrix.") from error
    rows, columns = (np.sum(p / p.max(axis=k, keepdims=True), axis=(-2, -1)) for k in (-1, -2))
    distance = rows + columns - 2 * p.shape[-1]
    return float(distance) if np.ndim(distance) == 0 else distance


def instability_index(
    samples: Any,
    data: Any,
    *,
    weights: Any = None,
    mean: Any = None,
    reduction: Literal["sum", "mean"] | None = None,
) -> Any:
    r"""Computes the instability of each source, which the posterior leaves undetermined.

    \[ I_i = \sum_{j=1}^d \operatorname{var}(W_{ij}) \operatorname{var}(x_j) \]

    as in the paper, or 1/d of that with `reduction="mean"`. The variances of W are taken over the
    posterior and those of x over the data. Row i of W gives source i. The sources must keep their
    order within the samples.

    Examples:
      >>> instability_index([[[1., 0.], [0., 1.]], [[3., 0.], [0., 1.]]], [[1., 2.], [-1., 2.]],
      ...                   reduction="sum")
      array([1., 0.])

    Args:
      samples: samples of W, `[results, chains..., d, d]`.
      data: x, `[N, d]`.
      weights: weights of the results, `[results]`, such as step sizes; None weights all equally.
      mean: the mean of W about which variances are taken, `[d, d]`, such as the mean over chains;
        None uses each chain's mean.
      reduction: `"sum"`, the paper's, or `"mean"`, over the d channels. None stands for `"mean"`
        with a DeprecationWarning; from 1.0 on the default will be `"sum"`.

    Returns:
      I, `[chains..., d]`.

    Raises:
      ValueError: the shapes do not fit together.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Section 5.3.
    """
    if reduction is None:
        warnings.warn(
            "instability_index returns the mean over channels. From 1.0 on it will return the "
            "published index, their sum. Pass reduction='sum' or reduction='mean'.",
            DeprecationWarning,
            stacklevel=2,
        )
    one_of("reduction", "mean" if reduction is None else reduction, ["sum", "mean"])
    samples, data = real_array("samples", samples), real_array("data", data)
    size = data.shape[-1] if data.ndim else 0
    if samples.ndim < 3 or data.ndim != 2 or not len(data) or samples.shape[-2:] != (size, size):
        raise ValueError(
            "samples must have shape [results, chains..., d, d] and data [N, d]. Received: shapes "
            f"{samples.shape} and {data.shape}."
        )
    if weights is not None:
        weights = checked_step_sizes(weights, "weights")
        if weights.shape != samples.shape[:1]:
            raise ValueError(
                f"weights must have shape [{len(samples)}], as samples. Received: {weights.shape}."
            )
    center = np.average(samples, axis=0, weights=weights)
    if mean is not None:
        center = real_array("mean", mean)
        if center.shape != (size, size):
            raise ValueError(f"mean must have shape [{size}, {size}]. Received: {center.shape}.")
    variances = np.average((samples - center) ** 2, axis=0, weights=weights)
    index = variances @ data.var(axis=0, dtype=np.float64)
    return index if reduction == "sum" else index / size

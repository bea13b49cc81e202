"""Independent component analysis: distances of unmixing matrices, stability of sources."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfp_sgmcmc.checks import array, require


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

    References:
      S. Amari, A. Cichocki and H. Yang. A new algorithm for blind signal separation. NIPS, 1996.
    """
    w, v = array("w", w, 2).astype(np.float64), array("v", v, 2).astype(np.float64)
    for name, x in (("v", v), ("w", w)):
        require(name, f"shape {x.shape}", x.shape[-2:] == v.shape[-1:] * 2, "square, as v is")
    has_full_rank = np.all(np.linalg.matrix_rank(v) == v.shape[-1])
    require("v", "a singular matrix", has_full_rank, "of full rank")
    p = np.abs(w @ np.linalg.inv(v))
    no_zeros = np.all(p.max(axis=-1) > 0) and np.all(p.max(axis=-2) > 0)
    require("w", "a matrix with one", no_zeros, "without a row or column of zeros in w v^-1")
    rows, columns = (np.sum(p / p.max(axis=k, keepdims=True), axis=(-2, -1)) for k in (-1, -2))
    distance = rows + columns - 2 * p.shape[-1]
    return float(distance) if np.ndim(distance) == 0 else distance


def instability_index(samples: Any, data: Any, *, weights: Any = None, mean: Any = None) -> Any:
    r"""Computes the instability of each source, which the posterior leaves undetermined.

    \[ I_i = \frac1d \sum_{j=1}^d \operatorname{var}(W_{ij}) \operatorname{var}(x_j) \]

    The variances of W are taken over the posterior and those of x over the data. Row i of W gives
    source i. The sources must keep their order within the samples.

    Examples:
      >>> instability_index([[[1., 0.], [0., 1.]], [[3., 0.], [0., 1.]]], [[1., 2.], [-1., 2.]])
      array([0.5, 0. ])

    Args:
      samples: samples of W, `[results, chains..., d, d]`.
      data: x, `[N, d]`.
      weights: weights of the results, `[results]`, such as step sizes; None weights all equally.
      mean: the mean of W about which variances are taken, `[d, d]`, such as the mean over chains;
        None uses each chain's mean.

    Returns:
      I, `[chains..., d]`.

    Raises:
      ValueError: the shapes do not fit together.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Section 5.3.
    """
    samples, data = array("samples", samples, 3).astype(np.float64), array("data", data, 2)
    size = data.shape[-1]
    if samples.ndim < 3 or data.ndim != 2 or samples.shape[-2:] != (size, size):
        raise ValueError(
            "samples must have shape [results, chains..., d, d] and data [N, d]. Received: shapes "
            f"{samples.shape} and {data.shape}."
        )
    if weights is not None:
        weights = array("weights", weights)
        fits = weights.shape == samples.shape[:1] and np.all(weights >= 0) and np.any(weights > 0)
        expected = f"{len(samples)} numbers of at least 0, not all 0"
        require("weights", f"shape {weights.shape}, {weights}", fits, expected)
    if mean is None:
        center = np.average(samples, axis=0, weights=weights)
    else:
        center = array("mean", mean, 2)
        require("mean", f"shape {center.shape}", center.shape == (size, size), f"[{size}, {size}]")
    variances = np.average((samples - center) ** 2, axis=0, weights=weights)
    return variances @ data.var(axis=0, dtype=np.float64) / size

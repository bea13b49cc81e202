"""Independent component analysis: distances of unmixing matrices, and how stable a source is."""

from __future__ import annotations

from typing import Any

import numpy as np


def amari_distance(w: Any, v: Any) -> Any:
    r"""The Amari distance of two unmixing matrices.

    \[
    \sum_i \left( \frac{\sum_j |P_{ij}|}{\max_j |P_{ij}|} - 1 \right)
      + \sum_j \left( \frac{\sum_i |P_{ij}|}{\max_i |P_{ij}|} - 1 \right), \qquad P = W V^{-1}
    \]

    It is zero where sources are the same but for their order and scale, and at most 2 d (d - 1).

    >>> amari_distance([[0., 3.], [-1., 0.]], [[1., 0.], [0., 1.]])
    0.0

    Args:
      w: W, `[..., d, d]`.
      v: V, `[..., d, d]`, of full rank.

    Returns:
      Distances, `[...]`.

    #### References

    S. Amari, A. Cichocki and H. Yang. A new algorithm for blind signal separation. NIPS, 1996.
    """
    p = np.abs(np.asarray(w, np.float64) @ np.linalg.inv(np.asarray(v, np.float64)))
    rows, columns = (np.sum(p / p.max(axis=k, keepdims=True), axis=(-2, -1)) for k in (-1, -2))
    distance = rows + columns - 2 * p.shape[-1]
    return float(distance) if np.ndim(distance) == 0 else distance


def instability_index(samples: Any, data: Any, *, weights: Any = None, mean: Any = None) -> Any:
    r"""The instability of each source: how far the posterior leaves it undetermined.

    \[ I_i = \frac1d \sum_{j=1}^d \operatorname{var}(W_{ij}) \operatorname{var}(x_j) \]

    with variances of W over the posterior and of x over the data. A row of W is what makes source
    i; sources must not change places within the samples.

    >>> instability_index([[[1., 0.], [0., 1.]], [[3., 0.], [0., 1.]]], [[1., 2.], [-1., 2.]])
    array([0.5, 0. ])

    Args:
      samples: of W, `[results, chains..., d, d]`.
      data: x, `[N, d]`.
      weights: of the results, `[results]`, such as step sizes; None is the same for each.
      mean: of W, `[d, d]`, about which the variances are taken, such as the mean over chains; None
        is each chain's own.

    Returns:
      I, `[chains..., d]`.

    Raises:
      ValueError: shapes that do not belong together.

    #### References

    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Section 5.3.
    """
    samples, data = np.asarray(samples, np.float64), np.asarray(data)
    size = data.shape[-1]
    if samples.ndim < 3 or data.ndim != 2 or samples.shape[-2:] != (size, size):
        raise ValueError(
            f"samples have shape {samples.shape} and data {data.shape}; [results, chains..., d, d] "
            "and [N, d] are expected."
        )
    center = np.average(samples, axis=0, weights=weights) if mean is None else np.asarray(mean)
    variances = np.average((samples - center) ** 2, axis=0, weights=weights)
    return variances @ data.var(axis=0, dtype=np.float64) / size

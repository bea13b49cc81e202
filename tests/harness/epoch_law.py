"""The exact covariance of linear schemes whose minibatches are drawn by epochs.

N examples are K minibatches without overlap, whose gradient errors e_k do not depend on theta and
add up to zero. Their joint covariance is C (x) Sigma with C = I - (11^T - I) / (K - 1). A step is
x <- F x + G e_k + noise of covariance Q, and k follows an order that begins anew, with another
permutation, after each period.
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_discrete_lyapunov


def period(reshuffle: str, num_batches: int) -> list[int]:
    """Returns which minibatch each step of a period takes."""
    forward = list(range(num_batches))
    return {"epoch": forward, "symmetric": forward + forward[::-1]}[reshuffle]


def epoch_covariances(
    step: np.ndarray, kick: np.ndarray, injected: np.ndarray, noise: np.ndarray, order: Sequence
) -> np.ndarray:
    """Returns the stationary covariance after each step of a period, `[steps, size, size]`.

    Args:
      step, kick, injected: F, `[size, size]`, G, `[size, D]`, and Q, `[size, size]`.
      noise: Sigma, the covariance of a single minibatch's error, `[D, D]`.
      order: which minibatch each step of a period takes.
    """
    (size, width), count = kick.shape, max(order) + 1
    correlation = (np.eye(count) * count - 1) / (count - 1)
    joint = np.kron(correlation, noise)
    across, errors, drawn = np.eye(size), np.zeros([size, count * width]), np.zeros([size, size])
    found = []
    for k in order:
        across, errors, drawn = step @ across, step @ errors, step @ drawn @ step.T + injected
        errors[:, k * width : (k + 1) * width] += kick
        found.append((across, drawn + errors @ joint @ errors.T))
    start = solve_discrete_lyapunov(*found[-1])
    return np.array([across @ start @ across.T + added for across, added in found])

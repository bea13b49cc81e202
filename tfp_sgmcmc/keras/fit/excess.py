r"""How hot gradient noise makes a chain, and how slow the chain is, by its linear scheme.

Along a direction of curvature a, in coordinates where the metric M is the identity, a kernel's step
is \( (x, p) \leftarrow A (x, p) + \text{noise} \) if the gradient is -a x plus noise of variance s.
Its stationary covariance solves a discrete Lyapunov equation, and its spectral radius tells how
fast it forgets where it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Scheme(NamedTuple):
    """A kernel and its settings.

    Attributes:
      kernel: "SGLD", "UnderdampedLangevin" or "NOGIN".
      step_size: epsilon of SGLD, h of the others.
      friction: friction; None for SGLD.
      covariance: what NOGIN knows of the noise: "full" or "diag"; None for the others.
    """

    kernel: str
    step_size: float
    friction: float | None = None
    covariance: str | None = None


def excess_temperature(scheme: Scheme, curvature: Any, noise: Any, known: Any = 0.0) -> np.ndarray:
    """Returns by how much the stationary variance exceeds 1 / curvature, as a share of it.

    Args:
      scheme: the kernel and its settings.
      curvature: a, positive, `[...]`.
      noise: s, the variance of the gradient along the direction, `[...]`.
      known: the variance that NOGIN takes it for, `[...]`.
    """
    curvature = np.asarray(curvature, np.float64)
    step, of_noise = _linear_step(scheme, curvature, noise, known)
    identity = np.eye(step.shape[-1] ** 2)
    twice = np.einsum("...ij,...kl->...ikjl", step, step).reshape(*step.shape[:-2], *identity.shape)
    flat = of_noise.reshape(*of_noise.shape[:-2], -1, 1)
    return curvature * np.linalg.solve(identity - twice, flat)[..., 0, 0] - 1


def steps_to_forget(scheme: Scheme, curvature: Any, noise: Any, known: Any = 0.0) -> np.ndarray:
    """Returns the steps in which the mean of x shrinks by a factor of e, for small steps."""
    step, _ = _linear_step(scheme, np.asarray(curvature, np.float64), noise, known)
    radius = np.max(np.abs(np.linalg.eigvals(step)), axis=-1)
    return 1 / np.maximum(1 - radius, 1e-15)


def _linear_step(
    scheme: Scheme, curvature: np.ndarray, noise: Any, known: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrix of a step and the covariance of what it adds, `[..., d, d]` each."""
    h, a = scheme.step_size, curvature
    noise, known = (np.asarray(x, np.float64) + 0 * a for x in (noise, known))
    if scheme.kernel == "SGLD":
        return _matrix([[1 - h * a / 2]]), _matrix([[h + h**2 / 4 * noise]])
    assert scheme.friction is not None
    drift = _matrix([[1 + 0 * a, h / 2 + 0 * a], [0 * a, 1 + 0 * a]])
    if scheme.kernel == "UnderdampedLangevin":  # A O A B
        decay = np.exp(-scheme.friction * h)
        kick = _matrix([[1 + 0 * a, 0 * a], [-h * a, 1 + 0 * a]])
        after = kick @ drift
        step = after @ _matrix([[1 + 0 * a, 0 * a], [0 * a, decay + 0 * a]]) @ drift
        of_friction = _matrix([[0 * a, 0 * a], [0 * a, 1 - decay**2 + 0 * a]])
        of_gradient = _matrix([[0 * a, 0 * a], [0 * a, h**2 * noise]])
        return step, after @ of_friction @ np.swapaxes(after, -1, -2) + of_gradient
    lam2 = np.tanh(scheme.friction * h / 2)
    factor = 2 / (1 + lam2 + h**2 / 4 * known)  # 1 + r, where r multiplies the momentum
    kick = _matrix([[1 + 0 * a, 0 * a], [-factor * h / 2 * a, factor - 1]])
    variance = factor**2 * (h**2 / 4 * noise + lam2)
    added = _matrix([[0 * a, 0 * a], [0 * a, variance]])
    return drift @ kick @ drift, drift @ added @ np.swapaxes(drift, -1, -2)


def _matrix(rows: list[list[np.ndarray]]) -> np.ndarray:
    """Returns matrices `[..., d, d]` from their entries `[...]`."""
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)

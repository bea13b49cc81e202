"""Settings that all sides share: step sizes, first states, and the accuracy."""

from __future__ import annotations

import numpy as np

WIDTHS = (784, 100, 10)
NUM_INNER_STEPS = 10  # from one draw of momenta to the next, in SGMCMCJax's SGHMC

# epsilon of theta + epsilon/2 gradient (+ N(0, epsilon)) for SGD and SGLD, and h for the others.
STEP_SIZES = {
    "logistic": {"SGD": 2e-4, "SGLD": 2e-4, "SGHMC": 0.003, "SGNHT": 0.003},
    "network": {"SGD": 3e-6, "SGLD": 3e-6, "SGHMC": 5e-4, "SGNHT": 5e-4},
}
FRICTIONS = {"logistic": 50.0, "network": 200.0}


def model(x: np.ndarray) -> str:
    """Returns the model of these features, `"logistic"` or `"network"`."""
    return "network" if x.shape[1] == WIDTHS[0] else "logistic"


def first_state(x: np.ndarray, num_chains: int) -> list[np.ndarray]:
    """Returns zeros, or weights and biases of two layers; one chain has no chain dimension."""
    chains = () if num_chains == 1 else (num_chains,)
    if model(x) == "logistic":
        return [np.zeros([*chains, x.shape[1]], np.float32)]
    rng, parts = np.random.default_rng(0), []
    for rows, columns in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        scale = np.float32(np.sqrt(2 / rows))
        parts.append(scale * rng.standard_normal([*chains, rows, columns], np.float32))
        parts.append(np.zeros([*chains, columns], np.float32))
    return parts


def accuracy(state: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Returns the share of the first 2000 examples that the last states classify correctly."""
    x, y = x[:2000], y[:2000]
    if model(x) == "logistic":
        return float(np.mean((state[0] @ x.T > 0) == (y > 0.5)))
    w1, b1, w2, b2 = state
    hidden = np.maximum(x @ w1 + b1[..., None, :], 0)
    return float(np.mean((hidden @ w2 + b2[..., None, :]).argmax(axis=-1) == y))

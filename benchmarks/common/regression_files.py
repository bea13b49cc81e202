"""Regressions whose rows lie in files, and their exact posteriors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

MODELS, ORDERS = ("linear", "logistic", "poisson"), ("shuffled", "sorted")
BLOCK = 10_000
_MOST_EXACT = 4_000_000


class Exact(NamedTuple):
    """Means and standard deviations, and the standard error of the means in the latter."""

    mean: np.ndarray
    sd: np.ndarray
    error: float


def labels(model: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if model == "linear":
        return eta + rng.standard_normal(len(eta))
    return rng.poisson(np.exp(eta)) if model == "poisson" else rng.random(len(eta)) < _mean(eta)


def _mean(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-eta))


def write(
    folder: Path,
    model: str,
    order: str,
    num_examples: int,
    num_features: int,
    num_files: int,
    copies: int = 1,
) -> Exact:
    """Writes the files, and returns the exact posterior; NaN if it would take too long."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(num_features)
    truth *= 0.5 / np.linalg.norm(truth)
    precision, product = np.eye(num_features), np.zeros(num_features)
    whole = num_examples <= _MOST_EXACT and copies == 1
    parts = []
    for size in np.diff(np.linspace(0, num_examples, num_files + 1).astype(int)):
        x = rng.standard_normal([size, num_features], np.float32)
        x[:, 0] = 1
        y = labels(model, x @ truth, rng).astype(np.float32)
        if model == "linear":
            precision += sum(b.T @ b for b in np.array_split(x, -(-size // BLOCK)))
            product += y.astype(np.float64) @ x
        if whole:
            parts.append((x, y))
        else:
            _save(folder, len(list(folder.glob("x-*"))), x, y)
    found = Exact(np.full(num_features, np.nan), np.full(num_features, np.nan), np.nan)
    if whole:
        x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        found = weighted_normal(model, x, y)
        taken = np.argsort(y, kind="stable") if order == "sorted" else np.arange(num_examples)
        for i, part in enumerate(np.array_split(taken, num_files)):
            _save(folder, i, x[part], y[part])
    if model == "linear":
        precision = np.eye(num_features) + copies * (precision - np.eye(num_features))
        covariance = np.linalg.inv(precision)
        found = Exact(covariance @ (copies * product), np.sqrt(np.diag(covariance)), 0.0)
    return found


def _save(folder: Path, i: int, x: np.ndarray, y: np.ndarray) -> None:
    np.save(folder / f"x-{i:03}.npy", x)
    np.save(folder / f"y-{i:03}.npy", y)


def weighted_normal(model: str, x: np.ndarray, y: np.ndarray, num_pairs: int = 200) -> Exact:
    """Returns the moments of Laplace's approximation with importance weights, in float64."""
    if model == "linear":
        return Exact(np.zeros(x.shape[1]), np.ones(x.shape[1]), 0.0)  # is replaced
    dim, mode = x.shape[1], np.zeros(x.shape[1])
    blocks = [
        (x[i : i + BLOCK].astype(np.float64), y[i : i + BLOCK]) for i in range(0, len(x), BLOCK)
    ]
    for _ in range(12):
        gradient, precision = -mode, np.eye(dim)
        for rows, label in blocks:
            mean = np.exp(rows @ mode) if model == "poisson" else _mean(rows @ mode)
            bend = mean if model == "poisson" else mean * (1 - mean)
            gradient = gradient + rows.T @ (label - mean)
            precision += rows.T @ (rows * bend[:, np.newaxis])
        mode = mode + np.linalg.solve(precision, gradient)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    half = np.random.default_rng(1).standard_normal([num_pairs, dim])
    z = np.concatenate([half, -half])
    states = mode + z @ factor.T
    values = 0.5 * (z**2).sum(-1) - 0.5 * (states**2).sum(-1)
    at_mode = -0.5 * mode @ mode
    for rows, label in blocks:
        eta, center = rows @ states.T, rows @ mode
        # Differences from the mode, so that the sum over rows keeps its digits.
        values += label @ (eta - center[:, np.newaxis])
        values -= (_rate(model, eta) - _rate(model, center)[:, np.newaxis]).sum(0)
    weights = np.exp(values - at_mode - np.mean(values - at_mode))
    weights /= weights.mean()
    deviations = z @ factor.T
    # What the weights change of the normal distribution's moments, which are known.
    shift = ((weights - 1)[:, np.newaxis] * deviations).mean(0)
    square = ((weights - 1)[:, np.newaxis] * deviations**2).mean(0)
    sd = np.sqrt(np.diag(factor @ factor.T))
    return Exact(
        mode + shift, np.sqrt(sd**2 + square - shift**2), float(weights.std() / len(z) ** 0.5)
    )


def _rate(model: str, eta: np.ndarray) -> np.ndarray:
    return np.exp(eta) if model == "poisson" else np.logaddexp(0, eta)

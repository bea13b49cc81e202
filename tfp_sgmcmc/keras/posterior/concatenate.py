"""Chains of several posteriors side by side, such as those of several `fit`s on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tfp_sgmcmc.keras.posterior.posterior import Posterior


def concatenated(posteriors: Sequence[Posterior]) -> tuple[Any, ...]:
    """Returns the arguments of the `Posterior` that has the chains of all; see there."""
    if not isinstance(posteriors, list | tuple):
        raise TypeError(
            f"posteriors must be a list of Posterior. Received: a {type(posteriors).__name__}."
        )
    parts = list(posteriors)
    if not parts:
        raise ValueError("posteriors must hold at least one Posterior. Received: none.")
    first = parts[0]
    for number, part in enumerate(parts):
        if not (hasattr(part, "model") and hasattr(part, "num_chains")):
            raise TypeError(
                f"posteriors must be a list of Posterior. Received: a {type(part).__name__} at "
                f"place {number}."
            )
        if part.model is not first.model:
            raise ValueError(
                f"posteriors must be of one model. Received: another, {part.model.name!r}, at "
                f"place {number}. Posterior.save(path) and Posterior.load(path, model) bring "
                "samples that were drawn elsewhere to one model."
            )
        if [id(v) for v in part.variables] != [id(v) for v in first.variables]:
            raise ValueError(
                f"posteriors must have samples of the same variables. Received: samples of "
                f"{_paths(first)} at place 0, and of {_paths(part)} at place {number}."
            )
        if len(part) != len(first):
            raise ValueError(
                "posteriors must have equally many samples in each chain. Received: "
                f"{', '.join(str(len(p)) for p in parts)}. Take the last ones of each by "
                "with_samples."
            )
        if not _same(part.weights, first.weights):
            raise ValueError(
                "posteriors must weight their samples alike, because a weight belongs to the same "
                f"sample of all chains. Received: other weights at place {number}."
            )
    samples = [
        np.concatenate([_by_chain(part, x) for part, x in zip(parts, of_one, strict=True)], axis=1)
        for of_one in zip(*(part.samples for part in parts), strict=True)
    ]
    num_chains = sum(part.num_chains or 1 for part in parts)
    return first.model, first.variables, samples, num_chains, first.weights


def _by_chain(posterior: Posterior, values: Any) -> np.ndarray:
    """Returns samples `[num_kept, num_chains, ...]`."""
    values = np.asarray(values[:])
    return values[:, np.newaxis] if posterior.num_chains is None else values


def _same(some: np.ndarray | None, others: np.ndarray | None) -> bool:
    if some is None or others is None:
        return some is others
    return np.array_equal(some, others)


def _paths(posterior: Posterior) -> str:
    return ", ".join(v.path for v in posterior.variables)

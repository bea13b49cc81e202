"""Export of samples to ArviZ."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def inference_data(
    variables: Sequence[keras.Variable],
    samples: Sequence[Any],
    num_chains: int | None,
    log_likelihood: np.ndarray | None,
) -> Any:
    """Returns what `Posterior.to_inference_data` does."""
    with warnings.catch_warnings():
        # Once a day, the import warns that the interface of ArviZ is going to change.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        try:
            import arviz
        except ImportError as error:
            raise ImportError(
                'ArviZ must be installed: python -m pip install "tfp_sgmcmc[results]".'
            ) from error

    def by_chain(values: Any) -> np.ndarray:
        values = np.asarray(values[:])
        return values[np.newaxis] if num_chains is None else np.swapaxes(values, 0, 1)

    pairs = [(v.path, s) for v, s in zip(variables, samples, strict=True) if v.trainable]
    arrays = {path.replace("/", "."): by_chain(s) for path, s in pairs}
    if len(arrays) < len(pairs):
        raise ValueError(
            "Several variables share a path. Give their layers names that differ. Received: "
            f"{', '.join(path for path, _ in pairs)}."
        )
    by_example = None if log_likelihood is None else {"y": by_chain(log_likelihood)}
    return arviz.from_dict(posterior=arrays, log_likelihood=by_example)

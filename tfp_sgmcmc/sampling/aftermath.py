"""What is told of a run when it has ended, beside its draws."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tree


def warn_of_skipped(results: Any) -> None:
    """Warns if minibatches were left out of the covariance of the gradient noise."""
    skipped = [
        np.asarray(x)
        for path, x in tree.flatten_with_path(results)
        if path and path[-1] == "num_skipped"
    ]
    count = sum(int(x.sum()) for x in skipped)
    if not count:
        return
    step = getattr(results, "step", None)
    chains = max(x.size for x in skipped)
    taken = "" if step is None else f" of {int(np.max(np.asarray(step))) * chains}"
    warnings.warn(
        f"{count}{taken} minibatches had gradients of single examples that are NaN or infinite. "
        "They are left out of the covariance of the gradient noise, which is then that of the "
        "other examples alone. Check log_likelihood_fn for overflow at the states that the chain "
        "visits.",
        stacklevel=3,
    )

"""What is told of a run when it has ended, beside its draws."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.validation.step_size_check import judge_step


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


def warn_of_step(kernel: Any, target: Target, state: Any, results: Any) -> None:
    """Warns if the last step size is not stable at the last state.

    The check before the run knows the start only, and a chain can go where the log posterior is
    more curved.
    """
    try:
        found = judge_step(kernel, target, state, results)
    except (LookupError, NotImplementedError):  # no second derivatives, as was told at the start
        return
    except (ValueError, tf.errors.OpError) as error:  # the draws must not be lost for this
        warnings.warn(
            f"The curvature of the log posterior at the last state cannot be found: {error}",
            stacklevel=3,
        )
        return
    if found is not None and not found.is_stable:
        warnings.warn(
            f"step_size must be below {np.min(found.largest_stable_step):.3g} for "
            f"{type(kernel).__name__} at the last state, where the largest curvature of the log "
            f"posterior is {found.largest_curvature:.4g}. Received: {found.step_size:.3g}. The "
            "draws may be far too wide, although they are finite. Run again with a smaller step.",
            stacklevel=3,
        )

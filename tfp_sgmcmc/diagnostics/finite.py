"""Detection of chains that became NaN or infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.diagnostics.base import real_array


class NonFiniteChainError(FloatingPointError):
    """A chain became NaN or infinite.

    Attributes:
      step: index of the first result that is not finite.
      part: path of the part in the state, a tuple of keys (`()` for a single tensor).
      samples: all results before it, in the structure that was checked.
    """

    def __init__(self, message: str, step: int, part: tuple[Any, ...], samples: Any):
        super().__init__(message)
        self.step, self.part, self.samples = step, part, samples


def check_finite(samples: Any) -> None:
    """Raises `NonFiniteChainError` with the results before if a chain became NaN or infinite.

    Examples:
      >>> import numpy as np
      >>> chain = np.array([[0., 1.], [2., 3.], [np.nan, 4.]])
      >>> try:
      ...     check_finite({"w": chain})
      ... except NonFiniteChainError as error:
      ...     print(error.step, error.part, error.samples["w"].shape)
      2 ('w',) (2, 2)

    Args:
      samples: a nest of arrays `[num_results, ...]`, as `tfp.mcmc.sample_chain` returns.

    Raises:
      NonFiniteChainError: an entry is NaN or infinite.
      TypeError: a part is not an array of numbers.
      ValueError: a part has no dimension of results.
    """
    found = []
    for path, leaf in tree.flatten_with_path(samples):
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"samples must have parts [num_results, ...]. Received: a {type(leaf).__name__}."
            )
        bad = ~np.isfinite(real_array("samples", leaf))
        if bad.any():
            step, *entry = np.argwhere(bad)[0].tolist()
            found.append((step, path, entry))
    if not found:
        return
    step, path, entry = min(found, key=lambda x: x[0])
    name = "the state" + "".join(f"[{key!r}]" for key in path)
    raise NonFiniteChainError(
        f"{name} became NaN or infinite at result {step} (entry {entry}). The {step} results "
        "before it are in the error's `samples`. A smaller step_size is the usual cure.",
        step,
        path,
        tf.nest.map_structure(lambda x: x[:step], samples),
    )

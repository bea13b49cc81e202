"""`sample(target, initial_state, num_results)` on models that are in no reference database.

Their data are made up by fixed seeds. The draws are compared with closed forms, for the horseshoe
with a Gibbs sampler, or with long runs of NUTS in `float64`: 16 chains, until the worst quantity
has 4000 effective draws. A hierarchy with centred effects has the reference of the same model with
effects that are standard normal. The columns of the table, and what is right, are those of
`python -m benchmarks.posteriordb`. Starts are zeros, uniform in (-2, 2), and far: uniform in
(-20, 20), in unconstrained coordinates. The command fails if a run is trusted and wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.common import command_line
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.table import Row, picked, rows, show
from benchmarks.posteriordb.unseen import groups, latent, outcomes, shapes
from benchmarks.posteriordb.unseen.references import kept, long_run, moments
from datasets.posteriordb import Moments

ALL: dict[str, Callable[[], Posterior]] = {
    **outcomes.POSTERIORS,
    **groups.POSTERIORS,
    **latent.POSTERIORS,
    **shapes.POSTERIORS,
}
CLOSED_FORMS = {**groups.CLOSED_FORMS, **shapes.CLOSED_FORMS}
# Many rows, years as in the calendar, or a second mode that is 61 nats lower: their long runs begin
# at the mode.
ONE_MODE = "factors", "negative_binomial", "poisson_exposure"


def run(
    *,
    posteriors: tuple[str, ...] = ("all",),
    start: tuple[str, ...] = ("zeros", "uniform"),
    dtype: tuple[str, ...] = ("float64", "float32"),
    num_results: int = 1000,
    seed: int = 0,
    references: str = ".references",
    keep: str = "",
) -> Iterator[Row]:
    """Yields a row for each posterior, start and dtype.

    Args:
      posteriors: names, or beginnings of names; "all" for all.
      start: zeros, uniform, far.
      dtype: float64, float32.
      num_results: draws of each chain.
      seed: seed of the runs, and of the uniform starts.
      references: folder that keeps the moments of long runs.
      keep: a folder that keeps the rows, so that a command that was cut off goes on.
    """
    find = functools.partial(reference, folder=Path(references))
    return rows(picked(ALL, posteriors), find, start, dtype, num_results, seed, 0.0, keep)


def reference(name: str, posterior: Posterior, folder: Path) -> Moments:
    """Returns the exact moments of a posterior."""
    source = posterior.reference or name
    if source in CLOSED_FORMS:
        draws = CLOSED_FORMS[source](ALL[source]())
        return moments(draws, len(next(iter(draws.values()))))
    if name == "mixture_symmetric":
        return kept(folder / f"{name}.npz", symmetric_mixture)
    at_mode = source in ONE_MODE
    run = lambda: moments(*long_run(ALL[source](), at_mode=at_mode))  # noqa: E731
    return kept(folder / f"{source}.npz", run)


def symmetric_mixture() -> Moments:
    """Returns moments of the mixture with ordered means, its components in either order."""
    draws, worth = long_run(latent.mixture(2, ordered=True))
    swapped = {name: x[:, ::-1] if name in ("mu", "weight") else x for name, x in draws.items()}
    both = {name: np.concatenate([draws[name], x]) for name, x in swapped.items()}
    return moments(both, worth)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="posteriordb.unseen")

"""`sample(target, initial_state, num_results)` on Stan's posteriordb, with nothing prepared.

The posteriors are those of posteriordb that have reference draws and data, in their units (dollars,
years, grams), with a start that knows nothing: zeros, or uniform in (-2, 2) as Stan starts, in
unconstrained coordinates. For each posterior, start and dtype the table gives

  D, N     numbers of parameters and of rows,
  sampler  what was chosen, or "raised",
  trusted  `result.is_trusted`, and whether the draws are right,
  flags    how many, by grade,
  mean     the error of the means of the worst parameter, in the reference's standard deviations,
  beyond   what is left of it beyond four standard errors of both numbers of draws,
  sd       the least and the largest ratio of standard deviations,
  5 %      the worst error of the 5 % quantiles, in standard deviations,
  95 %     that of the 95 % quantiles,
  ESS      effective samples of the median and the worst parameter, at most the number of draws,
  s        processor seconds of the whole call,
  NUTS     with `--nuts-seconds`: whether TensorFlow Probability's NUTS with dual averaging of the
           step is right from the same start, with as many steps of adaptation as draws; R-hat above
           1.01 takes away the trust, and
  NUTS s   its processor seconds.

Right are means within 0.05 standard deviations, ratios of standard deviations within 0.05, and
quantiles within 0.1 standard deviations, each beyond four standard errors. The command fails if a
run is trusted and wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.common import command_line
from benchmarks.posteriordb import hierarchies, mixtures, processes, regressions, series
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.table import Row, picked, rows, show
from datasets import posteriordb_reference

ALL: dict[str, Callable[[], Posterior]] = {
    **regressions.POSTERIORS,
    **hierarchies.POSTERIORS,
    **series.POSTERIORS,
    **processes.POSTERIORS,
    **mixtures.POSTERIORS,
}


def run(
    *,
    posteriors: tuple[str, ...] = ("all",),
    start: tuple[str, ...] = ("zeros", "uniform"),
    dtype: tuple[str, ...] = ("float64", "float32"),
    num_results: int = 1000,
    seed: int = 0,
    nuts_seconds: float = 0.0,
    keep: str = "",
) -> Iterator[Row]:
    """Yields a row for each posterior, start and dtype.

    Args:
      posteriors: names, or beginnings of names; "all" for all.
      start: zeros, uniform.
      dtype: float64, float32.
      num_results: draws of each chain.
      seed: seed of the runs, and of the uniform starts.
      nuts_seconds: processor seconds that NUTS may take; 0 leaves it out.
      keep: a folder that keeps the rows, so that a command that was cut off goes on.
    """
    return rows(
        picked(ALL, posteriors),
        lambda name, posterior: posteriordb_reference(posterior.reference or name),
        start,
        dtype,
        num_results,
        seed,
        nuts_seconds,
        keep,
    )


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="posteriordb")

"""The pool of rows of a stream for an automatic run, which its directory keeps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.targets import MinibatchLogProb, PoolReport, StreamedLogProb, draw_pool
from tfp_sgmcmc.targets.streaming import pool_file


def pool_of(
    target: StreamedLogProb,
    initial_state: Any,
    folder: Path | None,
    jit_compile: bool,
    progress_bar: bool | None,
) -> tuple[MinibatchLogProb, PoolReport]:
    """Returns a target in memory and how it was made: the one in the run's `folder`, or a new one.

    The folder keeps the pool, so that a run resumes bit for bit without a pass over the data.
    """
    path = None if folder is None else folder / pool_file.FILE
    if path is not None and path.exists():
        return pool_file.load(path, target, initial_state)
    with contextlib.ExitStack() as stack:
        bars: dict[str, Any] = {}

        def show(what: str, num_rows: int) -> None:
            if what not in bars:
                stack.close()
                bars[what] = stack.enter_context(
                    progress(progress_bar, target.num_examples, unit="row")
                )
            bars[what](num_rows, None)

        pool, report = draw_pool(target, initial_state, jit_compile=jit_compile, show=show)
    if path is not None:
        pool_file.save(path, pool, report)
    return pool, report

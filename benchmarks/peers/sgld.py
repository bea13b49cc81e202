"""Time of one step of SGLD, here and in BlackJAX, on logistic regression.

MNIST 7 v 9 in 128 principal components and a constant: N = 12214, D = 129, float32. Each side is a
process, which compiles each case once and is then timed in turn with the other. The table gives the
least and the median time of the repeats, in microseconds a step of all chains. Ratios are ratios of
medians. BlackJAX draws with replacement; "no rep." is SGLD here without replacement.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.peers import install
from benchmarks.peers.sides import sides, times
from benchmarks.peers.worker import Case

PYTHON = install.python()
# number of chains, whether they share minibatches, whether every state is kept
LAYOUTS = ((1, False, False), (1, False, True), (64, False, False), (64, True, False))


def run(
    *,
    blackjax_python: Path = PYTHON,
    batch_sizes: tuple[int, ...] = (100, 500),
    steps: int = 20_000,
    repeats: int = 5,
    seed: int = 0,
    one_core_only: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Times all layouts.

    Args:
      blackjax_python: an interpreter that has BlackJAX; `python -m benchmarks.peers.install` makes
        the default.
      steps: steps of one chain in a call.
    """
    ours, peer = "benchmarks.peers.steps_ours", "benchmarks.peers.steps_blackjax"
    for cores, (here, blackjax) in sides(blackjax_python, ours, peer, one_core_only):
        for n in batch_sizes:
            for chains, shared, keep_all in LAYOUTS:
                again = Case(n, chains, shared, True, keep_all, max(200, steps // chains))
                once = again._replace(replacement=False)
                jobs = {"ours": (here, again), "no rep.": (here, once), "theirs": (blackjax, again)}
                least, median = times(jobs, repeats, seed)
                yield (
                    cores, n, chains, "shared" if shared else "own", "all" if keep_all else "last",
                    *(f"{least[side]:.1f} / {median[side]:.1f}" for side in jobs),
                    *(median[side] / median["theirs"] for side in ("ours", "no rep.")),
                )  # fmt: skip


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    columns = {
        "cores": "d", "n": "4d", "chains": "6d", "minibatch": "", "kept": "4s", "ours": ">15s",
        "no replacement": ">15s", "BlackJAX": ">15s", "ratio": "6.2f", "no rep.": "7.2f",
    }  # fmt: skip
    return command_line.print_table(columns, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="peers.sgld")

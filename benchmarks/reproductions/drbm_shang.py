"""SGHMC, SGNHT and CCAdL on discriminative restricted Boltzmann machines: connect-4 and letter.

After Shang, Zhu, Leimkuhler & Storkey, Covariance-controlled adaptive Langevin thermostat for
large-scale Bayesian sampling, NIPS 2015, section 4.3 and figure 3: the test error against passes
over the data. The machines have H hidden units, F features and C classes:

| data | training, test rows | H | F | C | parameters |
| --- | --- | --- | --- | --- | --- |
| connect-4 | 54046, 13511 | 20 | 126 | 3 | 2603 |
| letter | 10500, 5000 | 100 | 16 | 26 | 4326 |
| acoustic | 78823, 19705 | 20 | 50 | 3 | 1083 |

These are two of the paper's three data sets. `--data acoustic` runs the third one where its files
can be downloaded. Sigma is diagonal, the prior N(0, I), minibatches have n = 500. A prediction is
the mean of the class probabilities over the second half of the states so far, of which one is kept
after each pass. All chains start at the same random weights. The paper's
steps, frictions and passes are in its caption and are not the ones used here.

Minibatches heat the chains at these steps. At h = 0.001 on connect-4, from pass 10 to 20, the
momenta have 1.7 (A = 10) and 1.3 times (A = 50) the temperature with SGHMC, 1.6 and 1.3 times with
SGNHT, and 0.99 and 1.05 times with CCAdL. The test error of an average of predictions does not
count heat as an error.

The full form takes about 20 minutes of one core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import datasets
from benchmarks.common import drbm
from benchmarks.common.second_half import errors_so_far
from benchmarks.reproductions import against_passes
from benchmarks.reproductions.against_passes import SAMPLERS, Curve, curves, pairs
from benchmarks.reproductions.experiment import Claim, Experiment, main

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HEAT = "the noise heats the other samplers, which the test error does not show"


class Problem(NamedTuple):
    """A data set and the machine for it."""

    load: Any
    hidden: int


PROBLEMS = {
    "connect4": Problem(datasets.connect4, 20),
    "letter": Problem(lambda: datasets.letter(split="shang"), 100),
    "acoustic": Problem(datasets.sensit_acoustic, 20),
}


def run(
    *,
    data: tuple[str, ...] = ("connect4", "letter"),
    step_sizes: tuple[float, ...] = (1e-3, 2e-3, 5e-3),
    frictions: tuple[float, ...] = (10.0, 50.0),
    num_passes: int = 100,
    batch_size: int = 500,
    num_rows: int = 0,
    num_hidden: int = 0,
    seed: int = 0,
) -> dict[str, list[Curve]]:
    """Samples each posterior with each sampler at each step size and friction.

    Args:
      data: names of the data sets.
      step_sizes: values of h.
      frictions: values of A.
      num_passes: passes over the data.
      batch_size: n.
      num_rows: number of training rows, 0 for all.
      num_hidden: number of hidden units, 0 for the paper's.
      seed: seed of the start and the chains.
    """
    found = {}
    for name in data:
        problem = PROBLEMS[name]
        x, y, x_test, y_test = problem.load()
        x, y = x[: num_rows or None], y[: num_rows or None]
        target = drbm.target(x, y, batch_size, shared_batch=True)
        hidden = num_hidden or problem.hidden
        start = drbm.initial(hidden, x.shape[1], int(y_test.max()) + 1, seed)

        def measure(states: Any, x: np.ndarray = x_test, y: np.ndarray = y_test) -> np.ndarray:
            return errors_so_far(drbm.probabilities(states, x), y)

        found[name] = curves(
            target, start, measure, SAMPLERS, step_sizes, frictions, num_passes, seed
        )
    return found


def show(found: dict[str, list[Curve]]) -> None:
    for name, of_data in found.items():
        print(name)
        against_passes.show(of_data, "test error")


def claims(found: dict[str, list[Curve]]) -> list[Claim]:
    result = []
    for name, of_data in found.items():
        groups = pairs(of_data)
        falls = np.mean([c.values[-1] < 0.95 * c.values[len(c.values) // 2] for c in of_data])
        still = "; most errors still fall at the end" if falls > 0.5 else ""
        for other in ("SGNHT", "SGHMC"):
            gaps = {pair: c[other].overall - c["CCAdL"].overall for pair, c in groups.items()}
            # A chain that became infinite has no error; CCAdL is then ahead if it has one.
            ahead = [
                gap > 0 or (np.isnan(gap) and np.isfinite(groups[pair]["CCAdL"].overall))
                for pair, gap in gaps.items()
            ]
            behind = [
                f"h = {h:g}, A = {a:g}" for (h, a), x in zip(gaps, ahead, strict=True) if not x
            ]
            finite = [gap for gap in gaps.values() if np.isfinite(gap)] or [np.nan]
            result.append(
                Claim(
                    f"{name}: CCAdL has a smaller test error over the passes than {other}, at every"
                    " h and A",
                    f"smaller at {sum(ahead)} of {len(gaps)}; mean differences over all passes from"
                    f" {min(finite):.4f} to {max(finite):.4f}",
                    not behind,
                    f"behind at {'; '.join(behind)}{still}; {HEAT}" if behind else "",
                )
            )
        best = {
            name: min(c.final for c in of_data if c.sampler == name and np.isfinite(c.final))
            for name in SAMPLERS
        }
        result.append(
            Claim(
                f"{name}: CCAdL's lowest error is the lowest",
                ", ".join(f"{sampler} {error:.4f}" for sampler, error in best.items()),
                min(best, key=lambda sampler: best[sampler]) == "CCAdL",
                "one start; errors over the last quarter of the passes",
            )
        )
    return result


def plot(found: dict[str, list[Curve]]) -> Figure:
    return against_passes.draw(found, "test error")


EXPERIMENT = Experiment(
    paper="Shang, Zhu, Leimkuhler & Storkey 2015",
    figure="figure 3",
    title="discriminative restricted Boltzmann machines on connect-4 and letter",
    run=run,
    quick={
        "data": ("connect4",),
        "num_passes": 15,
        "step_sizes": (2e-3, 5e-3),
        "frictions": (10.0,),
        "num_rows": 5_000,
        "num_hidden": 20,
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)

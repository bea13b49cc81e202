"""The modes of a restricted Boltzmann machine: HMC, replica exchange and cyclical SGLD.

Ahn, Korattikara & Welling (2012, section 5.3) say that the posterior of a discriminative restricted
Boltzmann machine has many modes, and that samplers ended in different ones with 5 to 41 hidden
units. They compare runs of HMC from one mode (`drbm_kdd_posterior`), and none from different
starts, so that this experiment is not theirs. Two later methods for several modes are tried here,
`ReplicaExchangeSGLD` (Deng et al. 2020) and SGLD with a `Cyclical` step size (Zhang et al. 2020).

A permutation of hidden units gives another mode of the same probabilities. So chains are compared
by functions that no permutation changes: the log posterior, and the log probability of the label of
each of 200 test rows. R-hat (split) between chains from different random starts tells whether they
agree. The starts of a method are those of the others. The data and the machine are those of
`drbm_kdd_posterior`, with the prior N(0, I).

The full form takes 55 minutes on one core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line, drbm
from benchmarks.common.chains import compiled, draws, effective_sizes
from benchmarks.reproductions.drbm_hmc import CLASSES, connections, hmc, largest_r_hat
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots
from benchmarks.reproductions.page import BEYOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGREE = 1.1  # R-hat below which chains count as agreeing
TEST_ROWS = 200
METHODS = ("SGLD", "replica exchange", "cyclical SGLD")  # beside HMC


class Found(NamedTuple):
    """Traces of the chains of one method, `[draws, chains]`."""

    log_joint: np.ndarray
    log_test: np.ndarray  # mean log probability of the labels of the test rows
    r_hat_joint: float
    r_hat_rows: float  # the largest of all test rows
    share_of_rows: float  # share of the test rows with R-hat below `AGREE`
    note: str


def run(
    *,
    methods: tuple[str, ...] = METHODS,
    num_rows: int = 1_000,
    num_hidden: int = 3,
    batch_size: int = 100,
    num_chains: int = 4,
    num_results: int = 4_000,
    num_leapfrog: int = 50,
    num_steps: int = 400_000,
    step_size: float = 1e-3,
    temperatures: tuple[float, ...] = (1.0, 1.3, 1.7, 2.2, 2.9, 3.7),
    num_cycles: int = 10,
    seed: int = 0,
) -> dict[str, Found]:
    """Samples by all methods from the same random starts.

    Args:
      methods: the methods beside HMC.
      num_rows: N.
      num_hidden: number of hidden units.
      batch_size: n.
      num_chains: number of starts, with one chain each.
      num_results: draws of each chain of HMC.
      num_leapfrog: leapfrog steps of HMC.
      num_steps: steps of each chain of the other methods; the first half is burn-in, except for
        cyclical SGLD, which keeps the second half of each cycle but the first one.
      step_size: epsilon of SGLD and replica exchange; cycles start at four times it.
      temperatures: temperatures of the replicas.
      num_cycles: cycles of cyclical SGLD.
      seed: seed of the data, the starts and the chains.
    """
    data = connections(num_rows, TEST_ROWS, seed)
    target = drbm.target(data.x, data.y, batch_size)
    start = drbm.initial(num_hidden, data.x.shape[1], CLASSES, seed, chains=[num_chains])
    test = {"x": tf.constant(data.x_test), "y": tf.constant(data.y_test)}

    def seen(states: Any, note: str) -> Found:
        log_joint, rows = np.split(_seen(target, test, [tf.constant(x) for x in states]), [1], -1)
        # R-hat of probabilities themselves, because logs of small ones have heavy tails.
        r_hats = np.array([largest_r_hat(np.exp(row)) for row in np.moveaxis(rows, -1, 0)])
        return Found(
            log_joint[..., 0],
            rows.mean(axis=-1),
            largest_r_hat(log_joint[..., 0]),
            float(np.nanmax(r_hats)),
            float(np.mean(r_hats < AGREE)),
            note,
        )

    chains = hmc(target, start, num_results, num_leapfrog, seed)
    found = {"HMC": seen(_thinned(chains.states), f"acceptance {chains.acceptance:.2f}")}
    num_kept = 500
    thinning = num_steps // (2 * num_kept)

    def sgld() -> Found:
        kernel = sgmcmc.SGLD(target, step_size)
        kept = draws(kernel, start, [seed, 2], num_kept, thinning, num_steps // 2)
        return seen(kept, f"epsilon {step_size:g}")

    def replica_exchange() -> Found:
        kernel = sgmcmc.ReplicaExchangeSGLD(target, step_size, temperatures, swap_every=10)
        exchange = compiled(
            kernel,
            num_kept,
            thinning,
            num_steps // 2,
            trace_fn=lambda _, r: (r.num_swaps_accepted, r.num_swaps_proposed),
        )(start, None, tf.constant([seed, 3]))
        accepted, proposed = (x[-1].numpy() for x in exchange.trace)
        rates = accepted.mean(axis=-1) / np.maximum(proposed, 1)
        return seen(
            exchange.all_states,
            f"T up to {temperatures[-1]:g}, swaps {rates.min():.3f} to {rates.max():.3f}",
        )

    def cyclical() -> Found:
        schedule = sgmcmc.schedules.Cyclical(4 * step_size, num_steps, num_cycles, 0.5)
        every = num_steps // (4 * num_kept)
        states = draws(sgmcmc.SGLD(target, schedule), start, [seed, 4], num_steps // every, every)
        at = (np.arange(len(states[0])) + 1) * every - 1
        is_kept = np.asarray(schedule.is_sampling(at)) & (at >= num_steps // num_cycles)
        return seen([x[is_kept] for x in states], f"{num_cycles} cycles")

    makers = dict(zip(METHODS, (sgld, replica_exchange, cyclical), strict=True))
    return found | {name: makers[name]() for name in methods}


def _seen(target: Any, test: Any, states: list[tf.Tensor]) -> np.ndarray:
    """Returns the log posterior and the rows' log probabilities, `[draws, chains, 1 + rows]`."""

    @tf.function(jit_compile=True)
    def one(*state: tf.Tensor) -> tf.Tensor:
        rows = drbm.log_likelihood(*state, test)
        return tf.concat([target(*state)[..., tf.newaxis], rows], axis=-1)

    return np.stack([one(*state).numpy() for state in zip(*map(tf.unstack, states), strict=True)])


def _thinned(states: drbm.Weights) -> list[tf.Tensor]:
    every = max(1, len(states.d) // 500)
    return [part[::every] for part in states]


def claims(found: dict[str, Found]) -> list[Claim]:
    of_hmc = found["HMC"]
    disagree = max(of_hmc.r_hat_joint, of_hmc.r_hat_rows) > AGREE
    size = effective_sizes(of_hmc.log_joint).min()
    why = "modes that differ by permutations alone would look the same"
    if disagree:
        why = f"slow mixing and modes look alike: a chain has {size:.0f} effective draws"
    verdict = "the starts disagree" if disagree else "all starts agree"
    result = [Claim("HMC from different starts", f"{verdict}: {_cell(of_hmc)}", None, why)]
    for name in list(found)[1:]:
        agrees = max(found[name].r_hat_joint, found[name].r_hat_rows) < AGREE
        verdict = "all starts agree" if agrees else "the starts still disagree"
        ours = f"{verdict}: {_cell(found[name])}"
        short = not agrees and not disagree
        slow = "HMC agrees, so these chains lack steps and are not kept apart by modes"
        why = slow if short else ""
        result.append(Claim(f"{name} from the same starts", ours, None, why))
    return result


def _cell(found: Found) -> str:
    means = found.log_joint.mean(axis=0)
    return (
        f"R-hat {found.r_hat_joint:.2f} of the log posterior, at most {found.r_hat_rows:.2f} of the"
        f" test rows, below {AGREE} for {found.share_of_rows:.0%} of them; means of the log"
        f" posterior from {means.min():.1f} to {means.max():.1f}; {found.note}"
    )


def show(found: dict[str, Found]) -> None:
    columns = {"method": "", "R-hat of log posterior": ".2f", "largest of rows": ".2f"}
    columns |= {"rows that agree": ".0%", "log posterior": "", "test log likelihood": ""}
    command_line.print_table(
        columns,
        [
            (
                name,
                f.r_hat_joint,
                f.r_hat_rows,
                f.share_of_rows,
                *(
                    " ".join(f"{x:{form}}" for x in values.mean(axis=0))
                    for values, form in ((f.log_joint, ".1f"), (f.log_test, ".3f"))
                ),
            )
            for name, f in found.items()
        ],
    )


def plot(found: dict[str, Found]) -> Figure:
    """Draws the log posterior of all chains."""
    figure, axes = subplots(1, len(found))
    for axis, (name, of_method) in zip(axes[0], found.items(), strict=True):
        axis.plot(np.linspace(0, 1, len(of_method.log_joint)), of_method.log_joint, linewidth=0.5)
        axis.set(title=name, xlabel="share of the kept draws", ylabel="log posterior")
    return figure


EXPERIMENT = Experiment(
    paper=BEYOND,
    figure="machine of Ahn et al. 2012, section 5.3",
    title="the modes of a restricted Boltzmann machine",
    run=run,
    quick={
        "methods": ("replica exchange",),
        "num_rows": 100,
        "num_hidden": 2,
        "batch_size": 50,
        "num_results": 400,
        "num_leapfrog": 20,
        "num_steps": 2_000,
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)

"""Published ways to sample or average networks beside `SamplerCallback()`, at equal passes.

Data, networks, splits, scores, "DE5" and "annealed" are those of
`python -m benchmarks.predictions.ensembles`. All methods take as many passes over the data as the
five members of DE5. Where members are trained first, it is with early stopping and at most the
given share of DE5's epochs; the rest of the passes follow.

"symmetric" is the annealed ensemble with a kick, half a drift, friction with noise and half a drift
(BAOAB) in place of its kernel's scheme. In "cyclical" its steps fall from 0.005 in ten cosine
cycles (Zhang et al. 2020), and it chooses among the states of their last fifths. "warm" starts its
chains from members with a quarter of the passes. "MILE" takes members with three quarters of them
to the posterior at temperature 1 with the prior N(0, 1), by microcanonical Langevin dynamics with
minibatches, with scales by the size of their gradients (Sommer et al. 2025). "SWA" goes on from
such members by Adam with its constant step, and takes the mean of each member's weights at the ends
of epochs (Izmailov et al. 2018); "iterates" predicts by all of these weights, and "SWAG" by 16
draws from normal distributions with their means and variances.

For the refits, a network is trained on half of the training rows, and refitted to the other half,
whose inputs, as those of the test rows, are a linear map of what they were. All of its weights, its
last layer, or factors of rank 4 beside each kernel (LoRA) are refitted: "Adam" by five runs with
early stopping from the network's weights, and "annealed" by `SamplerCallback()` in as many passes.
In "from weights" its chains start there, too; "no refit" is the network as it was.

The tables give means over splits, and the difference of each NLL from that of "annealed", paired by
split, with its standard error. "fit" are seconds of the processor, with compilation; "SWA",
"iterates" and "SWAG" share theirs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table as Printed
from benchmarks.predictions import alternative_dynamics, ensembles
from benchmarks.predictions.ensembles import BATCH, EPOCHS, MEMBERS, Scores
from benchmarks.predictions.side_by_side import Trainer
from benchmarks.predictions.study import Posterior, Study, fitted, train
from benchmarks.predictions.tabular import TABLES, Table, split
from tfp_sgmcmc.keras.adaptation import annealed_ensemble

PROBLEMS = ("docstrings", "german", "diabetes", "digits", "friedman", "swissroll")
REFITTED = ("german", "diabetes", "friedman", "digits")
RANK, MIX = 4, 0.5


def annealed_as(study: Study, kind: type) -> Posterior:
    """Returns the annealed ensemble by another class."""
    with mock.patch.object(annealed_ensemble, "AnnealedEnsemble", kind):
        return study.sample(study.used)


def warm(study: Study, share: float = 0.25) -> Posterior:
    """Returns the annealed ensemble from trained members."""
    weights, used = study.members(share)
    return study.sample(study.used - used, chains=sgmcmc.keras.Chains(MEMBERS, weights))


def mile(
    study: Study, share: float = 0.75, step: float = 3e-4, is_scaled: bool = True
) -> Posterior:
    """Returns states of microcanonical dynamics; the first fifth of the steps is burn-in."""
    weights, used = study.members(share)
    steps = study.passes(study.used - used) * -(-len(study.data.x) // BATCH)
    return study.sample(
        study.used - used,
        lambda target: alternative_dynamics.Microcanonical(target, step, steps // 5, is_scaled),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(steps // 5, max(0, steps // 100 - 1)),
        chains=sgmcmc.keras.Chains(MEMBERS, weights),
    )


METHODS: dict[str, Callable[[Study], Posterior]] = {
    "annealed": lambda study: study.sample(study.used),
    "DE5": lambda study: study.posterior(study.members(1.0)[0]),
    "symmetric": lambda study: annealed_as(study, alternative_dynamics.SymmetricEnsemble),
    "UBU": lambda study: annealed_as(study, alternative_dynamics.ExactFrictionEnsemble),
    "cyclical": lambda study: annealed_as(study, alternative_dynamics.CyclicalEnsemble),
    "warm": warm,
    "MILE": mile,
    "SWA": lambda study: study.tails("SWA"),
    "iterates": lambda study: study.tails("iterates"),
    "SWAG": lambda study: study.tails("SWAG"),
}
PARTS = ("all weights", "last layer", "LoRA")
REFITS = ("annealed", "from weights", "Adam", "no refit")


def compare(table: Table, seed: int, units: tuple[int, ...], quick: bool) -> dict[str, Scores]:
    """Returns the scores of the methods in one split, with processor seconds of the fits."""
    study, found = Study(table, seed, units, quick), dict[str, Scores]()
    for name, make in METHODS.items():
        study.seconds, start = 0.0, time.process_time()
        posterior = make(study)
        seconds = study.seconds + time.process_time() - start
        found[name] = ensembles.scores(posterior, study.data) | {"fit": seconds}
    keras.backend.clear_session()
    return found


def compare_refits(
    table: Table, seed: int, units: tuple[int, ...], quick: bool
) -> dict[str, Scores]:
    """Returns the same for the ways to refit parts of a network."""
    data = split(table, seed)
    half, rng = len(data.x) // 2, np.random.default_rng([seed, 1])
    d = data.x.shape[1]
    mix = (np.eye(d) + MIX * rng.normal(size=[d, d]) / d**0.5).astype(np.float32)
    n = round(half * data.num_validation / len(data.x))
    first = data._replace(x=data.x[:half], y=data.y[:half], num_validation=n)
    second = data._replace(
        x=data.x[half:] @ mix, y=data.y[half:], x_test=data.x_test @ mix, num_validation=n
    )
    make = functools.partial(ensembles.make_model, data, table, units)
    epochs, found = 2 if quick else EPOCHS, {}
    base = make([seed, 0])
    pair = [base.get_weights()] * 2  # side by side, of which one is taken
    trained, _ = train(Trainer(base, BATCH), pair, first, seed, epochs)
    given = [w[0] for w in trained]
    for part in PARTS:
        models = [prepared(make([seed, i]), given, part) for i in range(MEMBERS)]
        start = time.process_time()
        starts = [[v.numpy() for v in model.trainable_variables] for model in models]
        weights, used = train(Trainer(models[0], BATCH), starts, second, seed, epochs)
        clock = [time.process_time() - start]
        refits = Posterior(models[0], models[0].trainable_variables, weights)
        no_refit = refits.with_samples([np.stack(w)[:1] for w in zip(*starts, strict=True)])
        posteriors = {"Adam": refits, "no refit": no_refit}
        passes = max(1, round(float(used.mean()) * (1 - n / len(second.x))))
        chains = sgmcmc.keras.Chains(MEMBERS, "model")
        for name, options in {"annealed": {}, "from weights": {"chains": chains}}.items():
            start = time.process_time()
            model = prepared(make([seed, MEMBERS]), given, part)
            posteriors[name] = fitted(model, second, passes, seed=seed, **options)
            clock.append(time.process_time() - start)
        seconds = dict(zip(("Adam", "annealed", "from weights"), clock, strict=True))
        for name in REFITS:
            figures = ensembles.scores(posteriors[name], second)
            found[f"{part}, {name}"] = figures | {"fit": seconds.get(name, 0.0)}
    keras.backend.clear_session()
    return found


def prepared(model: keras.Model, weights: Any, part: str) -> keras.Model:
    """Returns a model with these weights, of which only a part is trainable."""
    model.set_weights(weights)
    layers = [layer for layer in model.layers if layer.weights]
    for layer in layers if part == "LoRA" else ():
        layer.enable_lora(RANK)
    for layer in layers[:-1] if part == "last layer" else ():
        layer.trainable = False
    model.compile("adam", model.loss)
    return model


def run(
    *,
    problems: tuple[str, ...] = PROBLEMS,
    refits: tuple[str, ...] = REFITTED,
    splits: int = 1,
    first_split: int = 0,
    units: tuple[int, ...] = (50, 50),
    quick: bool = False,
    folder: str = "",
) -> Iterator[tuple[str, list[dict[str, Scores]]]]:
    """Yields each problem with the scores of the methods in each split, and then those of refits.

    Args:
      problems: names of data on which networks are trained.
      refits: names of data on which a trained network is refitted.
      splits: the number of splits.
      first_split: the number of the first.
      units: widths of the hidden layers.
      quick: two epochs and one split.
      folder: keeps the scores of each problem and split, which a later call reads again.
    """
    tf.get_logger().setLevel("ERROR")
    width = "-".join(map(str, units))
    for name, kind in [(n, "") for n in problems] + [(n, "_refits") for n in refits]:
        found, table = [], TABLES[name]()
        compared = compare_refits if kind else compare
        for seed in range(first_split, first_split + (1 if quick else splits)):
            make = functools.partial(compared, table, seed, units, quick)
            file = f"{name}_{width}_{seed}{kind}{'_quick' * quick}"
            found.append(kept_result(folder, file, make))
            print(name, seed, found[-1], flush=True)
        yield name, found


def show(found: Iterable[tuple[str, list[dict[str, Scores]]]]) -> dict[str, Printed]:
    """Prints the tables; returns them."""
    lines: dict[str, list[list[str]]] = {}
    for name, by_split in found:
        for i, method in enumerate(by_split[0]):
            part = method.rpartition(", ")[0]
            reference = f"{part}, {REFITS[0]}" if part else next(iter(METHODS))
            gap, error = ensembles.difference(by_split, method, reference)
            shown = f"{gap:+.3f}" if np.isnan(error) else f"{gap:+.3f} +- {error:.3f}"
            keys = by_split[0][method]
            mean = {key: float(np.mean([s[method][key] for s in by_split])) for key in keys}
            lines.setdefault("Refits" if part else "Networks", []).append([
                "" if i else name, method, f"{mean['nll']:.3f}",
                "" if method == reference else shown,
                f"{mean['error']:.3f}", f"{mean['calibration']:.3f}", f"{mean['fit']:.0f}",
            ])  # fmt: skip
    heads = ["data", "method", "NLL", "NLL - annealed", "error", "calibration", "fit"]
    return {
        title: command_line.print_table(dict.fromkeys(heads, ""), part)
        for title, part in lines.items()
    }


if __name__ == "__main__":
    choices = {"problems": TABLES, "refits": TABLES}
    command_line.main(__doc__, run, show, choices=choices, table="alternatives")

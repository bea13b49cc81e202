"""`SamplerCallback()` against a deep ensemble and a single network, at equal passes over the data.

A network, by default d-50-50-classes with ReLU, is trained by Adam (learning rate 1e-3, batches of
32, at most 400 epochs), which stops when the loss on 15 % of the rows has not improved for 20
epochs (`--patience`), and goes back to its best weights. "Adam" is one such network, "DE5" the mean
prediction of five, and "annealed" is `fit` with `SamplerCallback()` and no other argument, on all
rows, with as many gradients for each of its five chains as a member took on average. "convnet" and
"batchnorm" are networks of images, "embeddings" and "transformer" of words (see `networks.py`).
Regressions have a mean and a scale. Splits have numbers; test rows are 20 %, half of the stored
data, of which `--rows` are taken, or a seventh of the images for networks of images. Dense members
are trained in one compiled program (see `side_by_side.py`), unless `--by-fit` is given.

The table gives the means over splits of NLL (in nats), error (share of wrong classes, or root mean
squared error), calibration (expected error over 15 bins, or coverage of 90 % intervals), and the
difference of each NLL from DE5's, paired by split, with its standard error. With
`--by-fit`, "fit" is the processor time of all `fit`s with compilation, divided by that of DE5's
`fit`s, and "predict" that of the predictions of the test rows, divided by the same.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table as Printed
from benchmarks.predictions.side_by_side import Trainer
from benchmarks.predictions.tabular import NETWORKS, ROWS, TABLES, Split, Table, split

MEMBERS, EPOCHS, PATIENCE, BATCH = 5, 400, 20, 32
METHODS = ("Adam", "DE5", "annealed")
DENSE = tuple(name for name in TABLES if name not in NETWORKS)
Scores = dict[str, float]


def run(
    *,
    problems: tuple[str, ...] = DENSE,
    splits: int = 5,
    first_split: int = 0,
    units: tuple[int, ...] = (50, 50),
    rows: int = ROWS,
    patience: int = PATIENCE,
    by_fit: bool = False,
    quick: bool = False,
    folder: str = "",
) -> Iterator[tuple[str, list[dict[str, Scores]]]]:
    """Yields each problem with the scores of the methods in each split.

    Args:
      problems: names of data.
      splits: the number of splits.
      first_split: the number of the first.
      units: widths of the hidden layers of dense networks.
      rows: the most rows of stored data.
      patience: the epochs after which a member stops.
      by_fit: trains members by `fit`, one after another, and compares the processor times.
      quick: two epochs and one split.
      folder: keeps the scores of each problem and split, which a later call reads again.
    """
    tf.get_logger().setLevel("ERROR")
    for name in problems:
        found = []
        table = TABLES[name](rows)
        is_timed = by_fit or name in NETWORKS
        train = make_trainer(is_timed, 2 if quick else EPOCHS, patience)
        for seed in range(first_split, first_split + (1 if quick else splits)):
            width = "-".join(map(str, units))
            if (rows, patience) != (ROWS, PATIENCE):
                width += f"_{rows}_{patience}"
            width += "_fit" * by_fit
            file = f"{name}_{width}_{seed}{'_quick' * quick}"
            make = functools.partial(compare, table, seed, units, train, is_timed)
            found.append(kept_result(folder, file, make))
            print(name, seed, found[-1], flush=True)
        yield name, found


def compare(
    table: Table, seed: int, units: Sequence[int], train: Callable[..., Any], is_timed: bool = True
) -> dict[str, Scores]:
    """Returns the scores of the methods in one split, and with `is_timed` their processor times."""
    data, clock = split(table, seed), time.process_time
    start = clock()
    models = [make_model(data, table, units, [seed, i]) for i in range(MEMBERS)]
    samples, used = train(models, data, seed)
    cpu = {"DE5": clock() - start}
    cpu["Adam"] = cpu["DE5"] / MEMBERS
    ensemble = sgmcmc.keras.Posterior(models[0], models[0].weights, samples)
    posteriors = {"DE5": ensemble, "Adam": ensemble.with_samples([s[:1] for s in samples])}

    start = clock()
    share = 1 - data.num_validation / len(data.x)
    passes = max(1, round(used * share))
    model = make_model(data, table, units, [seed, MEMBERS])
    sampler = sgmcmc.keras.SamplerCallback(seed=seed)
    model.fit(data.x, data.y, epochs=passes, batch_size=BATCH, callbacks=[sampler], verbose=0)
    posteriors["annealed"], cpu["annealed"] = sampler.posterior, clock() - start

    found: dict[str, Any] = {}
    for method, posterior in posteriors.items():
        start = clock()
        found[method] = scores(posterior, data)
        if is_timed:
            found[method] |= {"fit": cpu[method], "predict": clock() - start}
    keras.backend.clear_session()
    for method in found:
        found[method]["epochs"] = passes if method == "annealed" else used
    return found


def make_model(
    data: Split, table: Table, units: Sequence[int], seed: list[int], dropout: float = 0.0
) -> keras.Model:
    """Returns a compiled network; `dropout` is the share behind each dense layer."""
    keras.utils.set_random_seed(int(np.random.default_rng(seed).integers(2**31)))
    inputs = keras.Input(data.x.shape[1:])
    x = inputs if table.network is None else table.network(inputs)
    for n in units if table.network is None else ():
        x = keras.layers.Dense(n, "relu")(x)
        x = keras.layers.Dropout(dropout)(x) if dropout else x
    model = keras.Model(inputs, keras.layers.Dense(table.num_classes or 2)(x))
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = loss if table.num_classes else sgmcmc.keras.losses.GaussianNLL()
    model.compile("adam", loss)
    return model


def make_trainer(by_fit: bool, epochs: int, patience: int) -> Callable[..., Any]:
    """Returns a function that trains members with early stopping.

    It maps the models, a split and a seed to the weights of the members, `[members, ...]` for each
    variable, and the mean number of epochs.
    """
    if by_fit:
        return functools.partial(train_by_fit, epochs=epochs, patience=patience)
    made: list[Trainer] = []

    def train(models: list[keras.Model], data: Split, seed: int) -> tuple[list[Any], float]:
        if not made:
            made.append(Trainer(models[0], BATCH))
        n, starts = data.num_validation, [model.get_weights() for model in models]
        parts = (data.x[n:], data.y[n:]), (data.x[:n], data.y[:n])
        weights, used = made[0](starts, *parts, epochs, patience, [seed, MEMBERS])
        return weights, float(used.mean())

    return train


def train_by_fit(
    models: list[keras.Model], data: Split, seed: int, epochs: int, patience: int
) -> tuple[list[Any], float]:
    """Trains members by `fit`; see `make_trainer`."""
    del seed  # of Keras, which the models have set
    n, used = data.num_validation, []
    for model in models:
        stop = keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
        history = model.fit(
            data.x[n:], data.y[n:], validation_data=(data.x[:n], data.y[:n]), epochs=epochs,
            batch_size=BATCH, callbacks=[stop], verbose=0,
        )  # fmt: skip
        used.append(len(history.epoch))
    weights = zip(*(model.get_weights() for model in models), strict=True)
    return [np.stack(values) for values in weights], float(np.mean(used))


def scores(posterior: sgmcmc.keras.Posterior, data: Split) -> Scores:
    """Returns the scores of the mean prediction on the test rows."""
    found = posterior.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)
    is_classification = found.accuracy is not None
    return {
        "nll": -found.log_predictive_density,
        "error": 1 - found.accuracy if is_classification else found.root_mean_squared_error,
        "calibration": found.expected_calibration_error if is_classification else found.coverage,
    }


def difference(
    by_split: list[dict[str, Scores]], method: str, reference: str = "DE5"
) -> tuple[float, float]:
    """Returns the mean difference of a method's NLL from another's, and its standard error."""
    gaps = np.array([s[method]["nll"] - s[reference]["nll"] for s in by_split])
    error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
    return float(gaps.mean()), float(error)


def show(found: Iterable[tuple[str, list[dict[str, Scores]]]]) -> dict[str, Printed]:
    """Prints the table; returns it."""
    lines = []
    for name, by_split in found:
        is_timed = "fit" in by_split[0]["DE5"]
        for method in METHODS:
            mean = {
                key: float(np.mean([s[method][key] for s in by_split]))
                for key in ("nll", "error", "calibration")
            }
            shares = {
                key: float(np.mean([s[method][key] / s["DE5"]["fit"] for s in by_split]))
                for key in ("fit", "predict") * is_timed
            }
            gap, error = difference(by_split, method)
            shown = "" if method == "DE5" else f"{gap:+.3f} +- {error:.3f}"
            lines.append([
                name if method == METHODS[0] else "", method, f"{mean['nll']:.3f}", shown,
                f"{mean['error']:.3f}", f"{mean['calibration']:.3f}",
                *(f"{shares[key]:.2f}" if is_timed else "" for key in ("fit", "predict")),
            ])  # fmt: skip
    heads = ["data", "method", "NLL", "NLL - DE5", "error", "calibration", "fit", "predict"]
    if not any(line[-1] for line in lines):
        heads, lines = heads[:-2], [line[:-2] for line in lines]
    return {"": command_line.print_table(dict.fromkeys(heads, ""), lines)}


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": TABLES}, table="ensembles")

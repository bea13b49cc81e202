"""`SamplerCallback()` against a deep ensemble and a single network, at equal passes over the data.

A network, by default d-50-50-classes with ReLU, is trained by Adam (learning rate 1e-3, batches of
32, at most 400 epochs), which stops when the loss on 15 % of the rows has not improved for 20
epochs (`--patience`), and goes back to its best weights. "Adam" is one such network, "DE5" the mean
prediction of five, and "annealed" is `fit` with `SamplerCallback()` and no other argument, on all
rows, with as many gradients for each of its five chains as a member took on average. "convnet" and
"batchnorm" are networks of images (see `networks.py`). Regressions have a mean and a scale. Splits
have numbers; test rows are 20 %, or half of the stored data, of which `--rows` are taken.

The table gives the means over splits of NLL (in nats), error (share of wrong classes, or root mean
squared error), calibration (expected error over 15 bins, or coverage of 90 % intervals), and the
difference of each NLL from DE5's, paired by split, with its standard error. "cpu" is the processor
time of all `fit`s, compilation and predictions, divided by that of DE5.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.tables import Table as Printed
from benchmarks.predictions.tabular import ROWS, TABLES, Split, Table, split

MEMBERS, EPOCHS, PATIENCE, BATCH = 5, 400, 20, 32
METHODS = ("Adam", "DE5", "annealed")
Scores = dict[str, float]


def run(
    *,
    problems: tuple[str, ...] = tuple(TABLES),
    splits: int = 5,
    first_split: int = 0,
    units: tuple[int, ...] = (50, 50),
    rows: int = ROWS,
    patience: int = PATIENCE,
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
      quick: two epochs and one split.
      folder: keeps the scores of each problem and split, which a later call reads again.
    """
    tf.get_logger().setLevel("ERROR")
    for name in problems:
        found = []
        for seed in range(first_split, first_split + (1 if quick else splits)):
            width = "-".join(map(str, units))
            if (rows, patience) != (ROWS, PATIENCE):
                width += f"_{rows}_{patience}"
            path = Path(folder, f"{name}_{width}_{seed}{'_quick' * quick}.json")
            if folder and path.is_file():
                found.append(json.loads(path.read_text(encoding="utf-8")))
                continue
            found.append(compare(name, seed, units, 2 if quick else EPOCHS, rows, patience))
            if folder:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(found[-1], indent=1), encoding="utf-8")
        yield name, found


def compare(
    name: str,
    seed: int,
    units: Sequence[int],
    epochs: int,
    rows: int = ROWS,
    patience: int = PATIENCE,
) -> dict[str, Scores]:
    """Returns the scores of the methods in one split."""
    table = TABLES[name](rows)
    data = split(table, seed)
    start = time.process_time()
    members, used = [], []
    for member in range(MEMBERS):
        model = make_model(data, table, units, [seed, member])
        used.append(train(model, data, epochs, patience))
        members.append(model.get_weights())
    variables = model.weights  # with the statistics of BatchNormalization
    samples = [np.stack(values) for values in zip(*members, strict=True)]
    ensemble = sgmcmc.keras.Posterior(model, variables, samples)
    found = {"DE5": scores(ensemble, data)}
    found["DE5"]["cpu"] = trained = time.process_time() - start
    single = ensemble.with_samples([s[:1] for s in samples])
    found["Adam"] = scores(single, data) | {"cpu": trained / MEMBERS}

    start = time.process_time()
    share = 1 - data.num_validation / len(data.x)
    passes = max(1, round(float(np.mean(used)) * share))
    model = make_model(data, table, units, [seed, MEMBERS])
    sampler = sgmcmc.keras.SamplerCallback(seed=seed)
    model.fit(data.x, data.y, epochs=passes, batch_size=BATCH, callbacks=[sampler], verbose=0)
    found["annealed"] = scores(sampler.posterior, data)
    found["annealed"]["cpu"] = time.process_time() - start
    keras.backend.clear_session()
    for method in found:
        found[method]["epochs"] = passes if method == "annealed" else float(np.mean(used))
    print(name, seed, {m: round(s["nll"], 4) for m, s in found.items()},
          sampler.result.windows, f"cpu {found['annealed']['cpu'] / trained:.2f}",
          flush=True)  # fmt: skip
    return found


def make_model(data: Split, table: Table, units: Sequence[int], seed: list[int]) -> keras.Model:
    """Returns a compiled network."""
    keras.utils.set_random_seed(int(np.random.default_rng(seed).integers(2**31)))
    inputs = keras.Input(data.x.shape[1:])
    x = inputs if table.network is None else table.network(inputs)
    for n in units if table.network is None else ():
        x = keras.layers.Dense(n, "relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(table.num_classes or 2)(x))
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss if table.num_classes else sgmcmc.keras.losses.GaussianNLL())
    return model


def train(model: keras.Model, data: Split, epochs: int, patience: int) -> int:
    """Trains with early stopping; returns the number of epochs."""
    n = data.num_validation
    stop = keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
    history = model.fit(
        data.x[n:], data.y[n:], validation_data=(data.x[:n], data.y[:n]), epochs=epochs,
        batch_size=BATCH, callbacks=[stop], verbose=0,
    )  # fmt: skip
    return len(history.epoch)


def scores(posterior: sgmcmc.keras.Posterior, data: Split) -> Scores:
    """Returns the scores of the mean prediction on the test rows."""
    found = posterior.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)
    is_classification = found.accuracy is not None
    return {
        "nll": -found.log_predictive_density,
        "error": 1 - found.accuracy if is_classification else found.root_mean_squared_error,
        "calibration": found.expected_calibration_error if is_classification else found.coverage,
    }


def difference(by_split: list[dict[str, Scores]], method: str) -> tuple[float, float]:
    """Returns the mean difference of a method's NLL from DE5's, and its standard error."""
    gaps = np.array([s[method]["nll"] - s["DE5"]["nll"] for s in by_split])
    error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
    return float(gaps.mean()), float(error)


def show(found: Iterable[tuple[str, list[dict[str, Scores]]]]) -> dict[str, Printed]:
    """Prints the table; returns it."""
    lines = []
    for name, by_split in found:
        for method in METHODS:
            mean = {
                key: float(np.mean([s[method][key] for s in by_split]))
                for key in by_split[0][method]
            }
            gap, error = difference(by_split, method)
            cpu = float(np.mean([s[method]["cpu"] / s["DE5"]["cpu"] for s in by_split]))
            shown = "" if method == "DE5" else f"{gap:+.3f} +- {error:.3f}"
            lines.append([
                name if method == METHODS[0] else "", method, f"{mean['nll']:.3f}", shown,
                f"{mean['error']:.3f}", f"{mean['calibration']:.3f}", f"{cpu:.2f}",
            ])  # fmt: skip
    heads = ("data", "method", "NLL", "NLL - DE5", "error", "calibration", "cpu")
    return {"": command_line.print_table(dict.fromkeys(heads, ""), lines)}


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": TABLES}, table="ensembles")

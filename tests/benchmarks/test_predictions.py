"""The table of predictions: scores by hand, real texts, and the mark of the best."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from benchmarks.common.tables import Table
from benchmarks.predictions import __main__ as command
from benchmarks.predictions import docstrings, ensembles, scores, side_by_side, tabular
from benchmarks.predictions.scores import Predicted

SHARES = np.array([0.25, 0.75])


def logits(*probabilities: list[list[float]]) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_scores_of_a_classification_are_those_of_averaged_probabilities() -> None:
    test = logits([[0.8, 0.2], [0.5, 0.5]], [[0.4, 0.6], [0.1, 0.9]])  # averages: 0.5, 0.2
    out = logits([[0.5, 0.5]], [[0.6, 0.4]])  # entropy between those of the two rows
    found = scores.classification(Predicted(test, out, SHARES), np.array([1, 1]))
    assert found.nll == pytest.approx(-(np.log(0.5) + np.log(0.8)) / 2)
    assert found.auroc == 0.5
    assert found.error == 0.5  # a tie goes to the first class
    assert np.isnan(found.crps)


def test_scores_of_a_regression_are_those_of_the_mixture() -> None:
    raw = np.log(np.expm1(2.0))  # the softplus of which is 2
    outputs = np.array([[[0.0, raw]], [[1.0, raw]]], np.float32)
    found = scores.regression(Predicted(outputs, None, SHARES), np.array([[3.0]], np.float32))
    density = SHARES @ scipy.stats.norm.pdf(3.0, [0.0, 1.0], 2.0)
    assert found.nll == pytest.approx(-np.log(density), rel=1e-3)
    assert found.error == pytest.approx(3 - 0.75, rel=1e-5)
    grid = np.linspace(-30, 30, 60_001)
    cdf = SHARES @ scipy.stats.norm.cdf(grid, [[0.0], [1.0]], 2.0)
    by_integral = np.trapezoid((cdf - (grid >= 3.0)) ** 2, grid)
    assert found.crps == pytest.approx(by_integral, rel=2e-3)


@pytest.mark.slow
def test_texts_are_real_and_come_in_the_same_order() -> None:
    x, y, others = docstrings.docstrings()
    assert len(x) == len(y) > 1000 and len(others) > 500
    assert set(y) == {*range(len(docstrings.PACKAGES))}
    assert x.max() < docstrings.VOCABULARY and (x > 0).sum(axis=1).min() >= docstrings.LEAST
    assert all(np.array_equal(a, b) for a, b in zip((x, y), docstrings.docstrings(), strict=False))


def row(method: str, nll: list[float]) -> command.Row:
    values = {key: np.full(len(nll), np.nan) for key in command.LOWER_IS_BETTER}
    return command.Row(method, {**values, "nll": np.array(nll)}, 1.0, 1.0, 1.0)


def test_the_best_and_those_that_cannot_be_told_from_it_are_marked() -> None:
    rows = [row("a", [1.0, 1.1, 1.2]), row("b", [1.1, 1.0, 1.3]), row("c", [2.0, 2.1, 2.2])]
    assert command.best(rows, "nll") == {"a", "b"}
    assert command.best(rows, "ece") == set()
    assert command.best([row("a", [2.0]), row("b", [1.0])], "nll") == {"b"}


def results(seed: int) -> list[dict[str, object]]:
    found = {key: float("nan") for key in command.LOWER_IS_BETTER}
    return [
        {"method": m, "scores": {**found, "nll": nll + seed}, "passes": 5, "seconds": 2.0,
         "megabytes": 0.25}
        for m, nll in (("a", 1.0), ("b", 0.5))
    ]  # fmt: skip


def test_scores_of_a_seed_are_kept_and_shown_in_a_table_of_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(self: command.Measure, seed: int) -> list[dict[str, object]]:
        asked.append(seed)
        return results(seed)

    monkeypatch.setattr(command.Measure, "_run", measured)
    for seeds in (1, 2, 2):
        found = command.run(problems=("digits, dense",), seeds=seeds, folder=str(tmp_path))
        tables = command.show(found)
    assert asked == [0, 1]
    assert tables == {
        "Digits, dense": Table(
            ("method", "NLL", "passes", "cpu s", "MB"),
            [("a", "1.500 ~ 0.707", "5", "2", "0.25"), ("b", "1.000 ~ 0.707*", "5", "2", "0.25")],
        )
    }


def test_splits_are_in_units_of_the_rows_that_are_not_test_data() -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, size=[100, 4])
    table = tabular.Table(x, x[:, 0], 0)
    first, again, other = (tabular.split(table, seed) for seed in (1, 1, 2))
    assert len(first.x_test) == 20 and len(first.x) == 80 and first.num_validation == 12
    np.testing.assert_allclose(first.x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(first.y.std(axis=0), 1, rtol=1e-6)
    np.testing.assert_array_equal(first.x, again.x)
    assert np.abs(first.x - other.x).max() > 0.1
    together = np.concatenate([first.x, first.x_test])
    assert len(np.unique(together[:, 0])) == 100


def test_differences_of_ensembles_are_paired(capsys: pytest.CaptureFixture[str]) -> None:
    gaps = [-0.1, -0.3, -0.2]
    by_split = [
        {
            name: {"nll": base + gap * (name == "annealed"), "error": 0.1, "calibration": 0.0,
                   "fit": 2.0 if name == "DE5" else 1.0, "predict": 0.5}
            for name in ensembles.METHODS
        }
        for base, gap in zip([1.0, 5.0, 9.0], gaps, strict=True)
    ]  # fmt: skip
    gap, error = ensembles.difference(by_split, "annealed")
    assert gap == pytest.approx(-0.2) and error == pytest.approx(0.1 / 3**0.5)
    assert ensembles.difference(by_split, "DE5") == (0.0, 0.0)
    ((_, table),) = ensembles.show([("made up", by_split)]).items()
    assert table.lines[2][2:5] == ("4.800", "-0.200 +- 0.058", "0.100")
    assert table.lines[2][-2:] == ("0.50", "0.25") and "made up" in capsys.readouterr().out


@pytest.mark.thorough
def test_networks_side_by_side_train_as_fit_does_with_one() -> None:
    """Whole batches of all rows, so that the order of rows does not matter; the last is short."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[48, 3]).astype(np.float32)
    y, validation = rng.integers(0, 4, size=48), slice(0, 40)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(side_by_side.RATE), loss, jit_compile=False)
    start = model.get_weights()
    starts = [start, [0 * w for w in start]]
    found, taken = side_by_side.Trainer(model, 100)(
        starts, (x, y), (x[validation], y[validation]), epochs=6, patience=3, seed=[0]
    )
    model.fit(x, y, batch_size=100, epochs=6, shuffle=False, verbose=0)
    assert taken.tolist() == [6, 6]
    for want, got in zip(model.get_weights(), found, strict=True):
        np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-6)


def test_networks_side_by_side_stop_at_their_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of the losses 3, 1, 2, 2 counts at a patience of 2; the other network goes on."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    trainer = side_by_side.Trainer(model, 10)
    losses = iter([[3.0, 9.0], [1.0, 8.0], [2.0, 7.0], [2.0, 6.0], [0.0, 5.0]])

    def take_epoch(weights: Any, moments: Any, steps: Any, *_: Any) -> Any:
        return [w + 1 for w in weights], moments, steps, tf.constant(next(losses))

    monkeypatch.setattr(trainer, "_epoch", take_epoch)
    starts = [[np.zeros([1, 1], np.float32), np.zeros([1], np.float32)]] * 2
    data = np.zeros([4, 1], np.float32), np.zeros([4, 1], np.float32)
    found, taken = trainer(starts, data, data, epochs=5, patience=2, seed=[0])
    assert taken.tolist() == [4, 5]
    assert found[1].tolist() == [[2.0], [5.0]]


@pytest.mark.parametrize("name", ["heteroscedastic", "parity", "wide"])
def test_made_tables_have_their_classes(name: str) -> None:
    table = tabular.TABLES[name]()
    assert len(table.x) == len(table.y) and np.isfinite(table.x).all()
    if table.num_classes:
        assert set(np.unique(table.y)) == set(range(table.num_classes))

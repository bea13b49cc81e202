"""The tables of predictions: scores by hand, real texts, and trained networks."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from benchmarks.predictions import __main__ as command
from benchmarks.predictions import (
    docstrings,
    ensembles,
    methods,
    scores,
    side_by_side,
    study,
    tabular,
)
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


def test_scores_of_a_regression_are_those_of_the_mixture() -> None:
    raw = np.log(np.expm1(2.0))  # the softplus of which is 2
    outputs = np.array([[[0.0, raw]] * 2, [[1.0, raw]] * 2], np.float32)
    y = np.array([[3.0], [4.3]], np.float32)
    found = scores.regression(Predicted(outputs, outputs, SHARES), y)
    density, up_to = (
        SHARES @ law(y.T, [[0.0], [1.0]], 2.0)
        for law in (scipy.stats.norm.pdf, scipy.stats.norm.cdf)
    )
    assert found.nll == pytest.approx(-np.log(density).mean(), rel=1e-3)
    assert found.error == pytest.approx(np.sqrt(np.mean((y - 0.75) ** 2)), rel=1e-5)
    assert (up_to <= 0.95).tolist() == [True, False] and found.calibration == 0.5
    assert np.isnan(found.auroc)


@pytest.mark.slow
def test_texts_are_real_and_come_in_the_same_order() -> None:
    x, y, others = docstrings.docstrings()
    assert len(x) == len(y) > 1000 and len(others) > 500
    assert set(y) == {*range(len(docstrings.PACKAGES))}
    assert x.max() < docstrings.VOCABULARY and (x > 0).sum(axis=1).min() >= docstrings.LEAST
    assert all(np.array_equal(a, b) for a, b in zip((x, y), docstrings.docstrings(), strict=False))


def test_a_difference_counts_beyond_two_standard_errors_and_a_loss_beyond_a_margin() -> None:
    cases = [(-0.03, 0.01), (-0.01, 0.01), (0.009, 0.001), (0.03, 0.01), (0.03, 0.02)]
    assert [command.compared(*c) for c in cases] == ["better", "", "", "worse", ""]
    assert command.compared(-0.1, np.nan) == command.compared(0.1, np.nan) == ""


def figures(method: str, seed: int) -> dict[str, float]:
    gap = {"DE5": 0.0, "good": -0.1, "bad": 0.2}[method]
    return {
        "nll": 1.0 + seed + gap * (1 + seed / 10), "error": 0.25, "calibration": 0.1, "auroc": 0.5,
        "passes": 5.0, "seconds": 4.0 if method == "DE5" else 2.0, "megabytes": 0.5,
    }  # fmt: skip


def test_scores_of_a_split_are_kept_and_shown_beside_those_of_the_deep_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(table: tabular.Table, seed: int, *_: Any) -> dict[str, Any]:
        asked.append(seed)
        return {method: figures(method, seed) for method in ("DE5", "good", "bad")}

    monkeypatch.setattr(command, "compare", measured)
    for splits in (1, 2, 2):
        tables = command.show(command.run(problems=("moons",), splits=splits, folder=str(tmp_path)))
    assert asked == [0, 1]
    summary, each = tables.values()
    assert summary.lines == [
        ("DE5", "0", "0", "+0.000", "1.00", "0.50"),
        ("good", "1", "0", "-0.105", "0.50", "0.50"),
        ("bad", "0", "1", "+0.210", "0.50", "0.50"),
    ]
    assert each.lines[1] == (
        "", "good", "1.395", "-0.105 +- 0.005", "0.250", "0.100", "0.500", "5", "2", "0.50",
    )  # fmt: skip


TINY = tabular.Table(
    np.random.default_rng(0).normal(size=[100, 3]), np.random.default_rng(1).integers(0, 2, 100), 2
)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The gradient noise", "ignore:find_center")
def test_all_methods_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tabular.TABLES, "tiny", lambda: TINY)
    ((_, by_split),) = command.run(problems=("tiny",), units=(4,), quick=True)
    assert [*by_split[0]] == [*methods.METHODS]
    assert all(np.isfinite([*found.values()]).all() for found in by_split[0].values())


class Counted:
    """In place of a trainer: weights are the number of the epoch."""

    def __init__(self, *_: Any):
        pass

    def __call__(
        self, starts: Any, train: Any, validation: Any, epochs: int, patience: int, seed: Any,
        visit: Any = None,
    ) -> Any:  # fmt: skip
        self.rows = len(train[0]), patience
        weights = [np.stack([0 * w for w in part]) for part in zip(*starts, strict=True)]
        for k in range(1, epochs + 1):
            now = [tf.constant(w + k) for w in weights]
            if visit is not None:
                visit(now)
        return [w.numpy() for w in now], np.array([25, 23, 400, 30, 21])


def test_networks_are_refitted_to_all_rows_for_as_long_as_was_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best epoch is 20 before the last one, except where the limit of 400 ended training."""
    monkeypatch.setattr(study, "Trainer", Counted)
    made = study.Study(TINY, 0, (4,), quick=False)
    found, epochs = made.refitted()
    best = [5, 3, 400, 10, 1]
    assert epochs == np.mean(best) and [w.ravel()[0] for w in found[0]] == best
    assert made._trainer.rows == (80, 401)  # all rows, and no early stopping


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


@pytest.mark.thorough
def test_a_step_of_networks_side_by_side_has_the_rows_of_a_batch_alone() -> None:
    """A batch of a length unknown in the graph would be padded to the rows of an epoch."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", keras.losses.MeanSquaredError())
    shapes, masks = [], []
    trainer = side_by_side.Trainer(model, 10)
    losses = trainer._losses

    def watched(weights: Any, x: Any, y: Any, *step: Any) -> Any:
        shapes.append(x.shape.as_list())
        return losses(weights, x, y, *step)

    trainer._losses = watched  # type: ignore[method-assign]
    x, start = (
        np.ones([40, 1], np.float32),
        [np.ones([1, 1], np.float32), np.zeros([1], np.float32)],
    )
    trainer([start] * 2, (x, x), (x[:5], x[:5]), epochs=1, patience=1, seed=[0])
    assert shapes == [[2, 10, 1], [2, 5, 1]]
    weights = [tf.stack([w] * 2) for w in start]
    masks = [losses(weights, tf.ones([2, 10, 1]), tf.zeros([2, 10, 1]), k) for k in (0.0, 0.0, 1.0)]
    assert set(np.unique(masks[0])) == {0.0, 4.0}  # dropped, or doubled
    np.testing.assert_array_equal(masks[0], masks[1])
    assert np.any(masks[0] != masks[2])
    assert np.all(losses(weights, tf.ones([2, 10, 1]), tf.zeros([2, 10, 1])) == 1)


def test_inputs_of_another_law_are_turned_images_or_shuffled_columns() -> None:
    images = np.arange(40.0).reshape(10, 4)
    table = tabular.Table(images, np.arange(10) % 2, 2, is_scaled=True)
    turned = tabular.split(table._replace(side=2), 0)
    np.testing.assert_array_equal(turned.x_out[0], turned.x_test[0][[1, 3, 0, 2]])
    many = tabular.split(
        table._replace(x=np.arange(400.0).reshape(100, 4), y=np.arange(100) % 2), 0
    )
    assert np.any(many.x_out != many.x_test)
    np.testing.assert_array_equal(np.sort(many.x_out, axis=0), np.sort(many.x_test, axis=0))


@pytest.mark.parametrize("name", ["heteroscedastic", "parity", "waveforms", "wide"])
def test_made_tables_have_their_classes(name: str) -> None:
    table = tabular.TABLES[name]()
    assert len(table.x) == len(table.y) and np.isfinite(table.x).all()
    if table.num_classes:
        assert set(np.unique(table.y)) == set(range(table.num_classes))

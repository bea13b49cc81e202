"""The number of samples that a fit will keep, and their bytes, known before it starts."""

import itertools
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.small_models import affine, sampler, sequential, sgld, unit_normal
from tfp_sgmcmc.keras.chain.collection import NEVER, Collection
from tfp_sgmcmc.keras.records.fit_plan import num_due

N, B, D = 12, 4, 2
X = np.random.default_rng(0).normal(size=[N, D]).astype(np.float32)
Y = X[:, :1]


def regression(**compiled):
    return affine(unit_normal, 1, inputs=D, **compiled)


def fit(model, callback, x=X, y=Y, verbose=0, **arguments):
    arguments = {"batch_size": B, "shuffle": False, **arguments} if y is not None else arguments
    model.fit(x, y, verbose=verbose, callbacks=[callback], **arguments)
    return callback


def test_the_number_of_samples_is_that_of_the_steps_that_are_kept():
    """Counts step by step what the ring buffer would keep, in one fit and in a second one."""
    grid = itertools.product([0, 4], [0, 1, 4], [0, 2], [1, 3])
    for burnin, between, burnin_epochs, epochs in grid:
        collection = Collection(burnin, between, is_open=burnin_epochs > 0)
        first, step = collection.first, 0
        for fit_number in range(2):
            left = max(0, burnin_epochs - fit_number * epochs)
            planned = num_due(collection, step, first, 3, epochs, min(left, epochs))
            kept = 0
            for epoch in range(fit_number * epochs, (fit_number + 1) * epochs):
                if burnin_epochs and epoch == burnin_epochs:
                    first = max(step, burnin)
                due = [
                    t >= first and (t - first) % (between + 1) == 0 for t in range(step, step + 3)
                ]
                kept, step = kept + sum(due), step + 3
            assert planned == kept


def test_a_distance_or_a_threshold_gives_the_largest_number():
    assert num_due(Collection(2, distance=0.1), 0, 2, 3, 4, 0) == 10
    open_end = Collection(2, 1, is_open=True, has_threshold=True)
    assert num_due(open_end, 0, NEVER, 3, 4, 0) == 5
    assert num_due(open_end, 6, NEVER, 3, 2, 0) == 3
    assert num_due(open_end, 6, 5, 3, 2, 0) == 3  # steps 7, 9 and 11: burn-in has ended
    assert num_due(open_end, 0, NEVER, None, 4, 0) is None


def bytes_of(arrays):
    return sum(np.asarray(x).nbytes for x in arrays)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layers, num_chains",
    [
        ((), None),
        pytest.param((keras.layers.BatchNormalization(),), 2, marks=pytest.mark.thorough),
        pytest.param((), 2, marks=pytest.mark.thorough),
        pytest.param((keras.layers.BatchNormalization(),), None, marks=pytest.mark.thorough),
    ],
)
def test_bytes_are_those_of_the_samples_and_of_the_device(layers, num_chains):
    model = sequential(*layers, keras.layers.Dense(1), loss=unit_normal, inputs=D,
                       jit_compile=False, steps_per_execution=3)  # fmt: skip
    callback = sampler(sgld(), N, num_chains=num_chains, num_steps_between_results=1)
    plan = callback.plan(model, X, Y, epochs=3, batch_size=B)
    fit(model, callback, epochs=3)
    chain = callback.recorder.chain
    samples = [*callback.samples, *callback.result.non_trainable_samples.values()]
    assert len(samples) == 2 + 4 * len(layers)
    assert plan.num_samples == len(samples[0]) == 5 and plan.is_exact
    assert plan.memory == bytes_of(samples) == 5 * plan.bytes_of_sample
    assert plan.disk == 0
    stacked = chain.state._stacked.values()
    assert plan.device == bytes_of(chain.rings._rings) + bytes_of(stacked)


def test_bytes_on_disk_are_those_of_the_files(tmp_path):
    callback = sampler(sgld(), N, directory=tmp_path / "run", num_steps_between_results=1)
    model = regression()
    plan = callback.plan(model, X, Y, epochs=3, batch_size=B)
    fit(model, callback, epochs=3)
    files = [f for f in (tmp_path / "run" / "samples.zarr").rglob("c.*") if f.is_file()]
    assert plan.disk == sum(f.stat().st_size for f in files)
    assert plan.memory == 0 and f"on disk in {tmp_path / 'run'}" in str(plan)


def test_samples_that_do_not_fit_on_the_disk_are_refused(tmp_path, monkeypatch):
    model, directory = regression(), tmp_path / "new" / "run"
    callback = sampler(sgld(), N, directory=directory)
    need = callback.plan(model, X, Y, epochs=3, batch_size=B).disk
    before = model.get_weights()
    asked = []

    def usage(free):
        def found(path):
            asked.append(path)
            return shutil._ntuple_diskusage(10 * need, 0, free)

        return found

    monkeypatch.setattr(shutil, "disk_usage", usage(need - 1))
    with pytest.raises(OSError, match="room for the 9 samples .* Received: .*run, with .* free"):
        fit(model, callback, epochs=3)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert not len(callback.samples[0])
    monkeypatch.setattr(shutil, "disk_usage", usage(need))
    assert len(fit(model, callback, epochs=3).samples[0]) == 9
    assert all(Path(p).exists() and str(directory).startswith(str(p)) for p in asked)


def test_a_number_that_is_not_known_is_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    callback = sampler(sgld(), N, directory=tmp_path, keep=lambda step: step % 5 == 0)
    plan = callback.plan(regression(), X, Y, epochs=3, batch_size=B)
    assert (plan.num_samples, plan.is_exact) == (9, False) and "at most 9 samples" in str(plan)
    assert len(fit(regression(), callback, epochs=3).samples[0]) == 2


def test_all_kinds_of_data():
    model, callback = regression(), sampler(sgld(), N)
    rows = tf.data.Dataset.from_tensor_slices((X, Y))

    def count(x, **arguments):
        return callback.plan(model, x, epochs=2, **arguments).num_samples

    assert count({"x": X}, batch_size=5) == 6
    assert count(rows.batch(5)) == 6
    assert count(rows.repeat().batch(5)) is None
    assert count(rows.repeat().batch(5), steps_per_epoch=7) == 14
    assert count(callback.resident(X, Y, batch_size=3, steps_per_epoch=10)) == 20
    assert count(iter([(X, Y)])) is None
    assert "unknown number" in str(callback.plan(model, iter([(X, Y)])))
    deferred = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="model must be built.*a generator"):
        callback.plan(deferred, iter([(X, Y)]))
    assert callback.plan(deferred, X).bytes_of_sample == 12
    for bad in ({"epochs": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=f"{[*bad][0]} must be"):
            callback.plan(model, X, **bad)


def lines(capsys):
    return [x for x in capsys.readouterr().out.splitlines() if "Epoch" not in x and " - " not in x]


def test_a_verbose_fit_tells_the_plan_and_the_phases(capsys):
    model, callback = regression(), sampler(sgld(), N, num_burnin_steps=4)
    logs = model.fit(X, Y, batch_size=B, epochs=3, verbose=2, callbacks=[callback]).history
    assert lines(capsys) == [
        "Burn-in until step 4.",
        "This fit keeps 5 samples of 12 bytes each: 60 bytes in memory; 24 bytes on the device.",
        "Sampling since step 4 (2 samples so far).",
    ]
    assert logs["samples"] == [0, 2, 5]
    fit(model, callback, epochs=2, verbose=2)
    assert lines(capsys) == [
        "This fit keeps 6 samples of 12 bytes each: 72 bytes in memory; 24 bytes on the device."
    ]
    fit(model, callback, epochs=2)
    assert lines(capsys) == []
    assert len(callback.samples[0]) == 17


def test_phases_by_epochs_and_by_the_threshold(capsys):
    fit(regression(), sampler(sgld(), N, num_burnin_epochs=2), epochs=3, verbose=2)
    first, plan, second = lines(capsys)
    assert first == "Burn-in for 2 epochs." and second == "Sampling since step 6."
    assert plan.startswith("This fit keeps 3 samples")
    fit(regression(), sampler(sgld(), N, sampling_threshold=1e-12), epochs=2, verbose=2)
    first, plan = lines(capsys)
    assert first == "Burn-in until the sampling threshold is reached."
    assert plan.startswith("This fit keeps at most 6 samples")


@pytest.mark.thorough
def test_logs_count_samples_of_resident_data():
    model = regression(jit_compile=False)
    callback = sampler(sgld(), N, num_burnin_steps=5, num_steps_between_results=1)
    data = callback.resident(X, Y, batch_size=B, steps_per_call=4, steps_per_epoch=8)
    logs = model.fit(data, epochs=2, verbose=0, callbacks=[callback]).history
    assert logs["samples"] == [2, 6] and len(callback.samples[0]) == 6

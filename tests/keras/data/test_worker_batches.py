"""Batches of which each replica takes a share, and what is refused before a fit on workers."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import small_models
from tests.keras.small_models import sgld
from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.internal.replicas import check_cluster
from tfp_sgmcmc.keras import IndependentBatches, WorkerBatches
from tfp_sgmcmc.keras.batch_steps import WorkerGroup
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.records.fit_fingerprint import FitProblem

X = np.arange(30.0, dtype=np.float32).reshape([15, 2])
Y = np.arange(15) % 4


class InOrder(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]


class Endless(keras.utils.PyDataset):
    def __getitem__(self, i):
        return X, Y


@pytest.mark.parametrize("data", [InOrder(), IndependentBatches(X, Y, batch_size=7, seed=0)])
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 5])
def test_the_shares_of_all_replicas_are_the_batch(data, num_replicas):
    batches = WorkerBatches(data)
    for index in range(batches.num_batches):
        x, y = data[index]
        shares, total = batches.shares(index, range(num_replicas), num_replicas)
        assert total == len(x)
        np.testing.assert_array_equal(np.concatenate([s[0] for s in shares]), x)
        np.testing.assert_array_equal(np.concatenate([s[1] for s in shares]), y)
        sizes = [len(s[0]) for s in shares]
        assert max(sizes) - min(sizes) <= 1
        ((own, _, weight),), _ = batches.shares(index, [num_replicas - 1], num_replicas)
        np.testing.assert_array_equal(own, shares[-1][0])
        assert weight is None


def test_the_specification_is_the_same_for_all_replicas():
    """A worker that traces alone would wait for the others, so sizes that differ are unknown."""
    seven = iter(WorkerBatches(IndependentBatches(X, Y, batch_size=7)).get_tf_dataset())
    assert seven.spec(7)[0].shape == [1, 2]
    assert seven.spec(2)[0].shape.as_list() == [None, 2]
    short = iter(WorkerBatches(InOrder()).get_tf_dataset())
    assert short.spec(2)[0].shape.as_list() == [None, 2]
    assert short.spec(2)[2] is None


def test_one_process_takes_whole_batches():
    """Keras takes data of this class as they are; it fails here if it does so no longer."""
    runs = []
    for wrap in (lambda data: data, WorkerBatches):
        callback = small_models.sampler(sgld(1e-5), 15, small_models.standard_normal())
        model = small_models.affine(inputs=2, run_eagerly=True)
        data = wrap(IndependentBatches(X, Y, batch_size=5))
        validation = wrap(InOrder())
        logs = model.fit(
            data, epochs=2, verbose=0, callbacks=[callback], validation_data=validation
        ).history
        runs.append((callback.samples, logs))
    (plain, own_logs), (wrapped, logs) = runs
    assert len(plain[0]) == 6
    small_models.assert_equal(wrapped, plain)
    assert logs == own_logs


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X, Y), TypeError, "data must be IndependentBatches or another.*PyDataset.*a tuple"),
        (Endless(), ValueError, "data must have a length.*an Endless without one"),
    ],
)
def test_other_data_are_refused(data, error, words):
    with pytest.raises(error, match=words):
        WorkerBatches(data)


def test_resident_data_are_refused(monkeypatch):
    callback = small_models.sampler(sgld(), 15, small_models.standard_normal())
    resident = callback.resident(X, Y, batch_size=5)
    with pytest.raises(ValueError, match="cannot take resident data"):
        WorkerBatches(resident)
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="Resident data need .* one of 2 workers.*WorkerBatches"):
        callback.resident(X, Y, batch_size=5)


class ClusterOf:
    """Stands for a strategy over processes; a real one must be made before TensorFlow runs."""

    num_replicas_in_sync = 1

    def __init__(self, *addresses):
        self.cluster_resolver = self
        self.cluster_spec = lambda: tf.train.ClusterSpec({"worker": addresses} if addresses else {})


def test_a_strategy_without_a_cluster_is_refused(monkeypatch):
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", ClusterOf)
    model = type("Model", (), {"distribute_strategy": ClusterOf()})()
    with pytest.raises(ValueError, match="must have the addresses of its workers.*TF_CONFIG"):
        internals.check_distribution(model)
    check_cluster(ClusterOf("host:1"))


def test_differences_between_workers_are_named(monkeypatch):
    """The messages are those of three workers, of which the last has another seed and data."""
    monkeypatch.setattr(replicas, "are_several", lambda _: True)
    answers = []

    def exchanged(strategy, make):
        own = json.loads(make())
        answers.append(own)
        return [json.dumps(x).encode() for x in (own, own, {**own, "x": "00", "seed": 4})]

    monkeypatch.setattr(replicas, "exchanged", exchanged)
    model = small_models.linear()
    problem = FitProblem({"x": "ab"}, {"batch_size": 5})
    words = "on worker 2. Worker 0 has seed: 3, but worker 2 has 4; x: ab"
    with pytest.raises(ValueError, match=words):
        WorkerGroup().begin(model, lambda _: problem, False, {"seed": 3})
    assert {"version of keras", "seed", "batch_size", "x"} <= answers[0].keys()

    monkeypatch.setattr(replicas, "exchanged", lambda _, make: [make()] * 3)
    assert WorkerGroup().begin(model, lambda _: problem, False, {"seed": 3}) is problem


def test_an_error_on_one_worker_is_told_on_all(monkeypatch):
    """`messages` stands for two workers with the same message, and then for one that failed."""
    monkeypatch.setattr(replicas, "messages", lambda _, message: [message, message])
    assert replicas.exchanged(None, lambda: b"abc") == [b"abc", b"abc"]
    with pytest.raises(OSError, match="no such disk"):
        replicas.exchanged(None, lambda: (_ for _ in ()).throw(OSError("no such disk")))
    monkeypatch.setattr(replicas, "messages", lambda _, message: [b"-no such disk", message])
    with pytest.raises(ValueError, match="Worker 0 cannot go on: no such disk"):
        replicas.exchanged(None, lambda: b"abc")

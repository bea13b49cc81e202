"""Chains on two replicas; `test_two_replicas.py` runs this in a process with two logical CPUs.

Each test compares a chain with the chain on one device that has the same seed and batches.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.two_replicas import MIRRORED
from tests.keras import small_models
from tests.keras.small_models import assert_close, sgld
from tfp_sgmcmc.internal import replicas

N = 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])
WEIGHTS = RNG.uniform(0.2, 3.0, size=[N]).astype(np.float32)


def sgnht(target):
    return sgmcmc.SGNHT(target, step_size=0.01)


def sghmc(target):
    return sgmcmc.SGHMC(target, step_size=0.01, covariance="diag")


class Scale(keras.layers.Layer):
    """A layer whose scores have no closed form."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale


def classifier(strategy, *hidden, **compiled):
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(1)
        layers = [layer() for layer in hidden]
        layers += [keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.02))]
        arguments = {"run_eagerly": True, **compiled}
        return small_models.sequential(*layers, metrics=["accuracy"], **arguments)


def sampler(make_kernel_fn=None, num_examples=N, **arguments):
    prior = small_models.standard_normal()
    arguments = {"seed": 3, "independent_batches": False, **arguments}
    return small_models.sampler(make_kernel_fn or sgld(0.01), num_examples, prior, **arguments)


def fit(model, callback, rows=N, **arguments):
    arguments = {"batch_size": 4, **arguments}
    return small_models.fit(model, callback, X[:rows], Y[:rows], **arguments)


def assert_copies_are_equal(model, callback):
    state = callback.recorder.chain.state
    variables = [*state._results._variables, *tf.nest.flatten(state._early())]
    assert variables
    for variable in variables:
        first, second = (v.numpy() for v in variable.values)
        np.testing.assert_array_equal(first, second, err_msg=variable.name)


@pytest.mark.parametrize(
    "make_kernel_fn, rows, hidden, compiled",
    [
        (sgnht, 5, (), {"run_eagerly": False}),
        (sgld(0.01), N, (lambda: keras.layers.Dense(5, "tanh"),), {}),
    ],
    ids=["graph", "eager"],
)
def test_chain_is_that_of_one_device(make_kernel_fn, rows, hidden, compiled):
    """The replicas' shares of the last batch have 1 and 0 rows, or 2 and 1 rows."""
    runs = []
    for strategy in (None, MIRRORED):
        model = classifier(strategy, *hidden, **compiled)
        callback = sampler(make_kernel_fn, rows)
        logs = fit(model, callback, rows, sample_weight=WEIGHTS[:rows])
        runs.append((callback.samples, logs))
    (alone, own_logs), (together, logs) = runs
    assert len(together[0]) == 2
    assert_close(together, alone)
    assert logs.keys() == own_logs.keys() >= {"loss", "accuracy", "step_size", "temperature"}
    for name, values in logs.items():
        np.testing.assert_allclose(values, own_logs[name], rtol=1e-5, err_msg=name)
    assert_copies_are_equal(model, callback)


def test_an_annealed_ensemble_hides_the_same_rows():
    runs = []
    for strategy in (None, MIRRORED):
        model = classifier(strategy, run_eagerly=False, jit_compile=False)
        callback = sgmcmc.keras.SamplerCallback(seed=3, collect=sgmcmc.keras.Collect(0, 0))
        fit(model, callback, epochs=3)
        runs.append((callback.samples, callback.result.windows))
    (alone, windows), (together, same_windows) = runs
    assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert same_windows.windows == windows.windows and windows.num_rows == 2


def test_shares_that_are_not_summed_are_seen(monkeypatch):
    """Control: each replica goes by its own rows alone."""
    alone, together = (sampler(check_num_examples=False) for _ in range(2))
    fit(classifier(None), alone)
    model = classifier(MIRRORED)
    monkeypatch.setattr(replicas, "total", lambda values: values)
    fit(model, together)
    with pytest.raises(AssertionError):
        assert_close(together.samples, alone.samples)
    with pytest.raises(AssertionError):
        assert_copies_are_equal(model, together)


def low_rank(target):
    return sgmcmc.ModifiedSGLD(target, 0.01, covariance="low_rank")


@pytest.mark.parametrize("make_kernel_fn, hidden", [(sghmc, ()), (low_rank, (Scale,))])
def test_scores_are_those_of_all_rows(make_kernel_fn, hidden):
    """Scores come as factors, which give variances, and as rows, which the covariance keeps."""
    runs = []
    for strategy in (None, MIRRORED):
        data = tf.data.Dataset.from_tensor_slices((X[:4], Y[:4])).batch(2, drop_remainder=True)
        run = sampler(make_kernel_fn, check_num_examples=False)
        classifier(strategy, *hidden).fit(data, shuffle=False, verbose=0, callbacks=[run])
        runs.append((run.samples, tf.nest.flatten(run.recorder.chain.state.results)))
    for alone, together in zip(*runs, strict=True):
        assert_close(together, alone)


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": False}], ids=["eager", "graph"])
def test_independent_batches_are_split_over_replicas(compiled):
    """By Keras, and in shares: each replica has other rows of the batch."""
    runs, logs = [], []
    for strategy, wrap in (
        (None, lambda data: data),
        (MIRRORED, lambda data: data),
        (MIRRORED, sgmcmc.keras.WorkerBatches),
    ):
        data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=4, steps_per_epoch=2)
        run, model = sampler(sghmc, independent_batches=None), classifier(strategy, **compiled)
        logs.append(model.fit(wrap(data), epochs=2, verbose=0, callbacks=[run]).history)
        runs.append(run.samples)
    assert len(runs[0][0]) == 4
    for samples, history in zip(runs[1:], logs[1:], strict=True):
        assert_close(samples, runs[0])
        for name, values in history.items():
            np.testing.assert_allclose(values, logs[0][name], rtol=1e-5, err_msg=name)
    assert "get_metrics_result" not in vars(model)
    assert_copies_are_equal(model, run)


def test_a_mixing_distance():
    """The sum of the steps is on both replicas."""
    runs = []
    for strategy in (None, MIRRORED):
        data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=4, steps_per_epoch=6)
        schedule = sgmcmc.schedules.PolynomialDecay(a=0.02)
        run = sampler(sgld(schedule), mixing_distance=0.025)
        model = classifier(strategy)
        model.fit(data, verbose=0, callbacks=[run])
        runs.append(run)
    alone, together = runs
    assert 1 < len(alone.result.trace["step"]) < 6
    np.testing.assert_array_equal(together.result.trace["step"], alone.result.trace["step"])
    assert_close(together.samples, alone.samples)
    assert_copies_are_equal(model, together)


def test_growing_batches_are_refused():
    data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=6, steps_per_epoch=1, growth=1.1)
    with pytest.raises(ValueError, match="on one replica for batches that grow.*Received: 2"):
        classifier(MIRRORED).fit(data, verbose=0, callbacks=[sampler(check_num_examples=False)])


def test_layers_see_the_rows_of_a_replica():
    """On a batch of two equal halves, layers do what they do on one half on one device.

    BatchNormalization normalises by the half, and Dropout has the same masks in both halves. This
    holds for several chains, too.
    """
    hidden = (keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.5))
    alone, together = (sampler(check_num_examples=False, num_chains=2) for _ in range(2))
    fit(classifier(None, *hidden), alone, batch_size=3, rows=3, epochs=2)
    twice = np.concatenate([X[:3], X[:3]]), np.concatenate([Y[:3], Y[:3]])
    model = classifier(MIRRORED, *hidden)
    small_models.fit(model, together, *twice, batch_size=6, epochs=2)
    assert_close(together.samples, alone.samples)
    statistics = [run.result.non_trainable_samples.values() for run in (alone, together)]
    assert len(statistics[0]) == 2
    assert_close(*statistics)
    assert_close([together.predict(X).mean], [alone.predict(X).mean])
    assert_copies_are_equal(model, together)


def test_moving_statistics_are_means_over_all_rows():
    model = classifier(MIRRORED, lambda: keras.layers.BatchNormalization(momentum=0.5))
    callback = sampler()
    fit(model, callback)
    (moving_mean,) = [
        values for path, values in callback.result.non_trainable_samples.items() if "mean" in path
    ]
    expected = np.zeros([3])
    for mean, rows in zip(moving_mean, (X[:4], X[4:]), strict=True):
        expected = 0.5 * expected + 0.5 * rows.mean(axis=0)
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)
    assert_copies_are_equal(model, callback)


def test_a_loss_that_breaks_down_on_one_replica_ends_the_chain():
    model = classifier(MIRRORED)
    initial = model.get_weights()
    x = X.copy()
    x[6] = np.inf  # a row of the second replica's share of the second batch
    with pytest.raises(sgmcmc.NonFiniteChainError) as error:
        model.fit(x, Y, batch_size=4, shuffle=False, verbose=0, callbacks=[callback := sampler()])
    assert error.value.step == 1
    assert len(callback.samples[0]) == 1
    for weight, start, sample in zip(model.get_weights(), initial, callback.samples, strict=True):
        np.testing.assert_array_equal(weight, sample[0])
        assert np.abs(weight - start).max() > 1e-4


def test_examples_of_all_replicas_are_counted():
    with pytest.raises(ValueError, match="num_examples must be the number of .*Received: 5"):
        fit(classifier(MIRRORED), sampler(num_examples=5), rows=4)


def test_a_saved_chain_goes_on(tmp_path):
    once = sampler(num_examples=4)
    fit(classifier(None), once, rows=4, epochs=2)
    for epochs in (1, 2):
        keras.utils.clear_session()
        saved = sampler(num_examples=4, directory=tmp_path, seconds_between_commits=0.0)
        fit(classifier(MIRRORED), saved, rows=4, epochs=epochs)
    assert_close([np.asarray(s) for s in saved.samples], once.samples)


@pytest.mark.parametrize(
    "compiled, arguments, words",
    [
        ({}, {"noise_every": 2}, "noise_every must be None .* over 2 replicas"),
        ({}, {"num_groups": 2}, "num_groups must be None"),
        ({"steps_per_execution": 2}, {}, "under MirroredStrategy.*steps_per_execution=2"),
        ({"run_eagerly": False, "jit_compile": True}, {}, "jit_compile=True"),
    ],
)
def test_what_replicas_cannot_do(compiled, arguments, words):
    with pytest.raises(ValueError, match=words):
        sampler(**arguments).set_model(classifier(MIRRORED, **compiled))


def test_replicas_without_copies_of_the_weights():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with pytest.raises(ValueError, match="one of MirroredStrategy.*CentralStorageStrategy"):
        sampler().set_model(classifier(strategy))

"""Arguments of `SamplerCallback`: groups, numbers that are left out, and the flat ones of 0.2."""

import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tfp_sgmcmc.keras import Chains, Collect, SamplerCallback
from tfp_sgmcmc.keras.batch_steps import BatchSteps, BatchTrainFunction
from tfp_sgmcmc.keras.checks.fit_preflight import check_growth
from tfp_sgmcmc.keras.data import training_data
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals

CHECKS_CURVATURE = True
N = 12
X = np.random.default_rng(0).normal(size=[N, 3]).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Batches(keras.utils.PyDataset):
    """Three batches, of 5, 5 and 2 examples."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        return X[rows], Y[rows]


def sampler(**arguments):
    arguments = {"prior": None, "collect": Collect(0, 0), "seed": 0, **arguments}
    return SamplerCallback(small_models.sgld(), **arguments)


GRAPH = {"jit_compile": False}  # steps of several chains are traced once, not at each eager call


def fit(callback, *data, compiled=None, **arguments):
    model = small_models.linear(**compiled or {})
    arguments = {"verbose": 0, "shuffle": False, "callbacks": [callback], **arguments}
    model.fit(*data, **arguments)
    return model


def blind(monkeypatch):
    """Makes the search of the call stack find nothing."""
    nothing = types.SimpleNamespace(currentframe=lambda: None)
    monkeypatch.setattr(training_data, "inspect", nothing)


class TestNumberOfExamples:
    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(lambda s: (X, Y), marks=pytest.mark.thorough),
            pytest.param(lambda s: (Batches(),), marks=pytest.mark.thorough),
            pytest.param(lambda s: (s.resident(X, Y, batch_size=4),), marks=pytest.mark.thorough),
            pytest.param(lambda s: (s.data(X, Y, batch_size=4),), marks=pytest.mark.thorough),
            pytest.param(
                lambda s: (sgmcmc.keras.IndependentBatches(X, Y, batch_size=4),),
                marks=pytest.mark.thorough,
            ),
            pytest.param(
                lambda s: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(5),),
                marks=pytest.mark.thorough,
            ),
            lambda s: (tf.data.Dataset.range(N).map(lambda i: (X[0], Y[0])).batch(5),),
            pytest.param(
                lambda s: (
                    keras.utils.timeseries_dataset_from_array(X, Y, 1, batch_size=5).map(
                        lambda x, y: (x[:, 0], y)
                    ),
                ),
                marks=pytest.mark.thorough,
            ),
        ],
        ids=["arrays", "PyDataset", "resident", "data", "independent", "slices", "range", "series"],
    )
    def test_data_show_it(self, data):
        callback = sampler()
        fit(callback, *data(callback))
        assert callback.get_config()["num_examples"] == N

    @pytest.mark.parametrize("repeats", [None, 2])
    def test_repeated_data_do_not_show_it(self, repeats):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(repeats).batch(6)
        callback = sampler()
        with pytest.raises(ValueError, match="num_examples must be given.*tf.data.Dataset"):
            fit(callback, data, steps_per_epoch=2)
        assert len(callback.result.trace["step"]) == 0

    def test_a_generator_does_not_show_it(self):
        with pytest.raises(ValueError, match="num_examples must be given.*a generator"):
            fit(sampler(), ((X, Y) for _ in range(3)), steps_per_epoch=1)


class TestWithoutTheCallStack:
    def test_the_number_is_asked_for(self, monkeypatch):
        blind(monkeypatch)
        with pytest.raises(ValueError, match="num_examples must be given"):
            fit(sampler(), X, Y)

    @pytest.mark.thorough
    def test_data_of_the_callback_tell_all(self, monkeypatch):
        arguments = {"kernel": lambda t: sgmcmc.NOGIN(t, 1e-2, friction=10.0)}
        seen, unseen = (
            SamplerCallback(**arguments, prior=small_models.standard_normal(), seed=1)
            for _ in range(2)
        )
        fit(seen, seen.data(X, Y, batch_size=4), epochs=4)
        blind(monkeypatch)
        fit(unseen, unseen.data(X, Y, batch_size=4), epochs=4)
        assert seen.get_config() == unseen.get_config()
        small_models.assert_equal(seen.samples, unseen.samples)

    @pytest.mark.thorough
    def test_a_given_number_gives_the_same_chain(self, monkeypatch):
        samples = []
        for _ in range(2):
            callback = sampler(num_examples=N, collect=None, chains=2)
            fit(callback, X, Y, batch_size=4, epochs=2)
            samples.append(callback.samples)
            blind(monkeypatch)
        small_models.assert_equal(*samples)
        assert samples[0][0].shape[:2] == (3, 2)

    @pytest.mark.parametrize(
        "num_examples",
        [N, 2 * N],
        ids=["right", "control"],
    )
    @pytest.mark.thorough
    def test_the_posterior_is_right(self, monkeypatch, num_examples):
        """The mean of N = 12 numbers of unit variance, under a standard normal prior.

        1,600 draws of 400 chains have standard errors of 0.025 standard deviations for the mean
        and 3.5 % for the variance. The tolerances are five times as large, so the false-alarm rate
        is below 1e-5. With twice the N, the variance is too small by 40 %.
        """
        blind(monkeypatch)
        x, y = np.ones([N, 1], np.float32), X[:, :1] + np.float32(0.5)
        model = small_models.sequential(
            keras.layers.Dense(1, use_bias=False), loss=small_models.unit_normal, inputs=1,
            jit_compile=False,
        )  # fmt: skip
        callback = SamplerCallback(
            lambda target: sgmcmc.SGLD(target, step_size=0.04),
            prior=small_models.standard_normal(),
            collect=Collect(20, 9),
            chains=400,
            num_examples=num_examples,
            check_num_examples=False,
            seed=0,
        )
        model.fit(x, y, batch_size=N, epochs=51, verbose=0, callbacks=[callback])
        draws = callback.samples[0].ravel()
        assert len(draws) == 1600
        precision = N + 1
        # A step makes SGLD's variance larger by 1 / (1 - step_size * precision / 4).
        variance = 1 / precision / (1 - 0.04 * precision / 4)
        is_right = abs(draws.mean() - y.sum() / precision) < 5 * 0.025 * np.sqrt(variance)
        is_right = is_right and abs(draws.var() / variance - 1) < 5 * 0.035
        assert is_right == (num_examples == N)


class TestBurninAndThinning:
    def test_left_out_they_follow_from_the_first_fit(self):
        callback = sampler(collect=None)
        data = callback.resident(X, Y, batch_size=4, steps_per_call=100, steps_per_epoch=300)
        model = small_models.linear()
        model.run_eagerly = False  # a call of 100 steps is compiled
        model.fit(data, epochs=2, verbose=0, callbacks=[callback])
        numbers = callback.get_config()
        assert (numbers["num_burnin_steps"], numbers["num_steps_between_results"]) == (300, 2)
        assert len(callback.samples[0]) == 100
        model.fit(data, epochs=1, verbose=0, callbacks=[callback])
        assert len(callback.samples[0]) == 200
        assert np.ptp(np.diff(callback.result.trace["step"])) == 0
        assert callback.get_config() == numbers

    @pytest.mark.parametrize(
        ("collect", "numbers"),
        [
            (Collect(100), (100, 18)),
            (Collect(num_steps_between_results=0), (1000, 0)),
            (Collect(num_burnin_epochs=5), (0, 14)),
            (Collect(keep=lambda step: step > 3), (0, 0)),
            (Collect(mixing_distance=0.1), (1000, 0)),
            (Collect(sampling_threshold=0.1), (0, 9)),
        ],
        ids=["thinning", "burn-in", "epochs", "keep", "distance", "threshold"],
    )
    def test_each_is_chosen_for_itself(self, collect, numbers):
        assert collect.over(100, 20)[:2] == numbers

    @pytest.mark.thorough
    def test_a_stored_run_goes_on_with_its_numbers(self, tmp_path):
        numbers = []
        for epochs in (2, 4):
            callback = sampler(collect=None, output=tmp_path / "run")
            fit(callback, X, Y, batch_size=4, epochs=epochs)
            numbers.append(callback.get_config())
        assert numbers[0] == numbers[1]
        assert numbers[0]["num_burnin_steps"] == 3
        assert callback.result.trace["step"].tolist() == list(range(3, 12))

    def test_unknown_steps_are_asked_for(self):
        with pytest.raises(ValueError, match="collect must give burn-in and thinning"):
            fit(sampler(collect=None, num_examples=N), ((X, Y) for _ in range(2)))

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"num_burnin_steps": -1}, ValueError, "num_burnin_steps must be"),
            ({"num_burnin_epochs": 1.5}, TypeError, "num_burnin_epochs must be"),
            ({"keep": "always"}, ValueError, "keep must be"),
            ({"mixing_distance": 1.0, "num_steps_between_results": 1}, ValueError, "Only one of"),
            ({"num_burnin_epochs": 1, "sampling_threshold": 0.1}, ValueError, "Only one of"),
        ],
    )
    def test_bad_input(self, arguments, error, message):
        with pytest.raises(error, match=message):
            Collect(**arguments)


class TestGroups:
    def test_resume_is_honoured(self, tmp_path):
        path = tmp_path / "run"
        with pytest.raises(ValueError, match="holds no run, but resume is 'must'"):
            fit(sampler(output=sgmcmc.Directory(path, resume="must")), X, Y)
        callback = sampler(output=sgmcmc.Directory(path, resume="never"))
        model = fit(callback, X, Y)
        model.fit(X, Y, verbose=0, callbacks=[callback])  # its own run
        assert len(callback.samples[0]) == 2
        with pytest.raises(ValueError, match="holds a run already, but resume is 'never'"):
            fit(sampler(output=sgmcmc.Directory(path, resume="never")), X, Y)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"collect": 1000}, "collect must be a sgmcmc.keras.Collect"),
            ({"chains": 2.5}, "num_chains must be"),
            ({"output": 3}, "output must be"),
        ],
    )
    def test_bad_input(self, arguments, message):
        with pytest.raises(TypeError, match=message):
            sampler(**arguments)

    @pytest.mark.parametrize(
        ("starts", "error", "received"),
        [("modle", ValueError, "'modle'"), (3, TypeError, "an int"), (None, TypeError, "a None")],
    )
    def test_other_starts_are_refused(self, starts, error, received):
        expected = f'initial_states must be "initializers", "fresh", .*Received: {received}'
        with pytest.raises(error, match=expected):
            Chains(2, starts)

    def test_the_result_has_all_of_a_fit(self):
        callback = sampler(chains=Chains(2, "model"))
        fit(callback, X, Y, batch_size=4, epochs=2, compiled=GRAPH)
        found = callback.result
        assert found.trace["step"].tolist() == list(range(6))
        np.testing.assert_allclose(found.trace["step_size"], 1e-3)
        assert found.warnings == ()
        assert found.timings.compile_seconds > 0
        assert found.timings.steps_per_second > 0
        assert found.posterior.samples is not None
        assert "6 samples" in repr(found)


class TestFlatArguments:
    def test_they_sample_the_same_and_show_the_new_spelling(self):
        def make(target):
            return sgmcmc.SGLD(target, 1e-3)

        with pytest.warns(DeprecationWarning) as found:
            old = SamplerCallback(make, N, None, 1, num_chains=2, initial_states="model", seed=0)
        assert len(found) == 1
        assert str(found[0].message).endswith(
            "Write: SamplerCallback(kernel, num_examples=12, prior=None, seed=0, "
            "collect=Collect(1, 0), chains=Chains(2, initial_states='model'))"
        )
        new = sampler(num_examples=N, collect=Collect(1, 0), chains=Chains(2, "model"))
        for callback in (old, new):
            fit(callback, X, Y, batch_size=4, epochs=1, compiled=GRAPH)
        small_models.assert_equal(old.samples, new.samples)
        assert len(old.samples[0]) == 2

    def test_left_out_numbers_are_zero(self, tmp_path):
        with pytest.warns(DeprecationWarning, match=r"output=Directory\(directory, seconds"):
            old = SamplerCallback(
                "SGLD", N, None, step_size=1e-3, directory=tmp_path, seconds_between_commits=1.0
            )
        numbers = old.get_config()
        assert (numbers["num_burnin_steps"], numbers["num_steps_between_results"]) == (0, 0)

    @pytest.mark.parametrize(
        ("args", "kwargs", "message"),
        [
            ((N, None), {"collect": Collect(0)}, "collect or flat arguments"),
            ((N, None), {"prior": None}, "prior once"),
            ((N,), {"num_chains": 2}, "needs prior"),
            ((N, None, 0, 0, 0), {}, "kernel alone by position"),
            ((), {"prior": None, "directory": "a", "num_burnin_steps": 1}, "output=directory"),
            ((), {"prior": None, "num_burnin_steps": 1}, r"Collect\(num_burnin_steps=...\)"),
            ((), {"prior": None, "num_chains": 2}, "Write: chains=num_chains"),
        ],
    )
    def test_mixtures_are_refused(self, args, kwargs, message):
        with pytest.raises(TypeError, match=message):
            SamplerCallback("SGLD", *args, **kwargs)

    def test_moved_attributes_go_on(self):
        callback = sampler()
        fit(callback, X, Y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert callback.posterior is not None
            callback.predict(X[:2], verbose=0)
        for name in ("sample_steps", "sample_step_sizes", "non_trainable_samples", "choices",
                     "temperatures", "outputs"):  # fmt: skip
            with pytest.warns(DeprecationWarning, match=f"SamplerCallback.{name} is deprecated"):
                getattr(callback, name)


@pytest.mark.parametrize("num_burnin_steps", fast_settings([20, 0], 20))
def test_a_fit_that_is_stopped_in_the_burn_in_is_told(num_burnin_steps):
    callback = sampler(collect=Collect(num_burnin_steps, 0))
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e3, patience=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(callback, X, Y, batch_size=4, epochs=10, callbacks=[callback, stop])
    told = [str(w.message) for w in caught if "end of the burn-in" in str(w.message)]
    assert len(told) == (num_burnin_steps > 0)
    assert all("stopped in epoch 2, after 6 steps" in words for words in told)


def test_an_inner_optimizer_that_averages_weights_is_refused():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(use_ema=True)
    model.compile(keras.mixed_precision.LossScaleOptimizer(inner), loss=small_models.unit_normal)
    with pytest.raises(ValueError, match="must have use_ema=False"):
        internals.check_model(model)


def test_resident_data_on_several_replicas_are_refused():
    data = sampler().resident(X, Y, batch_size=4)
    strategy = types.SimpleNamespace(num_replicas_in_sync=2)
    model = types.SimpleNamespace(distribute_strategy=strategy)
    with pytest.raises(ValueError, match="on one device. Received: a model on 2 replicas"):
        check_growth(model, Source("resident data", dataset=data))


def test_a_failed_step_is_told_before_the_next():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(loss=small_models.unit_normal, run_eagerly=True)
    called = []

    class Fails(BatchSteps):
        def take(self, model, data):
            raise ZeroDivisionError

    steps = Fails(None, 32, None)
    function = BatchTrainFunction(
        model, steps, False, lambda: called.append("after"), lambda: None,
        after_failure=lambda: called.append("failure"),
    )  # fmt: skip
    function.install()
    with pytest.raises(ZeroDivisionError):
        function(iter([(X[:4], Y[:4])]))
    assert called == ["failure", "after"] and model.train_function is not function


def test_a_generator_shows_no_shapes_but_the_model_does():
    """A normalisation has moving statistics, which belong to a sample."""
    layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(loss=small_models.unit_normal)
    batches = ((X[:4], Y[:4]) for _ in range(3))
    plan = sampler(num_examples=len(X)).plan(model, batches, steps_per_epoch=3, epochs=2)
    assert plan.bytes_of_sample == 4 * sum(np.size(w) for w in model.get_weights())


def test_shuffled_batches_are_counted():
    """The short batch may come anywhere, as in the tutorials of TensorFlow on images."""
    pair = tuple(tf.data.Dataset.from_tensor_slices(a) for a in (X, Y))
    batches = tf.data.Dataset.zip(pair).batch(5).cache().shuffle(100).prefetch(2)
    for seed in range(3):
        tf.random.set_seed(seed)
        source = training_data.source_of(batches, None, 32, None)
        assert source.count() == N
    joined = tf.data.Dataset.zip(pair).batch(5)
    source = training_data.source_of(joined.concatenate(joined), None, 32, None)
    assert source.count() == 2 * N


def test_batches_of_other_lengths_are_not_counted_by_the_first():
    class Buckets(Batches):
        def __getitem__(self, index):
            rows = [slice(0, 4), slice(4, 9), slice(9, 12)][index]
            return X[rows], Y[rows]

    assert training_data.source_of(Buckets(), None, 32, None).count() is None
    assert training_data.source_of(Batches(), None, 32, None).count() == N


def test_swag_begins_in_the_second_half_of_what_fit_will_do():
    model = small_models.linear()
    swag = sgmcmc.keras.SWAG()
    model.fit(X, Y, epochs=12, initial_epoch=8, verbose=0, callbacks=[swag])
    assert swag._burn_in == 2 and len(swag.posterior()) > 0

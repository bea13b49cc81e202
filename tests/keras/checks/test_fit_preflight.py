"""Errors and warnings of `fit` before the first step and between epochs."""

import contextlib
import copy
import functools
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, assert_equal, sgld
from tfp_sgmcmc.internal import memory
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb

CHECKS_CURVATURE = True
N, D = 40, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
CURVATURE = float(np.linalg.eigvalsh(X.T @ X / 4 + np.eye(D))[-1])  # of the posterior at zero


def standard(make_kernel_fn=None, **arguments):
    prior = small_models.standard_normal()
    return small_models.sampler(make_kernel_fn or sgld(), N, prior, **arguments)


def classifier(loss=BINARY_CROSSENTROPY, units=1, **arguments):
    arguments = {"run_eagerly": True, **arguments}
    model = small_models.linear(loss, units, inputs=D, **arguments)
    model.set_weights([np.zeros([D, units], np.float32)])
    return model


fit = functools.partial(small_models.fit, x=X, y=Y, batch_size=N)


def messages(model, callback, **arguments):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(model, callback, **arguments)
    return [str(w.message) for w in found]


class TestStability:
    """The limit of SGLD is 4 / lambda for epsilon, that of the others 2 / sqrt(lambda) for h."""

    KERNELS = {
        "SGLD": (sgmcmc.SGLD, 4 / CURVATURE),
        "NOGIN": (functools.partial(sgmcmc.NOGIN, covariance="diag"), 2 / CURVATURE**0.5),
    }

    @pytest.mark.parametrize("name", fast_settings(KERNELS, "SGLD"))
    @pytest.mark.parametrize("num_chains", [None, pytest.param(2, marks=pytest.mark.slow)])
    def test_a_step_above_the_limit_is_told_before_the_first_step(self, name, num_chains):
        kernel, limit = self.KERNELS[name]
        for share, is_told in ((0.97, False), (1.03, True)):
            callback = standard(
                lambda target, step=share * limit: kernel(target, step),
                num_chains=num_chains,
                num_burnin_steps=1,
            )
            model = classifier()
            told = messages(model, callback)
            assert all(m.startswith("step_size must be below") for m in told)
            assert bool(told) == is_told  # at the start, and perhaps once later
            assert not is_told or f"must be below {limit:.3g}" in told[0]

    @pytest.mark.parametrize(
        "scheme", [pytest.param("midpoint", marks=pytest.mark.thorough), "euler"]
    )
    def test_a_sigma_beyond_the_explicit_scheme_is_told(self, scheme):
        """The friction by Sigma, h^2 / 2 times its largest eigenvalue, is 2.2 and then 0.22."""
        v = np.cov((X * (0.5 - Y)).T)
        h = (2 * 2.2 / (N * (N - 2) / 2 * np.linalg.eigvalsh(v)[-1])) ** 0.5
        for size, is_told in ((h, scheme == "euler"), (h / 10**0.5, False)):
            callback = standard(
                lambda target, size=size: sgmcmc.CCAdL(
                    target, size, covariance="full", scheme=scheme
                ),
                independent_batches=False,
                check_num_examples=False,
                num_burnin_steps=1,
            )
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                with contextlib.suppress(sgmcmc.NonFiniteChainError):
                    fit(classifier(), callback, batch_size=2, steps_per_epoch=3)
            told = [str(w.message) for w in found]
            told = [m for m in told if m.startswith("step_size must be below")]
            assert bool(told) == is_told
            assert not told or "eigenvalue of Sigma" in told[0]

    def test_curvature_that_grows_is_noticed(self):
        """With a quartic prior the curvature grows as the chain leaves its start."""

        def log_prior(state):
            return -1e3 * tf.reduce_sum(state[0] ** 4) + 60.0 * tf.reduce_sum(state[0])

        callback = small_models.sampler(sgld(0.01, 0.0), N, log_prior)
        told = messages(classifier(), callback, epochs=2)
        assert len(told) == 1 and "to be stable after 1 steps" in told[0]

    @pytest.mark.thorough
    def test_it_is_told_at_the_start_and_once_later(self):
        told = messages(classifier(), standard(sgld(1.5 * 4 / CURVATURE)), epochs=8)
        assert len(told) <= 2 and "where the chain starts" in told[0]

    @pytest.mark.thorough
    def test_hessian_products_are_traced_once(self, monkeypatch):
        """A step near the limit needs twelve at each look, after two that are computed eagerly."""
        estimate, calls = ModelLogProb.estimate, list[bool]()

        def counted(self, *arguments, **options):
            calls.append(tf.executing_eagerly())
            return estimate(self, *arguments, **options)

        monkeypatch.setattr(ModelLogProb, "estimate", counted)
        found = []
        for epochs in (2, 4):  # the last look is after these
            calls.clear()
            told = messages(
                classifier(run_eagerly=False), standard(sgld(3.6 / CURVATURE)), epochs=epochs
            )
            assert told == []
            found.append((calls.count(True), calls.count(False)))
        assert found[1] == (found[0][0] + 2, found[0][1])

    def test_a_layer_without_second_derivatives_is_left_alone(self):
        @tf.custom_gradient
        def once(x):
            return tf.identity(x), lambda upstream: tf.raw_ops.PreventGradient(input=upstream)

        model = small_models.sequential(
            keras.layers.Dense(1), keras.layers.Lambda(once), loss=BINARY_CROSSENTROPY, inputs=D
        )
        assert messages(model, standard(sgld(0.5))) == []


@pytest.mark.slow
@pytest.mark.parametrize("step_size, is_told", [(0.02, True), (0.004, False)])
def test_a_step_too_large_on_mnist_is_told(step_size, is_told):
    """With 100 projections of MNIST 7 v 9 the limit of NOGIN is 0.0146 at the mode.

    At the start, where the logistic curvature is largest, it is 0.0058.
    """
    x, y, _, _ = datasets.mnist_7v9(num_features=100, intercept=False)
    model = small_models.linear(BINARY_CROSSENTROPY, 1, inputs=100, jit_compile=False)
    callback = small_models.sampler(
        lambda target: sgmcmc.NOGIN(target, step_size), len(x), small_models.standard_normal()
    )
    data = sgmcmc.keras.IndependentBatches(x, y[:, None], batch_size=500, steps_per_epoch=2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(data, verbose=0, callbacks=[callback])
    told = [str(w.message) for w in found if "step_size must be below" in str(w.message)]
    assert bool(told) == is_told, told  # at the start, and perhaps once later


def test_skipped_minibatches_are_told():
    """Scores whose squares overflow leave the gradient finite, and Sigma learns nothing."""
    x = X.copy()
    x[:5] = 3e19
    model = classifier(lambda y, f: 1e-3 * f)
    callback = standard(
        lambda target: sgmcmc.SGHMC(target, 1e-20, 1.0, covariance="diag"),
        independent_batches=False,
    )
    told = messages(model, callback, x=x, batch_size=20)
    assert any("scores in 1 minibatches of this epoch" in m for m in told), told


class TestSecondFit:
    @pytest.mark.thorough
    def test_other_data_are_refused(self):
        callback, model = standard(), classifier()
        fit(model, callback)
        before = [np.array(s) for s in callback.samples]
        for changes in ({"x": X + 1}, {"y": 1 - Y}, {"sample_weight": np.full(N, 1.5)}):
            with pytest.raises(ValueError, match="samples must come from one posterior"):
                fit(model, callback, **changes)
        assert_equal(callback.samples, before)
        fit(model, callback, batch_size=10, epochs=2)  # other batches of the same data
        assert len(callback.samples[0]) == 9

    def test_data_that_were_changed_in_place_are_refused(self):
        callback, model, x = standard(), classifier(), X.copy()
        fit(model, callback, x=x)
        x += 1
        with pytest.raises(ValueError, match="from one posterior. Received: another x"):
            fit(model, callback, x=x)

    def test_another_loss_is_refused(self):
        """The same one, compiled again, is accepted."""
        callback, model = standard(), classifier()
        for loss in (BINARY_CROSSENTROPY, keras.losses.BinaryCrossentropy(from_logits=True)):
            model.compile(loss=loss, run_eagerly=True)
            fit(model, callback)
        smooth = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)
        model.compile(loss=smooth, run_eagerly=True)
        with pytest.raises(ValueError, match="from one posterior. Received: another log posterior"):
            fit(model, callback)
        assert len(callback.samples[0]) == 2 and model.loss is smooth

    def test_another_loss_of_other_labels_is_refused(self):
        sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        callback, model = standard(), classifier(sparse, units=2)
        fit(model, callback, y=Y[:, 0])
        model.compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True))
        with pytest.raises(ValueError, match="from one posterior. Received: another y"):
            fit(model, callback, y=keras.utils.to_categorical(Y[:, 0]))

    @pytest.mark.parametrize("chains", fast_settings([None, 2], None))
    def test_weights_that_were_set_since_the_last_fit_are_told(self, chains):
        """They are the state of a single chain; several chains have states of their own."""
        callback, model = standard(chains=chains), classifier(run_eagerly=chains is None)
        fit(model, callback, epochs=2)
        said = [m for m in messages(model, callback) if "must have the weights that" in m]
        model.set_weights([np.ones([D, 1], np.float32)])
        after = [m for m in messages(model, callback) if "must have the weights that" in m]
        assert not said and len(after) == (chains is None)

    def test_weights_that_early_stopping_restores_are_told(self):
        """Its order among the callbacks makes no difference."""
        for is_first in (False, True):
            callback, model = standard(), classifier()
            stop = keras.callbacks.EarlyStopping("samples", mode="min", restore_best_weights=True)
            callbacks = [stop, callback] if is_first else [callback, stop]
            model.fit(X, Y, batch_size=N, epochs=5, verbose=0, callbacks=callbacks)
            with pytest.warns(UserWarning, match="EarlyStopping with restore_best_weights"):
                fit(model, callback)

    @pytest.mark.thorough
    def test_the_same_data_in_another_form_are_accepted(self):
        callback, model = standard(), classifier()
        fit(model, callback)
        fit(model, callback, x=X.astype(np.float64), y=Y.astype(int))
        model.fit(callback.resident(X, Y, batch_size=N), verbose=0, callbacks=[callback])
        data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=N)
        model.fit(data, verbose=0, callbacks=[callback])
        assert len(callback.samples[0]) == 4


class TestWeights:
    @pytest.mark.parametrize(
        "weights, is_told",
        [
            pytest.param(
                {"class_weight": {0: 1 / 20, 1: 1 / 20}}, True, marks=pytest.mark.thorough
            ),
            pytest.param({"class_weight": {0: 0.8, 1: 1.2}}, False, marks=pytest.mark.thorough),
            pytest.param({"sample_weight": np.full(N, 1 / N)}, True, marks=pytest.mark.thorough),
            pytest.param(
                {"sample_weight": np.linspace(0.2, 1.8, N)}, False, marks=pytest.mark.thorough
            ),
            ({"sample_weight": np.where(np.arange(N) % 4, 0.0, 1.0)}, False),
        ],
    )
    def test_weights_that_are_far_from_one_on_average_are_told(self, weights, is_told):
        told = messages(classifier(), standard(), **weights)
        assert [m.startswith("The weights of the examples") for m in told] == [True] * is_told

    @pytest.mark.filterwarnings("ignore:Your input ran out of data")
    def test_weights_of_data_that_are_read_to_be_counted(self, tmp_path):
        np.savetxt(tmp_path / "rows.csv", np.c_[X, Y, np.full(N, 2e5)], delimiter=",")
        data = tf.data.experimental.make_csv_dataset(
            str(tmp_path / "rows.csv"), 10, [*"abcyw"], [0.0] * 5, header=False, num_epochs=1
        ).map(lambda row: (tf.stack([row[k] for k in "abc"], 1), row["y"][:, None], row["w"]))
        callback = small_models.sampler(sgld(1e-9), None, small_models.standard_normal())
        with pytest.warns(UserWarning, match=r"Received: 2e\+05 on average"):
            classifier().fit(data, shuffle=False, verbose=0, callbacks=[callback])
        assert len(callback.samples[0]) == N // 10

    @pytest.mark.parametrize(
        "weights", [np.zeros(N), np.r_[np.ones(N - 1), -1.0], np.full(N, np.nan)]
    )
    def test_weights_that_are_no_powers_of_a_likelihood_are_refused(self, weights):
        with pytest.raises(ValueError, match="not negative and not all zero"):
            fit(classifier(), standard(), sample_weight=weights)

    def test_class_weights_of_a_data_set(self):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(N)
        told = messages(
            classifier(), standard(), x=data, y=None, batch_size=None, class_weight={0: 0.1, 1: 0.1}
        )
        assert [m.startswith("The weights of the examples") for m in told] == [True]


# NumPy warns about the variables that Keras itself reads.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "callback",
    [
        pytest.param(
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), marks=pytest.mark.thorough
        ),
        keras.callbacks.ReduceLROnPlateau(monitor="loss"),
    ],
)
def test_callbacks_that_move_a_learning_rate_are_told(callback):
    with pytest.warns(UserWarning, match="learning rate, which this kernel does not use. Leave"):
        classifier().fit(X, Y, batch_size=N, verbose=0, callbacks=[standard(), callback])


@pytest.mark.parametrize(
    "loss, y, units, activation, words",
    [
        (keras.losses.BinaryCrossentropy(), Y, 1, None, "a last layer without activation"),
        (keras.losses.SparseCategoricalCrossentropy(), Y, 3, None, "a last layer without"),
        (keras.losses.BinaryCrossentropy(), Y, 1, "relu", "outputs from .* to"),
        (keras.losses.CategoricalCrossentropy(), np.eye(3)[[0] * N], 3, "sigmoid", "that add up"),
    ],
)
def test_outputs_that_are_no_probabilities_are_refused_before_the_first_step(
    loss, y, units, activation, words
):
    model = small_models.linear(loss, units, activation, inputs=D)
    model.set_weights([np.ones([D, units], np.float32)])
    with pytest.raises(ValueError, match=f"The outputs of the model must be prob.*{words}"):
        fit(model, standard(), y=y)
    assert_equal(model.get_weights(), [np.ones([D, units])])


class TestMemory:
    @pytest.mark.thorough
    def test_kept_states_are_refused_if_they_do_not_fit(self, monkeypatch, tmp_path):
        monkeypatch.setattr(memory, "available", lambda: 120)
        with pytest.raises(MemoryError, match="1000 kept states 12.0 kB.*directory"):
            fit(classifier(), standard(), epochs=1000)
        fit(classifier(), standard(num_steps_between_results=9), epochs=10)
        stored = standard(directory=tmp_path)
        fit(classifier(), stored, epochs=11)
        assert len(stored.samples[0]) == 11

    @pytest.mark.thorough
    def test_much_of_the_memory_is_told(self, monkeypatch):
        monkeypatch.setattr(memory, "available", lambda: 250)
        told = messages(classifier(), standard(), epochs=10)
        assert len(told) == 1
        assert "takes 120 bytes of the 250 bytes of memory that are free: 10 kept states" in told[0]

    def test_a_full_covariance_of_a_network_is_refused_before_it_is_made(self):
        model = small_models.sequential(
            keras.layers.Dense(200),
            keras.layers.Dense(100),
            loss=small_models.CROSSENTROPY,
            inputs=D,
        )
        callback = standard(lambda target: sgmcmc.NOGIN(target, 1e-3, covariance="full"))
        with pytest.raises(ValueError, match='Received: "full" with 20900'):
            fit(model, callback)
        small = standard(lambda target: sgmcmc.NOGIN(target, 1e-3))  # diagonal by default
        fit(model, small)
        assert len(small.samples[0]) == 1


class TestCopies:
    def test_it_can_be_copied_before_fit_and_not_after(self):
        ensemble = sgmcmc.keras.SamplerCallback(seed=3)
        assert pickle.loads(pickle.dumps(ensemble)).get_config() == ensemble.get_config()
        callback = copy.deepcopy(standard())
        fit(classifier(), callback)
        assert len(callback.samples[0]) == 1

        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled.*posterior.save"):
                how(callback)


@pytest.mark.thorough
@pytest.mark.parametrize("covariance", [pytest.param("full", marks=pytest.mark.slow), "diag"])
def test_models_of_float64(covariance):
    dense = keras.layers.Dense(1, use_bias=False, dtype="float64")
    model = small_models.sequential(dense, loss=BINARY_CROSSENTROPY, inputs=D)
    prior = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
    callback = small_models.sampler(
        lambda target: sgmcmc.NOGIN(target, 0.05, covariance=covariance), N, prior
    )
    data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=10)
    model.fit(data, verbose=0, callbacks=[callback])
    assert callback.samples[0].dtype == np.float64 and len(callback.samples[0]) == 4
    assert callback.predict(X).mean.shape == (N, 1)


def test_a_seed_is_drawn_and_recorded():
    keras.utils.set_random_seed(3)
    first, second = standard(seed=None), standard(seed=None)
    assert first.seed != second.seed
    keras.utils.set_random_seed(3)
    assert standard(seed=None).seed == first.seed
    assert standard(seed=5).seed == (0, 5)

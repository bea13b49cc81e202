"""Refused arguments and models with their messages, and chains that turn NaN."""

import functools

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal, sgld, unit_normal

N = 12
X = np.random.default_rng(0).normal(size=[N, 2]).astype(np.float32)
Y = X[:, :1]


sampler = functools.partial(small_models.sampler, make_kernel_fn=sgld(), num_examples=N)
fit = functools.partial(small_models.fit, x=X, y=Y, batch_size=2)


def make_model(*layers, **compiled):
    keras.utils.set_random_seed(1)
    arguments = {"loss": unit_normal, "run_eagerly": True, **compiled}
    return small_models.sequential(*layers or [keras.layers.Dense(1)], inputs=2, **arguments)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        (
            {"make_kernel_fn": 3, "prior": ...},
            TypeError,
            "kernel must be a callable.*Received: an int",
        ),
        ({"num_examples": 0}, ValueError, "num_examples must be .* Received: 0"),
        ({"num_examples": 10.0}, TypeError, "num_examples must be .* Received: 10.0"),
        ({"num_burnin_steps": -1}, ValueError, "num_burnin_steps must be .* Received: -1"),
        ({"num_burnin_steps": True}, TypeError, "num_burnin_steps must be .* Received: True"),
        (
            {"num_steps_between_results": -2},
            ValueError,
            "num_steps_between_results must be .* Received: -2",
        ),
        ({"prior": 1.0}, TypeError, "prior must .* Received: a float"),
        ({"prior": tfp.distributions.Normal([0.0, 1.0], 1.0)}, ValueError, "batch shape"),
        ({"prior": tfp.distributions.MultivariateNormalDiag([0.0])}, ValueError, "event shape"),
        ({"prior": tfp.distributions.Normal}, TypeError, "prior must .* Received: a _?[A-Z]"),
        ({"keep": 3}, TypeError, "keep must be a callable.*Received: an int"),
        ({"keep": lambda step: None}, TypeError, "keep must return one truth value"),
        ({"directory": 3}, TypeError, "directory must be a string or a path"),
        ({"seed": "x"}, ValueError, "seed must be an integer or two integers"),
        ({"check_num_examples": 1}, TypeError, "check_num_examples must be True or False"),
        ({"independent_batches": "no"}, TypeError, "independent_batches must be True or False"),
        ({"seconds_between_commits": -1}, ValueError, "seconds_between_commits must be at least 0"),
    ],
)
def test_arguments(changes, error, words):
    with pytest.raises(error, match=words):
        sampler(**changes)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {}


class OwnLoss(keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return tf.zeros([])


class LossWithOwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_mean((y_true - y_pred) ** 2)


NON_NEGATIVE = {"bias_constraint": keras.constraints.NonNeg()}


def compiled(model, **arguments):
    model.compile(loss=unit_normal, **arguments)
    return model


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), "not compiled"),
        (lambda: make_model(keras.layers.Rescaling(2.0)), "no trainable weights"),
        (lambda: make_model(loss=None), "without a loss"),
        (lambda: compiled(OwnStep([keras.layers.Dense(1)])), "overrides train_step.*Remove"),
        (lambda: compiled(OwnLoss([keras.layers.Dense(1)])), "overrides compute_loss"),
        (lambda: make_model(keras.layers.Dense(1, **NON_NEGATIVE)), "constraint"),
        (lambda: make_model(optimizer=keras.optimizers.SGD(use_ema=True)), "use_ema"),
        (lambda: make_model(loss=LossWithOwnCall()), "overrides __call__"),
        (lambda: make_model(loss=lambda y, f: tf.reduce_mean((y - f) ** 2)), "each example"),
    ],
)  # fmt: skip
def test_models(make, words):
    model = make()
    with pytest.raises(ValueError, match=words):
        sampler().set_model(model)
        fit(model, sampler())
    assert "train_step" not in vars(model)


class RowsInPairs(keras.layers.Layer):
    def call(self, x):
        return keras.ops.reshape(keras.ops.reshape(x, [2, 1, 2]), [2, 2])


def test_a_layer_with_a_fixed_batch_size():
    inputs = keras.Input(batch_shape=[2, 2])
    model = compiled(keras.Model(inputs, keras.layers.Dense(1)(RowsInPairs()(inputs))))
    with pytest.raises(ValueError, match="any number of rows.* the batch size 2, .* with 12 rows"):
        fit(model, sampler())
    with pytest.raises(ValueError, match="any number of rows.* the batch size 2"):
        fit(model, sgmcmc.keras.SamplerCallback())


def test_a_weight_that_the_loss_does_not_use():
    inputs = keras.Input([2])
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("used", "unused")]
    model = keras.Model(inputs, outputs)
    model.compile(loss=[unit_normal, None], run_eagerly=True)
    with pytest.raises(ValueError, match="neither depends on unused/kernel. Set trainable=False"):
        fit(model, sampler(), y=[Y, Y])


def test_other_backends(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ImportError, match="backend tensorflow. Received: the backend jax"):
        sampler().set_model(make_model())


@pytest.mark.parametrize(
    "make_kernel_fn, error, words",
    [
        (
            lambda target: None,
            TypeError,
            "must return a tfp.mcmc.TransitionKernel .* Received: a NoneType",
        ),
        (lambda target: sgmcmc.CorrectedLangevin(target, 1e-3), NotImplementedError, "Inside fit"),
        (
            lambda _: sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda k, b: -k[0, 0] - b[0]), 1e-3),
            ValueError,
            "without an estimate",
        ),
    ],
)
def test_kernels(make_kernel_fn, error, words):
    with pytest.raises(error, match=words):
        fit(make_model(), sampler(make_kernel_fn=make_kernel_fn))


class Ascent(tfp.mcmc.TransitionKernel):
    """A kernel that knows nothing of this library, and may forget the target's state."""

    is_calibrated = False

    def __init__(self, target, keeps_target_state=True):
        self._target, self._keeps = target, keeps_target_state

    def bootstrap_results(self, init_state):
        return {"inner": self._target.bootstrap(init_state), "count": tf.zeros([])}

    def one_step(self, current_state, previous_kernel_results, seed=None):
        estimate = self._target.estimate(current_state, seed, with_scores=False)
        state = [x + 1e-3 * g for x, g in zip(current_state, estimate.gradient, strict=True)]
        inner = estimate.target_state if self._keeps else ()
        return state, {"inner": inner, "count": previous_kernel_results["count"] + 1}


@pytest.mark.parametrize(
    "compiled",
    [
        {},
        pytest.param({"run_eagerly": False, "jit_compile": True}, marks=pytest.mark.thorough),
    ],
)
def test_a_kernel_of_another_library_samples_if_its_results_hold_the_target_state(compiled):
    callback = sampler(make_kernel_fn=Ascent)
    fit(make_model(**compiled), callback, epochs=2)
    as_sgld = sampler(make_kernel_fn=sgld(2e-3, temperature=0.0))
    fit(make_model(**compiled), as_sgld, epochs=2)
    assert_close(callback.samples, as_sgld.samples)
    with pytest.raises(ValueError, match="results must hold the estimate's target_state"):
        forgetful = functools.partial(Ascent, keeps_target_state=False)
        fit(make_model(**compiled), sampler(make_kernel_fn=forgetful))


def test_prior_that_is_no_scalar():
    with pytest.raises(ValueError, match=r"prior must return a scalar.* shape \(2, 1\)"):
        fit(make_model(), sampler(prior=lambda state: -(state[0] ** 2)))


def test_callback_of_another_model():
    callback = sampler()
    fit(make_model(), callback)
    with pytest.raises(ValueError, match="Received: another model"):
        fit(make_model(), callback)


def batches(rows=N):
    """Data whose number of rows cannot be known before they come."""
    return (
        tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).filter(lambda x, y: True).batch(2)
    )


class TestNumExamples:
    @pytest.mark.parametrize("declared", [7, 13])
    def test_of_arrays_is_checked_before_the_first_step(self, declared):
        model = make_model()
        before = model.get_weights()
        words = f"Received: {declared}, but fit was given arrays of 12 examples"
        with pytest.raises(ValueError, match=words):
            fit(model, sampler(num_examples=declared))
        assert_equal(model.get_weights(), before)

    def test_too_few_batches_are_told_before_the_first_step(self):
        model = make_model()
        before = model.get_weights()
        words = "at most that of an epoch, 2 batches of 4. Received: 12"
        data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().shuffle(12).batch(4)
        with pytest.raises(ValueError, match=words):
            fit(model, sampler(), x=data, y=None, batch_size=None, steps_per_epoch=2)
        assert_equal(model.get_weights(), before)

    @pytest.mark.filterwarnings("ignore:Your input ran out of data")
    def test_too_many_declared(self):
        model = make_model()
        before = model.get_weights()
        with pytest.raises(ValueError, match="Received: 13, but one epoch of fit had 12 examples"):
            fit(model, sampler(num_examples=13), x=batches(), y=None, batch_size=None)
        assert_equal(model.get_weights(), before)

    def test_too_few_declared_is_seen_within_the_epoch(self):
        callback, model = sampler(num_examples=7), make_model()
        before = model.get_weights()
        with pytest.raises(
            ValueError, match="Received: 7, but one epoch of fit had 8 examples so far"
        ):
            fit(model, callback, x=batches(), y=None, batch_size=None)
        assert_equal(model.get_weights(), before)

    @pytest.mark.thorough
    def test_validation_split_does_not_count(self):
        fit(make_model(), sampler(num_examples=9), validation_split=0.25)
        with pytest.raises(ValueError, match="Received: 12, but fit was given arrays of 9"):
            fit(make_model(), sampler(), validation_split=0.25)

    @pytest.mark.thorough
    def test_every_epoch_counts_anew(self):
        callback = sampler()
        fit(make_model(steps_per_execution=4), callback, epochs=2)
        assert len(callback.samples[0]) == 12

    @pytest.mark.parametrize("declared", [None, 10])
    def test_rows_of_a_remainder_that_is_dropped_do_not_count(self, declared):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5, drop_remainder=True)
        callback = sampler(num_examples=declared)
        fit(make_model(), callback, x=data, y=None, batch_size=None)
        assert callback.recorder.chain.num_examples == 10

    def test_unchecked(self):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(5)
        callback = sampler(check_num_examples=False)
        fit(make_model(), callback, x=data, y=None, batch_size=None, steps_per_epoch=4)
        assert len(callback.samples[0]) == 4


# The step size, and so the state, is NaN from step 7 on.
NAN_AT_7 = sgld(lambda t: tf.where(t < 7, 1e-3, np.nan))


class TestNonFinite:
    @pytest.mark.parametrize(
        "steps_per_execution", [1, pytest.param(5, marks=pytest.mark.thorough)]
    )
    def test_of_a_sample(self, steps_per_execution):
        model = make_model(steps_per_execution=steps_per_execution)
        callback = sampler(make_kernel_fn=NAN_AT_7)
        with pytest.raises(sgmcmc.NonFiniteChainError, match="by step 7 of the chain") as caught:
            fit(model, callback, epochs=5)
        assert caught.value.step == 7
        assert caught.value.part == (model.trainable_variables[0].path,)
        assert len(callback.samples[0]) == 7
        assert all(np.isfinite(s).all() for s in callback.samples)
        assert_equal(model.get_weights(), [s[-1] for s in callback.samples])
        assert_equal(caught.value.samples, callback.samples)
        assert "train_step" not in vars(model)
        with pytest.raises(ValueError, match="make a new callback"):
            fit(model, callback)

    def test_of_a_learned_scale(self):
        """Targets without noise need another likelihood, or a much smaller step."""
        told = []
        for loss in (sgmcmc.keras.losses.GaussianNLL(), sgmcmc.keras.losses.GaussianNLL(0.1)):
            model = make_model(keras.layers.Dense(2 if loss.learns_scale else 1), loss=loss)
            with pytest.raises(sgmcmc.NonFiniteChainError, match="smaller step_size") as caught:
                fit(model, sampler(make_kernel_fn=NAN_AT_7), epochs=5)
            told.append("such as GaussianNLL(scale=0.1)" in str(caught.value))
        assert told == [True, False]

    def test_of_a_gradient(self):
        """The gradient of |b| is NaN at the start, b = 0, where the loss is finite."""
        model = make_model(run_eagerly=True)
        callback = sampler(prior=lambda state: tf.norm(state[1]))
        initial = model.get_weights()
        with pytest.raises(
            sgmcmc.NonFiniteChainError,
            match="The loss or its gradient.*in the data; loss and prior",
        ) as caught:
            fit(model, callback)
        assert (caught.value.step, caught.value.part, len(callback.samples[0])) == (0, (), 0)
        assert_equal(model.get_weights(), initial)

    @pytest.mark.parametrize(
        "mode",
        [
            {"run_eagerly": True},
            pytest.param({"run_eagerly": True, "steps_per_execution": 5}, marks=pytest.mark.slow),
            pytest.param({"run_eagerly": False, "jit_compile": False}, marks=pytest.mark.thorough),
        ],
    )
    def test_during_burnin(self, mode):
        """No sample has a NaN, but the loss after 8 steps is one."""
        model = make_model(**mode)
        callback = sampler(make_kernel_fn=NAN_AT_7, num_burnin_steps=100)
        initial = model.get_weights()
        with pytest.raises(sgmcmc.NonFiniteChainError, match="where the chain began") as caught:
            fit(model, callback, epochs=5)
        assert caught.value.step == 8
        assert len(callback.samples[0]) == 0
        with pytest.raises(ValueError, match="became NaN or infinite before one was kept"):
            _ = callback.posterior
        assert_equal(model.get_weights(), initial)

    @pytest.mark.parametrize("kernel", ["SGLD", pytest.param("NOGIN", marks=pytest.mark.thorough)])
    @pytest.mark.parametrize("repeats", [False, True])
    def test_of_the_data(self, kernel, repeats):
        """Rows are named if the data can be read again."""
        x = X.copy()
        x[6] = np.nan  # in the fourth batch
        data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(2)
        words = "in x or y of 1 of 12 rows, first in row 6"
        if repeats:
            data, words = data.repeat(), "If the data have no such numbers"

        def nogin(target):
            return sgmcmc.NOGIN(target, 1e-3, covariance="diag", num_estimation_steps=0)

        others = dict(make_kernel_fn=nogin, independent_batches=False)
        callback = sampler(**others if kernel == "NOGIN" else {})
        steps = {"steps_per_epoch": 6 if repeats else None}
        with pytest.raises(sgmcmc.NonFiniteChainError, match=words) as caught:
            fit(
                make_model(steps_per_execution=6),
                callback,
                x=data,
                y=None,
                batch_size=None,
                **steps,
            )
        assert caught.value.step == 3
        assert len(callback.samples[0]) == 3

    @pytest.mark.parametrize("jit", fast_settings([True, False], False))
    def test_of_labels_of_a_data_set(self, jit):
        """XLA gives wrong classes the loss NaN; a CPU without it stops in the step."""
        model = make_model(
            keras.layers.Dense(3, "softmax"), run_eagerly=False, jit_compile=jit,
            loss="sparse_categorical_crossentropy",
        )  # fmt: skip
        data = tf.data.Dataset.from_tensor_slices((X, [*range(3)] * 3 + [0, 7, 1])).batch(2)
        error = sgmcmc.NonFiniteChainError if jit else ValueError
        callback = sampler()
        with pytest.raises(error, match=r"In a batch, y must .*: \[7\] in 1 of"):
            fit(model, callback, x=data, y=None, batch_size=None)
        assert len(callback.samples[0]) == 5  # of the batches before

    def test_of_a_pipeline_is_not_explained_by_the_labels(self):
        """Reading the data again fails, too; TensorFlow's error stays as it is."""
        words = np.array(["1.5"] * 8 + ["?"] * 4)
        data = tf.data.Dataset.from_tensor_slices((X, words)).batch(2)
        data = data.map(lambda x, word: (x, tf.strings.to_number(word)))
        with pytest.raises(tf.errors.InvalidArgumentError, match="could not correctly convert"):
            fit(make_model(run_eagerly=False), sampler(), x=data, y=None, batch_size=None)

    @pytest.mark.parametrize("name", "xy")
    def test_of_arrays_is_told_before_the_first_step(self, name):
        arrays = {"x": X.copy(), "y": Y.copy()}
        arrays[name][6:8] = np.nan
        callback = sampler()
        with pytest.raises(ValueError, match=f"{name} must have finite .* 2 of 12 rows, .* row 6"):
            fit(make_model(), callback, **arrays)
        assert not len(callback.samples[0])

    def test_of_rows_on_which_the_loss_does_not_depend(self):
        y = Y.copy()
        y[6] = np.nan
        model = make_model(
            loss=lambda y, f: tf.where(
                tf.math.is_nan(y), 0.0, unit_normal(tf.where(y > 0, y, 0.0), f)
            )
        )
        fit(model, sampler(), y=y)

    def test_of_the_initial_weights(self):
        model = make_model()
        model.layers[0].bias.assign([np.nan])
        with pytest.raises(ValueError, match="initial state must be finite"):
            fit(model, sampler())


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_only_fit_samples(method):
    model, callback = make_model(), sampler()
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"must be given to fit. Received: by {method}"):
        getattr(model, method)(X, callbacks=[callback], verbose=0)
    assert_equal(model.get_weights(), before)


def test_another_loop_than_fit_is_refused():
    callbacks = keras.callbacks.CallbackList([sampler()], model=make_model())
    with pytest.raises(ValueError, match="must be given to fit. Received: by another loop"):
        callbacks.on_train_begin()


@pytest.mark.parametrize("same", [True, False])
def test_one_sampler_a_fit(same):
    model, callback = make_model(), sampler()
    with pytest.raises(ValueError, match="fit must have one SamplerCallback.*Received: 2"):
        model.fit(X, Y, callbacks=[callback, callback if same else sampler()], verbose=0)
    assert "train_step" not in vars(model)


@pytest.mark.parametrize(
    ("loss", "units", "y", "words"),
    [
        (
            "sparse_categorical_crossentropy",
            3,
            [0, 1, 2, 3],
            r"in 0 .. 2, .* Received: \[3\] in 3 ",
        ),
        (
            "sparse_categorical_crossentropy",
            3,
            [0, -1, 2, 1],
            r"in 0 .. 2, .* Received: \[-1\] in 3 ",
        ),
        ("sparse_categorical_crossentropy", 3, [0, np.nan, 2, 1], r"Received: NaN in 3 of 12"),
        ("binary_crossentropy", 1, [1, -1, 1, 1], r"in 0 .. 1, .* Received: \[-1.0\] in 3 of 12"),
        (
            "categorical_crossentropy",
            3,
            np.eye(3)[[0, 1, 2, 0]] - 1,
            r"in 0 .. 1, .* \[-1.0\] in 24",
        ),
        ("poisson", 1, [0, 1, -2, 7], r"counts, .* Received: \[-2.0\] in 3 of 12"),
        (sgmcmc.keras.losses.PoissonNLL(), 1, [0, 1, -2, 7], r"counts, .* Received: \[-2.0\] in 3"),
    ],
)
def test_labels_out_of_range_are_told_before_the_first_step(loss, units, y, words):
    """On a GPU the loss of wrong classes is NaN, on a CPU an error of TensorFlow."""
    activation = "sigmoid" if units == 1 else "softmax"
    model = make_model(keras.layers.Dense(units, activation), loss=loss)
    labels = np.concatenate([np.asarray(y)] * 3)
    labels = labels.astype(np.float32) if units == 1 else labels
    with pytest.raises(ValueError, match=words):
        fit(model, sampler(), y=labels[:, np.newaxis] if units == 1 else labels)


@pytest.mark.parametrize("make", [sampler, sgmcmc.keras.SamplerCallback])
def test_recurrent_layers_with_a_state_are_refused(make):
    layers = [keras.Input(batch_shape=[2, 2, 1]), keras.layers.GRU(1, stateful=True)]
    model = keras.Sequential(layers)
    model.compile(loss=unit_normal)
    with pytest.raises(ValueError, match="stateful=False, .*Received: 'gru.*', a GRU"):
        fit(model, make(), x=X[..., np.newaxis])


@pytest.mark.filterwarnings("ignore:(.|\n)*structure of `inputs` doesn't match")
def test_inputs_that_keras_would_confuse_are_told_before_the_first_step():
    """It takes the first two of three arrays in a dict, whatever their names are."""
    b, c = keras.Input([2], name="b"), keras.Input([2], name="c")
    model = keras.Model({"b": b, "c": c}, keras.layers.Dense(1)(b - c))
    model.compile(loss=unit_normal)
    callback = sampler()
    with pytest.raises(ValueError, match="each of the 2 inputs of the model. Received: 3 arrays"):
        fit(model, callback, x={"a": X, "b": X, "c": 2 * X})
    assert not len(callback.samples[0])


SPARSE_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DENSE_LOSS = keras.losses.CategoricalCrossentropy(from_logits=True)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("as_data", [tuple, lambda given: (pairs(*given).batch(4),)])
@pytest.mark.parametrize(
    ("loss", "labels", "words"),
    [
        (SPARSE_LOSS, np.eye(3)[[0, 1, 2, 0] * (N // 4)], " without the axis of classes, as"),
        (DENSE_LOSS, np.zeros(N, int), ", as the compiled loss"),
        (DENSE_LOSS, np.zeros([N, 1], int), ", as the compiled loss"),
        (small_models.BINARY_CROSSENTROPY, np.zeros(N), ", as the compiled loss"),
    ],
)
def test_labels_of_another_form_than_the_loss_takes_are_told(loss, labels, words, as_data):
    model = small_models.linear(loss, 3, inputs=X.shape[1])
    shape = r" of shape \['rows'.*outputs of shape \['rows', 3\]"
    with pytest.raises(ValueError, match=f"y must have the shape of the outputs{words}"):
        model.fit(*as_data((X, labels)), verbose=0, callbacks=[sampler()])
    posterior = small_models.posterior_of(model, [np.zeros([2, X.shape[1], 3], np.float32)])
    with pytest.raises(ValueError, match=f"Received: y{shape}"):
        posterior.evaluate(X, labels)


def pairs(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


SPARSE = tf.sparse.from_dense(X)
RAGGED = tf.ragged.constant([[1.0]] * N, ragged_rank=1)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("make", [sampler, sgmcmc.keras.SamplerCallback])
@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X,), ValueError, "y must be given to fit.*Received: arrays without y"),
        ((X, Y[:, 0].astype(str).astype(object)), TypeError, "y must hold numbers.*np.unique"),
        ((pairs(y=Y.astype(str)).batch(2),), TypeError, "y must hold numbers.*Received: strings"),
        ((pairs(),), ValueError, r"must be batched.*Received: .* shapes \(2,\), \(1,\)"),
        ((pairs(y=Y[:, 0]),), ValueError, r"must be batched.*Received: .* shapes \(2,\), \(\)"),
        ((pairs(x=RAGGED).batch(2),), TypeError, r"RaggedTensor. Pad it by .to_tensor\(\)"),
        ((RAGGED, Y), TypeError, r"RaggedTensor. Pad it by .to_tensor\(\)"),
        ((pairs(x=SPARSE).batch(2),), TypeError, "SparseTensor. Convert it by tf.sparse.to_dense"),
        ((SPARSE, Y), TypeError, "SparseTensor. Convert it by tf.sparse.to_dense"),
        ((scipy.sparse.csr_matrix(X), Y), TypeError, r"csr_matrix. Convert it by .toarray\(\)"),
        ((np.ma.masked_greater(X, 0), Y), TypeError, r"MaskedArray.* by .filled\(value\)"),
    ],
)
def test_data_that_no_step_can_take_are_refused(make, data, error, words):
    callback = make()
    with pytest.raises(error, match=words):
        make_model().fit(*data, verbose=0, callbacks=[callback])
    with pytest.raises(
        ValueError, match="no fit with this callback has taken a step. If fit ended"
    ):
        _ = callback.posterior

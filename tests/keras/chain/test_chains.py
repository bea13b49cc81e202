"""Several chains in one `fit`: each equals the chain of a separate fit."""

import functools
import random

import keras
import numpy as np
import pytest
import scipy.stats

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal, sequential, sgld
from tfp_sgmcmc.keras.chain.initial_states import stacked_starts

N, C = 40, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])
fit = functools.partial(small_models.fit, x=X, y=Y, batch_size=8)


def sampler(temperature=1.0, **arguments):
    kernel, prior = sgld(0.01, temperature), small_models.standard_normal()
    return small_models.sampler(kernel, N, prior, **{"num_chains": C, **arguments})


def classifier(*hidden, **compiled):
    keras.utils.set_random_seed(1)
    return sequential(*hidden, keras.layers.Dense(4), metrics=["accuracy"], **compiled)


def hidden():
    regularizer = keras.regularizers.L2(0.01)
    dense = keras.layers.Dense(5, "tanh", kernel_regularizer=regularizer)
    return dense, keras.layers.BatchNormalization(momentum=0.5)


def starts(model, seed=2):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=[C, *v.shape]).astype(np.float32) for v in model.trainable_variables]


@pytest.fixture(
    scope="module",
    params=[
        {"jit_compile": False, "steps_per_execution": 5},
        pytest.param({"jit_compile": True, "steps_per_execution": 5}, marks=pytest.mark.thorough),
        pytest.param({"jit_compile": False}, marks=pytest.mark.slow),
    ],
    ids=["graph", "xla", "graph, single steps"],
)
def three_chains(request):
    """Returns model, callback and logs of chains at temperature 0 from different starts."""
    model = classifier(*hidden(), **request.param)
    callback = sampler(temperature=0.0, initial_states=starts(model))
    return model, callback, fit(model, callback)


@pytest.mark.parametrize("chain", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_each_chain_is_that_of_a_fit_of_its_own(three_chains, chain):
    """The chains have moving statistics and regularisers, and the model is chain 0."""
    model, callback, logs = three_chains
    own, alone = classifier(*hidden(), run_eagerly=True), sampler(0.0, num_chains=None)
    for variable, start in zip(own.trainable_variables, starts(model), strict=True):
        variable.assign(start[chain])
    own_logs = fit(own, alone)
    assert all(s.shape[:2] == (5, C) for s in callback.samples)
    moving, own_moving = (c.result.non_trainable_samples.values() for c in (callback, alone))
    assert all(np.ptp(values, axis=0).min() > 1e-4 for values in own_moving)  # they move
    for together, single in ((callback.samples, alone.samples), (moving, own_moving)):
        assert_close([s[:, chain] for s in together], single, rtol=2e-4, atol=2e-5)
    assert len(callback.result.non_trainable_samples) == 2
    assert_equal(model.trainable_variables, [s[-1, 0] for s in callback.samples])
    if chain == 0:  # the logs are those of chain 0
        for name, values in own_logs.items():
            np.testing.assert_allclose(logs[name], values, rtol=1e-4)


def test_chains_have_noise_of_their_own_and_all_of_it():
    """Moves minus those without noise are N(0, eps I), independent between chains; one test each.

    Each test gives a false alarm with probability 1e-6. Noise shared by the chains would have
    correlations of 1, and noise scaled by their number a variance of 3 or 1/3.
    """
    runs = [sampler(t, initial_states="model") for t in (1.0, 0.0)]
    for run in runs:
        fit(classifier(run_eagerly=True), run, batch_size=N)
    z = [
        (a[0] - b[0]).reshape(C, -1) / 0.1 for a, b in zip(*(r.samples for r in runs), strict=True)
    ]
    z = np.concatenate(z, axis=1)
    squares = np.sum(z**2)
    tails = scipy.stats.chi2(z.size).ppf([5e-7, 1 - 5e-7])
    assert tails[0] < squares < tails[1]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert scipy.stats.pearsonr(z[a], z[b]).pvalue > 1e-6
    assert scipy.stats.pearsonr(z[0], z[0]).pvalue < 1e-6  # control: shared noise is found


def test_chains_start_at_draws_of_the_initializers():
    model = classifier(keras.layers.Dense(50, kernel_initializer="he_normal"), jit_compile=False)
    initial = model.get_weights()
    runs = []
    for seed in (0, 0, 1):
        callback = sampler(temperature=0.0, seed=seed)
        callback.set_model(model)
        runs.append([v.numpy() for v in callback.recorder.chain.state.read()])
    assert_equal([start[0] for start in runs[0]], initial)
    kernel = runs[0][0]
    assert kernel.shape == (C, 3, 50)
    # He's normal is truncated, with variance 2/3; 150 entries, p = 1e-6, 5.5 sds of the mean.
    assert np.all(np.abs(np.mean(kernel**2, axis=(1, 2)) - 2 / 3) < 5.5 * 0.6 / 150**0.5)
    assert np.abs(kernel[1] - kernel[2]).max() > 0.1
    np.testing.assert_array_equal(runs[0][1], 0.0)  # the bias
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert np.abs(runs[0][0][1:] - runs[2][0][1:]).max() > 0.1


def test_initializers_of_other_names_and_nested_layers():
    inner = keras.Sequential([keras.layers.LSTM(3), keras.layers.Dense(2)])
    model = keras.Sequential([keras.Input([4, 2]), inner])
    model.compile(loss=small_models.CROSSENTROPY)
    callback = sampler()
    callback.set_model(model)
    paths = [v.path for v in model.trainable_variables]
    states = dict(zip(paths, callback.recorder.chain.state.read(), strict=True))
    for path, value in states.items():
        if "kernel" in path:
            assert np.abs(value[1] - value[2]).max() > 1e-3, path
        np.testing.assert_array_equal(value[0], model.get_weights()[list(states).index(path)])


@pytest.mark.thorough
def test_chains_start_at_the_weights_that_the_model_has_when_it_first_samples():
    model, callback = classifier(run_eagerly=True), sampler(initial_states="model", temperature=0.0)
    with pytest.raises(ValueError, match="Received: by evaluate"):
        model.evaluate(X, Y, verbose=0, callbacks=[callback])
    model.set_weights([w + 3 for w in model.get_weights()])
    fresh = sampler(initial_states="model", temperature=0.0)
    clone = classifier(run_eagerly=True)
    clone.set_weights(model.get_weights())
    fit(model, callback, batch_size=N)
    fit(clone, fresh, batch_size=N)
    assert_equal(callback.samples, fresh.samples)


class Shift(keras.layers.Layer):
    def build(self, shape):
        self.offset = keras.Variable(
            np.zeros(shape[-1:], "float32"), name="offset"
        )  # of no initializer

    def call(self, x):
        return x + self.offset


class Declared(Shift):
    def build(self, shape):
        self.offset = self.add_weight(shape[-1:], keras.initializers.RandomNormal(), name="offset")


class InInit(keras.layers.Layer):
    """As in Keras' guide: without names of the variables, and without **kwargs."""

    def __init__(self, units, size):
        super().__init__()
        self.kernel = self.add_weight((size, units), "random_normal")
        self.shift = self.add_weight((units,), "ones")

    def call(self, x):
        return keras.ops.matmul(x, self.kernel) + self.shift


class InBuild(InInit):
    def __init__(self, units):
        keras.layers.Layer.__init__(self)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], self.units), "random_normal")
        self.shift = self.add_weight((self.units,), "ones")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = InBuild(3)
        self.factor = self.add_weight((), "random_normal")

    def call(self, x):
        return self.factor * self.layer(x)


@pytest.mark.parametrize(
    "make, differ",
    [
        (lambda: classifier(InInit(3, 3)), [True, False]),
        (lambda: classifier(InBuild(3)), [True, False]),
        (Subclassed, [True, True, False]),
    ],
)
def test_chains_start_at_the_initializers_of_a_users_weights(make, differ):
    model = make()
    model(X)
    variables = [v for v in model.trainable_variables if "dense" not in v.path]
    found = stacked_starts(model, variables, C, "fresh", np.array([1, 2]))
    assert [bool(np.ptp(values, axis=0).max() > 0) for values in found] == differ
    np.testing.assert_array_equal(found[-1], np.ones([C, 3]))


def low_rank():
    layer = keras.layers.Dense(3)
    layer.build([None, 3])
    layer.enable_lora(2)
    return layer


@pytest.mark.parametrize(
    "layer, expected",
    [
        (keras.layers.RMSNormalization, {"scale": "ones"}),
        (keras.layers.LayerNormalization, {"gamma": "ones", "beta": "zeros"}),
        (low_rank, {"lora_kernel_a": "differ", "lora_kernel_b": "zeros", "bias": "zeros"}),
        (Declared, {"offset": "differ"}),
    ],
)
def test_chains_start_at_initializers_that_only_build_tells(layer, expected):
    """Weights that are trained away from their initializers start the first chain."""
    made = layer()
    model = classifier(made)
    trained = {v.name: 1.5 + np.zeros(v.shape) for v in made.trainable_variables}
    for v in made.trainable_variables:
        v.assign(trained[v.name])
    state = random.getstate()
    variables = list(made.trainable_variables)
    found = stacked_starts(model, variables, C, "initializers", np.array([1, 2]))
    assert random.getstate() == state and {v.name for v in variables} == expected.keys()
    for variable, values in zip(variables, found, strict=True):
        first, *others = values.numpy()
        np.testing.assert_array_equal(first, trained[variable.name])
        if expected[variable.name] == "differ":
            assert np.ptp(others, axis=0).min() > 0
        else:
            assert np.all(np.array(others) == float(expected[variable.name] == "ones"))


@pytest.mark.parametrize(
    "initial_states, message",
    [
        ("initializers", r"offset must have an initializer.*initial_states='model'"),
        ([np.zeros([C, 3])], "3 trainable variables. Received: 1 arrays"),
        (
            [np.zeros([C, 3]), np.zeros([3, 4]), np.zeros([C, 4])],
            r"must have shape \(3, 3, 4\).*\(3, 4\)",
        ),
    ],
)
def test_unfit_starts_are_refused(initial_states, message):
    with pytest.raises(ValueError, match=message):
        fit(classifier(Shift()), sampler(initial_states=initial_states))


@pytest.mark.parametrize("number", [0, 2.0, True])
def test_unfit_number_of_chains(number):
    with pytest.raises((ValueError, TypeError), match="num_chains"):
        sampler(num_chains=number)


@pytest.mark.thorough
def test_dropout_differs_between_chains():
    """At temperature 0, only the masks make chains from one start differ."""

    def kernels(dropout):
        callback = sampler(temperature=0.0, initial_states="model")
        layers = keras.layers.Dense(5, "tanh"), keras.layers.Dropout(dropout)
        fit(classifier(*layers, run_eagerly=True), callback, batch_size=N)
        return callback.samples[-2][0]  # after the only step

    first, second, third = kernels(0.5)
    assert np.abs(first - second).max() > 1e-4
    assert np.abs(second - third).max() > 1e-4
    same = kernels(0.0)
    assert_close(same[:-1], same[1:], rtol=1e-7)


@pytest.mark.thorough
def test_prediction_averages_over_chains(three_chains):
    _, callback, _ = three_chains
    mean, deviation = callback.predict(X[:7], activation=None)
    each = callback.posterior.outputs(X[:7], batch_size=4, activation=None)
    model, moving = classifier(*hidden()), callback.result.non_trainable_samples.values()
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    outputs = []
    for step in range(5):
        for chain in range(C):
            for variable, values in zip(variables, [*callback.samples, *moving], strict=True):
                variable.assign(values[step, chain])
            outputs.append(np.asarray(model(X[:7], training=False)))
    assert each.shape == (5, C, 7, 4)
    np.testing.assert_allclose(each.reshape(-1, 7, 4), outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, np.mean(outputs, axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(deviation, np.std(outputs, axis=0), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_further_fits_go_on():
    model, callback = classifier(jit_compile=False), sampler()
    fit(model, callback)
    fit(model, callback)
    other, once = classifier(jit_compile=False), sampler()
    fit(other, once, epochs=2)
    assert_equal(callback.samples, once.samples)


@pytest.mark.thorough
def test_a_chain_that_breaks_down_is_found_where_it_is():
    model = classifier(run_eagerly=True)
    initial = model.get_weights()
    broken = [np.stack([w] * C) for w in initial]
    broken[0][2, 0, 0] = 1e30  # its logits overflow
    callback = sampler(initial_states=broken)
    with pytest.raises(sgmcmc.NonFiniteChainError) as error:
        fit(model, callback)
    assert error.value.step <= 2
    assert_equal(model.get_weights(), initial)


def test_fresh_chains_of_an_lstm_begin_with_open_forget_gates():
    """As the layer does, whose `bias_initializer` is of the other gates."""
    model = keras.Sequential([keras.Input([4, 2]), keras.layers.LSTM(3)])
    variables = model.trainable_variables
    starts = stacked_starts(model, variables, 2, "fresh", np.array([1, 2]))
    (place,) = (i for i, v in enumerate(variables) if v.name == "bias")
    own = variables[place].numpy()
    assert own.sum() == 3
    np.testing.assert_array_equal(starts[place], [own, own])

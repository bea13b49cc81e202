"""Data that stay on the device: their batches, and chains that equal those of plain `fit`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, affine, assert_close, assert_equal, sgld

N, B = 20, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
EAGERLY = {"run_eagerly": True}
WEIGHT = RNG.uniform(0.5, 2.0, size=[N]).astype(np.float32)


sampler = functools.partial(small_models.sampler, sgld(1e-2), N, seed=3)
classifier = functools.partial(affine, BINARY_CROSSENTROPY, 1, inputs=2, metrics=["mse"])


def batches_of(data, steps):
    """Returns the batches that resident data have at the given steps."""
    batches = [data.batch(tf.constant(t, tf.int64)) for t in steps]
    return [tuple(np.asarray(a) for a in batch if a is not None) for batch in batches]


class Batches(keras.utils.PyDataset):
    """Passes batches through Keras one by one."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize(
    "reshuffle, compiled",
    [
        pytest.param("epoch", {"jit_compile": False}, marks=pytest.mark.thorough),
        pytest.param("epoch", EAGERLY, marks=pytest.mark.slow),
        ("step", EAGERLY),
    ],
)
def test_chain_and_logs_are_those_of_the_same_batches_one_by_one(reshuffle, compiled):
    resident = sampler(num_steps_between_results=1, num_burnin_steps=1)
    data = resident.resident(
        *(X, Y, WEIGHT), batch_size=B, reshuffle=reshuffle, steps_per_call=3, steps_per_epoch=4
    )
    logs = classifier(**compiled).fit(data, epochs=2, verbose=0, callbacks=[resident]).history
    single = sampler(check_num_examples=False)
    batches = Batches(batches_of(data, range(8)))
    expected = small_models.fit(classifier(**compiled), single, batches, None)
    assert_close(resident.samples, [every[1::2] for every in single.samples])
    np.testing.assert_array_equal(resident.result.trace["step"], range(1, 8, 2))
    assert logs.keys() == expected.keys()
    # The mean over an epoch of 8 steps equals the mean of the two epochs of 4 steps.
    for name in ("loss", "mse"):
        np.testing.assert_allclose(np.mean(logs[name]), expected[name][0], rtol=1e-4)


def test_an_epoch_takes_each_example_once_before_any_comes_again():
    data = sampler().resident(np.arange(N), batch_size=B, reshuffle="epoch")
    stream = np.concatenate([data.batch(tf.constant(t, tf.int64))[0] for t in range(10)])
    orders = stream.reshape(3, N)  # of 60 examples
    assert (np.sort(orders, axis=1) == np.arange(N)).all()
    assert not (orders[0] == orders[1]).all() and not (orders[1] == orders[2]).all()


def test_symmetric_sweeps_take_each_order_forward_and_backward():
    data = sampler().resident(np.arange(N), batch_size=B, reshuffle="symmetric")
    stream = np.concatenate([data.batch(tf.constant(t, tf.int64))[0] for t in range(10)])
    orders = stream.reshape(3, N)  # of 60 examples
    assert (np.sort(orders, axis=1) == np.arange(N)).all()
    assert (orders[1] == orders[0, ::-1]).all() and not (orders[2] == orders[0]).all()


def test_fresh_batches_have_no_example_twice_and_differ():
    data = sampler().resident(np.arange(N), batch_size=B)
    batches = [data.batch(tf.constant(t, tf.int64))[0].numpy() for t in range(4)]
    assert all(len(set(b)) == B for b in batches)
    assert len({tuple(b) for b in batches}) == 4


@pytest.mark.slow
def test_the_law_of_nogin_on_a_gaussian_is_the_posterior():
    """The posterior is N(mean(y), 1/N), which NOGIN leaves invariant at every step size.

    z, from 50 means of the squared deviation in units of 1/N, has Student's t law with 49 degrees
    of freedom, which exceeds 5.6 with probability 1e-6. Batches of epochs are the control. Their
    ratio is known to 0.007.
    """
    num_examples, num_steps = 40, 80_000
    y = np.random.default_rng(0).normal(size=[num_examples, 1]).astype(np.float32)

    def ratio_and_z(**reshuffle):
        loss = sgmcmc.keras.NegativeLogLikelihood(lambda f: tfp.distributions.Normal(f, 1.0))
        model = small_models.linear(loss, 1, inputs=1, jit_compile=True)
        h, friction = 0.5 / num_examples**0.5, num_examples**0.5
        callback = small_models.sampler(
            lambda target: sgmcmc.NOGIN(target, h, friction, num_estimation_steps=200),
            num_examples,
            num_burnin_steps=2000,
            num_steps_between_results=3,
            independent_batches=not reshuffle,
        )
        numbers = {"steps_per_call": num_steps, "steps_per_epoch": num_steps}
        data = callback.resident(np.ones_like(y), y, batch_size=5, **reshuffle, **numbers)
        model.fit(data, verbose=0, callbacks=[callback])
        deviations = callback.samples[0].reshape([50, -1]).astype(float) - y.mean()
        means = num_examples * (deviations**2).mean(axis=1)
        ratio = means.mean()
        return ratio, (ratio - 1) / (means.std(ddof=1) / len(means) ** 0.5)

    ratio, z = ratio_and_z()
    assert abs(z) < 5.6 and abs(ratio - 0.99) < 0.06
    ratio, z = ratio_and_z(reshuffle="epoch")
    assert z < -5.6 and abs(ratio - 0.68) < 0.04


@pytest.mark.thorough
def test_a_second_fit_goes_on_and_does_not_retrace():
    traces = []

    def make_kernel_fn(target):
        if not tf.executing_eagerly():
            traces.append(target)
        return sgmcmc.SGLD(target, step_size=1e-2)

    whole, halves = sampler(), sampler()
    halves._settings._make_kernel_fn = make_kernel_fn
    counts = []
    for callback, fits in ((whole, [4]), (halves, [2, 2])):
        model = classifier(jit_compile=False)
        data = callback.resident(X, Y, batch_size=B, steps_per_call=2)
        for epochs in fits:
            model.fit(data, epochs=epochs, verbose=0, callbacks=[callback])
            counts.append(len(traces))
    assert counts[0] == 0 < counts[1] == counts[2]
    assert_equal(whole.samples, halves.samples)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "compiled", [EAGERLY, pytest.param({"jit_compile": False}, marks=pytest.mark.slow)]
)
def test_each_fit_has_the_batches_that_it_is_given(compiled):
    """One chain sees resident data, plain arrays and resident data in larger batches in turn."""
    ours, single = sampler(), sampler(check_num_examples=False)
    first = ours.resident(X, Y, batch_size=B, steps_per_call=2)
    second = ours.resident(X, Y, batch_size=B + 2, steps_per_call=2)
    model = classifier(**compiled)
    expected = []
    for data in (first, None, second):
        step = len(expected)
        if data is None:
            plain = [(X[i : i + B], Y[i : i + B]) for i in range(0, N, B)]
            model.fit(X, Y, batch_size=B, shuffle=False, verbose=0, callbacks=[ours])
            expected += plain
        else:
            model.fit(data, verbose=0, callbacks=[ours])
            expected += batches_of(data, range(step, step + data.steps_per_epoch))
    small_models.fit(classifier(**compiled), single, Batches(expected), None)
    np.testing.assert_array_equal(ours.result.trace["step"], range(9))
    assert_close(ours.samples, single.samples)


@pytest.mark.parametrize(
    "own, arguments, words",
    [(False, {}, "another SamplerCallback"), (True, {"class_weight": {0: 2.0}}, "class_weight")],
)
def test_data_and_weights_that_are_not_meant(own, arguments, words):
    callback = sampler()
    data = (callback if own else sampler()).resident(X, Y, batch_size=B)
    with pytest.raises(ValueError, match=words):
        classifier(**EAGERLY).fit(data, verbose=0, callbacks=[callback], **arguments)


@pytest.mark.slow
def test_several_inputs_and_chains():
    a, b = keras.Input([2], name="a"), keras.Input([2], name="b")
    model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Add()([a, b])))
    model.compile(loss=BINARY_CROSSENTROPY, jit_compile=False)
    callback = sampler(num_chains=2, prior=small_models.standard_normal())
    data = callback.resident([X, X**2], Y, batch_size=B)
    model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    assert callback.samples[0].shape == (6, 2, 2, 1)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        (
            {"x": X[:-1], "y": Y[:-1]},
            ValueError,
            "x must have num_examples = 20 rows. Received: 19",
        ),
        ({"y": Y[:-1]}, ValueError, "must be equal"),
        ({"batch_size": 21}, ValueError, "batch_size must be .* Received: 21"),
        ({"steps_per_call": 0}, ValueError, "steps_per_call must be .* Received: 0"),
        ({"steps_per_epoch": 1.5}, TypeError, "steps_per_epoch must be .* Received: 1.5"),
        ({"reshuffle": "never"}, ValueError, "reshuffle must be .*Received: 'never'"),
        ({"y": np.array(["a"] * N)}, TypeError, "y must hold numbers.*dtype string"),
    ],
)
def test_bad_data(changes, error, words):
    with pytest.raises(error, match=words):
        sampler().resident(**{"x": X, "y": Y, "batch_size": B, **changes})


def test_text_is_drawn_as_its_codes_are():
    """A layer of the model reads strings, which XLA does not compile."""
    words, codes = np.array(["no", "yes"] * (N // 2)), np.arange(N) % 2
    chains = []
    for x in (words, codes):
        lookup = keras.layers.StringLookup(vocabulary=["no", "yes"], num_oov_indices=0)
        read = lookup if x is words else keras.layers.Identity()
        inputs = keras.Input([], dtype="string" if x is words else "int64")
        model = keras.Model(
            inputs, keras.layers.Embedding(2, 1, embeddings_initializer="ones")(read(inputs))
        )
        model.compile("sgd", loss=BINARY_CROSSENTROPY)
        found = sgmcmc.keras.find_step_size(
            model, x, Y, batch_size=B, prior=tfp.distributions.Normal(0.0, 1.0), verbose=0
        )
        chains.append([np.array(found.step_size)])
        for name in ("data", "resident"):
            taken = sampler(num_steps_between_results=1, num_burnin_steps=1)
            data = getattr(taken, name)(x, Y, batch_size=B)
            model.set_weights([np.ones([2, 1], np.float32)])
            model.fit(data, epochs=2, verbose=0, callbacks=[taken])
            chains[-1].extend(np.array(s) for s in taken.samples)
    assert_close(chains[0], chains[1])

"""Batches that grow in the course of a chain in `fit`: the chain is that of `GrowingBatch`."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal, linear, sgld, unit_normal
from tfp_sgmcmc import random
from tfp_sgmcmc.keras import IndependentBatches
from tfp_sgmcmc.keras.data.fit_batches import BatchSizes

N, GROWTH, STEPS = 20, 1.5, 10  # batches of 1, 2, 3, 4, 6, 8, 12, 18, 20, 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = RNG.normal(size=[N, 1]).astype(np.float32)
EAGERLY = {"run_eagerly": True}
GRAPH = {"jit_compile": False}

sampler = functools.partial(
    small_models.sampler, sgld(1e-2), N, small_models.standard_normal(), seed=3
)
regression = functools.partial(linear, unit_normal, 1, inputs=2)


def resident(callback, **changes):
    arguments = {"batch_size": 1, "growth": GROWTH, "steps_per_epoch": STEPS, "steps_per_call": 3}
    return callback.resident(X, Y, **arguments | changes)


def independent(callback, **changes):
    arguments = {"batch_size": 1, "growth": GROWTH, "steps_per_epoch": STEPS, "seed": 5}
    return IndependentBatches(X, Y, **arguments | changes)


def rows_of(data, step):
    """Returns the examples of the batch of a step."""
    found = data[step] if isinstance(data, IndependentBatches) else data.batch(tf.constant(step))
    return np.array([np.flatnonzero((x == X).all(axis=1)).item() for x in np.asarray(found[0])])


class WithGivenRows(sgmcmc.MinibatchLogProb):
    """Takes the examples that `given` holds in place of random ones."""

    given = np.zeros([0], np.int32)

    def draw(self, seed, positions, chain_shape):
        del seed, chain_shape
        return tf.gather(self.given, tf.minimum(positions, len(self.given) - 1))


@pytest.mark.parametrize(
    "make_data, compiled",
    [
        pytest.param(resident, GRAPH, marks=pytest.mark.thorough),
        (independent, EAGERLY),
        pytest.param(resident, EAGERLY, marks=pytest.mark.slow),
        pytest.param(independent, GRAPH, marks=pytest.mark.slow),
    ],
)
def test_chain_is_that_of_growing_batch_with_the_same_minibatches(make_data, compiled):
    model, callback = regression(**compiled), sampler()
    state = [tf.constant(w) for w in model.get_weights()]
    data = make_data(callback)
    model.fit(data, verbose=0, callbacks=[callback])
    target = WithGivenRows(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=[-2, -1]),
        lambda w, batch: -0.5 * tf.square(batch[1] - tf.matmul(batch[0], w))[..., 0],
        (X, Y),
        batch_size=7,
    )
    kernel = sgmcmc.SGLD(sgmcmc.GrowingBatch(target, GROWTH), 1e-2)
    results, states, sizes = kernel.bootstrap_results(state), [], []
    for t in range(STEPS):
        target.given = rows_of(data, t)
        sizes.append(len(target.given))
        seed = random.fold_in(tf.constant(callback.seed), t)
        state, results = kernel.one_step(state, results, seed=seed)
        states.append(state[0].numpy())
    assert sizes == [1, 2, 3, 4, 6, 8, 12, 18, 20, 20]
    assert_close(callback.samples, [np.stack(states)], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_xla_compiles_each_size_and_gives_the_same_moves():
    """At temperature 0, as XLA draws other numbers."""
    found = []
    for compiled in ({"jit_compile": True}, EAGERLY):
        callback = small_models.sampler(sgld(1e-2, temperature=0.0), N, seed=3)
        regression(**compiled).fit(independent(callback), verbose=0, callbacks=[callback])
        found.append(callback.samples)
    assert_close(*found, rtol=1e-4)


def test_every_batch_of_a_generator_is_scaled_by_its_own_size():
    """The log likelihood is linear, so a step without noise moves by eps/2 N/n times a sum."""
    sizes = [1, 2, 5, 13, 20]

    def batches():
        for n in sizes:
            yield X[:n], Y[:n]

    model = linear(lambda y, f: -f, 1, inputs=2, **GRAPH)
    first = model.get_weights()[0]
    callback = small_models.sampler(sgld(1e-2, temperature=0.0), N, check_num_examples=False)
    model.fit(batches(), steps_per_epoch=len(sizes), shuffle=False, verbose=0, callbacks=[callback])
    moves = np.diff(np.concatenate([[first], callback.samples[0]]), axis=0)[..., 0]
    expected = [0.5e-2 * N / n * X[:n].sum(axis=0) for n in sizes]
    np.testing.assert_allclose(moves, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "first, growth, total", [(1, 1.1, 500), (100, 1.1, 1000), (3, 2.0, 48), (7, 1.0, 20)]
)
def test_sizes_are_those_of_growing_batch(first, growth, total):
    """Also where a product is a whole number, and rounding decides."""
    target = sgmcmc.MinibatchLogProb(
        lambda x: tf.zeros_like(x),
        lambda x, batch: batch * x[..., None],
        np.ones(total, np.float32),
        1,
    )
    growing, expected = sgmcmc.GrowingBatch(target, growth, first), []
    size = growing.bootstrap(tf.zeros([])).size
    for _ in range(100):
        expected.append(int(np.ceil(size)))
        size = tf.minimum(size * growing.growth, tf.cast(total, tf.float64))
    sizes = BatchSizes(first, growth, total, 1)
    assert [sizes.at(t) for t in range(100)] == expected
    steps = tf.range(100, dtype=tf.int64)
    np.testing.assert_array_equal(sizes.tensor_at(steps), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("make_data", [resident, pytest.param(independent, marks=pytest.mark.slow)])
def test_growth_goes_on_in_the_next_fit_and_in_a_script_run_again(make_data, tmp_path):
    def fits(directory, *numbers, steps=STEPS // 2):
        for epochs in numbers:
            model, callback = regression(**EAGERLY), sampler(directory=directory)
            data = make_data(callback, steps_per_epoch=steps)
            model.fit(data, epochs=epochs, verbose=0, callbacks=[callback])
        return [np.asarray(s) for s in callback.samples]

    expected = fits(tmp_path / "once", 2)
    assert_equal(fits(tmp_path / "twice", 1, 2), expected)
    assert_close(fits(None, 1, steps=STEPS), expected)


@pytest.mark.thorough
def test_another_growth_is_another_run(tmp_path):
    for growth in (GROWTH, 2.0):
        callback = sampler(directory=tmp_path)
        data = independent(callback, growth=growth)
        if growth == GROWTH:
            regression(**EAGERLY).fit(data, verbose=0, callbacks=[callback])
        else:
            with pytest.raises(ValueError, match="growth"):
                regression(**EAGERLY).fit(data, verbose=0, callbacks=[callback])


@pytest.mark.thorough
def test_a_kernel_with_the_covariance_of_the_noise():
    """The noise is that of each batch's size; from batches of all examples no noise is left."""
    callback, model = small_models.sampler(noise, N), regression(**EAGERLY)
    model.fit(independent(callback, batch_size=4), verbose=0, callbacks=[callback])
    assert np.isfinite(callback.samples[0]).all() and len(callback.samples[0]) == STEPS


def wrapped(target):
    return sgmcmc.SGLD(sgmcmc.GrowingBatch(target), 1e-2)


def noise(target):
    return sgmcmc.NOGIN(target, 0.01, friction=1.0)


@pytest.mark.parametrize(
    "make_kernel_fn, make_data, changes, compiled, error, words",
    [
        (wrapped, independent, {}, EAGERLY, TypeError, "with growth for batches that grow"),
        (noise, independent, {}, GRAPH, ValueError, "batch_size must be at least 2.*from bat"),
        (sgld(), resident, {}, {"jit_compile": True}, ValueError, "compiled with jit_compile=Fal"),
        (sgld(), resident, {"reshuffle": "epoch"}, EAGERLY, ValueError, "reshuffle must be 'step'"),
        (sgld(), resident, {"growth": 0.9}, EAGERLY, ValueError, "growth must be .* Received: 0.9"),
        (sgld(), resident, {"growth": 1 + 1e-9}, EAGERLY, ValueError, "growth must be 1, or reach"),
        (sgld(), resident, {"growth": "x"}, EAGERLY, TypeError, "growth must be"),
        (sgld(), independent, {"steps_per_epoch": None}, EAGERLY, ValueError, "steps_per_epoch mu"),
        ("auto", independent, {}, EAGERLY, ValueError, "must be a function for batches that grow"),
    ],
)
def test_what_cannot_grow_is_refused_before_a_step(
    make_kernel_fn, make_data, changes, compiled, error, words
):
    model = regression(**compiled)
    before = model.get_weights()
    epochs = {"num_burnin_epochs": 4} if make_kernel_fn == "auto" else {}
    with pytest.raises(error, match=words):
        callback = small_models.sampler(make_kernel_fn, N, None, **epochs)
        model.fit(make_data(callback, **changes), epochs=8, verbose=0, callbacks=[callback])
    assert_equal(model.get_weights(), before)


def test_many_sizes_under_xla_are_told():
    data = IndependentBatches(
        np.tile(X, [50, 1]), np.tile(Y, [50, 1]), batch_size=1, growth=1.1, steps_per_epoch=1
    )
    callback = small_models.sampler(sgld(1e-5), 50 * N)
    with pytest.warns(UserWarning, match="each of the [0-9]+ sizes"):
        regression(jit_compile=True).fit(data, verbose=0, callbacks=[callback])

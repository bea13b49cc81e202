"""Batches drawn independently of one another, and kernels that refuse others."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, affine, assert_equal, sgld
from tfp_sgmcmc.keras import IndependentBatches

CHECKS_CURVATURE = True
N, B = 20, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def nogin(target):
    return sgmcmc.NOGIN(target, 0.01, friction=1.0)


sampler = functools.partial(small_models.sampler, nogin, N, seed=3)
classifier = functools.partial(affine, BINARY_CROSSENTROPY, 1, inputs=2, run_eagerly=True)


def dataset(batch_size):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


DEPENDENT = {
    "arrays": lambda callback: {"x": X, "y": Y, "batch_size": B},
    "tf.data": lambda callback: {"x": dataset(B), "shuffle": False},
    "resident": lambda callback: {"x": callback.resident(X, Y, batch_size=B, reshuffle="epoch")},
}
INDEPENDENT = {
    "whole arrays": lambda callback: {"x": X, "y": Y, "batch_size": N},
    "whole tf.data": lambda callback: {"x": dataset(N), "shuffle": False},
    "resident": lambda callback: {"x": callback.resident(X, Y, batch_size=B)},
    "IndependentBatches": lambda callback: {"x": IndependentBatches(X, Y, batch_size=B)},
}


@pytest.mark.parametrize("data", fast_settings(DEPENDENT, "arrays"))
def test_a_kernel_that_expects_independent_batches_refuses_others_before_it_moves(data):
    callback, model = sampler(), classifier()
    before = model.get_weights()
    with pytest.raises(ValueError, match="batches must be independent.*IndependentBatches"):
        model.fit(**DEPENDENT[data](callback), verbose=0, callbacks=[callback])
    assert_equal(model.get_weights(), before)
    assert callback.samples[0].shape[0] == 0
    data = IndependentBatches(X + 1, Y, batch_size=B)  # nothing was sampled, so all can change
    classifier().fit(data, verbose=0, callbacks=[callback])
    assert len(callback.samples[0]) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "data",
    fast_settings(INDEPENDENT, "IndependentBatches"),
)
def test_independent_batches_are_taken(data):
    callback = sampler()
    classifier().fit(**INDEPENDENT[data](callback), verbose=0, callbacks=[callback])
    assert len(callback.samples[0]) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {"independent_batches": False},
        pytest.param({"independent_batches": True}, marks=pytest.mark.thorough),
    ],
)
def test_the_user_may_know_better(changes):
    callback = sampler(**changes)
    small_models.fit(classifier(), callback, X, Y, batch_size=B)
    assert len(callback.samples[0]) == 4


@pytest.mark.thorough
def test_other_kernels_take_any_batches():
    callback = small_models.sampler(sgld(), N)
    small_models.fit(classifier(), callback, X, Y, batch_size=B)
    assert len(callback.samples[0]) == 4


@pytest.mark.thorough
def test_a_second_fit_is_checked_too():
    callback, model = sampler(), classifier()
    model.fit(IndependentBatches(X, Y, batch_size=B), verbose=0, callbacks=[callback])
    with pytest.raises(ValueError, match="batches must be independent"):
        model.fit(X, Y, batch_size=B, verbose=0, callbacks=[callback])


def test_a_batch_has_no_example_twice_and_batches_differ():
    data = IndependentBatches({"a": np.arange(N)}, np.arange(N), np.ones(N), B, seed=(0, 1))
    batches = [data[i] for i in range(len(data))]
    assert len(batches) == 3
    for x, y, weight in batches:
        assert_equal([x["a"]], [y])
        assert len(set(y)) == B and weight.dtype == np.float32
    assert len({tuple(y) for _, y, _ in batches}) == 3
    data.begin_epoch(2, seed=[5, 5])  # its own seed stays
    np.testing.assert_array_equal(data[0][1], batches[2][1])


def test_lists_of_arrays_become_tuples():
    """Batches of `tf.data` have no lists, and a model with two inputs takes either."""
    a, b = np.zeros([6, 2], np.float32), np.ones([6, 1], np.float32)
    (x, y) = sgmcmc.keras.IndependentBatches([a, b], [b, a], batch_size=3)[0]
    assert isinstance(x, tuple) and isinstance(y, tuple)
    assert [v.shape for v in (*x, *y)] == [(3, 2), (3, 1), (3, 1), (3, 2)]


def test_each_example_comes_equally_often():
    """Chi-square of 20 counts over 6,000 draws; without replacement it is smaller by 14/19."""
    data = IndependentBatches(np.arange(N), batch_size=B, seed=0, steps_per_epoch=1000)
    counts = np.bincount(np.concatenate([data[i][0] for i in range(1000)]), minlength=N)
    statistic = ((counts - 300) ** 2 / 300).sum() * 19 / 14
    assert statistic < 65  # chi-square with 19 degrees of freedom exceeds it with probability 7e-7
    assert statistic > 1.5  # and falls below this with probability 1e-7


@pytest.mark.thorough
@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param({"run_eagerly": True}, marks=pytest.mark.slow),
        {"jit_compile": False, "steps_per_execution": 2},
    ],
)
def test_a_run_goes_on_with_the_same_batches(tmp_path, compiled):
    """Keras shuffles the batches of a PyDataset, but not these."""

    def fits(directory, *numbers):
        for epochs in numbers:
            model = affine(BINARY_CROSSENTROPY, 1, inputs=2, **compiled)
            callback = sampler(directory=directory, seconds_between_commits=0.0)
            data = IndependentBatches(X, Y, batch_size=B, steps_per_epoch=4)
            model.fit(data, epochs=epochs, verbose=0, callbacks=[callback])
        return [np.asarray(s) for s in callback.samples]

    whole = fits(tmp_path / "once", 2)
    assert len(whole[0]) == 8
    assert_equal(fits(tmp_path / "twice", 1, 2), whole)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"batch_size": 21}, ValueError, "batch_size must be .* Received: 21"),
        ({"batch_size": "6"}, TypeError, "batch_size must be an integer"),
        ({"steps_per_epoch": 0}, ValueError, "steps_per_epoch must be .* Received: 0"),
        ({"y": Y[:-1]}, ValueError, "must be equal"),
        ({"seed": "a"}, ValueError, "seed must be an integer"),
        ({"sample_weight": 6}, TypeError, "sample_weight must be an array.*as in batch_size=6"),
    ],
)
def test_arguments(changes, error, words):
    with pytest.raises(error, match=words):
        IndependentBatches(**{"x": X, "y": Y, "batch_size": B, **changes})


def test_what_fit_must_not_be_given_beside_them():
    callback = sampler()
    with pytest.raises(ValueError, match="steps_per_epoch must be given to IndependentBatches"):
        classifier().fit(
            IndependentBatches(X, Y, batch_size=B), steps_per_epoch=2, verbose=0,
            callbacks=[callback],
        )  # fmt: skip
    with pytest.raises(ValueError, match="fit was given IndependentBatches of 19 examples"):
        classifier().fit(
            IndependentBatches(X[:-1], Y[:-1], batch_size=B), verbose=0, callbacks=[sampler()]
        )


@pytest.mark.slow
def test_the_law_of_nogin_on_a_gaussian_is_the_posterior():
    """The variance of NOGIN on a Gaussian is exact with independent batches.

    z, from 50 means of the squared deviation in units of 1/N, has Student's t law with 49 degrees
    of freedom, which exceeds 5.6 with probability 1e-6. The batches of `fit` are the control: their
    ratio is 0.68, eight standard errors away.
    """
    num_examples, num_steps = 40, 20_000
    y = np.random.default_rng(0).normal(size=[num_examples, 1]).astype(np.float32)

    def ratio_and_z(are_independent):
        loss = sgmcmc.keras.NegativeLogLikelihood(lambda f: tfp.distributions.Normal(f, 1.0))
        model = small_models.linear(loss, 1, inputs=1, jit_compile=True, steps_per_execution=50)
        h, friction = 0.5 / num_examples**0.5, num_examples**0.5
        callback = small_models.sampler(
            lambda target: sgmcmc.NOGIN(target, h, friction, num_estimation_steps=200),
            num_examples,
            num_burnin_steps=1000,
            num_steps_between_results=1,
            independent_batches=False,
        )
        x = np.ones_like(y)
        if are_independent:
            data = IndependentBatches(x, y, batch_size=5, steps_per_epoch=num_steps)
            model.fit(data, verbose=0, callbacks=[callback])
        else:
            model.fit(x, y, batch_size=5, epochs=num_steps // 8, verbose=0, callbacks=[callback])
        kept = callback.samples[0].ravel().astype(float)
        deviations = kept[: len(kept) // 50 * 50].reshape([50, -1]) - y.mean()
        means = num_examples * (deviations**2).mean(axis=1)
        return means.mean(), (means.mean() - 1) / (means.std(ddof=1) / len(means) ** 0.5)

    ratio, z = ratio_and_z(True)
    assert abs(z) < 5.6 and abs(ratio - 1) < 0.2
    ratio, z = ratio_and_z(False)
    assert z < -5.6

"""Chains that start at trained models, at files of weights, and at samples of posteriors."""

import functools

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal, sequential, sgld

N, C = 24, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])
# Keras' own, where it saves and loads weights.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
fit = functools.partial(small_models.fit, x=X, y=Y, batch_size=8)


def classifier(*hidden, **compiled):
    return sequential(*hidden, keras.layers.Dense(4), **compiled)


def normalized():
    hidden = keras.layers.Dense(5), keras.layers.BatchNormalization()
    return classifier(*hidden, jit_compile=False)  # steps of chains are traced once


@pytest.fixture(scope="module")
def ensemble():
    """Returns models of one architecture whose weights and moving statistics all differ."""
    models = [normalized() for _ in range(C)]
    for model in models:
        for variable in model.weights:
            variable.assign(RNG.uniform(0.5, 1.0, size=variable.shape))
    return models


def posterior_of(model, *sets_of_weights, num_chains=None):
    pairs = [np.stack(values) for values in zip(*sets_of_weights, strict=True)]
    if num_chains is not None:
        pairs = [x[np.newaxis] for x in pairs]
    return sgmcmc.keras.Posterior(model, model.weights, pairs, num_chains)


def as_models(ensemble, folder):
    return ensemble


def as_files(ensemble, folder):
    paths = [folder / "0.keras", str(folder / "1.weights.h5"), folder / "2.keras"]
    ensemble[0].save(paths[0])
    ensemble[1].save_weights(paths[1])
    ensemble[2].save(paths[2])
    return paths


def as_last_samples(ensemble, folder):
    other = [np.zeros(v.shape, np.float32) for v in ensemble[0].weights]
    return [posterior_of(m, other, m.get_weights()) for m in ensemble]


def as_samples(ensemble, folder):
    return posterior_of(ensemble[0], *(m.get_weights() for m in ensemble))


def as_chains(ensemble, folder):
    return posterior_of(ensemble[0], *(m.get_weights() for m in ensemble), num_chains=C)


def mixed(ensemble, folder):
    path = folder / "1.weights.h5"
    ensemble[1].save_weights(path)
    return [ensemble[0], path, as_last_samples(ensemble, folder)[2]]


@pytest.mark.parametrize(
    "form",
    # Models and files are in the mixed ensemble, too.
    fast_settings(
        [as_models, as_files, as_last_samples, as_samples, as_chains, mixed],
        *(as_last_samples, as_samples, as_chains, mixed),
    ),
)
def test_the_first_state_of_chain_i_is_model_i(ensemble, form, tmp_path):
    """The model starts as the first member, too, and members stay as they are."""
    model = normalized()
    callback = small_models.sampler(
        sgld(), N, num_chains=C, initial_states=form(ensemble, tmp_path)
    )
    before = model.get_weights(), [m.get_weights() for m in ensemble]
    callback.set_model(model)
    assert_equal(model.get_weights(), before[0])  # files were read into it
    for variable, value in zip(
        model.trainable_variables, callback.recorder.chain.state.read(), strict=True
    ):
        place = next(i for i, v in enumerate(model.weights) if v is variable)
        assert_equal(value, [m.get_weights()[place] for m in ensemble])
    for member, weights in zip(ensemble, before[1], strict=True):
        assert_equal(member.get_weights(), weights)


def test_chains_go_on_from_the_moving_statistics_of_their_members(ensemble):
    """At step size 1e-12 the weights stay, and statistics move by 1 % of a batch's."""
    callback = small_models.sampler(sgld(1e-12, 0.0), N, num_chains=C, initial_states=ensemble)
    fit(normalized(), callback, epochs=1)
    assert_close([s[0, i] for i in range(C) for s in callback.samples], [
        v.numpy() for m in ensemble for v in m.trainable_variables], atol=1e-4)  # fmt: skip
    moving = callback.result.non_trainable_samples.values()
    for found, place in zip(moving, (-2, -1), strict=True):
        for i, member in enumerate(ensemble):
            start = member.non_trainable_variables[place].numpy()
            (hidden, _, _), kernel = member.layers, member.trainable_variables[0].numpy()
            rows = X[:8] @ kernel + hidden.bias.numpy()
            batch = rows.mean(axis=0) if place == -2 else rows.var(axis=0)
            assert_close([found[0, i]], [0.99 * start + 0.01 * batch])


@pytest.mark.slow
def test_an_ensemble_of_draws_starts_chains():
    model = classifier(optimizer="sgd", jit_compile=False)
    swag = sgmcmc.keras.SWAG(0)
    model.fit(X, Y, epochs=4, verbose=0, callbacks=[swag])
    draws = swag.posterior(C, seed=0)
    callback = small_models.sampler(sgld(1e-12, 0.0), N, num_chains=C, initial_states=draws)
    fit(model, callback)
    assert_close([s[0] for s in callback.samples], draws.samples)


def test_unfit_members_are_refused(ensemble, tmp_path):
    other, broken = classifier(keras.layers.Dense(5)), normalized()
    broken.weights[0].assign(np.full([3, 5], np.nan))
    path, text = tmp_path / "other.weights.h5", tmp_path / "text.weights.h5"
    other.save_weights(path)
    text.write_text("no weights")
    wider = classifier(keras.layers.Dense(6), keras.layers.BatchNormalization())
    two = ensemble[:2]
    cases = [
        (two, ValueError, "one entry for each of the 3 chains. Received: 2"),
        ([*two, X], TypeError, r"initial_states\[2\] must be a built keras.Model.*ndarray"),
        ([*two, keras.Sequential()], ValueError, "not built"),
        ([*two, tmp_path / "none.keras"], FileNotFoundError, "which does not exist"),
        ([*two, path], ValueError, r"initial_states\[2\] must be a file.*which Keras refuses"),
        ([*two, text], ValueError, r"initial_states\[2\] must be a file.*which Keras refuses"),
        ([*two, wider], ValueError, r"kernel of shape \(3, 6\) in the place of .*\(3, 5\)"),
        ([*two, other], ValueError, r"kernel of shape \(5, 4\) in the place of .*gamma"),
        ([*two, broken], ValueError, r"initial_states\[2\] must be finite.*kernel"),
        ([*two, as_chains(ensemble, None)], ValueError, "one of 3 chains"),
        (posterior_of(two[0], two[0].get_weights()), ValueError, "3 samples.*with 1 samples"),
    ]
    for starts, error, message in cases:
        callback = small_models.sampler(sgld(), N, num_chains=C, initial_states=starts)
        model = normalized()
        before = model.get_weights()
        with pytest.raises(error, match=message):
            callback.set_model(model)
        assert_equal(model.get_weights(), before)


def test_members_on_other_frozen_layers_are_refused(ensemble):
    """Their last layers would stand on the layers of the model."""
    frozen, *others = [normalized() for _ in range(C)]
    for model, member in zip((frozen, *others), ensemble, strict=True):
        model.set_weights(member.get_weights())
    for layer in frozen.layers[:2]:
        layer.trainable = False
    frozen.compile(loss=small_models.CROSSENTROPY)
    callback = small_models.sampler(sgld(), N, num_chains=C, initial_states=[frozen, *others])
    with pytest.raises(ValueError, match="kernel, which is not sampled.*other values for chain 1"):
        fit(frozen, callback)
    for model in others:
        for layer, given in zip(model.layers[:2], frozen.layers, strict=False):
            layer.set_weights(given.get_weights())
            layer.trainable = False
    starts = [m.layers[-1].kernel.numpy() for m in (frozen, *others)]
    callback = small_models.sampler(
        sgld(1e-12, 0.0), N, num_chains=C, initial_states=[frozen, *others]
    )
    fit(frozen, callback, epochs=1)
    assert_close(callback.samples[0][0], starts, atol=1e-4)

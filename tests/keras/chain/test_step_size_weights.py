"""Runs with a decreasing step: weights of the samples, and samples at equal distances in time."""

import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, assert_close, assert_equal, linear, sgld
from tfp_sgmcmc.diagnostics import indices_by_distance, weighted_expectation

N, B, EPOCHS = 12, 4, 8  # 3 steps an epoch
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
DECAY = sgmcmc.schedules.PolynomialDecay(a=0.5, b=1.0, gamma=0.8)
GRAPH = {"jit_compile": False}  # of 24 steps; XLA would draw other normals


def fit(epochs=(EPOCHS,), step_size=DECAY, compiled=None, directory=None, **arguments):
    """Runs what a script would run; returns the callback of the last fit."""
    for number in epochs:
        model = linear(BINARY_CROSSENTROPY, 1, inputs=2, **(compiled or GRAPH))
        prior = small_models.standard_normal()
        callback = small_models.sampler(sgld(step_size), N, prior, directory=directory, **arguments)
        small_models.fit(model, callback, X, Y, batch_size=B, epochs=number)
    return callback


@pytest.fixture(scope="module")
def every_step():
    return fit()


@pytest.mark.parametrize("num_chains", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_prediction_and_evaluation_are_weighted_by_the_step_sizes(num_chains, every_step):
    callback, steps = every_step, np.arange(3 * EPOCHS)
    if num_chains:
        callback = fit(num_chains=num_chains, num_burnin_steps=3, num_steps_between_results=1)
        steps = steps[3::2]
    epsilon = np.array([float(DECAY(t)) for t in steps])
    np.testing.assert_array_equal(callback.result.trace["step"], steps)
    np.testing.assert_allclose(callback.result.trace["step_size"], epsilon, rtol=1e-6)
    p, log_p = callback.posterior.outputs(X), callback.posterior.log_likelihood(X, Y)
    over_chains = 1 if num_chains else ()

    def mean(values):
        return weighted_expectation(np.mean(values.astype(np.float64), over_chains), epsilon)

    found = callback.predict(X)
    np.testing.assert_allclose(found.mean, mean(p), rtol=1e-5)
    variance = mean((p - found.mean) ** 2)
    np.testing.assert_allclose(found.standard_deviation, np.sqrt(variance), rtol=1e-4)
    density = np.log(mean(np.exp(log_p))).mean()
    scores = callback.posterior.evaluate(X, Y)
    np.testing.assert_allclose(scores.log_predictive_density, density, rtol=1e-5)
    information = callback.posterior.predict(X)
    entropies = -p * np.log(p) - (1 - p) * np.log(1 - p)
    np.testing.assert_allclose(
        information.entropy - information.mutual_information, mean(entropies), rtol=1e-4
    )
    # Without the weights these are others.
    plain = callback.posterior.with_samples(callback.posterior.samples)
    assert np.abs(plain.predict(X).mean - found.mean).max() > 1e-3
    assert abs(plain.evaluate(X, Y).log_predictive_density - density) > 1e-4


@pytest.mark.slow
def test_weights_do_not_depend_on_the_compilation():
    compiled = fit(compiled={"jit_compile": False, "steps_per_execution": 3})
    eager = fit(compiled={"run_eagerly": True})
    assert_close([compiled.predict(X).mean], [eager.predict(X).mean], rtol=1e-4)
    np.testing.assert_allclose(
        compiled.result.trace["step_size"], [float(DECAY(t)) for t in range(3 * EPOCHS)], rtol=1e-6
    )


@pytest.mark.thorough
def test_equal_steps_have_no_weights():
    callback = fit((2,), step_size=0.1)
    assert callback.posterior.weights is None
    np.testing.assert_allclose(
        callback.predict(X).mean, callback.posterior.outputs(X).mean(0), rtol=1e-5
    )


@pytest.mark.thorough
def test_weights_are_saved(tmp_path, every_step):
    posterior = every_step.posterior
    posterior.save(tmp_path / "p.npz")
    again = sgmcmc.keras.Posterior.load(tmp_path / "p.npz", posterior.model)
    np.testing.assert_array_equal(again.weights, posterior.weights)
    assert_equal(again.predict(X)[:2], posterior.predict(X)[:2])


@pytest.mark.parametrize(
    "weights, error, words",
    [
        ([1.0, 2.0], ValueError, r"weights must have shape \[3\].*\[2\]"),
        ([1.0, -1.0, 1.0], ValueError, "weights must be finite, not negative"),
        ([0.0, 0.0, 0.0], ValueError, "not all 0"),
        ([1.0, np.nan, 1.0], ValueError, "weights must be finite"),
    ],
)
def test_wrong_weights(weights, error, words):
    model = linear(BINARY_CROSSENTROPY, 1, inputs=2)
    samples = [np.zeros([3, 2, 1], np.float32)]
    with pytest.raises(error, match=words):
        sgmcmc.keras.Posterior(model, model.trainable_variables, samples, weights=weights)


@pytest.mark.parametrize(
    "burnin, distance", [(5, 0.15), pytest.param(0, 0.55, marks=pytest.mark.slow)]
)
def test_a_distance_selects_the_states_that_indices_by_distance_does(burnin, distance, every_step):
    chosen = indices_by_distance(every_step.result.trace["step_size"][burnin:], distance)
    assert 3 < len(chosen) < 3 * EPOCHS - burnin
    callback = fit(num_burnin_steps=burnin, mixing_distance=distance)
    np.testing.assert_array_equal(callback.result.trace["step"], burnin + chosen)
    assert_equal(callback.samples, [x[burnin:][chosen] for x in every_step.samples])
    assert callback.posterior.weights is None


@pytest.mark.slow
def test_a_distance_counts_from_the_sampling_threshold():
    arguments = {"noise_every": 1, "sampling_threshold": 0.3, "compiled": {"jit_compile": False}}
    every = fit(**arguments)
    assert 0 < every.result.trace["step"][0] < 3 * EPOCHS - 6
    chosen = indices_by_distance(every.result.trace["step_size"], 0.25)
    callback = fit(mixing_distance=0.25, **arguments)
    np.testing.assert_array_equal(callback.result.trace["step"], every.result.trace["step"][chosen])


@pytest.mark.slow
def test_a_run_in_a_directory_goes_on(tmp_path):
    arguments = {"mixing_distance": 0.55, "seconds_between_commits": 0.0}
    expected = fit(**arguments)
    again = fit((1, EPOCHS), directory=tmp_path, **arguments)
    np.testing.assert_array_equal(again.result.trace["step"], expected.result.trace["step"])
    np.testing.assert_array_equal(
        again.result.trace["step_size"], expected.result.trace["step_size"]
    )
    assert_equal([np.asarray(x) for x in again.samples], expected.samples)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"mixing_distance": 0.0}, "mixing_distance must be .*Received: 0.0"),
        ({"mixing_distance": 1.0, "num_steps_between_results": 1}, "Only one of mixing_distance"),
    ],
)
def test_wrong_distances(arguments, words):
    with pytest.raises(ValueError, match=words):
        small_models.sampler(sgld(), N, **arguments)

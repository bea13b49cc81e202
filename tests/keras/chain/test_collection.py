"""The states that become samples, by steps, epochs, phases and sampling threshold; the logs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras.small_models import affine, linear, sampler, sgld, unit_normal
from tfp_sgmcmc.keras.chain.collection import Collection

N, B, D = 12, 4, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = X[:, :1]


def fit(make_kernel_fn, epochs=4, compiled=None, callbacks=(), **arguments):
    """Returns a chain of 3 steps an epoch on a Gaussian linear regression, and its logs."""
    model = linear(unit_normal, 1, inputs=D, **(compiled or {}))
    callback = sampler(make_kernel_fn, N, **arguments)
    history = model.fit(
        X, Y, batch_size=B, shuffle=False, epochs=epochs, verbose=0,
        callbacks=[callback, *callbacks],
    )  # fmt: skip
    return callback, history.history


@pytest.mark.parametrize("between", [0, 1, 4])
@pytest.mark.parametrize("burnin", [0, 3])
def test_a_sample_is_never_thought_not_due(burnin, between):
    collection = Collection(burnin, between)
    kept = [t for t in range(20) if collection.is_kept(tf.constant(burnin), tf.constant(t))]
    assert kept == list(range(burnin, 20, between + 1))
    for before in range(20):
        for after in range(before, 20):
            is_due = any(before <= t < after for t in kept)
            assert collection.may_be_due(before, after) == is_due
    is_open = Collection(burnin, between, is_open=True)
    assert all(is_open.may_be_due(t, t + 1) for t in range(burnin, 20))


@pytest.mark.thorough
def test_burnin_by_epochs():
    for fits in ([3], [1, 2]):
        model = affine(unit_normal, 1, inputs=D)
        callback = sampler(sgld(), N, num_steps_between_results=1, num_burnin_epochs=2)
        for epochs in fits:
            model.fit(X, Y, batch_size=B, epochs=epochs, verbose=0, callbacks=[callback])
        assert list(callback.result.trace["step"]) == [6, 8]  # 3 steps an epoch


@pytest.mark.thorough
def test_only_the_sampling_phase_is_kept():
    schedule = sgmcmc.schedules.Cyclical(
        1e-3, num_steps=12, num_cycles=2, exploration_ratio=0.5
    )  # cycles of 6 steps
    callback, logs = fit(
        sgld(schedule),
        keep=schedule.is_sampling,
        compiled={"steps_per_execution": 3, "jit_compile": False},
    )
    assert list(callback.result.trace["step"]) == [3, 4, 5, 9, 10, 11]
    np.testing.assert_allclose(logs["step_size"], [float(schedule(t)) for t in (2, 5, 8, 11)])


@pytest.mark.thorough
def test_samples_of_a_sampling_phase_have_equal_weights():
    schedule = sgmcmc.schedules.Cyclical(0.1, num_steps=6, num_cycles=1, exploration_ratio=0.5)
    callback, _ = fit(
        sgld(schedule), keep=schedule.is_sampling, compiled={"run_eagerly": True}, epochs=2
    )
    assert callback.posterior.weights is None
    outputs, found = callback.posterior.outputs(X), callback.predict(X).mean
    np.testing.assert_allclose(found, outputs.mean(axis=0), 1e-5, 1e-7)
    weighted = sgmcmc.diagnostics.weighted_expectation(outputs, callback.result.trace["step_size"])
    assert np.abs(weighted - found).max() > 1e-2  # the other weights give others


def test_samples_of_other_steps_have_the_weights_of_their_steps():
    schedule = sgmcmc.schedules.Cyclical(0.1, num_steps=6, num_cycles=1)
    assert Collection(0, keep=schedule.is_sampling).has_equal_weights
    assert Collection(0, distance=0.1).has_equal_weights
    assert not Collection(0, keep=lambda step: schedule.is_sampling(step)).has_equal_weights
    assert not Collection(0).has_equal_weights


@pytest.mark.parametrize("between", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_cyclical_sghmc_keeps_the_sampling_phases_by_a_word(between):
    """Cycles of 6 steps, the first 60 % of which explore: steps 0 .. 3, as 3.6 rounds up."""
    schedule = sgmcmc.schedules.Cyclical(1e-3, num_steps=18, num_cycles=3, exploration_ratio=0.6)
    model = linear(unit_normal, 1, inputs=D, jit_compile=False)
    callback = sgmcmc.keras.SamplerCallback(
        "SGHMC",
        prior=None,
        collect=sgmcmc.keras.Collect(1, between, keep="sampling"),
        step_size=schedule,
        seed=0,
        num_examples=N,
    )  # fmt: skip
    data = callback.resident(X, Y, batch_size=B, steps_per_call=5, steps_per_epoch=9)
    model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    every = [4, 5, 10, 11, 16, 17]
    assert list(callback.result.trace["step"]) == (every if not between else [5, 11, 17])
    expected = [float(schedule(t)) for t in callback.result.trace["step"]]
    np.testing.assert_allclose(callback.result.trace["step_size"], expected, rtol=1e-5)
    assert callback.posterior.weights is None


def test_a_word_for_the_phases_needs_a_schedule_that_has_them():
    arguments = {"num_examples": N, "keep": "sampling"}
    with pytest.raises(ValueError, match='keep="sampling" needs a step_size with sampling phases'):
        sampler("SGLD", step_size=1e-3, **arguments)
    with pytest.raises(ValueError, match=r"pass keep=schedule\.is_sampling"):
        sampler(sgld(), **arguments)
    with pytest.raises(ValueError, match="keep must be one of"):
        sampler(sgld(), **{**arguments, "keep": "cycles"})


class Alphas(keras.callbacks.Callback):
    """Records the logged sampling threshold after each step."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["sampling_threshold"])


@pytest.mark.thorough
def test_burnin_ends_at_the_sampling_threshold():
    """Burn-in ends after the first checked step behind the burn-in steps with alpha below it."""
    schedule = sgmcmc.schedules.PolynomialDecay(a=1e-2, b=1.0, gamma=1.0)
    run = {"epochs": 5, "noise_every": 2, "compiled": {"jit_compile": False}}
    run["num_burnin_steps"] = 5
    alphas = Alphas()
    callback, _ = fit(sgld(schedule), sampling_threshold=1e-12, callbacks=[alphas], **run)
    assert not len(callback.samples[0])
    np.testing.assert_array_equal(alphas.values[:-1:2], alphas.values[1::2])  # every second step
    threshold = 1.01 * min(alphas.values[6:10])
    first = next(t for t in range(4, 15) if alphas.values[t] < threshold)
    callback, _ = fit(sgld(schedule), sampling_threshold=threshold, **run)
    assert list(callback.result.trace["step"]) == list(range(first + 1, 15))


@pytest.mark.parametrize("num_chains", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_logged_noise_is_that_of_the_batch(num_chains):
    """Compares with a linear regression's scores, at the state before the last checked step."""
    callback, logs = fit(
        sgld(preconditioner=4.0, temperature=0.5),
        noise_every=1,
        num_chains=num_chains,
        compiled={"jit_compile": False},
    )
    weights = callback.samples[0][10].reshape(-1, D)  # before step 11
    batch = slice(2 * B, 3 * B)  # of step 11
    alphas, shares = [], []
    for w in weights:
        scores = (Y[batch] - X[batch] @ w[:, None]) * X[batch]
        sigma = N * (N - B) / B * np.cov(scores.T)
        ratio = 1e-3 * 4 / (4 * 0.5) * np.linalg.eigvalsh(sigma)
        alphas.append(ratio.max())
        shares.append(ratio.mean() / (1 + ratio.mean()))
    np.testing.assert_allclose(logs["sampling_threshold"][-1], max(alphas), rtol=1e-3)
    np.testing.assert_allclose(logs["gradient_noise_share"][-1], np.mean(shares), rtol=1e-3)
    assert logs["temperature"] == [0.5] * 4


@pytest.mark.thorough
def test_momenta_log_their_temperature():
    callback, logs = fit(lambda target: sgmcmc.SGNHT(target, 1e-2, friction=1.0))
    kinetic = callback.recorder.chain.state.results.kinetic_temperature
    assert logs["kinetic_temperature"][-1] == kinetic > 0
    assert logs["temperature"] == [1.0] * 4


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"num_burnin_epochs": -1}, ValueError, "num_burnin_epochs must be .* Received: -1"),
        ({"sampling_threshold": 0.0}, ValueError, "sampling_threshold must be .* Received: 0.0"),
        ({"noise_every": 0}, ValueError, "noise_every must be .* Received: 0"),
        (
            {"num_burnin_epochs": 1, "sampling_threshold": 0.1},
            ValueError,
            "Only one of num_burnin_epochs and sampling_threshold",
        ),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        sampler(sgld(), N, **arguments)


def test_a_kernel_without_a_threshold():
    with pytest.raises(ValueError, match="must return SGLD or ModifiedSGLD.*Received: SGNHT"):
        fit(lambda target: sgmcmc.SGNHT(target, 1e-2, friction=1.0), noise_every=1)


@pytest.mark.thorough
def test_samples_of_large_variables_are_those_of_their_steps():
    """A compiled execution of three steps writes such samples only when they are kept."""
    inputs = 4_100
    x = np.random.default_rng(1).normal(size=[N, inputs]).astype(np.float32)

    def samples(steps_per_execution, **arguments):
        compiled = {"jit_compile": True, "steps_per_execution": steps_per_execution}
        model = linear(unit_normal, 1, inputs=inputs, **compiled)
        callback = sampler(sgld(1e-6), N, **arguments)
        model.fit(x, Y, batch_size=B, shuffle=False, epochs=3, verbose=0, callbacks=[callback])
        return callback.samples[0], callback.result.trace["step"]

    every, _ = samples(steps_per_execution=1)
    values, steps = samples(steps_per_execution=3, num_burnin_steps=2, num_steps_between_results=1)
    np.testing.assert_array_equal(steps, [2, 4, 6, 8])
    np.testing.assert_allclose(values, every[steps], rtol=0, atol=1e-6)
    assert np.abs(np.diff(every, axis=0)).max() > 1e-3  # samples of other steps differ

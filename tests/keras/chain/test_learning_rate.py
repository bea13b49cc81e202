"""The optimizer's learning rate as step size: the steps taken are those that Keras would take."""

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_equal

# NumPy warns about the variables that Keras itself reads.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

N, RATE = 8, 1e-3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[N, 3]).astype(np.float32), RNG.integers(0, 4, N)


def model(rate=RATE, **compiled):
    return small_models.linear(optimizer=keras.optimizers.SGD(rate), run_eagerly=True, **compiled)


def named(**arguments):
    arguments = {"step_size": "learning_rate", **arguments}
    return small_models.sampler("SGLD", N, small_models.standard_normal(), **arguments)


def run(callback, others=(), rate=RATE, epochs=4, batch_size=N, start=None):
    """Returns the logged step sizes of the epochs."""
    start = model(rate) if start is None else start
    arguments = dict(batch_size=batch_size, shuffle=False, verbose=0, epochs=epochs)
    history = start.fit(X, Y, callbacks=[*others, callback], **arguments).history
    return np.array(history["step_size"])


def by_numbers(numbers):
    """Returns the samples of a chain with these step sizes, one for each step."""
    steps, last = keras.ops.convert_to_tensor(np.float32(numbers)), len(numbers) - 1
    callback = small_models.sampler(
        lambda target: sgmcmc.SGLD(target, lambda t: steps[keras.ops.minimum(t, last)]),
        N,
        small_models.standard_normal(),
    )
    run(callback, epochs=len(numbers))
    return callback.samples


def test_a_schedule_counts_the_steps_of_the_chain():
    """It goes on in the next fit, and two steps are taken in an epoch here."""
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, decay_steps=1, decay_rate=0.5)
    callback, start = named(), model(schedule)
    found = [run(callback, epochs=n, batch_size=4, start=start) for n in (2, 1)]
    np.testing.assert_allclose(np.concatenate(found), RATE * 0.5 ** np.array([1, 3, 5]), rtol=1e-6)


@pytest.mark.thorough
def test_callbacks_set_the_steps():
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    callback = named()
    expected = RATE * 0.5 ** np.arange(1, 5)
    np.testing.assert_allclose(run(callback, [halves]), expected, rtol=1e-6)
    assert_equal(callback.samples, by_numbers(expected))
    assert np.abs(callback.samples[0] - by_numbers(expected / 2)[0]).max() > 1e-3
    never = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e9, min_lr=0)
    found = run(named(), [never])  # the first epoch is the best one
    np.testing.assert_allclose(found, RATE * np.array([1, 1, 0.5, 0.25]), rtol=1e-6)


@pytest.mark.slow
def test_a_function_reads_it_from_the_target():
    expected, callback = named(), small_models.sampler(
        lambda target: sgmcmc.SGLD(target, target.learning_rate), N, small_models.standard_normal()
    )  # fmt: skip
    decay = keras.callbacks.LearningRateScheduler(lambda epoch: RATE / (1 + epoch))
    for sampler in (callback, expected):  # the compiled step reads what is set between epochs
        start = small_models.linear(optimizer=keras.optimizers.SGD(RATE), jit_compile=True)
        found = run(sampler, [decay], start=start)
        np.testing.assert_allclose(found, RATE / np.arange(1, 5), rtol=1e-6)
    assert_equal(callback.samples, expected.samples)


@pytest.mark.thorough
def test_a_run_in_a_directory_goes_on_with_its_rate(tmp_path):
    def script(folder, *numbers):
        for epochs in numbers:
            callback = named(directory=tmp_path / folder)
            halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
            run(callback, [halves], epochs=epochs)
        return [np.asarray(x) for x in callback.samples]

    assert_equal(script("twice", 2, 4), script("once", 4))


def test_a_plateau_after_a_sampler_that_saves_the_rate(tmp_path):
    callback, plateau = named(directory=tmp_path), keras.callbacks.ReduceLROnPlateau("loss")
    with pytest.raises(ValueError, match="ReduceLROnPlateau must come before SamplerCallback"):
        model().fit(X, Y, verbose=0, callbacks=[callback, plateau])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("SGLD", N, None), 'step_size must be a number, a schedule or "learning_rate"'),
        (("Adam", N, None), 'kernel must be "auto", the name of a kernel'),
        (("CorrectedLangevin", N, None), "the name of a kernel"),
    ],
)
def test_names_that_are_no_kernels(arguments, words):
    with pytest.raises(ValueError, match=words):
        small_models.sampler(*arguments)


def test_step_sizes_that_do_not_go_with_the_kernel():
    with pytest.raises(ValueError, match="step_size must be None unless"):
        small_models.sampler(small_models.sgld(), N, step_size=0.1)
    with pytest.raises(ValueError, match="step_size must be a positive"):
        named(step_size=-1.0)
    with pytest.raises(ValueError, match="Received: \"?'?Adam"):
        named(step_size="Adam")
    start = small_models.linear(optimizer=None, run_eagerly=True)
    with pytest.raises(ValueError, match="must be compiled with an optimizer"):
        run(named(), start=start)

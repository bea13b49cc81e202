"""Wrong options, states and seeds of kernels raise clear errors before the first step."""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL
from tests.harness.thermostats import NoisyQuadratic
from tfp_sgmcmc.preconditioners import FullMatrix, PositionDependent, RMSprop

NORMAL = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
TWO_PARTS = sgmcmc.FullDataLogProb(lambda a, b: -0.5 * tf.reduce_sum(a**2 + b**2, axis=-1))
TARGET = MODEL.target(4)
ONES = np.ones([3], np.float32)
KERNELS = [sgmcmc.SGLD, sgmcmc.ModifiedSGLD, sgmcmc.CorrectedLangevin]
SCHEDULE = sgmcmc.schedules.PolynomialDecay(0.1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("step_size", "error", "message"),
    [
        (0.0, ValueError, "step_size must be a positive finite number. Received: 0.0"),
        (-0.1, ValueError, "step_size must be .* Received: -0.1"),
        (float("nan"), ValueError, "step_size must be .* Received: nan"),
        (np.inf, ValueError, "step_size must be .* Received: inf"),
        ([0.1, -0.1], ValueError, "step_size must be .* Received: -0.1"),
        ({"a": np.array([0.1, 0.0])}, ValueError, r"step_size must be .* Received: \[0.1 0. \]"),
        (tf.constant(-1.0), ValueError, "step_size must be .* Received: -1.0"),
        (tf.Variable(-1.0), ValueError, "step_size must be .* Received: -1.0"),
        ("small", TypeError, "step_size must be a number. Received: 'small'"),
        (None, TypeError, "step_size must be a number. Received: None"),
    ],
)
def test_step_sizes(kernel: type, step_size: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kernel(NORMAL, step_size)


def test_schedules_that_start_badly() -> None:
    with pytest.raises(ValueError, match="step_size at step 0 must be a positive finite .*: -0.5"):
        sgmcmc.SGLD(NORMAL, lambda t: -0.5)
    with pytest.raises(ValueError, match="temperature at step 0 must be .* Received: -1.0"):
        sgmcmc.SGLD(NORMAL, 0.1, temperature=lambda t: -1.0)
    with pytest.raises(TypeError, match="step_size must be one number .* Received: a schedule"):
        sgmcmc.CorrectedLangevin(NORMAL, SCHEDULE)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda t: 0.1 if t < 3 else 0.01,
        lambda t: 0.1 / float(t + 1),
        lambda t: 0.1 / (1 + np.asarray(t)),
    ],
)
@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.SGNHT])
def test_schedules_that_need_the_step_as_a_number_of_python(kernel: Any, schedule: Any) -> None:
    """Eager steps take them."""
    made = kernel(NORMAL, schedule)
    made.bootstrap_results(tf.zeros([3]))
    with pytest.raises(TypeError, match="step_size must be .* schedule of operations of Tensor"):
        tf.function(made.bootstrap_results, autograph=False)(tf.zeros([3]))


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), np.inf])
def test_temperatures(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature must be .* at least 0.*: {temperature}"):
        sgmcmc.SGLD(NORMAL, 0.1, temperature)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (tf.constant([1.0, np.nan]), ValueError, "initial state must be finite.*: .* in state."),
        (np.array([1.0, np.inf]), ValueError, "initial state must be finite.*: .* in state."),
        (tf.constant([1, 2]), TypeError, "state must have a floating dtype.*: dtype int32"),
        (tf.constant([True]), TypeError, "state must have a floating dtype.*: dtype bool"),
        (["a"], TypeError, r"state\[0\] must have a floating dtype.*: dtype string"),
        ({"w": tf.constant([np.nan])}, ValueError, r"Received: NaN or .* in state\['w'\]"),
        (
            [tf.zeros([2]), tf.zeros([2], tf.float64)],
            TypeError,
            r"parts must have one dtype. Received: \['float32', 'float64'\]",
        ),
        (None, TypeError, "state must be a tensor of numbers. Received: None"),
        ([], ValueError, "The state must have at least one part"),
    ],
)
def test_states(kernel: type, state: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kernel(NORMAL, 0.1).bootstrap_results(state)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("step_size", "message"),
    [
        ([0.1, 0.1, 0.1], "step_size must have the structure of the state, whose parts"),
        ([0.1], "step_size must have the structure of the state"),
        ({"a": 0.1, "b": 0.1}, "step_size must have the structure of the state"),
        (np.array([0.1, 0.2]), r"step_size must broadcast .* \(3,\). Received: shape \(2,\)"),
        ([np.full([4, 3], 0.1), 0.1], r"step_size must broadcast .* Received: shape \(4, 3\)"),
    ],
)
def test_step_sizes_that_do_not_fit_the_state(kernel: type, step_size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(TWO_PARTS, step_size).bootstrap_results([tf.zeros([3]), tf.zeros([3])])


def test_temperatures_that_do_not_fit_the_state() -> None:
    kernel = sgmcmc.SGLD(NORMAL, 0.1, temperature=np.ones([2]))
    with pytest.raises(ValueError, match=r"temperature must broadcast .* Received: shape \(2,\)"):
        kernel.bootstrap_results(tf.zeros([3]))


@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.CorrectedLangevin])
@pytest.mark.parametrize(
    ("preconditioner", "message"),
    [
        (FullMatrix(np.eye(2)), r"a chain's state has 3 entries. Received: shape \(2, 2\)"),
        ([1.0, 2.0], r"preconditioner must broadcast .* Received: shape \(2,\)"),
    ],
)
def test_preconditioners_that_do_not_fit_the_state(
    kernel: type, preconditioner: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(NORMAL, 0.1, preconditioner=preconditioner).bootstrap_results(tf.zeros([4, 3]))


def test_preconditioners_that_a_metropolis_test_cannot_use() -> None:
    incomplete = PositionDependent(
        lambda x, v: v, lambda x, z: z, tf.zeros_like, log_det_fn=lambda x: x[..., 0]
    )
    with pytest.raises(ValueError, match="no log determinant or no quadratic form"):
        sgmcmc.CorrectedLangevin(NORMAL, 0.1, incomplete).bootstrap_results(tf.zeros([3]))
    with pytest.raises(ValueError, match="RMSprop must learn from gradient"):
        sgmcmc.CorrectedLangevin(NORMAL, 0.1, RMSprop()).bootstrap_results(tf.zeros([3]))


@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.CorrectedLangevin])
def test_a_missing_seed_and_unknown_options(kernel: type) -> None:
    state = tf.zeros([3])
    made = kernel(NORMAL, 0.1)
    with pytest.raises(ValueError, match="seed must be an integer or a pair"):
        made.one_step(state, made.bootstrap_results(state))
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        kernel(NORMAL, 0.1, momentum=0.9)


# Kernels with a covariance, momenta or a thermostat


POSITIVE = "a positive finite number. Received: "
THERMOSTATS = [sgmcmc.SGNHT, sgmcmc.CCAdL]
MOMENTA = [*THERMOSTATS, sgmcmc.SGHMC, sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin]
SCORED = [*THERMOSTATS[1:], sgmcmc.ModifiedSGLD, sgmcmc.SGHMC, sgmcmc.NOGIN]
REFUSED: list[tuple[list[Any], str, Any, str]] = [
    (MOMENTA, "friction", 0.0, POSITIVE + "0.0"),
    ([sgmcmc.NOGIN], "friction", -1.0, POSITIVE + "-1.0"),
    (MOMENTA, "mass", 0.0, POSITIVE + "0.0"),
    (THERMOSTATS, "thermal_mass", -1.0, POSITIVE + "-1.0"),
    (THERMOSTATS, "temperature", np.nan, POSITIVE + "nan"),
    ([sgmcmc.SGHMC, sgmcmc.ModifiedSGLD], "temperature", -1.0, POSITIVE + "-1.0"),
    ([sgmcmc.ModifiedSGLD], "temperature", 0.0, POSITIVE + "0.0"),
    ([sgmcmc.ModifiedSGLD], "temperature", np.inf, POSITIVE + "inf"),
    (SCORED, "covariance", "dense", "one of full, block, diag, low_.* Received: 'dense'"),
    ([sgmcmc.CCAdL], "covariance", None, "one of full.* Received: None"),
    ([sgmcmc.SGHMC], "step_size", [0.1, 0.2], "one number or schedule"),
    ([sgmcmc.SGHMC], "small_friction", "raise", "'increase' or 'refuse'.*: 'raise'"),
    ([sgmcmc.SGNHT], "scheme", "badodab", "'euler' or 'adodab'. Received: 'badodab'"),
    ([sgmcmc.SGNHT], "thermostat", "block", "one of .*'per_part'.* Received: 'block'"),
    (MOMENTA[4:], "scheme", "abobo", "one of .*'aboba'.* Received: 'abobo'"),
    ([sgmcmc.SGFS, sgmcmc.NOGIN], "num_estimation_steps", -1, "at least 0. Received: -1"),
]


@pytest.mark.parametrize(
    ("kernel", "name", "value", "expected"),
    [(kernel, *row) for kernels, *row in REFUSED for kernel in kernels],
)
def test_options(kernel: type, name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be {expected}"):
        kernel(TARGET, **{"step_size": 0.05, name: value})


@pytest.mark.parametrize("kernel", [sgmcmc.ModifiedSGLD, sgmcmc.SGHMC, sgmcmc.NOGIN])
def test_targets_without_scores(kernel: type) -> None:
    with pytest.raises(ValueError, match="scores of single examples.* NoisyQuadratic, which gives"):
        kernel(NoisyQuadratic(1.0, 0.5), 0.05)


@pytest.mark.parametrize(
    ("kernel", "target", "options", "message"),
    [
        (sgmcmc.SGHMC, TARGET, dict(friction=ONES), r"friction must be a scalar, .*\(3,\)"),
        (sgmcmc.SGNHT, TARGET, dict(thermal_mass=ONES), r"thermal_mass must be a sc.*\(3,\)"),
        (sgmcmc.ModifiedSGLD, TARGET, dict(temperature=np.ones([4])), "temperature must broadcast"),
        *(
            (kernel, TARGET, dict(covariance="block"), "for a state of one part. .*='block'")
            for kernel in (sgmcmc.ModifiedSGLD, sgmcmc.NOGIN)
        ),
        (sgmcmc.ModifiedSGLD, MODEL.target(1), {}, "at least 2 scores from each minibatch"),
        (sgmcmc.NOGIN, MODEL.target(1), {}, "needs at least 2 scores"),
    ],
)
def test_options_that_do_not_fit_the_state(
    kernel: type, target: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(target, 0.05, **options).bootstrap_results(tf.zeros([2, 3]))


# A plain callable means the full data


def caught(make: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        make()
    return [str(w.message) for w in record if "plain callable" in str(w.message)]


def test_a_plain_callable_is_told_once_that_it_uses_the_full_data() -> None:
    def plain(x: tf.Tensor) -> tf.Tensor:
        return -0.5 * x**2

    messages = caught(lambda: sgmcmc.SGLD(plain, 0.1))
    assert len(messages) == 1
    assert "exact gradient" in messages[0] and "pass FullDataLogProb(fn)" in messages[0]
    assert not caught(lambda: sgmcmc.SGLD(sgmcmc.FullDataLogProb(plain), 0.1))
    assert not caught(lambda: sgmcmc.CorrectedLangevin(plain, 0.1))


def test_transformed_transition_kernel_is_told_that_it_hides_the_minibatches() -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda x: -x, lambda x, batch: -batch * x[..., tf.newaxis], np.ones(9, np.float32), 3
    )
    inner = sgmcmc.SGLD(target, 0.1)
    messages = caught(lambda: tfp.mcmc.TransformedTransitionKernel(inner, tfp.bijectors.Exp()))
    assert len(messages) == 1
    assert "TransformedTransitionKernel hides the target" in messages[0]


def test_noise_beyond_the_range_of_half_precision() -> None:
    """N (N - n) / n = 990,000 became infinite, and chains stood still; SGLD does not use it."""
    data = np.zeros([10_000], np.float16)
    target = sgmcmc.MinibatchLogProb(
        lambda x: -0.5 * x**2, lambda x, batch: batch * x[..., None], data, 100
    )
    sgmcmc.SGLD(target, 0.1).bootstrap_results(tf.zeros([2], tf.float16))
    for kernel in (sgmcmc.NOGIN, sgmcmc.SGFS, sgmcmc.SGHMC):
        with pytest.raises(ValueError, match="noise_scale must be within the range of float16"):
            kernel(target, 0.1).bootstrap_results(tf.zeros([2], tf.float16))


def test_results_keep_the_value_that_a_variable_had() -> None:
    step = tf.Variable(0.1)
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2), step)
    _, results = kernel.one_step(tf.zeros([2]), kernel.bootstrap_results(tf.zeros([2])), seed=0)
    step.assign(0.5)
    np.testing.assert_allclose(results.step_size, 0.1)


def test_a_part_without_entries() -> None:
    """Its share of the kinetic energy was 0 / 0."""
    target = sgmcmc.FullDataLogProb(
        lambda a, b: -0.5 * (tf.reduce_sum(a**2, axis=-1) + tf.reduce_sum(b**2, axis=-1))
    )
    kernel = sgmcmc.SGNHT(target, 0.1, thermostat="per_part")
    state = [tf.ones([2, 3]), tf.ones([2, 0])]
    _, results = kernel.one_step(state, kernel.bootstrap_results(state), seed=0)
    assert np.isfinite(kernel.largest_stable_step(1.0, results=results)).all()


def test_a_step_size_that_rounds_to_zero_is_refused() -> None:
    """Its chain would stand still."""
    target = sgmcmc.FullDataLogProb(lambda x: -(x**2))
    with pytest.raises(ValueError, match="step_size must be within the range of float32"):
        sgmcmc.SGLD(target, 1e-60).bootstrap_results(tf.zeros([]))

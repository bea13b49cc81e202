"""Properties of every kernel: results keep their form, parameters rebuild it, seeds decide."""

import inspect
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL, SEED, START, two_parts
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.preconditioners import RMSprop

SCHEDULE = sgmcmc.schedules.PolynomialDecay(0.01)
KINDS = ("full", "block", "diag", "low_rank")
CASES = [
    (sgmcmc.SGLD, dict(step_size=0.01, preconditioner=RMSprop())),
    (sgmcmc.ModifiedSGLD, dict(step_size=0.01, covariance="low_rank")),
    (sgmcmc.ModifiedSGLD, dict(step_size=0.01, covariance="diag")),
    (sgmcmc.SGFS, dict(step_size=0.5, covariance="low_rank")),
    (sgmcmc.SGFS, dict(alpha=0.0, covariance="diag")),
    (sgmcmc.SGFS, dict(step_size=0.5, B="fisher")),
    *((sgmcmc.SGHMC, dict(step_size=0.04, covariance=c)) for c in ("full", *KINDS[2:], None)),
    *((sgmcmc.CCAdL, dict(step_size=0.05, covariance=c)) for c in KINDS),
    *(
        (sgmcmc.SGNHT, dict(step_size=0.05, scheme=scheme, thermostat=thermostat))
        for scheme in ("euler", "adodab")
        for thermostat in ("scalar", "per_part", "per_coordinate")
    ),
    (
        sgmcmc.ReplicaExchangeSGLD,
        dict(
            step_size=SCHEDULE,
            temperatures=np.array([1.0, 1.2, 2.0]),
            swap_every=2,
            preconditioner=RMSprop(),
        ),
    ),
]


FIRST = [*{kernel: (kernel, options) for kernel, options in reversed(CASES)}.values()]


@pytest.mark.parametrize(
    ("dtype", "chains", "kernel", "options"),
    [
        *((tf.float32, [2, 5], *case) for case in CASES),
        *(
            pytest.param(tf.float64, [], *case, marks=[pytest.mark.thorough] * (case not in FIRST))
            for case in CASES
        ),
        *(
            pytest.param(*form, *case, marks=pytest.mark.thorough)
            for form in ((tf.float32, []), (tf.float64, [2, 5]))
            for case in CASES
        ),
    ],
)
def test_results_keep_their_structure_shapes_and_dtypes(
    kernel: type, options: dict[str, Any], dtype: Any, chains: list[int]
) -> None:
    """`tf.while_loop` needs this, with and without chains, for every state that is carried."""
    made = kernel(MODEL.target(5, dtype, parts=True, reshuffle="epoch"), **options)
    state = {"a": tf.zeros([*chains, 1], dtype), "b": tf.zeros([*chains, 2], dtype)}
    before = made.bootstrap_results(state)
    moved, after = made.one_step(state, before, SEED)
    tf.nest.assert_same_structure((state, before), (moved, after))
    for x, y in zip(*(tf.nest.flatten(z) for z in ((state, before), (moved, after))), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    if "thermostat" in after._fields:
        event = [1] if options.get("thermostat") == "per_coordinate" else []
        assert tf.nest.flatten(after.thermostat)[0].shape == [*chains, *event]
    if kernel is sgmcmc.ReplicaExchangeSGLD:
        assert after.hot_states["b"].shape == [2, *chains, 2]
        assert after.target_log_prob.shape == [3, *chains]
        assert after.log_swap_ratio.shape == [2, *chains]


@pytest.mark.parametrize(
    ("kernel", "given", "changed"),
    [
        (
            sgmcmc.SGLD,
            dict(step_size=0.01, temperature=0.5, preconditioner=2.0),
            dict(step_size=0.02),
        ),
        (
            sgmcmc.ModifiedSGLD,
            dict(step_size=0.01, covariance="diag", temperature=0.5),
            dict(step_size=0.02),
        ),
        (sgmcmc.SGFS, dict(alpha=2.0, covariance="diag"), dict(alpha=1.0, temperature=0.5)),
        (
            sgmcmc.SGHMC,
            dict(step_size=0.01, friction=2.0, covariance=None, temperature=0.5),
            dict(friction=3.0),
        ),
        (
            sgmcmc.SGNHT,
            dict(step_size=0.01, friction=2.0, scheme="adodab", thermostat="per_part"),
            dict(friction=3.0),
        ),
        (
            sgmcmc.CCAdL,
            dict(step_size=0.01, friction=2.0, covariance="diag", thermal_mass=3.0),
            dict(friction=3.0),
        ),
        (sgmcmc.NOGIN, dict(step_size=0.2, covariance="diag", mass=2.0), dict(step_size=0.02)),
        (
            sgmcmc.UnderdampedLangevin,
            dict(step_size=0.05, friction=2.0, scheme="obabo"),
            dict(step_size=0.02),
        ),
        (
            sgmcmc.ReplicaExchangeSGLD,
            dict(step_size=0.1, temperatures=[1.0, 2.0], swap_every=2),
            dict(step_size=0.2),
        ),
        (sgmcmc.CorrectedLangevin, dict(step_size=0.1, preconditioner=2.0), dict(step_size=0.2)),
    ],
)
def test_parameters_rebuild_the_kernel(
    kernel: type, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    target = MODEL.target(4)
    made = kernel(target, **given)
    copy = made.copy(**changed)
    for found, expected in ((made, given), (copy, given | changed)):
        assert list(found.parameters) == list(inspect.signature(kernel).parameters)
        assert found.parameters == {**made.parameters, "target_log_prob_fn": target, **expected}
        assert found.step_size == expected.get("step_size")
        assert found.is_calibrated == (kernel is sgmcmc.CorrectedLangevin)
    if kernel is not sgmcmc.CorrectedLangevin:
        assert copy.target_log_prob_fn is made.target_log_prob_fn is target


@pytest.mark.parametrize(
    ("kernel", "options"),
    [(sgmcmc.SGLD, {}), (sgmcmc.ReplicaExchangeSGLD, dict(temperatures=[1.0, 1.2, 2.0]))],
)
def test_seeds_decide_everything(kernel: type, options: dict[str, Any]) -> None:
    made = kernel(MODEL.target(4), 0.01, **options)
    state = tf.constant(START, tf.float32)
    results = made.bootstrap_results(state)
    first, again, other = (made.one_step(state, results, seed)[0].numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


TEMPERED = [
    *(sgmcmc.SGLD, sgmcmc.ModifiedSGLD, sgmcmc.SGFS, sgmcmc.SGHMC, sgmcmc.SGNHT, sgmcmc.CCAdL),
    *(sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin),
]


def temperatures(kernel: type, temperature: Any) -> list[Any]:
    """Returns the temperatures in the results before the first step and after each of two."""
    made = kernel(MODEL.target(4, parts=True), 1e-3, temperature=temperature)
    state = two_parts(np.zeros([2, 3], np.float32))
    found = [made.bootstrap_results(state)]
    for seed in range(2):
        state, after = made.one_step(state, found[-1], seed=seed)
        found.append(after)
    tf.nest.assert_same_structure(found[0], found[-1])
    return [results.temperature for results in found]


@pytest.mark.parametrize(
    "kernel",
    # The others have schedules of the temperature in files of their own.
    fast_settings(TEMPERED, *TEMPERED[:3], sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin),
)
def test_the_temperature_of_a_step_is_in_its_results(kernel: type) -> None:
    each = np.array([[1.0], [3.0]] if kernel in TEMPERED[:2] else [1.0, 3.0], np.float32)
    for given in (each, 2.0)[: 2 if kernel is sgmcmc.SGLD else 1]:
        np.testing.assert_array_equal(temperatures(kernel, given), [given] * 3)
    falling = temperatures(kernel, lambda step: 4.0 - tf.cast(step, tf.float32))
    np.testing.assert_array_equal(falling, [4.0, 4.0, 3.0])


@pytest.mark.parametrize("kernel", TEMPERED[:2])
def test_temperatures_of_parts_are_reported_by_part(kernel: type) -> None:
    np.testing.assert_array_equal(temperatures(kernel, [1.0, 2.0]), [[1.0, 2.0]] * 3)


@pytest.mark.parametrize("results", [None, 3, (), {}, sgmcmc.SGLD], ids=str)
@pytest.mark.parametrize("kind", [sgmcmc.SGLD, sgmcmc.CorrectedLangevin])
def test_results_that_are_none_of_a_kernel_are_told(kind: Any, results: Any) -> None:
    kernel = kind(sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2), 0.1)
    with pytest.raises(TypeError, match="previous_kernel_results must be what bootstrap_results"):
        kernel.one_step(tf.zeros([]), results, seed=0)


@pytest.mark.parametrize("kind", [sgmcmc.SGFS, sgmcmc.SGHMC, sgmcmc.SGNHT, sgmcmc.CCAdL])
def test_results_of_another_kernel_have_no_largest_stable_step(kind: Any) -> None:
    def log_likelihood(x: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return -0.5 * (batch - x[..., tf.newaxis]) ** 2

    data = np.ones(2, np.float32)
    target = sgmcmc.MinibatchLogProb(lambda x: -0.5 * x**2, log_likelihood, data, 2)
    options = {"scheme": "euler"} if kind is sgmcmc.CCAdL else {}
    others = () if kind is sgmcmc.SGFS else (sgmcmc.SGLD(target, 0.1).bootstrap_results(0.0),)
    for results in (3, "x", *others):
        with pytest.raises(TypeError, match="^results must be what bootstrap_results"):
            kind(target, 0.1, **options).largest_stable_step(1.0, results=results)


@pytest.mark.parametrize(
    "kernel",
    [
        *(sgmcmc.SGLD, sgmcmc.ModifiedSGLD, sgmcmc.SGFS, sgmcmc.SGHMC, sgmcmc.SGNHT),
        *(sgmcmc.CCAdL, sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin),
    ],
)
def test_the_batch_and_the_noise_have_seeds_of_their_own(kernel: Any) -> None:
    """No two draws of a step share a seed, nor does one use the seed of the step."""
    target, used = MODEL.target(4, tf.float64), []

    def seen(function: Any, position: int) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            seed = options.get("seed", arguments[position] if len(arguments) > position else None)
            used.append(tuple(np.asarray(seed)))
            return function(*arguments, **options)

        return call

    made = kernel(target, 0.01)
    state = tf.constant(START)
    results = made.bootstrap_results(state)
    with (
        mock.patch.object(target, "estimate", seen(target.estimate, 1)),
        mock.patch.object(sgmcmc.random, "normal_like", seen(sgmcmc.random.normal_like, 1)),
    ):
        made.one_step(state, results, SEED)
    assert len(used) >= 2 and len(set(used)) == len(used)
    assert tuple(np.asarray(SEED)) not in used

"""`tune` finds the settings that are known to be good, within its budget and reproducibly."""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tfp_sgmcmc import random

NORMAL = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
# On N(0, I) the variance of SGLD is 1 / (1 - epsilon / 4), which is 40 at 3.9. SGLD diverges from 4
# on. With steps of 1e-5 it stays where it starts.
STEP_SIZES = [1e-5, 3.9, 0.3, 6.0]


def langevin(step_size: Any) -> sgmcmc.SGLD:
    return sgmcmc.SGLD(NORMAL, step_size)


def tuned(make_kernel_fn: Any = langevin, candidates: Any = None, **changes: Any) -> Any:
    arguments = dict(num_steps=2400, seed=0, num_results=50) | changes
    candidates = {"step_size": STEP_SIZES} if candidates is None else candidates
    start = arguments.pop("initial_state", tf.ones([4, 2]))
    return sgmcmc.tune(make_kernel_fn, candidates, NORMAL, start, **arguments)


@pytest.fixture(scope="module")
def found() -> Any:
    return tuned(num_parallel=1)


SHORT: dict[str, Any] = dict(num_steps=240, num_results=10, jit_compile=False)


@pytest.fixture(scope="module")
def short() -> Any:
    return tuned(**SHORT)


def test_rounds_halve_within_the_budget(found: Any) -> None:
    assert found.best == {"step_size": 0.3}
    assert [len(r.candidates) for r in found.rounds] == [4, 2]
    assert [r.num_steps for r in found.rounds] == [300, 600]
    assert found.num_steps == 4 * 300 + 2 * 600 == 2400
    first, second = found.rounds
    assert [c["step_size"] for c in first.candidates] == STEP_SIZES
    assert np.isinf(first.scores[3])  # it has diverged
    best = np.argsort(first.scores)[:2]
    assert [c["step_size"] for c in second.candidates] == [STEP_SIZES[i] for i in best]
    # A good chain's score has mean zero and a deviation of about 2 over the effective number of
    # states: 600 steps of 4 chains that forget in 2 / 0.3 steps each.
    assert abs(second.scores[0]) < 0.1 < second.scores[1]


def assert_same(one: Any, other: Any) -> None:
    assert one.best == other.best
    np.testing.assert_array_equal(one.state, other.state)
    for a, b in zip(one.rounds, other.rounds, strict=True):
        np.testing.assert_array_equal(a.scores, b.scores)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result(short: Any) -> None:
    assert_same(short, tuned(**SHORT))
    for a, b in zip(short.rounds, tuned(seed=1, **SHORT).rounds, strict=True):
        assert not np.array_equal(a.scores, b.scores)


@pytest.mark.slow
def test_candidates_in_parallel_give_the_same_result(found: Any) -> None:
    """Three threads compile and run; kernels are made in the first thread."""

    def make_kernel_fn(step_size: Any) -> sgmcmc.SGLD:
        assert threading.current_thread() is threading.main_thread()
        return langevin(step_size)

    assert_same(found, tuned(make_kernel_fn, num_parallel=3))


@pytest.mark.thorough
def test_a_candidate_goes_on_where_it_was(short: Any) -> None:
    """The best candidate's chains are those of all its steps in a row with its seeds."""
    assert short.best == {"step_size": 0.3}
    seed = random.fold_in(random.split(random.as_seed(0), 2)[0], STEP_SIZES.index(0.3))
    kernel, state = langevin(0.3), tf.ones([4, 2])
    results = kernel.bootstrap_results(state)
    step_fn = tf.function(kernel.one_step, autograph=False)
    for step in range(90):
        state, results = step_fn(state, results, seed=random.fold_in(seed, step))
    np.testing.assert_allclose(short.state, state, rtol=1e-5)


@pytest.mark.thorough
def test_one_program_serves_all_floats() -> None:
    made = []

    def make_kernel_fn(step_size: Any, friction: Any) -> sgmcmc.UnderdampedLangevin:
        made.append(step_size)
        return sgmcmc.UnderdampedLangevin(NORMAL, step_size, friction)

    found = tuned(make_kernel_fn, {"step_size": [1e-5, 0.5], "friction": [0.5, 1.0]})
    assert len(made) == 2  # one trace for the first results and one for the steps
    assert found.best["step_size"] == 0.5
    assert len(found.rounds[0].candidates) == 4


@pytest.mark.slow
def test_candidates_with_other_arguments_have_programs_of_their_own() -> None:
    def make_kernel_fn(num_parts: int, step_size: Any = 1e-5) -> sgmcmc.SGLD:
        return langevin(step_size * num_parts)

    candidates = [{"num_parts": 1}, {"num_parts": 1, "step_size": 0.3}]
    found = tuned(make_kernel_fn, candidates, jit_compile=False, num_parallel=2)
    assert found.best == candidates[1]


@pytest.mark.slow
def test_makers_that_refuse_tensors_are_given_floats() -> None:
    def make_kernel_fn(step_size: Any) -> sgmcmc.SGLD:
        return langevin(sgmcmc.schedules.PolynomialDecay(a=step_size, gamma=0.1))

    found = tuned(make_kernel_fn, {"step_size": [1e-5, 0.3]}, jit_compile=False)
    assert found.best == {"step_size": 0.3}


@pytest.mark.slow
def test_preconditioners_are_tuned() -> None:
    """A tensor can be a number that is not checked, but not an entry of a matrix."""

    def scalar(scale: Any) -> sgmcmc.SGLD:
        return sgmcmc.SGLD(NORMAL, 0.3, preconditioner=scale)

    def matrix(scale: Any) -> sgmcmc.SGLD:
        return scalar(sgmcmc.preconditioners.FullMatrix([[scale, 0.0], [0.0, 1.0]]))

    for make_kernel_fn in (scalar, matrix):
        found = tuned(make_kernel_fn, {"scale": [1.0, 1e-5]}, **SHORT)
        assert found.best == {"scale": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("exact_gradients", [False, True])
def test_batch_sizes_and_minibatch_gradients(exact_gradients: bool) -> None:
    """Minibatches of one of the 12 examples make the variance about twice the posterior's."""
    model = GaussianMean(num_examples=12)

    def make_kernel_fn(batch_size: int) -> sgmcmc.SGLD:
        return sgmcmc.SGLD(model.target(batch_size, replacement=True), 0.05)

    found = sgmcmc.tune(
        make_kernel_fn,
        [{"batch_size": 1}, {"batch_size": 12}],
        model.target(6, replacement=True),
        tf.tile([tf.constant(model.mean, tf.float32)], [8, 1]),
        num_steps=400,
        num_results=50,
        seed=0,
        exact_gradients=exact_gradients,
        jit_compile=False,
    )
    assert found.best == {"batch_size": 12}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(candidates=[]), ValueError, "at least one combination"),
        (dict(candidates={}), ValueError, "at least one combination"),
        (dict(candidates=[{}]), ValueError, "at least one combination"),
        (dict(candidates={"step_size": []}), ValueError, "at least one combination"),
        (dict(num_steps=399), ValueError, "num_steps must be at least 8 for each .* Received: 399"),
        (dict(num_results=1), ValueError, "num_results must be at least 2. Received: 1"),
        (dict(reduction=1.0), ValueError, "reduction must be a number above 1. Received: 1.0"),
        (dict(num_parallel=0), ValueError, "num_parallel must be at least 1. Received: 0"),
        (dict(seed="x"), ValueError, "seed must be an integer or two"),
        (dict(scale=0.0), ValueError, "scale must be a positive finite number. Received: 0.0"),
        (dict(reduction="2"), TypeError, "reduction must be a number above 1. Received: '2'"),
        (dict(jit_compile="no"), TypeError, "jit_compile must be True or False. Received: 'no'"),
        (dict(exact_gradients=1), TypeError, "exact_gradients must be True or False. Received: 1"),
        (dict(candidates=0.1), TypeError, "candidates must be a mapping .* Received: 0.1"),
        (dict(candidates={"step_size": 0.1}), TypeError, "candidates.'step_size'. must be a seq"),
        (dict(candidates=[0.1]), TypeError, "candidates must be a mapping"),
        (dict(make_kernel_fn=langevin(0.1)), TypeError, "make_kernel_fn must be a callable"),
        (dict(initial_state="x"), TypeError, "initial_state must be a tensor or nest of tensors"),
        (dict(candidates={"step_size": [6.0, 7.0]}), ValueError, "all candidates became NaN"),
        (dict(candidates={"h": [0.1, 0.2]}), TypeError, "candidate's h.*keyword argument 'h'"),
        (
            dict(candidates={"step_size": ["x"]}),
            TypeError,
            "candidate's step_size.*must be a number",
        ),
        (dict(candidates={1: [0.1]}), TypeError, "candidates must have strings as names"),
        (dict(initial_state=[1.0, 2.0]), TypeError, "must take the parts of initial_state"),
        (dict(num_steps=800.5), TypeError, "num_steps must be an integer. Received: 800.5"),
        (
            dict(make_kernel_fn=lambda step_size: None),
            TypeError,
            "make_kernel_fn must be a tfp.mcmc.* Received: a None",
        ),
    ],
)
def test_bad_input(changes: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        tuned(**{"jit_compile": False} | changes)


def test_candidates_may_be_tensors() -> None:
    """Which have no hash. Those with other values are other candidates."""
    found = tuned(langevin, {"step_size": tf.constant([1e-5, 0.3])}, **SHORT)
    assert float(found.best["step_size"]) == pytest.approx(0.3)

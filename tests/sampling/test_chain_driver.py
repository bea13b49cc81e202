"""`sample_chain` takes the same steps as a loop by hand, however many it compiles into one call."""

import copy
import errno
import functools
import io
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tree

import tfp_sgmcmc as sgmcmc
from tests.sampling.runs import Walk, assert_equal, at_call, quick_kernel, state, trace
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import memory, xla
from tfp_sgmcmc.sampling import loop, progress, run, steps
from tfp_sgmcmc.targets.validation import step_size_check

SEED = 7
QUIET: dict[str, Any] = dict(seed=SEED, progress_bar=False, preflight_check=False)
EAGER = QUIET | dict(jit_compile=False)


def by_hand(made: Any, num_steps: int, jit_compile: bool) -> tuple[Any, Any]:
    """Returns states and traces after each step, from compiled single steps."""
    current = state()
    in_mode = functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    step = in_mode(made.one_step)
    seeds = in_mode(lambda t: random.fold_in(random.as_seed(SEED), t))  # which differ under XLA
    results, kept = made.bootstrap_results(current), []
    for t in range(num_steps):
        current, results = step(current, results, seed=seeds(tf.constant(t, tf.int64)))
        kept.append((current, trace(current, results)))
    return tf.nest.map_structure(lambda *x: np.stack(x), *kept)


@pytest.fixture(scope="module")
def full() -> Any:
    """Returns 23 draws with their traces, without XLA."""
    return sgmcmc.sample_chain(quick_kernel(), state(), 23, trace_fn=trace, **EAGER)


def assert_rounded_alike(x: Any, y: Any) -> None:
    """Allows a hundred roundings, because a step in a loop may be rounded differently."""
    for a, b in zip(tf.nest.flatten(x), tf.nest.flatten(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_blocks_of_steps_on_a_gpu_end_where_a_draw_is_kept() -> None:
    found = []
    for kind in ("CPU", "GPU"):
        with xla.for_device_kind(kind):
            found.append(
                sgmcmc.sample_chain(
                    Walk(),
                    tf.zeros([2]),
                    3,
                    trace_fn=lambda x, results: {"number": results["number"], "x": 2.0 * x},
                    num_burnin_steps=6,
                    num_steps_between_results=5,
                    **QUIET,
                )
            )
    assert_rounded_alike(*((x.states, x.trace) for x in found))
    assert list(found[1].trace["number"]) == [7, 13, 19]


def test_the_chain_is_that_of_single_steps(full: Any) -> None:
    assert_rounded_alike((full.states, full.trace), by_hand(quick_kernel(), 23, jit_compile=False))
    np.testing.assert_array_equal(full.weights, np.full(23, np.float32(0.02)))
    assert full.is_complete and full.num_results == 23
    assert int(full.final_kernel_results.step) == 23
    assert full.timings.steps_per_second > 0 and full.timings.compile_seconds > 0


@pytest.mark.slow
def test_the_chain_is_that_of_single_steps_under_xla() -> None:
    def log_prob(mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(mean**2, axis=-1) - log_sd**2

    chain = sgmcmc.UnderdampedLangevin(sgmcmc.FullDataLogProb(log_prob), 0.1, 1.0)
    result = sgmcmc.sample_chain(chain, state(), 12, trace_fn=trace, **QUIET)
    assert_rounded_alike((result.states, result.trace), by_hand(chain, 12, jit_compile=True))


def test_a_walk_is_that_of_eager_steps_to_the_last_bit() -> None:
    walk, x = Walk(), tf.zeros([2])
    results, states = walk.bootstrap_results(x), []
    for t in range(9):
        x, results = walk.one_step(x, results, seed=random.fold_in(random.as_seed(SEED), t))
        states.append(x)
    result = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 9, **EAGER)
    np.testing.assert_array_equal(result.states, np.stack(states))
    assert result.final_kernel_results == {"number": 9, "nothing": None, "empty": ()}


@pytest.mark.thorough
@pytest.mark.parametrize("trace_fn", [None, trace])
def test_burn_in_and_thinning_choose_among_the_steps(
    full: Any, trace_fn: Callable[..., Any] | None
) -> None:
    thinned = sgmcmc.sample_chain(
        quick_kernel(), state(), 6, num_burnin_steps=5, num_steps_between_results=2,
        trace_fn=trace_fn, **EAGER,
    )  # fmt: skip
    assert_equal(thinned.states, tf.nest.map_structure(lambda x: x[5:21:3], full.states))
    if trace_fn is None:
        assert thinned.trace is None
    else:
        assert_equal(thinned.trace, tf.nest.map_structure(lambda x: x[5:21:3], full.trace))
    assert int(thinned.final_kernel_results.step) == 21


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("burn_in", "between", "traced", "jit_compile"),
    [
        pytest.param(0, 0, False, True, marks=pytest.mark.slow),
        pytest.param(9, 4, True, False, marks=pytest.mark.slow),
        (0, 0, True, False),
        pytest.param(9, 4, False, False, marks=pytest.mark.slow),
    ],
)
def test_the_length_of_a_call_has_no_influence(
    monkeypatch: pytest.MonkeyPatch, burn_in: int, between: int, traced: bool, jit_compile: bool
) -> None:
    def run() -> Any:
        walk = Walk()
        result = sgmcmc.sample_chain(
            walk, [tf.zeros([2]), tf.zeros([])], 50, num_burnin_steps=burn_in,
            num_steps_between_results=between, jit_compile=jit_compile,
            trace_fn=(lambda s, r: r["number"]) if traced else None, **QUIET,
        )  # fmt: skip
        assert walk.num_traces == 1  # one compilation, of one step
        return result

    expected = run()
    if traced:
        np.testing.assert_array_equal(expected.trace, burn_in + 1 + np.arange(50) * (between + 1))
    calls = []
    real = loop.Loop.__call__

    def counted(self: Any, position: Any, rows: int, *arguments: Any) -> Any:
        calls.append(rows)
        return real(self, position, rows, *arguments)

    monkeypatch.setattr(loop.Loop, "__call__", counted)
    monkeypatch.setattr(steps.Pace, "took", lambda self, steps, seconds: None)
    for most_steps, most_rows in ((1000, 7),) if jit_compile else ((3, 100), (1000, 7), (17, 2)):
        monkeypatch.setattr(
            steps.Pace, "__init__", lambda self, s, n=most_steps: setattr(self, "max_steps", n)
        )
        monkeypatch.setattr(loop, "_BUFFER_ROWS", most_rows)
        calls.clear()
        result = run()
        assert_equal((result.states, result.final_state), (expected.states, expected.final_state))
        assert len(calls) > 8 and max(calls) <= most_rows


@pytest.mark.thorough
def test_a_kernel_of_tensorflow_probability() -> None:
    hmc = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -0.5 * tf.reduce_sum(x**2, -1), 0.5, 3)
    result = sgmcmc.sample_chain(hmc, tf.zeros([4, 2]), 400, num_burnin_steps=20, **EAGER)
    assert result.states.shape == (400, 4, 2) and result.weights is None
    # There are 3,200 draws with a negative autocorrelation: 6 standard errors of the variance.
    np.testing.assert_allclose(result.states.var(), 1.0, atol=6 * np.sqrt(2 / 3200))
    data = result.to_inference_data()
    assert data.posterior["state"].dims == ("chain", "draw", "state_dim_0")


def test_chains_begin_together_and_differ() -> None:
    result = sgmcmc.sample_chain(quick_kernel(), state(), 5, num_chains=3, trace_fn=trace, **EAGER)
    assert result.states["mean"].shape == (5, 3, 3) and result.states["log_sd"].shape == (5, 3)
    assert result.trace["norm"].shape == (5, 3) and result.weights.shape == (5,)
    assert len(np.unique(result.states["log_sd"][-1])) == 3
    lines = repr(result).split("\n")
    assert lines[0] == "SampleResult: 5 draws of each of 3 chains, complete."
    assert [x.split("  ")[0] for x in lines[3:7]] == ["log_sd", "mean[0]", "mean[1]", "mean[2]"]
    assert lines[-1] == "trace: double [5, 3, 3], norm [5, 3]"
    data = result.to_inference_data()
    assert dict(data.posterior.sizes) == {"chain": 3, "draw": 5, "mean_dim_0": 3}
    np.testing.assert_array_equal(data.posterior["mean"], np.moveaxis(result.states["mean"], 1, 0))
    assert data.sample_stats["step_size"].dims == ("draw",)
    assert sorted(data.sample_stats) == ["double", "norm", "step_size"]


def test_a_chain_that_breaks_down_keeps_what_came_before() -> None:
    with pytest.raises(sgmcmc.NonFiniteChainError, match="smaller step_size") as caught:
        sgmcmc.sample_chain(Walk(growth=100.0), {"a": tf.ones([2])}, 1000, **EAGER)
    error = caught.value
    assert error.part == ("a",) and 15 < error.step < 21  # 1e38 after 19 steps
    assert error.samples["a"].shape == (error.step, 2)
    assert np.isfinite(error.samples["a"]).all()
    with pytest.raises(sgmcmc.NonFiniteChainError, match="before the first result") as caught:
        sgmcmc.sample_chain(Walk(growth=100.0), tf.ones([]), 10, num_burnin_steps=500, **EAGER)
    assert caught.value.step == 0 and len(caught.value.samples) == 0


class Losing(Walk):
    """Counts its steps; the log posterior is NaN at steps 7 and 8, and the state stays finite."""

    def bootstrap_results(self, init_state: Any) -> Any:
        return Figures(tf.zeros([3]))

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        moved = current_state + 1.0
        log_prob = tf.where((moved == 7.0) | (moved == 8.0), np.nan, moved)
        return moved, Figures(tf.stack([moved, log_prob, moved]))


class Figures(NamedTuple):
    target_log_prob: tf.Tensor


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"trace_fn": lambda s, r: s, "num_burnin_steps": 2}, [3, 4, 5, 6]),
        pytest.param({"num_steps_between_results": 3}, [1, 5], marks=pytest.mark.thorough),
        ({"trace_fn": lambda s, r: s, "num_steps_between_results": 3}, [1, 5]),
        ({"num_burnin_steps": 20}, []),
        pytest.param({"jit_compile": True}, [1, 2, 3, 4, 5, 6], marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("steps_a_call", [pytest.param(1, marks=pytest.mark.thorough), 10**6])
def test_a_log_posterior_that_becomes_nan_stops_the_chain(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], good: list[int], steps_a_call: int
) -> None:
    """The results before that step are kept, however many steps a call takes."""
    monkeypatch.setattr(steps.Pace, "took", lambda *_: None)
    monkeypatch.setattr(
        steps.Pace, "__init__", lambda self, _: setattr(self, "max_steps", steps_a_call)
    )
    message = "log posterior became NaN .* at step 7, where the state is finite"
    with pytest.raises(sgmcmc.NonFiniteChainError, match=message) as caught:
        sgmcmc.sample_chain(Losing(), tf.zeros([]), 50, **EAGER | options)
    assert caught.value.step == len(good) and caught.value.samples.tolist() == good


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets the process take Ctrl-C, which it ignores if a script put it into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_returns_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    health = at_call(3, lambda: signal.raise_signal(signal.SIGINT), lambda position: {})
    monkeypatch.setattr(progress, "chain_health", health)
    with pytest.warns(UserWarning, match=r"Interrupted: \d+ of 100000000 results"):
        result = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 10**8, **EAGER | {"progress_bar": True})
    assert not result.is_complete and 3 <= result.num_results < 10**6
    assert signal.getsignal(signal.SIGINT) is before
    again = sgmcmc.sample_chain(Walk(), tf.zeros([2]), result.num_results, **EAGER)
    assert_equal(again.states, result.states)


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_raises() -> None:
    with progress.defer_interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_the_process_ignores_ends_no_run() -> None:
    """As in a job that a script puts into the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with progress.defer_interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", ["full", "closed", None])
def test_progress_that_cannot_be_shown_ends_no_run(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, behind a pipe whose reader has gone, or without a console."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    stream = {"full": Full(), "closed": io.StringIO(), None: None}[kind]
    if kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    result = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, **EAGER | {"progress_bar": True})
    assert result.is_complete and result.num_results == 3


def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EAGER | {"progress_bar": True}
    chain = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -(x**2)), 0.01)
    sgmcmc.sample_chain(chain, tf.ones([]), 30, num_burnin_steps=3, **options)
    shown = capsys.readouterr().err
    assert "\r" not in shown and len(shown.splitlines()) == 1
    assert "100 % of 33 steps in" in shown and "log_prob=-" in shown
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(steps.Pace, "took", lambda *_: None)
    monkeypatch.setattr(steps.Pace, "__init__", lambda self, _: setattr(self, "max_steps", 1))
    sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, **options)
    shown = capsys.readouterr().err
    assert shown.startswith("33 % of 3 steps") and " s left" in shown and "rms=" in shown
    assert len(shown.splitlines()) == 3
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, **options)
    shown = capsys.readouterr().err
    assert "3.00/3.00" in shown and "step/s" in shown and "rms=" in shown
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ModuleNotFoundError, match="python -m pip install tqdm"):
        sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, **options)


@pytest.mark.thorough
def test_the_target_is_checked_before() -> None:
    wrong = sgmcmc.MinibatchLogProb(
        lambda t: -(t**2),
        lambda t, batch: -((t[..., None] - batch + tf.reduce_mean(batch)) ** 2),
        np.arange(9, dtype=np.float32) ** 2,
        4,
        replacement=True,
    )
    kernel = sgmcmc.SGLD(wrong, 1e-6)
    with pytest.raises(ValueError, match="do not add up to the full one"):
        sgmcmc.sample_chain(kernel, tf.zeros([]), 2, seed=0, progress_bar=False, jit_compile=False)
    sgmcmc.sample_chain(kernel, tf.zeros([]), 2, **EAGER)


def test_a_seed_is_drawn_and_returned() -> None:
    """Keras' seed decides, as it does for Keras' own layers."""
    options, walk = EAGER | {"seed": None}, Walk()
    states = []
    for keras_seed in (1, 1, 2):
        keras.utils.set_random_seed(keras_seed)
        drawn = sgmcmc.sample_chain(walk, tf.zeros([2]), 5, **options)
        states.append(drawn.states)
    assert_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])
    other = sgmcmc.sample_chain(walk, tf.zeros([2]), 5, **options)
    assert other.seed != drawn.seed
    again = sgmcmc.sample_chain(walk, tf.zeros([2]), 5, **options | {"seed": other.seed})
    assert_equal(again.states, other.states)


@pytest.mark.parametrize(
    "seed",
    [
        np.int64(7),
        *(pytest.param(x, marks=pytest.mark.thorough) for x in (7, tf.constant(7), [0, 7])),
    ],
)
def test_seeds_of_all_forms(seed: Any) -> None:
    kernel = Walk()
    result = sgmcmc.sample_chain(kernel, tf.zeros([2]), 3, **EAGER | {"seed": seed})
    assert result.seed == (0, 7) and result.kernel is kernel


def test_skipped_minibatches_are_warned_of() -> None:
    class Skipping(Walk):
        def bootstrap_results(self, init_state: Any) -> Any:
            return {"inner": {"num_skipped": tf.zeros([2], tf.int32)}}

        def one_step(self, state: Any, results: Any, seed: Any = None) -> Any:
            return state, {"inner": {"num_skipped": results["inner"]["num_skipped"] + [0, 1]}}

    with pytest.warns(UserWarning, match=r"^5 minibatches had .* that are NaN or infinite"):
        sgmcmc.sample_chain(Skipping(), tf.zeros([2]), 5, **EAGER)


@pytest.mark.parametrize(
    ("limit", "warns"), [(0.019, True), pytest.param(0.021, False, marks=pytest.mark.thorough)]
)
def test_a_last_step_beyond_the_stable_one_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, limit: float, warns: bool
) -> None:
    class Limited(sgmcmc.SGLD):
        def metric_product(self, vector: Any, state: Any, results: Any) -> Any:
            return 2.0 * vector

        def largest_stable_step(self, largest_curvature: Any, results: Any) -> float:
            assert largest_curvature in (14.0, 1e30) and int(results.step) == 3
            return limit

    def curvature(target: Any, state: Any, metric: Any) -> float:
        return float(metric(tf.constant(7.0)))

    monkeypatch.setattr(step_size_check, "largest_curvature", curvature)
    monkeypatch.setattr(run, "preflight", lambda *_, **__: None)
    kernel = Limited(quick_kernel().target_log_prob_fn, 0.02)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sgmcmc.sample_chain(kernel, state(), 3, **EAGER | {"preflight_check": True})
    messages = [str(w.message) for w in caught]
    assert [m[:30] for m in messages] == ["step_size must be below 0.019 "] * warns


@pytest.mark.thorough
def test_draws_are_kept_if_the_target_raises_at_the_last_state_only() -> None:
    """XLA leaves out the assertion, which the check of the last step, outside XLA, meets."""

    def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(theta, 2.0)]):
            return -0.125 * (theta[..., None] - x) ** 2

    data = np.full([4], 3.0, np.float32)
    drawn = sgmcmc.MinibatchLogProb(lambda theta: 0.0 * theta**2, log_likelihood, data, 4)
    kernel = sgmcmc.SGLD(drawn, 1.0, temperature=0.0)
    options = QUIET | {"preflight_check": True}
    with pytest.warns(UserWarning, match="curvature .* at the last state cannot be found"):
        result = sgmcmc.sample_chain(kernel, tf.constant(0.0), 2, **options)
    np.testing.assert_allclose(result.states, [1.5, 2.25])


def test_memory_is_checked_before_it_is_spent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    walk, start = Walk(), tf.zeros([1000])  # 4 kB a draw
    with pytest.raises(
        MemoryError, match="4000000000 draws of all chains 16.0 TB. Write the draws"
    ):
        sgmcmc.sample_chain(walk, start, 4 * 10**9, **EAGER)
    monkeypatch.setattr(memory, "available", lambda: 1_000_000)
    with pytest.warns(UserWarning, match="takes 408.0 kB of the 1.0 MB of memory .*directory="):
        sgmcmc.sample_chain(walk, start, 100, **EAGER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgmcmc.sample_chain(walk, start, 50, **EAGER)
        sgmcmc.sample_chain(walk, start, 300, directory=tmp_path, **EAGER)
    monkeypatch.setattr(memory, "available", lambda: 7_000)
    with pytest.raises(MemoryError, match="what the kernel remembers 8.0 kB. Run fewer chains"):
        sgmcmc.sample_chain(walk, start, 300, directory=tmp_path / "new", **EAGER)


def test_nothing_is_warned_of() -> None:
    """`sample_chain` warns about every kernel that is not calibrated."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, **EAGER)


class Changing:
    """A trace function whose result has another form at its second call."""

    def __init__(self, second: Any):
        self._values = [tf.zeros([2]), second]

    def __call__(self, state: Any, results: Any) -> Any:
        return self._values.pop(0) if len(self._values) > 1 else self._values[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(num_results=0), ValueError, "num_results must be at least 1. Received: 0"),
        (dict(num_results=2.0), TypeError, "num_results must be an integer. Received: 2.0"),
        (dict(num_burnin_steps=-1), ValueError, "num_burnin_steps must be .* Received: -1"),
        (dict(num_steps_between_results=-1), ValueError, "between_results must be .* Received: -1"),
        (dict(num_chains=0), ValueError, "num_chains must be at least 1. Received: 0"),
        (dict(seed="x"), ValueError, "seed must be an integer or two .* dtype string"),
        (dict(kernel="SGLD"), TypeError, "kernel must be a tfp.mcmc.* Received: a str"),
        (dict(jit_compile="yes"), TypeError, "jit_compile must be True or False. Received: 'yes'"),
        (dict(preflight_check=2), TypeError, "preflight_check must be True or False. Received: 2"),
        (dict(progress_bar=0), TypeError, "progress_bar must be True or False. Received: 0"),
        (dict(num_results=True), TypeError, "num_results must be an integer. Received: True"),
        (dict(initial_state="x"), TypeError, "initial_state must be a tensor or nest of tensors"),
        (dict(initial_state=None), TypeError, "initial_state must be a tensor or nest of tensors"),
        (dict(initial_state=[]), TypeError, "initial_state must be .* Received: nothing"),
        (dict(initial_state="x", num_chains=2), TypeError, "initial_state must be a tensor"),
        (dict(trace_fn=lambda s: s), TypeError, "trace_fn must take a state and kernel results"),
        (
            dict(kernel=quick_kernel(), initial_state=[0.0]),
            TypeError,
            r"initial_state must be a state of .* Received: initial_state\[0\]: float32 \[\]",
        ),
        (dict(directory="a\0b"), ValueError, "directory must be a path without null bytes"),
        (dict(trace_fn=3), TypeError, "trace_fn must be a callable, .* Received: an int"),
        (
            dict(trace_fn=Changing({"a": tf.zeros([2])})),
            ValueError,
            r"Received: trace: float32 \[2\], and when called again, trace\['a'\]: float32",
        ),
        (dict(trace_fn=Changing(tf.zeros([3]))), ValueError, r"called again, trace: float32 \[3\]"),
        (dict(trace_fn=Changing(())), ValueError, "called again, nothing"),
        (
            dict(trace_fn=lambda s, r: {"a": None}),
            ValueError,
            "must return tensors. Received: {'a': None}",
        ),
        (
            dict(trace_fn=lambda s, r: "x"),
            ValueError,
            "must return numbers of known shape. Received: string",
        ),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = dict(kernel=Walk(), initial_state=tf.zeros([2]), num_results=2)
    with pytest.raises(error, match=message):
        sgmcmc.sample_chain(**arguments | EAGER | options)


def test_a_state_of_integers() -> None:
    class Coin(Walk):
        def one_step(
            self, current_state: Any, previous_kernel_results: Any, seed: Any = None
        ) -> Any:
            return random.uniform_indices(seed, tf.range(2), 2), previous_kernel_results

    result = sgmcmc.sample_chain(Coin(), tf.zeros([2], tf.int32), 50, **EAGER)
    assert result.states.dtype == np.int32
    assert set(np.unique(result.states)) == {0, 1}


def test_a_state_that_repeats_to_one_chain_is_refused() -> None:
    """Two chains of a scalar would be one chain of a model with two parameters."""
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda w: -tf.reduce_sum(w**2, axis=-1)), 0.1)
    with pytest.raises(ValueError, match=r"one chain .* num_chains=2, .* shape \[\] instead"):
        sgmcmc.sample_chain(kernel, 0.0, 3, num_chains=2, **EAGER)


def test_kernels_whose_results_are_no_tensors_are_refused() -> None:
    experimental = tfp.experimental.mcmc
    kernel = experimental.WithReductions(quick_kernel(), experimental.ExpectationsReducer())
    with pytest.raises(TypeError, match="kernel must have .* Received: a WithReductions"):
        sgmcmc.sample_chain(kernel, state(), 3, **EAGER)


def test_kernels_that_take_no_dict_are_named() -> None:
    kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -(x**2), 0.1, 2)
    with pytest.raises(TypeError, match="list of tensors for a HamiltonianMonteCarlo"):
        sgmcmc.sample_chain(kernel, {"x": tf.constant(0.0)}, 2, **EAGER)


def test_a_call_inside_a_program_is_refused() -> None:
    call = functools.partial(sgmcmc.sample_chain, Walk(), tf.zeros([2]), 2, **EAGER)
    with pytest.raises(RuntimeError, match="sample_chain must be called eagerly"):
        tf.function(lambda: call().final_state, autograph=False)()


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_numeric_checks_of_tensorflow_do_not_disturb(jit_compile: bool) -> None:
    """They add operators that XLA cannot compile, and refuse infinities that are masked later."""

    def states() -> Any:
        options = QUIET | dict(jit_compile=jit_compile)
        return sgmcmc.sample_chain(quick_kernel(), state(), 3, **options).states

    expected = states()
    tf.debugging.enable_check_numerics()
    try:
        found = states()
    finally:
        tf.debugging.disable_check_numerics()
    assert_equal(found, expected)


def test_a_pickled_result_has_its_draws(full: Any) -> None:
    """The kernel is left out, because its target has functions that pickle cannot store."""
    with pytest.raises(AttributeError, match="local object"):
        pickle.dumps(full.kernel)
    found = pickle.loads(pickle.dumps(full))
    assert_equal(found.states, full.states)
    assert found.kernel is None and found.seed == full.seed
    assert copy.copy(full).kernel is full.kernel


def test_a_second_run_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers and an equal trace run the same program; other options do not."""
    kernel = quick_kernel()
    target = kernel.target_log_prob_fn
    options = {k: v for k, v in EAGER.items() if k != "seed"}  # no XLA: loops are counted

    def states(kernel: Any, num_results: int = 20, **more: Any) -> list[Any]:
        result = sgmcmc.sample_chain(kernel, state(), num_results, **{"seed": 0, **options, **more})
        return tree.flatten(result.states)

    def other(target: Any, step_size: float, temperature: Any = 1.0, **more: Any) -> Any:
        kernel = sgmcmc.SGLD(target, step_size, temperature, **more)
        return states(kernel, trace_fn=lambda _, results: results.step)

    first = states(kernel)
    expected = other(quick_kernel().target_log_prob_fn, 1e-3, 0.5)
    other(target, 1e-4)

    class MadeError(Exception):
        """Another program is made; what it gives does not matter here."""

    def made(*args: Any, **options: Any) -> None:
        raise MadeError

    monkeypatch.setattr(loop.Loop, "__init__", made)
    assert_equal([x[:20] for x in states(kernel, 30)], first)
    assert_equal(other(target, 1e-3, 0.5), expected)
    for differ in (
        lambda: other(target, 1e-4, noise="three_point"),
        lambda: other(target, 1e-4, lambda t: 1.0),
        lambda: other(target.with_minibatches(5), 1e-4),
        lambda: states(kernel, trace_fn=lambda _, results: results.step + 1),
    ):
        with pytest.raises(MadeError):
            differ()


def test_functions_that_read_a_changed_variable_are_traced_again() -> None:
    """The same lambda expression, evaluated again, reads the variables as they are now."""
    target = quick_kernel().target_log_prob_fn

    def check() -> None:
        kernel = sgmcmc.SGLD(target, lambda t: 1e-3 * scale)
        result = sgmcmc.sample_chain(
            kernel, state(), 2, trace_fn=lambda _, r: (r.step_size, scale * tf.ones([])), **EAGER
        )
        np.testing.assert_allclose(result.trace[0], 1e-3 * scale)
        np.testing.assert_array_equal(result.trace[1], scale)

    scale = 1.0
    check()
    scale = 2.0
    check()


@pytest.mark.parametrize(
    "dtype", [tf.bfloat16, pytest.param(tf.float16, marks=pytest.mark.thorough)]
)
def test_a_chain_in_half_precision(dtype: Any) -> None:
    """Its checks, too: NumPy reads no scalar `bfloat16` tensor."""
    x = tf.cast(np.random.default_rng(0).normal(size=[20, 2]), dtype)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: tf.reduce_sum(-0.5 * theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        data=x,
        batch_size=10,
    )
    kernel = sgmcmc.NOGIN(target, step_size=0.02, covariance="full")
    options = dict(seed=0, progress_bar=False, jit_compile=False)
    found = [sgmcmc.sample_chain(kernel, tf.zeros([2], dtype), 20, **options) for _ in range(2)]
    assert found[0].states.dtype == dtype.as_numpy_dtype
    draws = [np.asarray(result.states, np.float32) for result in found]
    assert np.isfinite(draws[0]).all() and (draws[0] == draws[1]).all()


def test_more_steps_than_a_counter_holds_are_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match="num_burnin_steps and num_results times .* at most 9,223"):
        sgmcmc.sample_chain(Walk(), state(), 3, num_steps_between_results=2**63 - 1, **EAGER)


def test_a_trace_of_unknown_shape_is_refused_before_the_run() -> None:
    def varying(state: Any, results: Any) -> tf.Tensor:
        return tf.range(tf.cast(tf.random.uniform([], 1, 5), tf.int32))

    with pytest.raises(ValueError, match=r"trace_fn must return numbers of known shape. .* \(None"):
        sgmcmc.sample_chain(Walk(), state(), 3, trace_fn=varying, **EAGER)

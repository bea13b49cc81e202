"""A run on disk goes on bit for bit, whatever ended it."""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.sampling.runs import (
    Walk,
    assert_equal,
    at_call,
    kernel,
    killed_run,
    quick_kernel,
    state,
    trace,
)
from tfp_sgmcmc.sampling import loop, run, steps
from tfp_sgmcmc.storage import checkpoint, npz, tolerant_equality, zarr_store
from tfp_sgmcmc.storage.directory import RunDirectory

pytest.importorskip("zarr")
ROOT = Path(__file__).resolve().parents[2]
EAGER: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)
OPTIONS: dict[str, Any] = EAGER | dict(
    trace_fn=trace, seed=3, num_burnin_steps=4, num_steps_between_results=1, num_chains=2,
    preflight_check=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 8)


@pytest.fixture(scope="module")
def carried() -> Any:
    """Returns the kernel that carries most, of which the runs below share one program."""
    return kernel()


@pytest.fixture(scope="module")
def in_memory(carried: Any) -> Any:
    return sgmcmc.sample_chain(carried, state(), 30, **OPTIONS)


def walk(num_results: int, **options: Any) -> Any:
    """Runs a kernel that is traced at once."""
    return sgmcmc.sample_chain(
        Walk(), {"x": tf.zeros([3]), "y": tf.zeros([])}, num_results,
        **OPTIONS | {"trace_fn": lambda state, results: results["number"]} | options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def walk_in_memory() -> Any:
    return walk(30)


def assert_same_run(result: Any, expected: Any) -> None:
    for name in ("states", "trace", "weights", "final_state", "final_kernel_results"):
        x, y = getattr(result, name), getattr(expected, name)
        assert_equal(tf.nest.map_structure(np.asarray, x), tf.nest.map_structure(np.asarray, y))


def test_more_results_go_on_from_those_on_disk(
    tmp_path: Path, carried: Any, in_memory: Any
) -> None:
    for count in (11, 30):
        result = sgmcmc.sample_chain(carried, state(), count, directory=tmp_path, **OPTIONS)
        assert result.num_results == count and result.is_complete
    assert_same_run(result, in_memory)
    fewer = sgmcmc.sample_chain(
        carried, state(), 7, directory=sgmcmc.Directory(tmp_path, resume="must"), **OPTIONS
    )
    assert np.isnan(fewer.timings.steps_per_second)  # nothing was left to do
    assert_equal(fewer.final_state, in_memory.final_state)
    assert_equal(
        tf.nest.map_structure(np.asarray, fewer.states),
        tf.nest.map_structure(lambda x: x[:7], in_memory.states),
    )
    from_disk, from_memory = result.to_inference_data(), in_memory.to_inference_data()
    for group in ("posterior", "sample_stats"):
        assert from_disk[group].equals(from_memory[group])
    assert from_disk.posterior.attrs["tuning_steps"] == 4
    assert fewer.to_inference_data().posterior.sizes["draw"] == 7


class Stopped(Exception):
    pass


def stop() -> None:
    raise Stopped


@pytest.mark.parametrize(
    "place",
    [
        "loop",
        pytest.param("append", marks=pytest.mark.thorough),
        pytest.param("write", marks=pytest.mark.thorough),
        pytest.param("commit", marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_failed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk_in_memory: Any, place: str
) -> None:
    owner, name = {
        "loop": (loop.Loop, "__call__"),
        "append": (RunDirectory, "append"),
        "write": (zarr_store.DrawStore, "_write"),
        "commit": (run.RunDirectory, "commit"),
    }[place]
    monkeypatch.setattr(
        steps.Pace, "took", lambda self, steps, seconds: setattr(self, "max_steps", 7)
    )
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(owner, name, at_call(3, stop, getattr(owner, name)))
        walk(30, directory=sgmcmc.Directory(tmp_path, seconds_between_commits=1e-9))
    assert_same_run(walk(30, directory=sgmcmc.Directory(tmp_path, "must")), walk_in_memory)


def killed(folder: Path, seed: int, kills: int) -> None:
    """Kills a run, like `kill -9`, at random moments after its first checkpoint; compares."""
    rng = np.random.default_rng(seed)
    command = [sys.executable, "-m", "tests.sampling.runs", str(folder)]
    checkpoint = folder / "checkpoint.npz"
    for _ in range(kills):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        while child.poll() is None:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                time.sleep(rng.uniform(0.0, 0.3))
                child.kill()
                break
            time.sleep(0.01)
        _, message = child.communicate()
        assert child.returncode == -9, message.decode()
    with RunDirectory(folder) as run:  # the lock is gone with the process
        assert run.has_run
    reached = sgmcmc.storage.checkpoint.load(checkpoint).header["num_draws"]
    assert reached > 100 * kills  # the run went on between the kills
    result = killed_run(folder, reached + 500)
    expected = killed_run(None, reached + 500)
    assert_equal(np.asarray(result.states), expected.states)
    assert_equal(np.asarray(result.trace), expected.trace)


@pytest.mark.slow  # the fast tests end at every write, rename and removal instead
def test_twenty_kills_at_random_moments(tmp_path: Path) -> None:
    killed(tmp_path / "run", seed=1, kills=20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(kernel=sgmcmc.SGLD), "kernel: SGNHT, but here SGLD"),
        (dict(step_size=0.03), r"kernel.step_size: 0\.02, but here 0\.03"),
        (dict(seed=4), r"seed: \[0, 3\], but here \[0, 4\]"),
        (dict(num_burnin_steps=5), "num_burnin_steps: 4, but here 5"),
        (dict(num_steps_between_results=2), "num_steps_between_results: 1, but here 2"),
        (dict(num_chains=3), r"posterior/log_sd: float32 \[2\], but here float32 \[3\]"),
        (dict(trace_fn=None), r"sample_stats/double: float32 \[2, 3\], but here nothing"),
        (dict(jit_compile=True), "jit_compile: False, but here True"),
    ],
)
def test_a_run_of_something_else_is_refused(
    run_of_three: Path, change: dict[str, Any], message: str
) -> None:
    options = OPTIONS | {k: v for k, v in change.items() if k in OPTIONS}
    made: Any = quick_kernel()
    if "kernel" in change:
        made = change["kernel"](made.target_log_prob_fn, 0.02)
        options |= {"trace_fn": lambda s, r: {"norm": r.gradient_norm, "double": 2.0 * s["mean"]}}
    elif "step_size" in change:
        made = sgmcmc.SGNHT(made.target_log_prob_fn, **change)
    with pytest.raises(ValueError, match=f"belongs to another run, .*{message}"):
        sgmcmc.sample_chain(made, state(), 3, directory=run_of_three, **options)


@pytest.fixture(scope="module")
def run_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    sgmcmc.sample_chain(quick_kernel(), state(), 3, directory=path, **OPTIONS)
    return path


def near(
    scale: float = 1.0, shift: float = 0.0, power: float = 2.0, sd: float = 10.0, size: int = 40
) -> sgmcmc.MinibatchLogProb:
    """Returns a log posterior of one number, whose data stay the same but for `size`."""
    data = np.random.default_rng(0).normal(2.0, 1.0, size=40).astype(np.float32)[:size]
    return sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * (t / sd) ** 2,
        lambda t, x: -0.5 * scale * tf.abs(x - shift - t[..., tf.newaxis]) ** power,
        data,
        10,
        replacement=True,
    )


def constant(step: Any) -> tf.Tensor:
    return tf.constant(0.01)


def halved(step: Any) -> tf.Tensor:
    return tf.where(step < 500, 0.01, 0.005)


PROBLEM: dict[str, Any] = dict(target={}, step_size=constant, start=0.0, factor=1.0)


def sampled(folder: Path, target: Any, step_size: Any, start: float, factor: float) -> Any:
    return sgmcmc.sample_chain(
        sgmcmc.SGLD(near(**target), step_size), tf.constant([start]), 3, directory=folder,
        trace_fn=lambda state, results: factor * state, **EAGER,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run_of_a_problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem")
    sampled(path, **PROBLEM)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(target={"scale": 1.1}), "It has log posterior: .*, but here .*gradient of the log"),
        (dict(target={"scale": 1.0003}), "It has log posterior: "),
        (dict(target={"shift": 0.1}), "It has log posterior: "),
        (dict(target={"power": 1.9}), "It has log posterior: "),
        (dict(target={"sd": 11.0}), "It has gradient of the log prior: -.*, but here -"),
        (dict(target={"size": 39}), "kernel.target_log_prob_fn.num_examples: 40, but here 39"),
        (dict(start=0.1), "It has initial_state: 0, but here 0.1"),
        (dict(step_size=halved), "step_size at steps 0, 1, .*: numbers that give .*, but here "),
        (dict(factor=2.0), "It has trace_fn: "),
    ],
)
def test_another_problem_is_refused(
    run_of_a_problem: Path, change: dict[str, Any], message: str
) -> None:
    """Functions cannot be compared, so their values at one place are."""
    with pytest.raises(ValueError, match=f"belongs to another run, .*{message}"):
        sampled(run_of_a_problem, **PROBLEM | change)


@pytest.mark.parametrize(
    ("scale", "traced", "named"),
    [(1.0, 1, None), (4.0, 1, "step"), (1.0, 2, "trace_fn")],
)
def test_functions_of_a_kernel_and_of_later_steps_are_compared(
    tmp_path: Path, scale: float, traced: int, named: str | None
) -> None:
    """By the first step and its trace: a preconditioner of functions, and a number of steps."""

    def sample(scale: float, traced: int) -> Any:
        matrix = sgmcmc.preconditioners.PositionDependent(
            lambda theta, v: scale * v, lambda theta, z: scale**0.5 * z, lambda theta: 0.0 * theta
        )
        return sgmcmc.sample_chain(
            sgmcmc.SGLD(near(), 0.01, preconditioner=matrix), tf.constant([0.0]), 3,
            directory=tmp_path, trace_fn=lambda state, results: traced * results.step, **EAGER,
        )  # fmt: skip

    sample(1.0, 1)
    if named is None:
        assert sample(scale, traced).is_complete
    else:
        with pytest.raises(ValueError, match=f"belongs to another run, .*{named}"):
            sample(scale, traced)


def test_the_same_problem_computed_otherwise_goes_on(run_of_a_problem: Path) -> None:
    rounded = {"scale": 1.0 + 1e-5, "sd": 10.0001}
    assert sampled(run_of_a_problem, **PROBLEM | {"target": rounded}).is_complete


def test_a_problem_that_distributions_refuse_next_to_the_start(tmp_path: Path) -> None:
    """The start itself is then compared."""
    for rate, refused in ((1.0, False), (1.0, False), (2.0, True)):
        prior = tfp.distributions.Exponential(rate, validate_args=True)
        kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda t, p=prior: p.log_prob(t)[..., 0], 1e-6, 1)
        with pytest.raises(ValueError, match="log posterior: ") if refused else nullcontext():
            sgmcmc.sample_chain(kernel, tf.constant([1e-3]), 2, directory=tmp_path, **EAGER)


def test_a_run_from_before_the_problem_was_recorded(tmp_path: Path) -> None:
    sampled(tmp_path, **PROBLEM)
    saved = checkpoint.load(tmp_path / "checkpoint.npz")
    old = {
        k: v for k, v in saved.header["fingerprint"].items() if not tolerant_equality.is_record(v)
    }
    nests = {k: v for k, v in saved.leaves.items()}
    rewrite(tmp_path / "checkpoint.npz", saved.header | {"fingerprint": old}, nests)
    with pytest.warns(UserWarning, match="did not record .*initial_state.* cannot be checked"):
        assert sampled(tmp_path, **PROBLEM).is_complete


def rewrite(path: Path, header: dict[str, Any], leaves: dict[str, Any]) -> None:
    """Writes a checkpoint whose leaves keep their names."""
    contents = {
        "format": checkpoint.FORMAT_VERSION,
        "header": header,
        "leaves": [[name, x.dtype.name] for name, x in leaves.items()],
    }
    npz.write(path, contents, {str(i): x for i, x in enumerate(leaves.values())})


def test_a_run_without_a_seed_goes_on_with_its_own(tmp_path: Path) -> None:
    options = EAGER | {"seed": None}
    first = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, directory=tmp_path, **options)
    second = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 6, directory=tmp_path, **options)
    assert first.seed == second.seed
    whole = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 6, **EAGER | {"seed": first.seed})
    assert_equal(np.asarray(second.states), whole.states)


def test_results_of_another_shape_are_refused(tmp_path: Path) -> None:
    class Longer(Walk):
        def bootstrap_results(self, init_state: Any) -> Any:
            return {**super().bootstrap_results(init_state), "nothing": tf.zeros([2])}

    Longer.__name__ = "Walk"
    sgmcmc.sample_chain(Walk(), tf.zeros([2]), 3, directory=tmp_path, **EAGER)
    with pytest.raises(ValueError, match=r"results\['nothing'\]: None, but here float32 \[2\]"):
        sgmcmc.sample_chain(Longer(), tf.zeros([2]), 5, directory=tmp_path, **EAGER)


def test_a_chain_that_broke_down_on_disk(tmp_path: Path) -> None:
    options = EAGER | dict(directory=tmp_path, trace_fn=lambda s, r: s)
    with pytest.raises(sgmcmc.NonFiniteChainError) as caught:
        sgmcmc.sample_chain(Walk(growth=100.0), tf.ones([2]), 1000, **options)
    assert caught.value.samples.shape == (caught.value.step, 2)
    assert np.isfinite(np.asarray(caught.value.samples)).all()
    with pytest.raises(ValueError, match=f"cannot resume, .* after {caught.value.step} results"):
        sgmcmc.sample_chain(Walk(growth=100.0), tf.ones([2]), 1000, **options)


@pytest.mark.thorough
def test_the_target_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(run, "preflight", lambda target, state, **_: checked.append(target))
    monkeypatch.setattr(run, "judge_step", lambda *_: None)
    chain, options = quick_kernel(), OPTIONS | {"preflight_check": True}
    for count in (2, 4):
        sgmcmc.sample_chain(chain, state(), count, directory=tmp_path, **options)
    assert checked == [chain.target_log_prob_fn]


@pytest.mark.thorough
def test_bfloat16_goes_on(tmp_path: Path) -> None:
    class Halving(Walk):
        def one_step(
            self, current_state: Any, previous_kernel_results: Any, seed: Any = None
        ) -> Any:
            noise = tf.cast(sgmcmc.random.normal([2], tf.float32, seed), tf.bfloat16)
            return current_state / 2 + noise, previous_kernel_results

    start = tf.zeros([2], tf.bfloat16)
    for count in (3, 7):
        result = sgmcmc.sample_chain(Halving(), start, count, directory=tmp_path, **EAGER)
    expected = sgmcmc.sample_chain(Halving(), start, 7, **EAGER)
    assert expected.states.dtype == tf.bfloat16.as_numpy_dtype
    np.testing.assert_array_equal(result.states, expected.states.astype(np.float32))
    assert result.final_state.dtype == tf.bfloat16

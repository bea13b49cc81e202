"""`export_program`: the file holds a program that gives the draws of `sample_chain`."""

import functools
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.compiler.tf2xla.python import xla

import tfp_sgmcmc as sgmcmc
from tests.sampling import runs

ROOT = Path(__file__).parents[2]
QUIET: dict[str, Any] = {"preflight_check": False}
NORMAL = tfp.distributions.Sample(tfp.distributions.Normal(1.0, 2.0), 3)
KERNELS = {
    # Drawing with replacement traces and compiles fast; NOGIN draws without.
    "SGLD": lambda: (sgmcmc.SGLD(runs.target(replacement=True), 1e-3), runs.state()),
    "NOGIN": lambda: (runs.kernel(), runs.state()),
    "HMC": lambda: (tfp.mcmc.HamiltonianMonteCarlo(NORMAL.log_prob, 0.5, 3), tf.zeros([3])),
}


@functools.cache
def compiled(path: Path) -> tuple[dict[str, np.ndarray], list[str], Any]:
    """Returns inputs, names of outputs, and the program of a file as it stands."""
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        program = file["program"].tobytes()
        inputs = {name: file[name] for name in header["inputs"]}
        # Positions keep their types; the other outputs are draws, step sizes, and checks.
        like = [file[name] if name in file.files else None for name in header["outputs"]]
    kept = [np.float32 if x is None else x.dtype for x in like]
    kept[-2:] = [np.bool_, np.int64]

    @tf.function(jit_compile=True, autograph=False)
    def run(*inputs: tf.Tensor) -> Any:
        types = [tf.as_dtype(x) for x in kept]
        shapes = [tf.TensorShape(None if x is None else x.shape) for x in like]
        return xla.call_module(
            inputs, version=9, module=program, Tout=types, Sout=shapes, platforms=["CPU"]
        )

    return inputs, header["outputs"], run


def run_file(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    """Runs the file's program with some inputs replaced."""
    inputs, outputs, run = compiled(path)
    found = run(*(tf.constant(x) for x in (inputs | changes).values()))
    return dict(zip(outputs, [x.numpy() for x in found], strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "SGLD" else pytest.mark.slow) for n in KERNELS]
)
def test_program_gives_the_draws_of_sample_chain(name: str, tmp_path: Path) -> None:
    kernel, state = KERNELS[name]()
    plan: dict[str, Any] = dict(num_burnin_steps=3, num_steps_between_results=1, num_chains=2)
    path = sgmcmc.export_program(kernel, state, 5, tmp_path / "chain.npz", seed=[1, 2], **plan)
    want = sgmcmc.sample_chain(kernel, state, 10, seed=[1, 2], progress_bar=False, **plan, **QUIET)

    first = run_file(path)
    position = {k: v for k, v in first.items() if k.startswith("position")}
    second = run_file(path, first=np.int64(2), **position)

    for i, states in enumerate(tf.nest.flatten(want.states)):
        found = np.concatenate([first[f"kept_{i}"], second[f"kept_{i}"]])
        if name == "NOGIN":  # whose last digits XLA rounds differently in the program
            np.testing.assert_allclose(found, states, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, states)
    assert first["is_finite"] and first["lost_at"] == 2**62
    assert first["position_0"] == 12 and second["position_0"] == 22
    other = run_file(path, seed=np.array([1, 3], np.int32))  # the inputs count
    assert not np.array_equal(other["kept_0"], first["kept_0"])


@pytest.mark.thorough
def test_a_program_for_gpus_takes_blocks_of_steps_and_gives_the_same_draws(
    tmp_path: Path,
) -> None:
    kernel, state = runs.quick_kernel(), runs.state()
    files = [
        sgmcmc.export_program(
            kernel, state, 5, tmp_path / f"{kind}.npz", device_kind=kind, num_burnin_steps=40,
            num_steps_between_results=2,
        )
        for kind in ("CPU", "GPU")
    ]  # fmt: skip
    want, found = map(run_file, files)
    for name in want:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)
    programs = [np.load(file)["program"].tobytes() for file in files]
    assert programs[0] != programs[1]


def test_program_says_where_a_chain_broke_down(tmp_path: Path) -> None:
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -(x**4)), step_size=1.0)
    run = run_file(sgmcmc.export_program(kernel, tf.constant(9.0), 50, tmp_path / "bad.npz"))
    assert not run["is_finite"] and run["lost_at"] < 10


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    kernel, state = runs.kernel(), runs.state()
    variable = keras.Variable(np.ones(3, np.float32))
    on_variable = sgmcmc.SGLD(
        sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum((x - variable) ** 2, -1)), 0.1
    )
    data = tf.data.Dataset.from_tensor_slices(np.ones([8, 3], np.float32)).batch(
        4, drop_remainder=True
    )
    streamed = sgmcmc.StreamedLogProb(
        lambda x: -tf.reduce_sum(x**2, -1),
        lambda x, batch: -tf.reduce_sum((batch - x[..., tf.newaxis, :]) ** 2, -1),
        data,
        num_examples=8,
    )
    path = tmp_path / "chain.npz"
    wrong: list[tuple[Any, type[Exception], str]] = [
        ((lambda x: x, state, 5, path), TypeError, "kernel must be a tfp.mcmc.TransitionKernel"),
        ((kernel, state, 0, path), ValueError, "num_results"),
        ((kernel, "theta", 5, path), TypeError, "initial_state"),
        ((kernel, state, 5, tmp_path), ValueError, "path must name a file.*a directory"),
        ((kernel, state, 5, tmp_path / "no" / "x"), ValueError, "path must name a file.*not exist"),
        ((kernel, state, 5, 3), TypeError, "path must be a string"),
        ((on_variable, tf.zeros([3]), 5, path), ValueError, "reads a variable"),
        ((sgmcmc.SGLD(streamed, 0.1), tf.zeros([3]), 5, path), ValueError, "StreamedLogProb"),
    ]
    for arguments, error, words in wrong:
        with pytest.raises(error, match=words):
            sgmcmc.export_program(*arguments)
    with pytest.raises(ValueError, match="device_kind must be one of .*Received: 'cuda'"):
        sgmcmc.export_program(kernel, state, 5, path, device_kind="cuda")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jaxlib") is None, reason="JAX is not installed")
@pytest.mark.parametrize("name", ["SGLD", "NOGIN"])
def test_another_client_gives_nearly_the_same_draws(name: str, tmp_path: Path) -> None:
    kernel, state = KERNELS[name]()
    path = sgmcmc.export_program(kernel, state, 20, tmp_path / "chain.npz", num_chains=2)
    draws = tmp_path / "draws.npz"
    code = f"""
        import sys
        sys.modules["tensorflow"] = None  # must not be needed
        from benchmarks.devices import run_program
        sys.argv = ["run_program", {str(path)!r}, "--calls", "2", "--output", {str(draws)!r}]
        run_program.main()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)
    want = sgmcmc.sample_chain(kernel, state, 40, seed=0, num_chains=2, progress_bar=False, **QUIET)
    with np.load(draws) as found:
        for i, states in enumerate(tf.nest.flatten(want.states)):
            np.testing.assert_allclose(found[f"kept_{i}"], states, rtol=1e-4, atol=1e-5)

"""Knowledge of the compiler and of the device that will run the code."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import xla


def test_xla_context_is_seen_wherever_code_is_traced() -> None:
    seen = {}

    def note(name: str, x: tf.Tensor) -> tf.Tensor:
        seen[name] = xla.in_xla_context()
        return x

    def everywhere(x: tf.Tensor) -> tf.Tensor:
        x = note("body", x)
        x = tf.while_loop(lambda x: x < 3.0, lambda x: (note("while", x + 1),), (x,))[0]
        x = tf.cond(x > 0, lambda: note("cond", x), lambda: x)
        return tf.function(lambda x: note("nested", x), autograph=False)(x)

    everywhere(tf.constant(0.0))
    assert not any(seen.values())
    tf.function(everywhere, autograph=False)(tf.constant(0.0))
    assert not any(seen.values()) and len(seen) == 4
    tf.function(everywhere, autograph=False, jit_compile=True)(tf.constant(0.0))
    assert all(seen.values()) and len(seen) == 4


def test_functions_that_are_made_anew_are_traced_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twelve of one source line. The negative control makes `tf.function` warn."""

    def warned(make: Any) -> bool:
        caplog.clear()
        logger = tf.get_logger()
        caplog.set_level("WARNING", logger.name)  # other tests may have made it quieter
        logger.addHandler(caplog.handler)
        try:
            for _ in range(12):
                make(lambda x: x + 1)(tf.constant(1.0))
        finally:
            logger.removeHandler(caplog.handler)
        return any("retracing" in record.message for record in caplog.records)

    assert not warned(xla.traced)
    assert warned(lambda fn: tf.function(fn, autograph=False))


class _Device:
    def __init__(self, name: str):
        self.name, self.device_type = f"/device:{name}", name.split(":")[0]


def test_a_device_is_asked_where_code_is_placed_not_what_the_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [_Device("CPU:0"), _Device("TPU:0"), _Device("GPU:0")]
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [d for d in devices if kind in (None, d.device_type)],
    )
    seen = []

    def note(x: tf.Tensor) -> tf.Tensor:
        seen.append((xla.device_kind(), xla.compiles_for_cpu()))
        return x

    assert xla.device_kind() == "CPU"  # this machine places tensors there
    for kind in ("CPU", "GPU", "TPU"):
        graph = tf.Graph()
        with graph.as_default(), tf.device(f"/{kind}:0"):
            note(tf.zeros([]))
    assert seen == [("CPU", False), ("GPU", False), ("TPU", False)]
    seen.clear()
    with tf.device("/CPU:0"):
        tf.function(note, autograph=False, jit_compile=True)(tf.zeros([]))
    assert seen == [("CPU", True)]
    assert xla.num_parallel_programs() >= 1


@pytest.mark.parametrize(
    ("kind", "stride", "want"),
    [
        *(("GPU", None, 32), ("GPU", 1, 1), ("GPU", 6, 6), ("GPU", 46, 23), ("GPU", 97, 1)),
        *(("CPU", None, 1), ("TPU", 6, 1), (None, 6, 1)),
    ],
)
def test_a_gpu_takes_blocks_of_steps_that_divide_the_stride(
    kind: str | None, stride: int | None, want: int
) -> None:
    found = []

    def note(x: tf.Tensor) -> tf.Tensor:
        found.append((xla.steps_of_block(stride), xla.steps_of_block(x)))
        return x

    with xla.for_device_kind(kind):
        tf.function(note, autograph=False, jit_compile=True)(tf.constant(6))
        assert xla.steps_of_block(stride) == 1  # not compiled
    assert found == [(want, 1)]


def test_programs_multiply_in_full_precision_and_leave_the_setting() -> None:
    """TensorFlow reads it when a product is compiled for a GPU or runs there."""
    seen, config = [], tf.config.experimental

    def note(x: tf.Tensor) -> tf.Tensor:
        seen.append(config.tensor_float_32_execution_enabled())
        return x

    def noted(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(note, [x], x.dtype), x.shape)

    class Kernel(tfp.mcmc.TransitionKernel):
        is_calibrated = True

        def bootstrap_results(self, init_state: tf.Tensor) -> Any:
            return ()

        def one_step(self, current_state: tf.Tensor, results: Any, seed: Any = None) -> Any:
            return noted(current_state), results

    before = config.tensor_float_32_execution_enabled()
    try:
        for setting in (True, False):
            config.enable_tensor_float_32_execution(setting)
            note(tf.zeros([]))
            assert seen == [setting]  # the control
            seen.clear()
            xla.traced(noted)(tf.zeros([2]))
            xla.traced_once(noted)(tf.zeros([2]))
            sgmcmc.sample_chain(
                Kernel(), tf.zeros([2]), 3, seed=0, progress_bar=False, jit_compile=False
            )
            assert len(seen) == 5 and not any(seen)
            assert config.tensor_float_32_execution_enabled() == setting
            seen.clear()
    finally:
        config.enable_tensor_float_32_execution(before)


def test_the_precision_is_full_until_the_last_thread_leaves() -> None:
    config, inside = tf.config.experimental, threading.Event()
    before, leave = config.tensor_float_32_execution_enabled(), threading.Event()

    def hold() -> None:
        with xla.full_precision():
            inside.set()
            leave.wait(30)

    try:
        config.enable_tensor_float_32_execution(True)
        thread = threading.Thread(target=hold)
        with xla.full_precision():
            thread.start()
            assert inside.wait(30)
        assert not config.tensor_float_32_execution_enabled()
        leave.set()
        thread.join()
        assert config.tensor_float_32_execution_enabled()
    finally:
        leave.set()
        config.enable_tensor_float_32_execution(before)


def test_a_loop_asks_its_condition_after_each_block() -> None:
    numbers = [int(xla.while_loop(lambda i: i < 10, lambda i: [i + 1], [0], n)[0]) for n in (1, 4)]
    assert numbers == [10, 12]


@pytest.mark.slow
def test_runs_stay_on_the_device_of_their_scope() -> None:
    """In a process of its own with two logical CPUs."""
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-m", "tests.on_two_devices"],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.splitlines()[-1] == "all on CPU:1"


def test_large_factorisations_are_found_where_a_cpu_runs_them() -> None:
    def log_determinant(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.logdet(x[..., tf.newaxis] * tf.eye(x.shape[-1]))

    assert xla.slow_factorization(log_determinant, tf.ones([32])) == ("Cholesky", 32)
    assert xla.slow_factorization(log_determinant, tf.ones([31])) is None
    assert xla.slow_factorization(tf.linalg.det, tf.eye(40)) == ("MatrixDeterminant", 40)
    with xla.for_device_kind("GPU"):
        assert xla.slow_factorization(log_determinant, tf.ones([32])) is None

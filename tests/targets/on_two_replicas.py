"""A chain on two replicas; `test_two_replicas.py` runs this in a process with two logical CPUs.

Each chain is compared with the chain of one replica that has the same seed. Steps that XLA does not
compile draw the same noise there, so that only the order of sums differs.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.two_replicas import MIRRORED
from tests.sampling.runs import Walk
from tests.targets.shards import (
    SECOND_ORDER,
    SIZES,
    in_shards,
    kernels,
    log_likelihood,
    log_prior,
    sharded,
)
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.sampling.shards import shard_driver
from tfp_sgmcmc.targets import sharded as sharded_target
from tfp_sgmcmc.targets.streaming import block_sums


@functools.cache
def alone(name: str, jit_compile: bool = True) -> np.ndarray:
    return run(name, jit_compile)


def run(name: str, jit_compile: bool = True, num_results: int = 40) -> np.ndarray:
    target = sharded(jit_compile=jit_compile)
    kernel = kernels(name, target)
    return sgmcmc.sample_chain(
        kernel, tf.zeros([4, 3]), num_results, seed=0, jit_compile=False, progress_bar=False,
        preflight_check=False,
    ).states  # fmt: skip


def on_both(name: str, jit_compile: bool) -> tuple[np.ndarray, np.ndarray]:
    expected = alone(name, jit_compile)
    with MIRRORED.scope():
        return expected, run(name, jit_compile)


def assert_close(together: np.ndarray, alone: np.ndarray) -> None:
    """Float32 sums in another order differ by 6e-8 a step, which these chains contract."""
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["quick", "compiled"])
@pytest.mark.parametrize(
    "name",
    [
        "SGLD", "NOGIN", "SGHMC", "ModifiedSGLD", "SGFS", "SGNHT", "CCAdL", "UnderdampedLangevin",
        "CorrectedLangevin", "ReplicaExchangeSGLD", "ControlVariate",
        "order 2", "pilot",
    ],
)  # fmt: skip
def test_chain_is_that_of_one_replica(name: str, jit_compile: bool) -> None:
    alone, together = on_both(name, jit_compile)
    assert np.ptp(alone[-1], axis=0).min() > 0.01  # the chains have moved apart
    assert_close(together, alone)


def test_shares_that_are_not_summed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: each replica goes by its own shards alone."""
    monkeypatch.setattr(sharded_target, "total", lambda values: values)
    alone, together = on_both("SGLD", jit_compile=False)
    with pytest.raises(AssertionError):
        assert_close(together, alone)


def test_each_replica_loads_its_shards() -> None:
    loaded: list[tuple[int, str]] = []

    def load_shard(s: int) -> Any:
        loaded.append((s, tf.zeros([]).device[-5:]))
        return in_shards(SIZES)(s)

    with MIRRORED.scope():
        target = sharded(load_shard=load_shard)
    assert loaded == [(0, "CPU:0"), (2, "CPU:0"), (1, "CPU:1")]
    assert target.num_replicas == 2
    with pytest.raises(ValueError, match="in the scope of the strategy in which it was made"):
        target.estimate(tf.zeros([3]), tf.constant([0, 1]))


def test_what_is_computed_between_steps() -> None:
    """The log posterior, its gradient, a mode, the curvature and `preflight`, on both."""
    found = []
    for scope in (tf.distribute.get_strategy().scope, MIRRORED.scope):
        with scope():
            target, at = sharded(), tf.constant([0.2, -0.1, 0.3])
            with tf.GradientTape() as tape:
                tape.watch(at)
                value = target(at)
            center, report = sgmcmc.find_center(target, at)
            stability = sgmcmc.preflight(target, at, kernel=sgmcmc.NOGIN(target, 0.1))
            estimate = target.estimate(at, tf.constant([0, 1]))
            covariance = np.cov(estimate.scores, rowvar=False)
            numbers = [value, report.log_prob, stability.largest_curvature, estimate.log_prob]
            arrays = [tape.gradient(value, at), center, estimate.gradient, covariance]
            found.append([*map(np.asarray, [*numbers, *arrays])])
    for one, both in zip(*found, strict=True):
        np.testing.assert_allclose(both, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_scores_of_second_order(name: str) -> None:
    """In 64 bits, because oneDNN cannot vectorize the scores of 32 bits."""
    found, at = [], tf.constant([[0.2, -0.1, 0.3], [1.0, 2.0, -2.0]], tf.float64)
    for scope in (tf.distribute.get_strategy().scope, MIRRORED.scope):
        with scope():
            center, target = tf.zeros([3], tf.float64), sharded(dtype=tf.float64)
            control = sgmcmc.ControlVariate(target, center, order=2, **SECOND_ORDER[name])
            estimate = control.estimate(at, tf.constant([0, 1]))
            covariance = [np.cov(rows, rowvar=False) for rows in estimate.scores.numpy()]
            found.append([estimate.gradient, estimate.log_prob, covariance, estimate.noise_scale])
    for one, both in zip(*found, strict=True):
        np.testing.assert_allclose(both, one, rtol=1e-9)


def test_a_run_goes_on_with_another_number_of_replicas(tmp_path: Path) -> None:
    """SGNHT has more than its position to store, and is traced faster than other such kernels."""
    pytest.importorskip("zarr")
    options: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)
    with MIRRORED.scope():
        kernel = kernels("SGNHT", sharded(jit_compile=False))
        sgmcmc.sample_chain(kernel, tf.zeros([4, 3]), 20, directory=tmp_path, **options)
    kernel = kernels("SGNHT", sharded(jit_compile=False))
    result = sgmcmc.sample_chain(kernel, tf.zeros([4, 3]), 40, directory=tmp_path, **options)
    assert_close(np.asarray(result.states), alone("SGNHT", jit_compile=False))
    with pytest.raises(ValueError, match="jit_compile"):  # other noise
        sgmcmc.sample_chain(
            kernel, tf.zeros([4, 3]), 60, directory=tmp_path, **options | {"jit_compile": True}
        )


def test_each_device_runs_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logical CPUs stand for two accelerators, each of which runs a shard of the chains."""
    placed: set[str] = set()

    class Placed(Walk):
        def bootstrap_results(self, init_state: Any) -> Any:
            placed.add(xla.device())
            return super().bootstrap_results(init_state)

    def draws() -> np.ndarray:
        placed.clear()
        options: dict[str, Any] = dict(chains_per_shard=2, seed=0, progress_bar=False)
        result = sgmcmc.sample_shards(Placed(), tf.zeros([4, 2]), 30, jit_compile=False, **options)
        return np.asarray(result.states)

    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(names) == 2
    expected = draws()
    assert placed == {xla.device()}  # control: cores of a CPU are not told apart
    monkeypatch.setattr(shard_driver, "local_devices", lambda: names)
    np.testing.assert_array_equal(draws(), expected)
    assert {name[-len(names[0]) :] for name in placed} == {*names}


def test_report() -> None:
    pytest.importorskip("arviz")
    with MIRRORED.scope():
        target = sharded()
        kernel = kernels("UnderdampedLangevin", target)
        result = sgmcmc.sample_chain(
            kernel, tf.zeros([4, 3]), 200, seed=0, progress_bar=False, preflight_check=False
        )
        assert "R-hat" in str(sgmcmc.report(result, target))


def streamed(memory: int = 2**28) -> Any:
    rows = tf.nest.map_structure(
        lambda x: np.tile(x, [50] + [1] * (x.ndim - 1)), in_shards(SIZES)(0)
    )
    size = len(tf.nest.flatten(rows)[0])
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(size // 4)  # as the blocks of passes
    return sgmcmc.StreamedLogProb(log_prior, log_likelihood, batches, size, memory=memory)


def steps_of_a_stream() -> None:
    sgmcmc.SGLD(streamed(), 1e-3).bootstrap_results(tf.zeros([3]))


def test_replicas_divide_the_passes_over_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool and the draws are those of one replica, bit for bit."""
    used, block = [], block_sums._as_sums

    def noting(found: Any, factor: Any) -> Any:
        used.append(found[0].device[-len("CPU:0") :])
        return block(found, factor)

    monkeypatch.setattr(block_sums, "_as_sums", noting)

    def draws() -> list[np.ndarray]:
        used.clear()
        target = streamed(2000)
        pool, report = sgmcmc.draw_pool(target, tf.zeros([3]), jit_compile=False)
        assert len(report.passes) >= 3
        result = sgmcmc.sample(
            target, tf.zeros([3]), 100, seed=0, progress_bar=False, jit_compile=False
        )
        return [*tf.nest.flatten(pool.rows_and_weights()), result.states]

    alone, of_one = draws(), {*used}
    with MIRRORED.scope():
        together, of_two = draws(), {*used}
    assert (of_one, of_two) == ({"CPU:0"}, {"CPU:0", "CPU:1"})
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


REFUSED = {
    "num_shards must be at least 2, the number of replicas": lambda: sharded(
        load_shard=in_shards([90]), num_shards=1
    ),
    "StreamedLogProb must be used on one replica in steps": steps_of_a_stream,
    "SVRG needs a MinibatchLogProb": lambda: sgmcmc.SVRG(sharded()),
    "method='adam' needs a MinibatchLogProb": lambda: sgmcmc.find_center(
        sharded(), tf.zeros([3]), "adam"
    ),
    "swap_every > 1 needs a MinibatchLogProb": lambda: sgmcmc.ReplicaExchangeSGLD(
        sharded(), 0.01, [1.0, 2.0], swap_every=2
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_takes_one_replica(message: str) -> None:
    with MIRRORED.scope(), pytest.raises(ValueError, match=message.replace("(", r"\(")):
        REFUSED[message]()

"""Attacks on calls, data and kernels of `sample` and its kin."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, told
from benchmarks.robustness.attacks_on_runs import DATA, EAGER, QUIET, kernel, target

tfd = tfp.distributions


@attack("calls")
def inside_a_program() -> None:
    start = tf.constant(0.0)
    for call in (
        lambda: sgmcmc.sample(target(), start, 10, **QUIET),
        lambda: sgmcmc.sample_chain(kernel(), start, 10, **QUIET),
        lambda: sgmcmc.find_center(target(), start),
        lambda: sgmcmc.preflight(target(), start),
    ):
        told("must be called eagerly", tf.function(call, autograph=False), RuntimeError)
        with tf.Graph().as_default():
            told("must be called eagerly", call, RuntimeError)


@attack("calls")
def numeric_checks_are_enabled() -> None:
    tf.debugging.enable_check_numerics()
    try:
        for jit_compile in (False, True):
            options: dict[str, Any] = EAGER | {"jit_compile": jit_compile}
            assert sgmcmc.sample_chain(kernel(), tf.zeros([]), 10, **options).is_complete
    finally:
        tf.debugging.disable_check_numerics()


@attack("calls")
def something_else_in_place_of_a_kernel() -> None:
    for wrong in (3, sgmcmc.SGLD, target()):
        told("kernel must be", lambda w=wrong: sgmcmc.preflight(target(), 0.0, kernel=w), TypeError)


@attack("calls")
def keras_has_another_backend() -> None:
    program = "import tfp_sgmcmc; tfp_sgmcmc.SGLD"
    options: dict[str, Any] = dict(env={**os.environ, "KERAS_BACKEND": "jax"}, text=True)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, **options)
    assert "ImportError: tfp_sgmcmc needs Keras' backend tensorflow" in found.stderr, found.stderr


@attack("calls")
def a_report_without_arviz() -> None:
    program = "import sys; sys.modules['arviz'] = None; import numpy as np, tfp_sgmcmc as s; "
    program += "print(s.report({'w': np.random.default_rng(0).normal(size=[500, 4])}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.startswith("Verdict: no problem was found."), found.stderr


@attack("calls")
def a_target_is_pickled() -> None:
    """Its functions are those of a module, and it holds compiled programs."""
    made = target()
    center, _ = sgmcmc.find_center(made, tf.constant(0.0))
    again = pickle.loads(pickle.dumps(made))
    assert float(again(center)) == float(made(center))


@attack("calls", quick=False)
def a_hundred_thousand_parameters() -> None:
    """A normal prior and 10 rows: means within 6 standard errors over all entries."""
    x = np.random.default_rng(0).normal(1.0, 1.0, [10, 100_000]).astype(np.float32)
    made = sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, b: -0.5 * tf.reduce_sum((b - w[..., tf.newaxis, :]) ** 2, axis=-1),
        x,
        5,
    )
    draws = sgmcmc.sample(made, tf.zeros([100_000]), 50, num_chains=2, **QUIET).states
    z = (np.asarray(draws) - x.sum(0) / 11) * 11**0.5
    assert abs(z.std() - 1) < 0.05 and abs(z.mean()) < 0.01, (z.std(), z.mean())


@attack("calls", quick=False)
def two_hundred_calls() -> None:
    """The memory of the process and its open files stay within bounds."""

    def memory() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    made = kernel()
    for i in range(200):
        sgmcmc.sample_chain(made, tf.zeros([]), 5, **EAGER)
        if i == 50:
            before, files = memory(), len(os.listdir("/proc/self/fd"))
    assert memory() < before + 200, f"{before:.0f} MB, then {memory():.0f} MB"
    assert len(os.listdir("/proc/self/fd")) <= files + 2


@attack("data")
def types_that_are_cast() -> None:
    options: dict[str, Any] = QUIET | {"num_burnin_steps": 200}
    for data in (np.round(DATA).astype(np.int8), tf.cast(DATA, tf.bfloat16), DATA > 2):
        made = sgmcmc.SGLD(target(data), 5e-4)
        draws = sgmcmc.sample_chain(made, tf.zeros([]), 400, num_chains=8, **options).states
        expected = np.asarray(tf.cast(data, tf.float32)).mean()
        # 5 standard errors of 8 chains with an autocorrelation time of 4 steps, 0.03 / 28.
        assert abs(draws.mean() - expected) < 0.006, (draws.mean(), expected)


@attack("data")
def sparse_arrays() -> None:
    told("must hold dense arrays", lambda: target(tf.sparse.from_dense(DATA)), TypeError)


@attack("data")
def more_examples_than_float32_counts() -> None:
    total = 2**24 + 64
    data = np.zeros(total, np.int8)
    data[[2**24 + 1, -1]] = 1
    made = target(data, 64)
    expected = (0.5 * np.log(2 * np.pi)) * total + 1
    found = -float(made(tf.constant(0.0))) + float(tfd.Normal(0.0, 10.0).log_prob(0.0))
    assert abs(found / expected - 1) < 1e-5
    drawn = sgmcmc.random.uniform_indices(tf.constant([0, 1]), tf.range(10**6), total).numpy()
    # Of 10^6, 3.8 are expected beyond 2^24: none has the probability 0.02, and 20 have 1e-8.
    assert drawn.max() < total and np.sum(drawn >= 2**24) < 20
    assert abs(np.mean(drawn % 2) - 0.5) < 0.0025


@attack("data")
def an_importance_of_nearly_zero() -> None:
    weights = np.ones(1000)
    weights[3] = 1e-9
    told(
        "importance must be at least",
        lambda: sgmcmc.ControlVariate(target(), tf.constant(2.0), order=2, importance=weights),
        ValueError,
    )


@attack("data")
def chains_that_mix_in_gather() -> None:
    data = {"group": np.arange(40) % 4, "y": DATA[:40]}
    made = sgmcmc.MinibatchLogProb(
        lambda a: -0.5 * tf.reduce_sum(a**2, axis=-1),
        lambda a, b: -0.5 * (b["y"] - tf.gather(a, b["group"], axis=-1)) ** 2,
        data,
        5,
    )
    kernel = sgmcmc.SGLD(made, 1e-2)
    told("batch_dims=1", lambda: sgmcmc.sample_chain(kernel, tf.zeros([4, 4]), 10, **QUIET))
    # `sample` gives all chains the same rows here, for which the model is right.
    draws = sgmcmc.sample(made, tf.zeros([4]), 1000, **QUIET).states
    exact = np.array([DATA[:40][data["group"] == i].sum() for i in range(4)]) / 11
    assert np.abs(draws.mean(axis=(0, 1)) - exact).max() < 0.1 / 11**0.5


@attack("kernels")
def replica_exchange_on_a_whitened_target() -> None:
    z, bijector = sgmcmc.whiten(target(), tf.constant(float(DATA.mean())))
    made = sgmcmc.ReplicaExchangeSGLD(z, 0.05, temperatures=[1.0, 2.0])
    options: dict[str, Any] = QUIET | {"num_burnin_steps": 200}
    draws = sgmcmc.sample_chain(made, tf.zeros([64, 1]), 200, **options).states
    assert abs(np.mean(bijector.forward(draws)) - DATA.mean()) < 0.02


@attack("kernels")
def sgfs_on_growing_batches() -> None:
    made = sgmcmc.SGFS(sgmcmc.GrowingBatch(target(), growth=1.2), 1e-3)
    options: dict[str, Any] = QUIET | {"num_burnin_steps": 200}
    draws = sgmcmc.sample_chain(made, tf.zeros([8]), 200, **options).states
    assert abs(draws.mean() - DATA.mean()) < 0.05

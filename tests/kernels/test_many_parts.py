"""Kernels on states of many parts, such as those of deep networks."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

KERNELS = {
    "sghmc": lambda target: sgmcmc.SGHMC(target, 1e-3, 1.0, covariance="diag"),
    "nogin": lambda target: sgmcmc.NOGIN(target, 1e-3, 1.0, covariance="diag"),
}


def _target(num_parts: int) -> sgmcmc.MinibatchLogProb:
    x = np.random.default_rng(0).standard_normal([50, num_parts]).astype(np.float32)
    return sgmcmc.MinibatchLogProb(
        lambda *theta: -0.5 * tf.add_n([tf.reduce_sum(part**2, axis=-1) for part in theta]),
        lambda *state: -0.5 * tf.reduce_sum(
            (state[-1] - tf.concat(state[:-1], axis=-1)[tf.newaxis]) ** 2, axis=-1
        ),
        x, 10,
    )  # fmt: skip


def _program(name: str, num_parts: int) -> str:
    """Returns the optimized program of a step, with a state of so many parts."""
    kernel = KERNELS[name](_target(num_parts))
    state = [tf.zeros([1])] * num_parts
    results = kernel.bootstrap_results(state)

    @tf.function(autograph=False, jit_compile=True)
    def step(seed: tf.Tensor) -> list[tf.Tensor]:
        return tf.nest.flatten(kernel.one_step(state, results, seed=seed))

    return step.experimental_get_compiler_ir(tf.constant([0, 1]))(stage="optimized_hlo")


@pytest.mark.parametrize("name", [pytest.param("sghmc", marks=pytest.mark.thorough), "nogin"])
def test_programs_grow_as_the_number_of_parts(name: str) -> None:
    """Three times as many parts have at most three times as many instructions and a tenth more.

    Sums over all parts, computed again for each part, would make them five times as many or more.
    """
    few, many = (_program(name, parts).count(" = ") for parts in (10, 30))
    assert many <= 3.3 * few

"""A density that falls to zero at once is found, with the parameter and the limit."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import draw_checks
from tfp_sgmcmc.diagnostics.vector_functions import zero_density_beyond


def with_end(x: np.ndarray) -> np.ndarray:
    return np.where(x[:, 1] > 2.0, -((x[:, 0] - 1) ** 2) - x[:, 1], -np.inf)


def test_the_limit_and_its_side_are_found() -> None:
    """Negative controls: densities that fall fast, and to where they overflow."""
    rng = np.random.default_rng(0)
    draws = np.stack([rng.normal(1, 1, 1000), 2 + rng.exponential(1, 1000)], axis=-1)
    found = zero_density_beyond(with_end, draws)
    assert found is not None and found[0] == 1 and found[2] == -1.0
    np.testing.assert_allclose(found[1][1], 2.0, rtol=1e-9)
    with np.errstate(over="ignore"):
        for sound in (
            lambda x: -(x**4).sum(axis=1),
            lambda x: -np.exp(np.exp(6 * x[:, 0])) - x[:, 1],
        ):
            assert zero_density_beyond(sound, draws) is None


def test_entries_are_moved_together() -> None:
    """A call evaluates many states, so few calls suffice for many entries."""
    calls = []

    def log_prob(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        return np.where(x[:, 33] < 0.0, -(x**2).sum(axis=1), -np.inf)

    draws = np.random.default_rng(0).standard_normal([500, 40])
    draws[:, 33] = -np.abs(draws[:, 33])
    found = zero_density_beyond(log_prob, draws)
    assert found is not None and found[0] == 33 and found[2] == 1.0
    assert abs(found[1][33]) < 1e-9 and calls[:5] == [50, 1000, 1000, 1000, 1000]


def test_the_flag_names_limit_and_remedy() -> None:
    end = 2 + np.random.default_rng(0).exponential(0.1, [100, 4])

    def log_likelihood(end: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        end = end[..., None]
        return tf.where(batch <= end, -tf.math.log(end) + 0 * batch, -np.inf)

    target = sgmcmc.MinibatchLogProb(
        lambda end: -end,
        log_likelihood,
        np.linspace(0, 2, 20),
        bijector={"end": tfp.bijectors.Exp()},
    )
    flag = draw_checks._flag_of_zero_density({"end": end}, target)
    assert flag.grade == "wrong" and "where end is below a limit (2 here)" in flag.cause
    assert "tfb.Shift" in flag.remedy

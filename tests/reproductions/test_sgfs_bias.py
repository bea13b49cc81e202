"""Bias against mixing of Fisher scoring, SGLD and HMC."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.common.reference import Reference
from benchmarks.reproductions import sgfs_bias
from benchmarks.reproductions.sgfs_ellipses import problem

REFERENCE = Reference(np.ones(2), np.eye(2), 1.0, 1.0, 0.0, 0.0)


def test_a_point_has_the_rate_and_the_errors_of_its_draws() -> None:
    """Independent draws that cost half a pass make two a pass."""
    samples = 1.0 + np.random.default_rng(0).standard_normal([4000, 3, 2])
    found = sgfs_bias.point("method", 2.0, samples, 0.5, 2000.0, 0.1, REFERENCE)
    assert 1.8 < found.rate < 2.2 and found.seconds == 0.2
    assert found.covariance_errors[1] < 0.1 and found.mean_errors[1] < 0.05
    biased = sgfs_bias.point("method", 2.0, 2 * samples, 0.5, 2000.0, 0.1, REFERENCE)
    np.testing.assert_allclose(biased.mean_errors, 1.0, atol=0.1)


@pytest.mark.slow
def test_blocks_change_nothing_but_the_structure_of_the_state() -> None:
    target, (mode, _) = problem(50)
    parts = tf.split(tf.constant([mode], tf.float32), sgfs_bias.BLOCKS, axis=-1)
    found = sgfs_bias.in_blocks(50).estimate(parts, tf.constant([0, 1]))
    expected = target.estimate(tf.concat(parts, axis=-1), tf.constant([0, 1]))
    for name in ("gradient", "scores"):
        together = tf.concat(getattr(found, name), axis=-1)
        np.testing.assert_allclose(together, getattr(expected, name), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_sgfs_f_mixes_faster_than_sgld_with_less_bias_than_sgfs_d() -> None:
    result = sgfs_bias.run(**sgfs_bias.EXPERIMENT.quick)
    points = sgfs_bias.by_method(result)
    first = points["SGFS-f"][0]
    assert first.rate > 2 * max(p.rate for p in points["SGLD"])
    assert first.covariance_errors[1] < points["SGFS-d"][0].covariance_errors[1]
    assert all(claim.held is not None for claim in sgfs_bias.claims(result))

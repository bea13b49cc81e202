"""The posterior of the weak scaling; workers of an engine import this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood

N, D, BATCH_SIZE = 20_000, 50, 500


def make_kernel() -> sgmcmc.SGLD:
    """Returns SGLD on a logistic regression with synthetic data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[N, D]).astype(np.float32)
    y = (x @ rng.normal(size=[D]) > 0).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior, log_likelihood, {"x": x, "y": y}, BATCH_SIZE
    )
    return sgmcmc.SGLD(target, 1e-6)


def sample(kernel: Any, executor: Any, shards: int, chains: int, num_results: int) -> Any:
    """Runs some shards, with few results of many steps; returns a `ShardedResult`."""
    return sgmcmc.sample_shards(
        kernel,
        tf.zeros([D]),
        num_results,
        num_steps_between_results=9,
        num_chains=shards * chains,
        chains_per_shard=chains,
        seed=0,
        executor=executor,
        progress_bar=False,
        preflight_check=False,
    )

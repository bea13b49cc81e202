"""The run in shards that `shard_kills` kills; its workers import this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

NUM_CHAINS, CHAINS_PER_SHARD, NUM_RESULTS = 12, 2, 8_000


def make_kernel() -> sgmcmc.SGNHT:
    """Returns SGNHT, whose momenta, thermostat and epochs a checkpoint must carry."""
    x = np.random.default_rng(0).normal(size=[60, 3]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * tf.reduce_sum(t**2, -1),
        lambda t, batch: -0.5 * tf.reduce_sum((batch - t[..., tf.newaxis, :]) ** 2, -1),
        x,
        10,
        reshuffle="epoch",
    )
    return sgmcmc.SGNHT(target, 0.02)


def sample(executor: Any, directory: Path) -> Any:
    """Runs the shards, or goes on with them; returns a `ShardedResult`."""
    return sgmcmc.sample_shards(
        make_kernel,
        tf.zeros([3]),
        NUM_RESULTS,
        num_chains=NUM_CHAINS,
        chains_per_shard=CHAINS_PER_SHARD,
        seed=5,
        executor=executor,
        directory=sgmcmc.Directory(directory, seconds_between_commits=0.1),
        progress_bar=False,
        preflight_check=False,
        jit_compile=False,  # a killed worker compiles anew
    )

"""A logistic regression in three shards of unequal sizes, for tests of `ShardedLogProb`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

SIZES = (20, 30, 40)
SECOND_ORDER: dict[str, dict[str, str]] = {
    "order 2": {},
    "low rank": {"hessian": "low_rank"},
    "pilot": {"importance": "pilot"},
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=[sum(SIZES), 3]).astype(np.float32)
Y = (RNG.uniform(size=len(X)) < 0.5).astype(np.float32)


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(w**2, axis=-1)


def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
    return tfp.distributions.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"])


def in_shards(sizes: Sequence[int], x: np.ndarray = X, y: np.ndarray = Y) -> Any:
    """Returns `load_shard` for shards of these sizes."""
    starts = np.cumsum([0, *sizes])

    def load_shard(s: int) -> Any:
        rows = slice(starts[s], starts[s + 1])
        return {"x": x[rows], "y": y[rows]}

    return load_shard


def sharded(batch_size: int = 12, **options: Any) -> sgmcmc.ShardedLogProb:
    arguments: dict[str, Any] = dict(
        load_shard=in_shards(SIZES), num_shards=3, num_examples=sum(SIZES), batch_size=batch_size
    )
    return sgmcmc.ShardedLogProb(log_prior, log_likelihood, **arguments | options)


def kernels(name: str, target: Any) -> Any:
    """Returns the kernel of this name."""
    if name == "ControlVariate":
        center = tf.constant([0.1, 0.1, 0.1])
        return sgmcmc.NOGIN(sgmcmc.ControlVariate(target, center), 0.1)
    if name in SECOND_ORDER:
        control = sgmcmc.ControlVariate(target, tf.zeros([3]), order=2, **SECOND_ORDER[name])
        return sgmcmc.UnderdampedLangevin(control, 0.1)
    if name == "ReplicaExchangeSGLD":
        return sgmcmc.ReplicaExchangeSGLD(target, [0.01, 0.02], temperatures=[1.0, 2.0])
    options: dict[str, Any] = {"NOGIN": dict(covariance="full"), "SGHMC": dict(covariance="full")}
    step_size = 0.1 if name in ("NOGIN", "UnderdampedLangevin") else 0.02
    return getattr(sgmcmc, name)(target, step_size, **options.get(name, {}))

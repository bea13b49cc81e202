"""Chains of `sgmcmc.sample`, and summaries of their draws."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


class Chains(NamedTuple):
    """Draws and the time that they took."""

    samples: np.ndarray  # draws after burn-in, [num_results, chains, D], `float64`
    seconds: float  # run time of all steps, burn-in included, without compilation
    compile_seconds: float  # time of tracing and compiling

    @property
    def mean(self) -> np.ndarray:
        return self.samples.mean(axis=(0, 1))

    @property
    def covariance(self) -> np.ndarray:
        return np.cov(self.samples.reshape([-1, self.samples.shape[-1]]), rowvar=False)

    @property
    def effective_sample_size(self) -> float:
        """The size of all chains together, for the coordinate where it is smallest."""
        size = tfp.mcmc.effective_sample_size(
            tf.constant(self.samples), cross_chain_dims=1, filter_beyond_positive_pairs=True
        )
        return float(tf.reduce_min(size))

    @property
    def r_hat(self) -> float:
        """Potential scale reduction of split chains, for the coordinate where it is largest."""
        return float(
            tf.reduce_max(
                tfp.mcmc.potential_scale_reduction(tf.constant(self.samples), split_chains=True)
            )
        )


def run(
    kernel: tfp.mcmc.TransitionKernel,
    state: tf.Tensor,
    num_steps: int,
    thinning: int,
    num_burnin_steps: int,
    seed: Any,
    label: str,
) -> Chains:
    """Runs `num_steps` steps, burn-in included, and keeps every `thinning`-th state after burn-in.

    Raises:
      NonFiniteChainError: a chain became NaN or infinite.
      KeyboardInterrupt: the run was interrupted.
    """
    print(f"{label}:", file=sys.stderr)  # the progress bar follows
    result = sgmcmc.sample(
        kernel,
        state,
        (num_steps - num_burnin_steps) // thinning,
        seed=seed,
        num_burnin_steps=num_burnin_steps + thinning - 1,
        num_steps_between_results=thinning - 1,
    )
    if not result.is_complete:
        raise KeyboardInterrupt
    seconds, compile_seconds = result.timings.seconds, result.timings.compile_seconds
    return Chains(result.states.astype(np.float64), seconds, compile_seconds)

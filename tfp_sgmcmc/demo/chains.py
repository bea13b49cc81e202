"""Compiled chains in chunks, so that a progress bar moves while they run."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tqdm import tqdm

import tfp_sgmcmc as sgmcmc

NUM_CHUNKS = 50


class Chains(NamedTuple):
    """What was sampled, and in what time.

    Attributes:
      samples: `[num_results, chains, D]`, `float64`, after burn-in.
      seconds: run time of all steps, burn-in included, compilation apart.
      compile_seconds: what the first chunk took beyond a usual one.
    """

    samples: np.ndarray
    seconds: float
    compile_seconds: float

    @property
    def mean(self) -> np.ndarray:
        return self.samples.mean(axis=(0, 1))

    @property
    def covariance(self) -> np.ndarray:
        return np.cov(self.samples.reshape([-1, self.samples.shape[-1]]), rowvar=False)

    @property
    def effective_sample_size(self) -> float:
        """Of all chains together, for the coordinate where it is smallest."""
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
    num_burnin_chunks: int,
    seed: Any,
    label: str,
) -> Chains:
    """Runs `num_steps` steps in `NUM_CHUNKS` chunks and keeps every `thinning`-th state.

    Raises:
      NonFiniteChainError: a chain became NaN or infinite.
    """

    @tf.function(jit_compile=True)
    def chunk(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results=num_steps // NUM_CHUNKS // thinning,
            num_steps_between_results=thinning - 1,
            current_state=state,
            previous_kernel_results=results,
            kernel=kernel,
            trace_fn=None,
            return_final_kernel_results=True,
            seed=seed,
        )

    results = kernel.bootstrap_results(state)
    seed = sgmcmc.random.as_seed(seed)
    kept, times = [], []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not calibrated")
        for i in tqdm(range(NUM_CHUNKS), desc=f"{label}, chunks of {num_steps // NUM_CHUNKS}"):
            start = time.perf_counter()
            draws, _, results = chunk(state, results, sgmcmc.random.fold_in(seed, i))
            kept.append(draws.numpy())
            state = draws[-1]
            times.append(time.perf_counter() - start)
    sgmcmc.check_finite(np.concatenate(kept))
    usual = statistics.median(times[1:])
    return Chains(
        samples=np.concatenate(kept[num_burnin_chunks:]).astype(np.float64),
        seconds=sum(times[1:]) + min(usual, times[0]),
        compile_seconds=max(times[0] - usual, 0.0),
    )

"""SGLD of this library in `tfp.mcmc.sample_chain`, compiled by XLA: a side of `sgld.py`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.environment import versions
from benchmarks.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.peers.worker import STEP_SIZE, Case, Runner, serve


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior,
        log_likelihood,
        as_batch(x, y),
        case.batch_size,
        replacement=case.replacement,
        shared_batch=case.shared_batch,
    )
    dimension = x.shape[1:]
    initial = tf.zeros(dimension if case.num_chains == 1 else (case.num_chains, *dimension))

    @tf.function(jit_compile=True)
    def run(seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            num_results=case.num_steps if case.keep_all else 1,
            num_burnin_steps=0 if case.keep_all else case.num_steps - 1,
            current_state=initial,
            kernel=sgmcmc.SGLD(target, STEP_SIZE),
            trace_fn=None,
            seed=seed,
        )

    return lambda seed: run(tf.constant([0, seed])).numpy()[-1]


if __name__ == "__main__":
    serve(make_runner, versions("tensorflow", "tensorflow-probability"))

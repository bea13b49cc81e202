"""SGLD of this library in `tfp.mcmc.sample_chain`, compiled by XLA: a side of `sgld.py`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.common.environment import versions
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
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
    num_results = case.num_steps if case.keep_all else 1
    num_burnin_steps = case.num_steps - num_results
    run = compiled(sgmcmc.SGLD(target, STEP_SIZE), num_results, 1, num_burnin_steps)
    return lambda seed: run(initial, None, tf.constant([0, seed])).all_states.numpy()[-1]


if __name__ == "__main__":
    serve(make_runner, versions("tensorflow", "tensorflow-probability"))

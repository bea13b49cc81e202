"""NOGIN and CCAdL of this library, compiled by XLA: a side of `covariance.py`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.environment import versions
from benchmarks.logistic import as_batch, log_likelihood, score
from benchmarks.peers.covariance_settings import DECAY, FRICTION, PRIOR_PRECISION, STEP_SIZES
from benchmarks.peers.worker import STEP_SIZE, Case, Runner, serve


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    """`case.sampler` is a name, or names joined by spaces: of the sampler, of Sigma's kind, and
    `closed` for scores in closed form."""
    name, *options = case.sampler.split()
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -PRIOR_PRECISION / 2 * tf.reduce_sum(theta**2, axis=-1),
        log_likelihood,
        as_batch(x, y),
        case.batch_size,
        replacement=case.replacement,
        score_fn=score if "closed" in options else None,
    )
    kinds = {"full": sgmcmc.covariance.Full, "diag": sgmcmc.covariance.Diag}
    kind = kinds["diag" if "diag" in options else "full"]
    if name == "SGLD":
        kernel = sgmcmc.SGLD(target, STEP_SIZE)
    else:
        covariance = kind(sgmcmc.covariance.RunningMean(DECAY))
        kernel = getattr(sgmcmc, name)(target, STEP_SIZES[name], FRICTION, covariance=covariance)

    @tf.function(jit_compile=True)
    def run(seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            num_results=1,
            num_burnin_steps=case.num_steps - 1,
            current_state=tf.zeros(x.shape[1:]),
            kernel=kernel,
            trace_fn=None,
            seed=seed,
        )

    return lambda seed: run(tf.constant([0, seed])).numpy()[-1]


if __name__ == "__main__":
    serve(make_runner, versions("tensorflow", "tensorflow-probability"))

"""NOGIN and CCAdL of this library, compiled by XLA: a side of `covariance.py`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.common.environment import versions
from benchmarks.common.logistic import score
from benchmarks.common.problems import make_target
from benchmarks.peers.covariance_settings import DECAY, FRICTION, PRIOR_PRECISION, STEP_SIZES
from benchmarks.peers.worker import Case, Runner, serve


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    """Returns a chain of `case.sampler`: the sampler's name and options, joined by spaces.

    The options are `diag`, for a diagonal covariance, and `closed`, for scores in closed form.
    """
    name, *options = case.sampler.split()
    score_fn = score if "closed" in options else None
    target = make_target(
        x, y, case.batch_size, PRIOR_PRECISION, score_fn, replacement=case.replacement
    )
    kinds = {"full": sgmcmc.covariance.Full, "diag": sgmcmc.covariance.Diag}
    kind = kinds["diag" if "diag" in options else "full"]
    if name == "SGLD":
        kernel = sgmcmc.SGLD(target, STEP_SIZES[name])
    else:
        covariance = kind(sgmcmc.covariance.RunningMean(DECAY))
        options = {"scheme": "euler"} if name == "CCAdL" else {}  # that of the other side
        kernel = getattr(sgmcmc, name)(
            target, STEP_SIZES[name], FRICTION, covariance=covariance, **options
        )

    run = compiled(kernel, 1, num_burnin_steps=case.num_steps - 1)
    start = tf.zeros(x.shape[1:])
    return lambda seed: [run(start, None, tf.constant([0, seed])).all_states.numpy()[-1]]


if __name__ == "__main__":
    serve(make_runner, versions("tensorflow", "tensorflow-probability"))

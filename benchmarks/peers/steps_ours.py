"""This library's samplers in `sample_chain`, and SGD in a TensorFlow loop.

A side of `steps.py` and of `sgld.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import logistic
from benchmarks.common.chains import compiled
from benchmarks.common.environment import versions
from benchmarks.peers.steps_settings import FRICTIONS, STEP_SIZES, first_state, model
from benchmarks.peers.worker import Case, Runner, serve


def log_prior(*parts: tf.Tensor) -> tf.Tensor:
    """Returns log N(theta; 0, I) without its constant."""
    if len(parts) == 1:
        return logistic.gaussian_log_prior(parts[0])
    w1, b1, w2, b2 = (part**2 for part in parts)
    weights = tf.reduce_sum(w1, axis=[-2, -1]) + tf.reduce_sum(w2, axis=[-2, -1])
    return -0.5 * (weights + tf.reduce_sum(b1, axis=-1) + tf.reduce_sum(b2, axis=-1))


def log_likelihood(*parts_and_batch: Any) -> tf.Tensor:
    """Returns log p(y | x, theta) of each example, for the logistic regression or the network."""
    *parts, batch = parts_and_batch
    if len(parts) == 1:
        return logistic.log_likelihood(parts[0], batch)
    w1, b1, w2, b2 = parts
    hidden = tf.nn.relu(batch["x"] @ w1 + b1[..., tf.newaxis, :])
    logits = hidden @ w2 + b2[..., tf.newaxis, :]
    labels = tf.broadcast_to(batch["y"], tf.shape(logits)[:-1])  # chains may share a minibatch
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    start = [tf.constant(part) for part in first_state(x, case.num_chains)]
    if case.sampler == "SGD":
        return sgd(case, start, x, y)
    target = sgmcmc.MinibatchLogProb(
        log_prior,
        log_likelihood,
        {"x": x, "y": y},
        case.batch_size,
        replacement=case.replacement,
        shared_batch=case.shared_batch,
    )
    h, friction = STEP_SIZES[model(x)][case.sampler], FRICTIONS[model(x)]
    kernel = {
        "SGLD": lambda: sgmcmc.SGLD(target, h),
        "SGHMC": lambda: sgmcmc.SGHMC(target, h, friction, covariance=None),
        "SGNHT": lambda: sgmcmc.SGNHT(target, h, friction),
    }[case.sampler]()

    num_results = case.num_steps if case.keep_all else 1
    run = compiled(kernel, num_results, num_burnin_steps=case.num_steps - num_results)

    def runner(seed: int) -> list[np.ndarray]:
        return [part.numpy()[-1] for part in run(start, None, tf.constant([0, seed])).all_states]

    return runner


def sgd(case: Case, start: list[tf.Tensor], x: np.ndarray, y: np.ndarray) -> Runner:
    """Returns one chain of SGD in plain TensorFlow, which no sampler can beat."""
    if case.num_chains > 1:
        raise NotImplementedError("SGD is timed for one chain")
    features, labels = tf.constant(x), tf.constant(y)
    rate, total, n = STEP_SIZES[model(x)]["SGD"] / 2, len(x), case.batch_size

    def step(t: tf.Tensor, seed: tf.Tensor, parts: list[tf.Tensor]) -> Any:
        rows = tf.random.stateless_uniform([n], [seed, t], 0, total, tf.int32, alg="philox")
        batch = {"x": tf.gather(features, rows), "y": tf.gather(labels, rows)}
        with tf.GradientTape() as tape:
            tape.watch(parts)
            likelihoods = log_likelihood(*parts, batch)
            log_prob = log_prior(*parts) + total / n * tf.reduce_sum(likelihoods)
        gradients = tape.gradient(log_prob, parts)
        return t + 1, seed, [p + rate * g for p, g in zip(parts, gradients, strict=True)]

    @tf.function(jit_compile=True)
    def run(seed: tf.Tensor) -> list[tf.Tensor]:
        zero = tf.constant(0)
        return tf.while_loop(lambda t, *_: t < case.num_steps, step, (zero, seed, start))[-1]

    return lambda seed: [part.numpy() for part in run(tf.constant(seed))]


if __name__ == "__main__":
    serve(make_runner, versions("tensorflow", "tensorflow-probability"))

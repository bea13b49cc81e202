"""A Keras network on the digits of scikit-learn, which need no download."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_digits

import tfp_sgmcmc as sgmcmc
from benchmarks.common.calibration import scores
from benchmarks.suite.profiles import PROFILE

NUM_TRAIN, BATCH_SIZE = 1280, 128
NUM_STEPS = PROFILE.lengths.network_steps
NUM_BURNIN_STEPS = PROFILE.lengths.network_burnin_steps


class Network:
    """A 64-50-10 network whose `fit` trains, or samples by the callback.

    Args:
      method: `"SGD"`, or the name of the sampler that the callback runs.
      steps_per_execution: argument of `compile`.
      seed: seed of the weights, the order of the examples and the sampler.
      keep: whether the callback keeps every tenth sample after a burn-in.
    """

    def __init__(self, method: str, steps_per_execution: int, seed: int = 0, keep: bool = False):
        keras.utils.set_random_seed(seed)
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(x))
        x, y = x[order].astype(np.float32) / 16, y[order]
        (x, self._x_test), (y, self._y_test) = (np.split(part, [NUM_TRAIN]) for part in (x, y))
        hidden = keras.layers.Dense(50, activation="relu")
        self._model = keras.Sequential([keras.Input([64]), hidden, keras.layers.Dense(10)])
        self._model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
            jit_compile=True,
        )
        examples = tf.data.Dataset.from_tensor_slices((x, y))
        self._batches = examples.shuffle(NUM_TRAIN, seed).batch(BATCH_SIZE).cache().repeat()
        self._callback = None
        if method != "SGD":
            self._callback = sgmcmc.keras.SamplerCallback(
                {"SGLD": _sgld, "SGHMC": _sghmc}[method],
                prior=tfp.distributions.Normal(0.0, 1.0),
                collect=sgmcmc.keras.Collect(NUM_BURNIN_STEPS if keep else 10**9, 9),
                seed=seed,
                check_num_examples=False,  # an "epoch" is a number of steps
                independent_batches=False,  # as plain `fit` takes them
                num_examples=NUM_TRAIN,
            )

    def fit(self, num_steps: int) -> None:
        """Takes `num_steps` steps in one epoch."""
        callbacks = [self._callback] if self._callback else []
        self._model.fit(
            self._batches, steps_per_epoch=num_steps, verbose=0, shuffle=False, callbacks=callbacks
        )

    def scores(self) -> Any:
        """Returns the scores on the test part, of the weights or the mean over the kept samples."""
        weights = [self._model.get_weights()]
        if self._callback:
            weights = list(zip(*(np.asarray(part) for part in self._callback.samples), strict=True))
        total = np.zeros([len(self._x_test), 10])
        for sample in weights:
            self._model.set_weights(sample)
            total += tf.nn.softmax(self._model(self._x_test)).numpy()
        return scores(total / len(weights), self._y_test)


def _sgld(target: Any) -> Any:
    return sgmcmc.SGLD(target, 2e-4)


def _sghmc(target: Any) -> Any:
    return sgmcmc.SGHMC(target, 0.005, 20.0, None)

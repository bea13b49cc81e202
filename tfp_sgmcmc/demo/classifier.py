"""Part 2: a neural network, trained by Adam and sampled by `SamplerCallback`."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.metrics import accuracy_score, log_loss
from tqdm.keras import TqdmCallback

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.demo.problems import Problem

HIDDEN_UNITS = 64
NUM_BINS = 10  # of the calibration error and the reliability diagram
NUM_SAMPLES = 300
PRIOR_SCALE = 1.0  # standard deviation of every weight
# Chosen on a validation part of the digits' training data. At temperature 1 the network is too
# uncertain with so few examples, as Bayesian networks often are.
TEMPERATURE = 0.03
# The learning rate of gradient ascent on the mean log posterior, half the step size times N. It is
# for the 61 inputs of the digits, as the curvature grows with the number of inputs.
LEARNING_RATE = 0.4


class Schedule(NamedTuple):
    """The batch size and the numbers of epochs."""

    batch_size: int  # examples in a batch, 32 for small data and more for large data
    steps: int  # batches in an epoch
    shared: int  # epochs of Adam from which both networks start
    epochs: int  # epochs after that, by Adam or by sampling


class Classifiers(NamedTuple):
    """Everything that part 2 measured."""

    rows: list[dict[str, Any]]  # rows of the table, as dicts from column to value
    labels: np.ndarray  # classes of the test part, [N]
    # Class probabilities by Adam and by the posterior average, [N, num_classes].
    probabilities: dict[str, np.ndarray]


def schedule(num_examples: int, shortening: int = 1) -> Schedule:
    """Returns 40 + 120 epochs for the digits, and about as many steps for larger data."""
    batch_size = int(np.clip(num_examples // 45, 32, 512))
    steps = -(-num_examples // batch_size)
    shared, epochs = (max(3, round(e * 45 / steps / shortening)) for e in (40, 120))
    return Schedule(batch_size, steps, shared, epochs)


def compare(problem: Problem, seed: int, shortening: int) -> Classifiers:
    """Trains a network by Adam, continues by Adam and by sampling, and scores both on test data.

    Args:
      problem: the data.
      seed: seed of the initial weights, the order of examples and the sampler.
      shortening: divides the numbers of epochs.

    Raises:
      NonFiniteChainError: the chain became NaN or infinite.
    """
    keras.utils.set_random_seed(seed)
    num_examples = len(problem.x_train)
    plan = schedule(num_examples, shortening)
    adam, sampled = (_model(problem, plan) for _ in range(2))
    _fit(adam, problem, plan, plan.shared, "Adam, before")
    start = keras.ops.softmax(adam.predict(problem.x_test, verbose=0)).numpy()
    sampled.set_weights(adam.get_weights())
    _fit(adam, problem, plan, plan.epochs, "Adam, on")

    learning_rate = LEARNING_RATE * min(1, 61 / problem.x_train.shape[1])
    num_steps = plan.steps * plan.epochs
    num_burnin_steps = num_steps // 3
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(
            target, step_size=2 * learning_rate / num_examples, temperature=TEMPERATURE
        ),
        num_examples,
        tfp.distributions.Normal(0.0, PRIOR_SCALE),
        num_burnin_steps,
        max((num_steps - num_burnin_steps) // NUM_SAMPLES, 1) - 1,
        seed=seed,
    )
    _fit(sampled, problem, plan, plan.epochs, "SamplerCallback", sampler)
    probabilities = {
        "Adam": keras.ops.softmax(adam.predict(problem.x_test, verbose=0)).numpy(),
        "posterior average": sampler.predict(problem.x_test, batch_size=1024).mean,
    }
    labels = [
        f"Adam, {plan.shared} epochs: the start of both below",
        f"Adam, {plan.shared} + {plan.epochs} epochs",
        f"Adam, {plan.shared} epochs + SGLD at temperature {TEMPERATURE}, {plan.epochs} epochs: "
        f"{len(sampler.samples[0])} samples",
    ]
    rows = [
        {"classifier": label} | _scores(problem.y_test, p)
        for label, p in zip(labels, [start, *probabilities.values()], strict=True)
    ]
    return Classifiers(rows, problem.y_test, probabilities)


def _model(problem: Problem, plan: Schedule) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input(problem.x_train.shape[1:]),
            keras.layers.Dense(HIDDEN_UNITS, activation="relu"),
            keras.layers.Dense(len(problem.is_yes)),
        ]
    )
    model.compile(
        "adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=plan.steps,
        jit_compile=True,
    )
    return model


def _fit(
    model: keras.Model, problem: Problem, plan: Schedule, epochs: int, label: str, *callbacks: Any
) -> None:
    examples = tf.data.Dataset.from_tensor_slices((problem.x_train, problem.y_train))
    batches = examples.shuffle(len(problem.x_train)).batch(plan.batch_size)
    progress = TqdmCallback(verbose=0, desc=f"{label}, epochs")
    model.fit(batches, shuffle=False, epochs=epochs, verbose=0, callbacks=[*callbacks, progress])


def _scores(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    classes = range(probabilities.shape[1])
    confidence, predicted = probabilities.max(axis=1), probabilities.argmax(axis=1)
    return {
        "accuracy": float(accuracy_score(labels, predicted)),
        "negative_log_likelihood": float(log_loss(labels, probabilities, labels=classes)),
        "expected_calibration_error": sgmcmc.keras.expected_calibration_error(
            confidence, predicted == labels, num_bins=NUM_BINS
        ),
    }

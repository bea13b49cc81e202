"""What is checked when `fit` begins and when its first batch comes, before the chain moves."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import memory
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.data.resident_data import ResidentData
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.distributed import replica_context
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.records.fit_plan import Plan

_LARGE = 2**26  # bytes of a full covariance below which memory is not computed
_MANY = 2**20  # all rows of a batch
_MANY_SIZES = 20  # of batches, for each of which XLA compiles the step
_MOST_FULL = 10_000  # variables with a full covariance; a step decomposes it
_LEARNING_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check_samplable(model: keras.Model, **single: Any) -> None:
    """Raises ValueError for a model, a backend or a strategy that a chain does not support.

    `single` are options that only a model on a single replica can have (None if not given).
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"The Keras backend must be tensorflow. Received: {keras.backend.backend()}."
        )
    internals.check_model(model)
    compiled_loss.check_likelihoods(model)
    replica_context.check_distribution(model, **single)


def check_size(source: Source, num_examples: int) -> None:
    """Raises ValueError if the data of a fit are known not to have N examples."""
    if source.num_examples not in (None, num_examples):
        raise ValueError(
            "num_examples must be the number of training examples, without the validation split. "
            f"Received: {num_examples}, but fit was given {source.kind} of {source.num_examples} "
            "examples. If fit is not meant to see all of the data, pass check_num_examples=False."
        )


def check_growth(model: keras.Model, source: Source) -> None:
    """Checks that a model can take batches that grow.

    Raises:
      ValueError: the model has several replicas, or XLA would compile the step and the data are
        resident.

    Warns:
      UserWarning: XLA would compile the step many times.
    """
    if source.sizes is None:
        return
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1:  # Keras looks at one of the batches, which then must split evenly
        raise ValueError(
            "The model must be on one replica for batches that grow, because Keras cannot split "
            f"batches of all sizes evenly. Received: {num_replicas} replicas."
        )
    if not model.jit_compile or model.run_eagerly:
        return
    count = len(source.sizes.distinct)
    if isinstance(source.dataset, ResidentData):
        raise ValueError(
            "The model must be compiled with jit_compile=False for resident data with growth, "
            "because XLA compiles loops for one size of batches. Received: jit_compile=True. "
            "IndependentBatches with growth work with XLA, which then compiles the step for each "
            f"of the {count} sizes."
        )
    if count > _MANY_SIZES:
        warnings.warn(
            f"XLA compiles the step anew for each of the {count} sizes of the growing batches. "
            "Compile the model with jit_compile=False, or let growth be larger.",
            stacklevel=2,
        )


def check_weights(source: Source) -> None:
    """Warns if sample or class weights make the data count for far less or more than they are.

    Warns:
      UserWarning: the mean weight is below 1/3 or above 3.
    """
    given = source.arrays[2] if source.arrays is not None else None
    if source.arrays is None and (batch := source.batch(_MANY)) is not None:
        given = batch[2]
    for weights in [] if given is None else keras.tree.flatten(given):
        if weights is None or math.prod(weights.shape[1:]) != 1 or not weights.shape[0]:
            continue  # weights of the entries of an example, such as a mask
        mean = float(np.mean(np.asarray(weights), dtype=np.float64))
        if not 1 / 3 <= mean <= 3.0:
            warnings.warn(
                "The weights of the examples (sample_weight, or class_weight) should be 1 on "
                f"average. Received: {mean:.3g} on average, so the likelihood counts as that of "
                f"{mean:.3g} N examples. Balanced class weights are "
                "N / (number of classes * examples of the class), not 1 / examples of the class.",
                stacklevel=2,
            )


def warn_of_learning_rates(
    callback_list: keras.callbacks.CallbackList | None, chain: Chain
) -> None:
    """Warns of callbacks that move the optimizer's learning rate, if the chain does not use it."""
    for callback in callback_list.callbacks if callback_list else ():
        if isinstance(callback, _LEARNING_RATE) and not chain.follows_learning_rate:
            warnings.warn(
                f"{type(callback).__name__} changes the optimizer's learning rate, which this "
                "kernel does not use. Pass SamplerCallback the name of a kernel and step_size="
                '"learning_rate", or the kernel step_size=target.learning_rate.',
                stacklevel=2,
            )


def check_independence(chain: Chain, source: Source, given: bool | None) -> None:
    """Raises ValueError if a kernel that expects independent batches may get others, or none.

    `given` is what the user says of the batches: None nothing, True that they are independent,
    False that the chain shall go on although they are not.
    """
    if not chain.uses_noise_covariance:
        return
    least = max(2, chain.num_groups or 0)
    if source.sizes is not None and source.sizes.first < least:
        raise ValueError(
            f"batch_size must be at least {least}, since the kernel estimates the covariance of "
            "the gradient noise from the examples of a batch. Received: batches that grow from "
            f"batch_size={source.sizes.first}."
        )
    if given is not None:
        return
    if source.is_whole or source.are_independent:
        return
    known = source.are_independent is False or source.kind == "arrays"
    what = "each epoch takes every example once" if known else "they may take every example once"
    raise ValueError(
        "The batches must be independent, because the kernel makes up for the gradient noise of "
        f"independent batches. Received: {source.kind}; {what}, and variances would then be too "
        "small, by up to the share of the gradient noise in all noise. Give fit independent "
        "batches as x: model.fit(sgmcmc.keras.IndependentBatches(x, y, batch_size=...), ...), or "
        '`resident` data with reshuffle="step". SamplerCallback(independent_batches=True) says '
        "that these batches are independent, independent_batches=False goes on although they are "
        "not."
    )


def check_probabilities(model: keras.Model, source: Source) -> None:
    """Raises ValueError if a loss takes outputs for probabilities that are none."""
    batch = source.batch(4)
    if batch is None:
        return
    variables = model.trainable_variables
    values = [tf.convert_to_tensor(v.value) for v in variables]
    outputs = internals.forward(model, variables, values, batch[0], training=False).outputs
    compiled_loss.check_probabilities(model, outputs)


def check_memory(chain: Chain, plan: Plan) -> None:
    """Raises before memory or disk is spent that is not there.

    Raises:
      MemoryError: kept states and the covariance of the gradient noise need more than is free.
      OSError: the samples need more than is free on the disk of the directory.
      ValueError: a full covariance of more than 10,000 variables.

    Warns:
      UserWarning: they need more than a quarter of the memory that is free.
    """
    plan.check_disk()
    needs: dict[str, int] = {}
    # A function `keep` or a distance may keep few of the states, and a sampling threshold may never
    # be reached.
    if plan.is_exact and plan.memory:
        needs[f"{plan.num_samples} kept states"] = plan.memory
    count = chain.num_variables
    if not chain.state.has_run and 4 * count**2 > _LARGE:
        results, is_full = chain.results_size()
        if is_full and count > _MOST_FULL:
            raise ValueError(
                'covariance must be "diag", "low_rank" or "block" for a model of so many weights. '
                f'Received: "full" with {count} weights: '
                f"{memory.readable(4 * count**2)} for Sigma alone, decomposed in every step. Pass "
                'covariance="diag" to the kernel.'
            )
        needs["the kernel's results, with its covariance, twice"] = 2 * results
    advice = (
        "Keep fewer states (num_steps_between_results, num_burnin_steps), stream them to a "
        'directory, or pass covariance="diag" to the kernel.'
    )
    memory.check_run(needs, advice, stacklevel=2)

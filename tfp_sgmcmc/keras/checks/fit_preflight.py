"""Checks a `fit` before its first step and between its epochs."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import memory, replicas
from tfp_sgmcmc.internal.checks import nonnegative_weights
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.curvature_check import StabilityCheck
from tfp_sgmcmc.keras.checks.data_check import check_data
from tfp_sgmcmc.keras.data.fit_batches import IndependentBatches, ResidentData
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.records import fit_fingerprint
from tfp_sgmcmc.keras.records.fit_plan import CheckResults, FitPlan, make_plan, num_due
from tfp_sgmcmc.keras.records.recorder import FitNumbers

_LARGE = 2**26  # bytes of a full covariance below which memory is not checked
_MOST_MARKS = 20  # of the first steps of a fit
_MANY = 2**20  # all rows of a batch
_MANY_SIZES = 20  # sizes of batches, for each of which XLA compiles the step
_MOST_FULL = 10_000  # weights with a full covariance, which each step decomposes
_LEARNING_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class Preflight:
    """Checks a fit's data, kernel and memory before the chain moves.

    Attributes:
      source: the data of the current fit.
      is_verbose: whether the plan is printed.
      results: the latest result of each check.

    Args:
      numbers: the numbers of the callback.
      independent_batches: see `SamplerCallback`.
      directory: the directory of the samples; None keeps them in memory.
    """

    def __init__(
        self,
        numbers: FitNumbers,
        independent_batches: bool | None,
        directory: str | os.PathLike[str] | None,
    ):
        self.source, self.results = Source(), CheckResults()
        self._numbers, self._directory = numbers, directory
        self._independent_batches = independent_batches
        self._stability = StabilityCheck(self.results)
        self._of_all: dict[str, Any] = {}
        self._loss: Any = None  # as it was compiled at the last fit
        self._epochs = self._burnin_epochs = self._num_skipped = self._num_marks = 0
        self._mark: Any = None  # of the chain's state, as its last steps have left it
        self._is_memory_checked = self._is_begun = self._is_marked = self.is_verbose = False
        self._callback_list: keras.callbacks.CallbackList | None = None

    def begin_fit(
        self,
        model: keras.Model,
        callback_list: keras.callbacks.CallbackList | None,
        chain: Chain | None,
        is_stored: bool,
        source: Source,
    ) -> fit_fingerprint.FitProblem:
        """Checks what is known before the first batch; returns the problem.

        Raises:
          ValueError: the data do not have N examples, weights are negative or all zero, the model
            cannot take batches that grow, or a chain that has moved had other data or expects
            independent batches.

        Warns:
          UserWarning: the examples' weights are far from 1 on average, or callbacks change a
            learning rate that the chain does not use; or the weights, which are the chain's state,
            were changed since the last fit.
        """
        self.source, num_examples = source, self._numbers.num_examples
        assert num_examples is not None  # settled
        self._is_begun = self._is_memory_checked = False
        if self._numbers.checks_size or isinstance(source.dataset, IndependentBatches):
            check_size(source, num_examples)
        check_growth(model, source)
        if chain is None or chain.state.is_new:
            check_weights(source, self._numbers.has_relative_weights)
        self._callback_list = callback_list
        of_all = fit_fingerprint.describe_data(source)

        def described(chain: Chain) -> dict[str, Any]:
            prior = chain.log_prior_fn
            return fit_fingerprint.describe_model(model, num_examples, prior, source)

        now, before = internals.compiled_loss(model), self._loss
        has_other_loss = before is not None and before is not now
        if chain is not None and (is_stored or has_other_loss):
            of_all |= described(chain)
        if chain is None or chain.state.is_new:
            self._of_all = {}
        elif has_other_loss and not is_stored:
            # Before the earlier loss is evaluated, which may not take other labels.
            fit_fingerprint.check_same_problem(self._of_all, of_all)
            with internals.with_loss(model, before):
                self._of_all |= described(chain)
        fit_fingerprint.check_same_problem(self._of_all, of_all)
        self._of_all |= of_all
        self._loss = now
        if chain is not None and chain.state.has_run:
            self.warn_of_other_weights(chain)
            self.first_batch(chain)
        return fit_fingerprint.FitProblem(
            of_all, fit_fingerprint.describe_batches(source) if is_stored else {}
        )

    def warn_of_other_weights(self, chain: Chain) -> None:
        now, before = chain.state.mark(), self._mark
        self._mark = now
        if now is None or before is None or now[0] != before[0] or now[1] == before[1]:
            return
        warnings.warn(
            "The model must have the weights that fit has left, which are the state of the chain. "
            "Received: others, as after set_weights, or beside another callback that changes "
            "weights, such as EarlyStopping with restore_best_weights=True. The chain goes on from "
            "them: its next samples are no draws from the posterior until it has forgotten them.",
            stacklevel=2,
        )

    def before_steps(self, chain: Chain | None, batch: int, num_steps: int) -> None:
        """Looks for weights that another callback has changed, in the first steps of each epoch."""
        is_last = batch + num_steps >= (self.source.num_batches or np.inf)
        self._is_marked = is_last or self._num_marks < _MOST_MARKS
        if (batch == 0 or self._is_marked) and chain is not None and chain.state.has_run:
            self.warn_of_other_weights(chain)

    def after_steps(self, chain: Chain | None) -> None:
        """Marks what the first steps of a fit have left, and the last of each epoch."""
        if chain is not None and self._is_marked:
            self._mark, self._num_marks = chain.state.mark(), self._num_marks + 1

    def new_chain(self) -> None:
        """Repeats the checks at the next first batch, for another kernel on the same data."""
        self._is_memory_checked, self._is_begun, self._mark = False, False, None

    def before_variables(self, chain: Chain, x: Any, most_steps: int) -> None:
        """Plans the remaining fit and checks that memory and disk suffice.

        The plan is printed if `fit` is verbose. `x` is a batch of inputs or its specification, and
        `most_steps` the number of steps of the longest execution.

        Raises:
          MemoryError, OSError, ValueError: see `check_memory`.
        """
        if self._is_memory_checked:
            return
        self._is_memory_checked = True
        with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
            status = chain.state.status()
        kept = num_due(
            self._numbers.collection,
            status.num_steps,
            status.first_kept,
            self.source.num_batches,
            self._epochs,
            self._burnin_epochs,
        )
        is_first = replicas.is_first(chain.model.distribute_strategy)
        plan = make_plan(
            self._numbers.collection,
            chain.recorded(x),
            chain.state.num_chains,
            self._directory,
            kept,
            most_steps,
        )
        check_memory(chain, plan if is_first else plan._replace(disk=0))
        if self.is_verbose and is_first and not chain.is_pilot:
            print(plan)

    def first_batch(self, chain: Chain) -> None:
        """Checks the kernel before the first step of a fit, once its results exist."""
        if self._is_begun:
            return
        self._is_begun = True
        if not chain.is_pilot:
            warn_of_learning_rates(self._callback_list, chain)
        check_independence(chain, self.source, self._independent_batches)
        if replicas.count() > 1:  # inside a step on one of several replicas
            return
        with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
            if chain.state.status().num_steps == 0:
                check_data(chain.model, self.source, chain.first_state())
                if not chain.is_pilot:  # whose RMSprop adapts its step sizes
                    self._stability.check_start(chain, self.source)

    def begin_epoch(
        self, first_step: int, seed: Any, num_epochs: int, num_burnin_epochs: int
    ) -> None:
        """Numbers the batches of `IndependentBatches` by the steps of the chain.

        `num_epochs` counts the remaining epochs with this one, and `num_burnin_epochs` those of
        them in the burn-in.
        """
        self._epochs, self._burnin_epochs = num_epochs, num_burnin_epochs
        if isinstance(self.source.dataset, IndependentBatches):
            self.source.dataset.begin_epoch(first_step, np.asarray(seed))

    def end_fit(self) -> None:
        """Releases the data and the other callbacks."""
        self.source, self._callback_list = Source(), None
        self._stability.end_fit()

    def end_epoch(self, chain: Chain, total_epochs: int) -> None:
        """Checks the step size and the scores after an epoch.

        Warns:
          UserWarning: the step size is above the largest stable one, or the covariance has skipped
            minibatches.
        """
        self.warn_of_other_weights(chain)
        if chain.is_pilot:
            return
        self._stability.at_epoch_end(chain, self.source, total_epochs)
        skipped = chain.num_skipped()
        if skipped > self._num_skipped:
            warnings.warn(
                "The scores of every minibatch must be finite. Received: NaN, infinite or "
                f"overflowing scores in {skipped - self._num_skipped} minibatches of this epoch, "
                "which the covariance has skipped. Look for such numbers in the data and in the "
                "loss of single examples.",
                stacklevel=2,
            )
        if chain.uses_noise_covariance:
            self.results.record("scores", skipped > self._num_skipped)
        self._num_skipped = skipped

    @property
    def counts_rows(self) -> bool:
        """Whether an epoch's rows add up to N; arrays with `steps_per_epoch` may go on later."""
        source = self.source
        if source.arrays is not None and source.dataset is None:
            assert source.num_examples is not None and source.batch_size is not None
            return self._numbers.checks_size and (
                source.num_batches == -(-source.num_examples // source.batch_size)
            )
        return self._numbers.checks_size and not isinstance(source.dataset, IndependentBatches)


def check_size(source: Source, num_examples: int) -> None:
    """Raises ValueError if the data of a fit have a known size other than N, or too few batches."""
    size, count = source.batch_size or np.inf, source.num_batches or np.inf
    is_one_pass = source.arrays is None and not source.are_independent
    if is_one_pass and size * count < num_examples:
        raise ValueError(
            f"num_examples must be at most that of an epoch, {count} batches of {size}. Received: "
            f"{num_examples}. If steps_per_epoch cuts it short, pass check_num_examples=False."
        )
    if source.num_examples not in (None, num_examples):
        raise ValueError(
            "num_examples must be the number of training examples, without the validation split. "
            f"Received: {num_examples}, but fit was given {source.kind} of {source.num_examples} "
            "examples. If fit shall see only a part of the data, pass check_num_examples=False. A "
            "callback keeps the number of its first fit; other data need a new callback."
        )


def check_growth(model: keras.Model, source: Source) -> None:
    """Checks that a model supports resident data, and batches that grow.

    Raises:
      ValueError: the model has several replicas, or XLA would compile the step and the data are
        resident.

    Warns:
      UserWarning: XLA would compile the step many times.
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1 and isinstance(source.dataset, ResidentData):
        raise ValueError(
            "Resident data need a model on one device. Received: a model on "
            f"{num_replicas} replicas. Give fit sampler.data(x, y, batch_size=...) instead."
        )
    if source.sizes is None:
        return
    if num_replicas > 1:  # Keras expects all batches to split as the first one
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
            "because XLA compiles loops for one batch size. Received: jit_compile=True. "
            "IndependentBatches with growth support XLA, which then compiles the step for each of "
            f"the {count} sizes."
        )
    if count > _MANY_SIZES:
        warnings.warn(
            f"XLA compiles the step anew for each of the {count} sizes of the growing batches. "
            "Compile the model with jit_compile=False, or let growth be larger.",
            stacklevel=2,
        )


def check_weights(source: Source, are_relative: bool) -> None:
    """Checks sample and class weights; those of data that are not arrays in one batch.

    Raises:
      ValueError: a weight is negative or not finite, or all are zero.

    Warns:
      UserWarning: the mean of the weights other than 0 is below 1/3 or above 3, unless only their
        ratios count.
    """
    batch = source.arrays or source.batch(_MANY)
    if batch is None and source.counted_batch is not None:
        batch = source.counted_batch()
    for part in [] if batch is None else internals.array_leaves(batch[2]):
        if not part.shape[0]:
            continue
        array = np.asarray(part)
        nonnegative_weights("sample_weight or class_weight", array, some=source.arrays is not None)
        if are_relative or math.prod(array.shape[1:]) != 1:
            continue  # weights within an example, such as a mask
        array = array[array != 0]
        mean = float(np.mean(array, dtype=np.float64)) if array.size else 1.0
        if not 1 / 3 <= mean <= 3.0:
            warnings.warn(
                "The weights of the examples (sample_weight, or class_weight) should be 1 on "
                f"average. Received: {mean:.3g} on average over those that are not 0, so the "
                f"likelihood has the weight of {mean:.3g} N examples. Balanced class weights are "
                "N / (number of classes * examples of the class), not 1 / examples of the class.",
                stacklevel=2,
            )


def warn_of_learning_rates(
    callback_list: keras.callbacks.CallbackList | None, chain: Chain
) -> None:
    """Warns of callbacks that change a learning rate that the chain does not use."""
    for callback in callback_list.callbacks if callback_list else ():
        if isinstance(callback, _LEARNING_RATE) and not chain.follows_learning_rate:
            warnings.warn(
                f"{type(callback).__name__} changes the optimizer's learning rate, which this "
                "kernel does not use. Leave it out; or pass SamplerCallback the name of a kernel "
                'and step_size="learning_rate", or the kernel step_size=target.learning_rate.',
                stacklevel=2,
            )


def check_independence(chain: Chain, source: Source, given: bool | None) -> None:
    """Raises ValueError if a kernel that expects independent batches may get dependent ones.

    `given` is the user's `independent_batches`: True declares them independent, False accepts
    dependent ones, and None leaves the decision to this check.
    """
    if not chain.uses_noise_covariance:
        return
    least = max(2, chain.num_groups or 0)
    if source.sizes is not None and source.sizes.first < least:
        raise ValueError(
            f"batch_size must be at least {least}, because the kernel estimates the covariance of "
            "the gradient noise from the examples of a batch. Received: batches that grow from "
            f"batch_size={source.sizes.first}."
        )
    if given is not None or source.is_whole or source.are_independent:
        return
    known = source.are_independent is False or source.kind == "arrays"
    what = "each epoch takes every example once" if known else "they may take every example once"
    raise ValueError(
        "The batches must be independent, because the kernel corrects for the gradient noise of "
        f"independent batches. Received: {source.kind}; {what}, so variances would be too small, "
        "by up to the share of the gradient noise in all noise. Give fit independent batches as x: "
        "model.fit(sgmcmc.keras.IndependentBatches(x, y, batch_size=...), ...), or `resident` data "
        'with reshuffle="step". SamplerCallback(independent_batches=True) declares these batches '
        "independent, and independent_batches=False accepts them although they are not."
    )


def check_memory(chain: Chain, plan: FitPlan) -> None:
    """Checks that memory and disk suffice, before they are used.

    Raises:
      MemoryError: samples and kernel results need more than the free memory.
      OSError: the samples need more than the free space on the disk of the directory.
      ValueError: a full covariance of more than 10,000 weights.

    Warns:
      UserWarning: they need more than a quarter of the free memory.
    """
    plan.check_disk()
    needs: dict[str, int] = {}
    # If the plan is not exact, far fewer states may be kept.
    if plan.is_exact and plan.memory:
        needs[f"{plan.num_samples} kept states"] = plan.memory
    count = chain.num_variables
    if not chain.state.has_run and 4 * count**2 > _LARGE:
        results, is_full = chain.results_size()
        if is_full and count > _MOST_FULL:
            raise ValueError(
                f'covariance must be "diag", "low_rank" or "block" above {_MOST_FULL:,} weights. '
                f'Received: "full" with {count} weights: '
                f"{memory.readable(4 * count**2)} for Sigma, which each step decomposes. Pass "
                'covariance="diag" to the kernel.'
            )
        needs["the kernel's results, with its covariance, twice"] = 2 * results
    advice = (
        "Keep fewer states (num_steps_between_results, num_burnin_steps), stream them to a "
        'directory, or pass covariance="diag" to the kernel.'
    )
    memory.check_run(needs, advice, stacklevel=2)

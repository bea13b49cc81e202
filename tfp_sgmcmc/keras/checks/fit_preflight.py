"""What every `fit` goes through before its first step, and the checks between its epochs."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.chain.ring_buffer import Collection
from tfp_sgmcmc.keras.checks import fit_checks
from tfp_sgmcmc.keras.checks.curvature_check import StabilityCheck
from tfp_sgmcmc.keras.checks.verdicts import Verdicts
from tfp_sgmcmc.keras.data.independent_batches import IndependentBatches
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.distributed import messages, replica_context
from tfp_sgmcmc.keras.records import fit_fingerprint
from tfp_sgmcmc.keras.records.fit_plan import make_plan, num_due


class Preflight:
    """Checks a fit's data, kernel and memory before the chain moves.

    Attributes:
      source: the data of the fit under way.
      is_verbose: whether the plan is printed.
      verdicts: what the checks found when they were made last.

    Args:
      num_examples: N.
      checks_size: whether the data must have N examples.
      independent_batches: see `SamplerCallback`.
      collection: which states are kept.
      directory: where they are kept; None for memory.
    """

    def __init__(
        self,
        num_examples: int,
        checks_size: bool,
        independent_batches: bool | None,
        collection: Collection,
        directory: str | os.PathLike[str] | None,
    ):
        self.source, self.verdicts = Source(), Verdicts()
        self._num_examples, self._checks_size = num_examples, checks_size
        self._independent_batches = independent_batches
        self._collection, self._directory = collection, directory
        self._stability, self._checksums = StabilityCheck(), fit_fingerprint.Checksums()
        self._of_all: dict[str, Any] = {}
        self._epochs = self._burnin_epochs = 0
        self._num_skipped = 0
        self._is_memory_checked = self._is_begun = self.is_verbose = False
        self._callback_list: keras.callbacks.CallbackList | None = None

    def settle(self, collection: Collection, num_examples: int) -> None:
        """Takes on the numbers that follow from the data of the first fit."""
        self._collection, self._num_examples = collection, num_examples

    def begin_fit(
        self,
        model: keras.Model,
        callback_list: keras.callbacks.CallbackList | None,
        chain: Chain | None,
        is_stored: bool,
        source: Source,
    ) -> fit_fingerprint.Problem:
        """Checks what can be known before the first batch; returns the problem.

        Raises:
          ValueError: the data have not N examples, the model cannot take batches that grow, or a
            chain that has moved had other data or expects independent batches.

        Warns:
          UserWarning: weights of the examples that are far from 1 on average, or, once the chain
            is there, callbacks that change a learning rate which it does not use.
        """
        self.source = source
        self._is_begun = self._is_memory_checked = False
        if self._checks_size or isinstance(source.dataset, IndependentBatches):
            fit_checks.check_size(source, self._num_examples)
        fit_checks.check_growth(model, source)
        if chain is None or chain.state.is_new:
            fit_checks.check_weights(source)
        self._callback_list = callback_list
        of_all = self._checksums.describe(source)
        if is_stored and chain is not None:
            of_all |= fit_fingerprint.describe_model(
                model, self._num_examples, chain.log_prior_fn, source
            )
        if chain is None or chain.state.is_new:
            self._of_all = {}
        fit_fingerprint.check_same_problem(self._of_all, of_all)
        self._of_all |= of_all
        if chain is not None and chain.state.has_run:
            self.first_batch(chain)
        return fit_fingerprint.Problem(
            of_all, fit_fingerprint.describe_batches(source) if is_stored else {}
        )

    def new_chain(self) -> None:
        """Has the checks of a first batch made again, for another kernel on the same data."""
        self.verdicts.forget()
        self._is_memory_checked = self._is_begun = False

    def before_variables(self, chain: Chain, x: Any, most_steps: int) -> None:
        """Plans the rest of the fit, whose longest execution has `most_steps`, and checks it.

        `x` is a batch of inputs, or its specification. The plan is printed if `fit` is verbose.

        Raises:
          MemoryError, OSError, ValueError: see `fit_checks.check_memory`.
        """
        if self._is_memory_checked:
            return
        self._is_memory_checked = True
        with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
            status = chain.state.status()
        kept = num_due(
            self._collection,
            status.num_steps,
            status.first_kept,
            self.source.num_batches,
            self._epochs,
            self._burnin_epochs,
        )
        is_first = messages.is_first(chain.model.distribute_strategy)
        plan = make_plan(
            self._collection,
            chain.recorded(x),
            chain.state.num_chains,
            self._directory,
            kept,
            most_steps,
        )
        fit_checks.check_memory(chain, plan if is_first else plan._replace(disk=0))
        if self.is_verbose and is_first and not chain.is_pilot:
            print(plan)

    def first_batch(self, chain: Chain) -> None:
        """Checks what is known once the kernel's results exist, before the first step of a fit."""
        if self._is_begun:
            return
        self._is_begun = True
        if not chain.is_pilot:
            fit_checks.warn_of_learning_rates(self._callback_list, chain)
        fit_checks.check_independence(chain, self.source, self._independent_batches)
        if replica_context.count() > 1:  # inside a step of one of several replicas
            return
        with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
            if chain.state.status().num_steps == 0:
                fit_checks.check_probabilities(chain.model, self.source)
                if not chain.is_pilot:  # its step sizes fall with the gradients that it meets
                    self._stability.check_start(chain, self.source)
                    self.verdicts.tell("step size", self._stability.has_failed)

    def begin_epoch(
        self, first_step: int, seed: Any, num_epochs: int, num_burnin_epochs: int
    ) -> None:
        """Numbers the batches of `IndependentBatches` by the steps of the chain.

        So many epochs follow, this one included; the first of them belong to the burn-in.
        """
        self._epochs, self._burnin_epochs = num_epochs, num_burnin_epochs
        if isinstance(self.source.dataset, IndependentBatches):
            self.source.dataset.begin_epoch(first_step, np.asarray(seed))

    def end_fit(self) -> None:
        """Lets go of the data and of the other callbacks."""
        self.source, self._callback_list = Source(), None

    def end_epoch(self, chain: Chain, total_epochs: int) -> None:
        """Checks what may have changed in an epoch.

        Warns:
          UserWarning: the step size is above the largest stable one, or Sigma has left out
            minibatches.
        """
        if chain.is_pilot:
            return
        self._stability.at_epoch_end(chain, self.source, total_epochs)
        self.verdicts.tell("step size", self._stability.has_failed)
        skipped = chain.num_skipped()
        if skipped > self._num_skipped:
            warnings.warn(
                "The scores of every minibatch must be finite. Received: NaN, infinite or "
                f"overflowing scores in {skipped - self._num_skipped} minibatches of this epoch, "
                "from which Sigma has learnt nothing. Look for such numbers in the data and in the "
                "loss of single examples.",
                stacklevel=2,
            )
        if chain.uses_noise_covariance:
            self.verdicts.tell("scores", skipped > self._num_skipped)
        self._num_skipped = skipped

    @property
    def counts_rows(self) -> bool:
        """Whether an epoch's rows add up to N."""
        return self._checks_size and not isinstance(self.source.dataset, IndependentBatches)


def checked_keep(keep: Any) -> Any:
    """Returns a function `keep` whose value at step 0 is one truth value, or None.

    Raises:
      TypeError: it is no function, or returns something else.
    """
    if keep is None:
        return None
    if not callable(keep):
        raise TypeError(
            "keep must be a callable, step -> whether its state is kept. Received: a "
            f"{type(keep).__name__}."
        )
    step = tf.zeros([], tf.int64)
    found = accepts("keep", keep, step)(step)
    array = np.asarray(found)
    if array.dtype != np.bool_ or array.shape != ():
        raise TypeError(f"keep must return one truth value for a step. Received: {found!r}.")
    return keep

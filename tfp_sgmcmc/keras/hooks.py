"""What `SamplerCallback` does when Keras calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.keras.adaptation.automatic_fit import AutomaticFit, check_single_replica
from tfp_sgmcmc.keras.chain.chain import Chain, check_same_variables, check_variables
from tfp_sgmcmc.keras.chain.noise_monitor import NoiseMonitor
from tfp_sgmcmc.keras.chain.ring_buffer import Collection
from tfp_sgmcmc.keras.checks.fit_preflight import Preflight, check_samplable
from tfp_sgmcmc.keras.checks.progress_lines import Phase
from tfp_sgmcmc.keras.data.train_function import (
    BatchTrainFunction,
    calling_list,
    check_callbacks,
    guard,
)
from tfp_sgmcmc.keras.distributed import messages
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.priors import as_log_prior
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.keras.records.sample_log import StoredSampleLog, on_worker
from tfp_sgmcmc.keras.workers.batch_steps import BatchSteps
from tfp_sgmcmc.keras.workers.worker_group import Gang


class Hooks(keras.callbacks.Callback):
    """The hooks of `SamplerCallback`, whose constructor sets these attributes."""

    _make_kernel_fn: Callable[[Any], Any]
    _prior: Any
    _num_examples: int
    _num_burnin_epochs: int
    _num_chains: int | None
    _num_groups: int | None
    _initial_states: Any
    _seed: tf.Tensor
    _collection: Collection
    _monitor: NoiseMonitor | None
    _auto: AutomaticFit | None
    _recorder: Recorder
    _preflight: Preflight
    _steps: BatchSteps
    _gang: Gang
    _phase: Phase
    _train_function: BatchTrainFunction | None
    get_config: Callable[[], dict[str, Any]]

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if self._auto is not None:
            check_single_replica(model)
        check_samplable(model, num_groups=self._num_groups, noise_every=self._monitor)
        chain = self._recorder.chain
        self._recorder.samples = on_worker(self._recorder.samples, model.distribute_strategy)
        if self._recorder.failed:
            raise ValueError("This callback's chain became NaN or infinite; make a new callback.")
        if chain is not None and chain.state.is_new:
            chain = self._recorder.chain = None  # weights may have been set since
        if chain is not None:
            check_same_variables(chain, model)
        if chain is None:
            self._train_function = None
            if model.built:
                self._start_chain()
        self._callback_list = calling_list()
        self._is_fit = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._check_fit("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._check_fit("predict")

    def _check_fit(self, method: str) -> None:
        if not self._is_fit:
            raise ValueError(f"A SamplerCallback must be given to fit. Received: by {method}.")

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_fit = True
        is_stored = isinstance(self._recorder.samples, StoredSampleLog)
        check_callbacks(self._callback_list, self, is_stored)
        num_epochs = self.params["epochs"]
        chain, model = self._recorder.chain, self.model
        problem = self._gang.begin(
            model,
            lambda is_described: self._preflight.begin_fit(
                model, self._callback_list, chain, is_described
            ),
            is_stored,
            {
                **self.get_config(),
                **(chain.kernel_description if chain else {}),
                "epochs": num_epochs,
            },
        )
        if self._auto is not None:
            self._auto.pilot.check(self._preflight.source)
        initial_epoch = self._recorder.begin_fit(num_epochs, problem)
        internals.begin_at_epoch(model, initial_epoch)
        source = self._preflight.source
        self._gang.start(model, source)
        shares = self._gang.is_needed(model, source)
        compilation = (*internals.compilation(model), self._steps.most(model), shares)
        if self._train_function is None or compilation != self._compilation:
            self._compilation = compilation
            self._make_train_function()
        if self._callback_list is not None:
            guard(self._callback_list, "on_train_batch_begin", self._restore)

    def _make_train_function(self) -> None:
        steps, model = self._steps, self.model
        self._train_function = BatchTrainFunction(
            model,
            functools.partial(steps.take, model),
            functools.partial(steps.prepare, model),
            lambda: self._recorder.after_execution(steps.most(model)),
            self._gang.function(model, self._preflight.source, steps),
        )

    def _restore(self) -> None:
        if self._train_function is not None:
            self._train_function.restore()

    def on_train_end(self, logs: Any = None) -> None:
        internals.begin_at_epoch(self.model, None)
        self._gang.end()
        if self._auto is not None:
            self._auto.check_prediction(self._recorder.chain, self._preflight.source)
        self._recorder.end_fit(is_stopped=self.model.stop_training)
        self._preflight.end_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        internals.begin_at_epoch(self.model, None)
        if self._auto is not None:
            self._go_on(self._auto, epoch)
        first_step = self._recorder.begin_epoch(
            may_be_resident=bool(self._steps.resident), counts_rows=self._preflight.counts_rows
        )
        left = self.params["epochs"] - epoch
        burnin = min(left, max(0, self._num_burnin_epochs - self._recorder.total_epochs))
        self._preflight.begin_epoch(first_step, random.fold_in(self._seed, -2), left, burnin)
        chain = self._recorder.chain
        if chain is not None and chain.state.has_run:
            self._preflight.before_variables(chain, None, self._steps.most(self.model))
        if chain is not None and self.params.get("verbose"):
            phase = self._phase.line(chain.state.status(), chain.is_pilot, burnin)
            for line in (phase, self._preflight.results.line()):
                if line is not None and messages.is_first(self.model.distribute_strategy):
                    print(line)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        assert self._train_function is not None  # made by on_train_begin
        if self._auto is not None:
            self._auto.at_batch(batch, self._recorder.chain, self._preflight.source)
        self._train_function.install()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._recorder.end_epoch(epoch, is_whole=not self.model.stop_training)
        chain, results = self._recorder.chain, self._preflight.results
        if chain is not None:
            self._preflight.end_epoch(chain, self._recorder.total_epochs)
            if self._monitor is not None and not chain.uses_noise_covariance:
                results.record("gradient noise", self._monitor.has_failed(logs or {}))
        if self._auto is not None:
            results.record("temperature", self._auto.has_failed)
        if logs is not None:
            logs |= results.logs | ({} if self._auto is None else self._auto.logs)

    def _go_on(self, auto: AutomaticFit, epoch: int) -> None:
        """Goes on to the pilot's next part, or to the chain, if it is time."""
        chain, total, source = (
            self._recorder.chain, self._recorder.total_epochs, self._preflight.source
        )  # fmt: skip
        if chain is not None and auto.pilot.is_due(total):
            auto.pilot.measure_and_choose(chain, source, total, self.params["epochs"] - epoch)
            self._start_chain()
            self._preflight.new_chain()
            self._make_train_function()
            if auto.choices is not None and self.params.get("verbose"):
                print(auto.choices)
        auto.begin_epoch(self._recorder.chain, source, total, self.params)

    def _start_chain(self) -> None:
        check_variables(self.model.trainable_variables)
        pilot = None if self._auto is None else self._auto.pilot
        chain = Chain(
            self.model,
            self._make_kernel_fn if pilot is None else pilot.make_kernel,
            self._num_examples,
            as_log_prior(self._prior, self.model),
            self._collection,
            self._seed,
            self._num_chains,
            self._initial_states if pilot is None or pilot.starts is None else pilot.starts,
            self._num_groups,
            self._monitor,
            role="chain" if pilot is None else pilot.role,
        )
        if pilot is not None and pilot.choices is not None:
            pilot.choices.describe(chain, self._recorder)
        self._recorder.start(chain)

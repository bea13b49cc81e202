"""All that makes the chain of a `SamplerCallback`; some numbers follow from the first `fit`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.adaptation import annealed_ensemble
from tfp_sgmcmc.keras.adaptation.automatic_fit import AutomaticFit
from tfp_sgmcmc.keras.adaptation.network_pilot import make_pilot
from tfp_sgmcmc.keras.chain.chain import Chain, check_variables, recorded_variables
from tfp_sgmcmc.keras.chain.collection import NoiseMonitor
from tfp_sgmcmc.keras.checks.fit_preflight import Preflight
from tfp_sgmcmc.keras.data.training_data import Source, initial_epoch_of_fit
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.priors import as_log_prior, check_prior
from tfp_sgmcmc.keras.options import Chains, Collect, as_collect, checked_kernel
from tfp_sgmcmc.keras.records.fit_fingerprint import describe_keep
from tfp_sgmcmc.keras.records.fit_plan import FitPlan, make_plan, num_due
from tfp_sgmcmc.keras.records.recorder import FitNumbers, Recorder
from tfp_sgmcmc.keras.records.sample_log import SampleLog, StoredSampleLog, stored_run
from tfp_sgmcmc.storage.directory import Directory, as_directory

_NUMBERS = ("num_burnin_steps", "num_steps_between_results")


class FitSettings:
    """The arguments of `SamplerCallback`, and what follows from them and from the first `fit`.

    Attributes:
      numbers: what the parts of the callback share. Before `settle`, `collection` holds the states
        of a `fit` of one step. With "auto", burn-in may follow from the first `fit`.
      num_groups: groups of examples whose scores are computed, or None.
      is_complete: whether nothing follows from the first `fit`.
      ensemble: the settings of the annealed ensemble, if there is no kernel; or None.
      auto: the guide of an automatic `fit`, or None.
      monitor: the monitor of the gradient noise, or None.
      num_chains: the number of chains, or None for a single one without an axis.
      directory: where samples are stored, or None.
      seed: the seed, a tensor of two integers.

    Args:
      kernel, prior, collect, chains, output, seed, num_examples, step_size, num_groups,
        independent_batches, max_excess_temperature, check_num_examples: see `SamplerCallback`.
    """

    def __init__(
        self,
        kernel: Any,
        prior: Any,
        collect: Collect | None,
        chains: Chains | int | None,
        output: Directory | str | os.PathLike[str] | None,
        seed: Any,
        num_examples: int | None,
        step_size: Any,
        num_groups: int | None,
        independent_batches: bool | None,
        max_excess_temperature: float | None,
        check_num_examples: bool,
    ):
        self.directory = as_directory(output, "output")
        run = stored_run(self.path)
        self._stored: dict[str, Any] = {} if run is None else run.header["fingerprint"]
        seed = self._stored.get("seed") if seed is None else seed
        self.seed = random.as_seed(random.fresh_seed() if seed is None else seed)
        self.ensemble: annealed_ensemble.AnnealedEnsemble | None = None
        if kernel is None:
            prior = None if prior is ... else prior
            annealed_ensemble.check_alone(prior=prior, step_size=step_size, num_groups=num_groups,
                        max_excess_temperature=max_excess_temperature)  # fmt: skip
            self.ensemble = annealed_ensemble.AnnealedEnsemble(int(self.seed[1]))
            kernel = self.ensemble.make_kernel
            along_the_run = Collect(0, num_results=annealed_ensemble.NUM_STATES)
            collect = along_the_run if collect is None else collect
            chains = annealed_ensemble.NUM_CHAINS if chains is None else chains
        self._make_kernel_fn = checked_kernel(kernel, step_size)
        if prior is ...:
            raise TypeError(
                "SamplerCallback needs a prior with a kernel: prior=None for regularisers alone, "
                "or tfd.Normal(0., 1.), for example. Received: no argument prior."
            )
        check_prior(prior)
        self._prior, self._collect = prior, as_collect(collect).with_phases(step_size)
        chains = chains if chains is None or isinstance(chains, Chains) else Chains(chains)
        self.num_chains, self._starts = None, "initializers"
        if chains is not None:
            self.num_chains, self._starts = chains.num_chains, chains.initial_states
        if self.ensemble is not None:
            checks.integer("chains", self.num_chains, 3)
        checks.optional(checks.integer, "num_examples", num_examples, 1)
        checks.optional(checks.integer, "num_groups", num_groups, 2)
        checks.optional(checks.boolean, "independent_batches", independent_batches)
        self._independent_batches = independent_batches
        checks.boolean("check_num_examples", check_num_examples)
        self.num_groups = num_groups
        self._noise = {
            "sampling_threshold": self._collect.sampling_threshold,
            "noise_every": self._collect.noise_every,
        }
        bound = checks.optional(checks.positive, "max_excess_temperature", max_excess_temperature)
        self.auto: AutomaticFit | None = None
        if isinstance(self._make_kernel_fn, str):
            burnin = self._collect.num_burnin_epochs
            self.auto = AutomaticFit(make_pilot(bound, run, burnin, **self._noise))
        self._follows = self._collect.depends_on_fit or self._has_half
        self.is_complete = num_examples is not None and not self._follows and self.ensemble is None
        self.monitor: NoiseMonitor | None = None
        if any(x is not None for x in self._noise.values()):
            burnin = self._collect.num_burnin_steps or 0
            self.monitor = NoiseMonitor(**self._noise, num_burnin_steps=burnin)
        self.numbers = FitNumbers(
            self._collect.over(1, 1),
            num_examples,
            check_num_examples,
            self._collect.num_burnin_epochs or 0,
        )
        self._given_examples, self._has_collection = num_examples, not self._follows

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The path of the directory, or None."""
        return None if self.directory is None else self.directory.path

    def config(self) -> dict[str, Any]:
        """Returns the numbers that a stored chain must have been made with."""
        auto = {} if self.auto is None else {"max_excess_temperature": self.auto.pilot.bound}
        collect = self.numbers.collection if self._has_collection else self._collect
        return {
            **auto,
            "num_examples": self.numbers.num_examples,
            **{name: getattr(collect, name) for name in _NUMBERS},
            "mixing_distance": self._collect.mixing_distance,
            "num_burnin_epochs": self.numbers.num_burnin_epochs,
            "num_chains": self.num_chains,
            "num_groups": self.num_groups,
            "seed": self.seed.numpy().tolist(),
        }

    def make_recorder(self) -> Recorder:
        """Returns a recorder of samples, in memory or in the directory."""
        if self.directory is None:
            return Recorder(self.numbers, SampleLog())
        keep = describe_keep(self.numbers.collection.keep)
        fingerprint = {**self.config(), **self._noise, "keep": keep}
        path, resume = self.directory.path, self.directory.resume
        log = StoredSampleLog(path, fingerprint, self.num_chains, resume)
        return Recorder(self.numbers, log, self.directory.seconds_between_commits)

    def make_preflight(self) -> Preflight:
        """Returns the checks of a `fit`."""
        return Preflight(self.numbers, self._independent_batches, self.path)

    def settle(self, source: Source, model: keras.Model, params: dict[str, Any]) -> None:
        """Finds the numbers that the user has left out, from the data and the length of a `fit`.

        A run in a directory goes on with its numbers. `params` are those of Keras' callbacks.

        Raises:
          ValueError: the data do not show them.
        """
        numbers = self.numbers
        if self._given_examples is None:
            numbers.num_examples = source.num_examples
            if numbers.num_examples is None and source.count is not None:
                numbers.num_examples = source.count()  # which may read batches
        if numbers.num_examples is None:
            raise ValueError(
                "num_examples must be given to SamplerCallback, because the data do not show the "
                f"number of training examples. Received: {source.kind}. Data from "
                "sampler.data(x, y, batch_size=...) show it."
            )
        num_epochs = params["epochs"] - initial_epoch_of_fit(model)
        num_batches = source.num_batches or params.get("steps")
        follows = self._follows or self.ensemble is not None
        if num_batches is None and follows and source.count_batches is not None:
            num_batches = source.count_batches()
        if self.ensemble is not None:
            assert self.num_chains is not None  # checked
            num_steps = None if num_batches is None else num_batches * num_epochs
            self.ensemble.settle(source, numbers.num_examples, self.num_chains, num_steps)
            numbers.has_relative_weights = self.ensemble.rows_of_chains is not None
        if self._follows:
            collect = self._collect_of(num_epochs)
            if self.auto is not None and self._has_half:
                numbers.num_burnin_epochs = collect.num_burnin_epochs or 0
                self.auto.pilot.settle(numbers.num_burnin_epochs)
            found = collect.over(num_batches, num_epochs)
            left_out = [n for n in _NUMBERS if getattr(self._collect, n) is None]
            kept = {n: self._stored[n] for n in left_out if self._stored.get(n) is not None}
            numbers.collection, self._has_collection = found._replace(**kept), True

    @property
    def _has_half(self) -> bool:
        """Whether half of the epochs of the first `fit` are burn-in: "auto" needs epochs."""
        return self.auto is not None and self._collect.num_burnin_epochs is None

    def _collect_of(self, num_epochs: int) -> Collect:
        """Returns the options of a first `fit` of so many epochs; a run goes on with its own."""
        if not self._has_half:
            return self._collect
        burnin = self._stored.get("num_burnin_epochs") or num_epochs // 2
        return dataclasses.replace(self._collect, num_burnin_epochs=burnin)

    def plan(self, model: keras.Model, source: Source, epochs: int, most_steps: int) -> FitPlan:
        """Returns the plan of a first `fit`; see `SamplerCallback.plan`.

        Raises:
          ValueError: the model is not built, and the data do not show the shapes of a batch; or
            `epochs` is out of range.
        """
        checks.integer("epochs", epochs, 1)
        collection = self.numbers.collection
        collect = self._collect_of(epochs)
        if not self._has_collection:
            collection = collect.over(source.num_batches, epochs)
        batch = source.spec or source.batch(2)
        if batch is None and model.built:
            batch = (internals.input_specs(model),)
        if not model.built:
            if batch is None:
                raise ValueError(
                    "model must be built, since the data do not show the shapes of a batch. "
                    f"Received: {model.name}, which is not, and {source.kind}."
                )
            model(
                internals.map_arrays(
                    lambda a: tf.zeros([size or 1 for size in a.shape], a.dtype), batch[0]
                )
            )
        burnin = min(epochs, collect.num_burnin_epochs or 0)
        return make_plan(
            collection,
            recorded_variables(model, None if batch is None else batch[0]),
            self.num_chains,
            self.path,
            num_due(collection, 0, collection.first, source.num_batches, epochs, burnin),
            most_steps,
        )

    def make_chain(self, model: keras.Model) -> Chain:
        """Returns a new chain over the variables of a built model, or the pilot's next chain."""
        check_variables(model.trainable_variables)
        pilot = None if self.auto is None else self.auto.pilot
        starts, scale_starts = self._starts, None
        assert self.numbers.num_examples is not None  # settled
        if self.ensemble is not None:
            self.ensemble.begin_chain(model)
            # A trained model has seen rows that are hidden from chain 0.
            starts = "fresh" if starts == "initializers" else starts
            scale_starts = self.ensemble.scale_starts if starts == "fresh" else None
        return Chain(
            model,
            self._make_kernel_fn if pilot is None else pilot.make_kernel,
            self.numbers.num_examples,
            as_log_prior(self._prior, model),
            self.numbers.collection,
            self.seed,
            self.num_chains,
            starts if pilot is None or pilot.starts is None else pilot.starts,
            self.num_groups,
            self.monitor,
            role="chain" if pilot is None else pilot.role,
            rows_of_chains=None if self.ensemble is None else self.ensemble.rows_of_chains,
            scale_starts=scale_starts,
        )

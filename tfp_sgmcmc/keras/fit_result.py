"""What `SamplerCallback` gives its user: samples, posterior, temperatures, data on the device."""

from __future__ import annotations

from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.adaptation.automatic_fit import AutomaticFit
from tfp_sgmcmc.keras.adaptation.network_settings import NetworkSettings
from tfp_sgmcmc.keras.chain.chain import recorded_variables
from tfp_sgmcmc.keras.chain.ring_buffer import Collection
from tfp_sgmcmc.keras.data.resident_data import ResidentData
from tfp_sgmcmc.keras.data.training_data import source_of
from tfp_sgmcmc.keras.distributed import messages
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior.posterior import Posterior, step_size_weights
from tfp_sgmcmc.keras.posterior.predict import Prediction
from tfp_sgmcmc.keras.records.fit_plan import FitPlan, make_plan, num_due
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.keras.workers.batch_steps import BatchSteps


class Access:
    """The properties and methods of `SamplerCallback` that are no hooks of Keras."""

    model: keras.Model
    _auto: AutomaticFit | None
    _num_examples: int
    _seed: tf.Tensor
    _steps: BatchSteps
    _recorder: Recorder
    _collection: Collection
    _num_burnin_epochs: int
    _num_groups: int | None
    _num_chains: int | None
    _posterior: Posterior | None = None  # kept for what it has compiled

    def __getstate__(self) -> dict[str, Any]:
        """Refuses copies and pickles of a callback whose chain runs; before, they may work."""
        if self._recorder.chain is not None:
            raise TypeError(
                "A SamplerCallback cannot be copied or pickled once it has a chain, which lives in "
                "its model's variables and in compiled functions. Save the samples by "
                "posterior.save(path), or give a new callback a directory."
            )
        return dict(vars(self))

    def get_config(self) -> dict[str, Any]:
        """Returns the numbers that a chain in a directory must have been made with."""
        auto = {} if self._auto is None else {"max_excess_temperature": self._auto.pilot.bound}
        return {
            **auto,
            "num_examples": self._num_examples,
            "num_burnin_steps": self._collection.num_burnin_steps,
            "num_steps_between_results": self._collection.num_steps_between_results,
            "mixing_distance": self._collection.distance,
            "num_burnin_epochs": self._num_burnin_epochs,
            "num_chains": self._num_chains,
            "num_groups": self._num_groups,
            "seed": self._seed.numpy().tolist(),
        }

    @property
    def recorder(self) -> Recorder:
        """What keeps the chain and its samples, for callbacks such as `Traces`."""
        return self._recorder

    @property
    def seed(self) -> tuple[int, int]:
        """The seed of the chain, two integers, with which it can be repeated."""
        high, low = self._seed.numpy().tolist()
        return high, low

    @property
    def samples(self) -> list[Any]:
        """Samples so far, `[num_kept, ...]` for each of `model.trainable_variables`.

        If there are several chains, their axis is the second, `[num_kept, num_chains, ...]`.
        Samples in a `directory` are arrays that read from there what is sliced out of them.
        """
        return self._recorder.trainable_values

    @property
    def non_trainable_samples(self) -> dict[str, Any]:
        """Moving statistics that belong to the samples, in the same layout, by variable path."""
        chain, samples = self._recorder.chain, self._recorder.samples
        if chain is None or not len(samples):
            return {}
        recorded = list(zip(chain.rings.recorded, samples.values, strict=True))
        return {v.path: x for v, x in recorded[len(chain.state.variables) :]}

    @property
    def sample_steps(self) -> np.ndarray:
        """The steps that left the samples, counted from 0, `[num_kept]`."""
        return self._recorder.samples.steps

    @property
    def sample_step_sizes(self) -> np.ndarray:
        """The sizes of these steps, `[num_kept]`: the largest one of the state's parts."""
        return self._recorder.samples.step_sizes

    @property
    def posterior(self) -> Posterior:
        """The samples so far as a `Posterior`, which predicts, evaluates and saves.

        If their step sizes differ, these are the samples' weights (see `weighted_expectation` of
        `sgmcmc.diagnostics`), except with a `mixing_distance` and in the sampling phases of a
        `Cyclical`, whose samples have equal weights.

        Raises:
          ValueError: there are no samples yet.
        """
        chain, samples = self._recorder.chain, self._recorder.samples
        if chain is None or not len(samples):
            raise ValueError(
                "There are no samples yet; run fit for more than num_burnin_steps = "
                f"{self._collection.num_burnin_steps} steps (batches) first."
            )
        values = samples.values
        if self._posterior is None:
            recorded = chain.rings.recorded
            self._posterior = Posterior(self.model, recorded, values, self._num_chains)
        is_even = self._collection.has_equal_weights
        return self._posterior.with_samples(
            values, None if is_even else step_size_weights(samples.step_sizes)
        )

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        activation: Any = "auto",
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> Prediction:
        """Returns the mean and standard deviation of `posterior.predict`, with its arguments."""
        found = self.posterior.predict(x, batch_size, activation, steps=steps, verbose=verbose)
        return Prediction(found.mean, found.standard_deviation)

    def outputs(
        self,
        x: Any,
        batch_size: int | None = None,
        activation: Any = "auto",
        *,
        steps: int | None = None,
        verbose: Any = "auto",
    ) -> Any:
        """Returns the model's outputs for each sample, as `posterior.outputs` does."""
        return self.posterior.outputs(x, batch_size, activation, steps=steps, verbose=verbose)

    @property
    def choices(self) -> NetworkSettings | None:
        """What "auto" chose and predicts; None before the pilot is over, and without "auto".

        `print(choices)` tells it in words, and `choices.code` is the kernel written by hand.
        """
        return None if self._auto is None else self._auto.choices

    @property
    def temperatures(self) -> dict[str, dict[str, float]]:
        """Predicted and measured temperatures of the kernel that "auto" chose.

        Each kind has "worst", the temperature along the hottest direction, and "mean", the mean
        over the weights. "predicted" and "local" are those of the linear law, by the noise and
        curvature that the pilot expects, and by those at the chain's place when burn-in or the last
        fit was over. "measured" is the configurational temperature after burn-in along the
        direction that is predicted to be the hottest, with a rough standard error, "worst_error".
        It is NaN until the chain has taken ten times the steps in which a direction forgets its
        start, as nothing can be told before: those of the hottest direction, and for the mean
        those of the slowest one.
        """
        return {} if self._auto is None else self._auto.temperatures

    def plan(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        steps_per_epoch: int | None = None,
    ) -> FitPlan:
        """Returns how many samples a `fit` will keep, and the memory and disk that they take.

        Nothing is sampled. `fit` prints the same for the epochs ahead, unless `verbose=0`.

        Examples:
          >>> import keras, numpy as np
          >>> import tfp_sgmcmc as sgmcmc
          >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
          >>> sampler = sgmcmc.keras.SamplerCallback(
          ...     "SGLD", 1000, None, num_burnin_epochs=2, num_steps_between_results=4,
          ...     step_size=1e-3)
          >>> plan = sampler.plan(model, np.zeros([1000, 2], np.float32), epochs=10, batch_size=50)
          >>> plan.num_samples, plan.bytes_of_sample, plan.memory, plan.disk
          (32, 12, 384, 0)

        Args:
          model: a model.
          x: the data of `fit`, of any kind. A Python generator does not tell its length.
          y: the targets of `fit`, if x is an array or a nest of arrays.
          epochs: epochs of the first `fit`.
          batch_size: examples of a batch, if x is an array or a nest of arrays.
          steps_per_epoch: as in `fit`.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: the model is not built, and the data do not show the shapes of a batch; or
            numbers are out of range.
        """
        internals.check_model_type(model)
        epochs = checks.integer("epochs", epochs, 1)
        checks.integer("batch_size", batch_size, 1)
        if steps_per_epoch is not None:
            checks.integer("steps_per_epoch", steps_per_epoch, 1)
        source = source_of(x, y, batch_size, steps_per_epoch)
        batch = source.spec or source.batch(2)
        if not model.built:
            if batch is None:
                raise ValueError(
                    "model must be built, since the data do not show the shapes of a batch. "
                    f"Received: {model.name}, which is not, and {source.kind}."
                )
            model(internals.map_arrays(_zeros, batch[0]))
        burnin = min(epochs, self._num_burnin_epochs)
        first, batches = self._collection.first, source.num_batches
        return make_plan(
            self._collection,
            recorded_variables(model, None if batch is None else batch[0]),
            self._num_chains,
            getattr(self._recorder.samples, "path", None),
            num_due(self._collection, 0, first, batches, epochs, burnin),
            self._steps.most(model),
        )

    def resident(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int,
        reshuffle: Literal["step", "epoch", "symmetric"] = "step",
        steps_per_call: int = 100,
        steps_per_epoch: int | None = None,
        growth: float = 1.0,
    ) -> ResidentData:
        """Returns training data that stay on the device, for `fit` of a model on one device.

        One compiled call takes `steps_per_call` steps on batches drawn within it. This saves what
        Keras spends on each step, so small models sample many times as fast. The data go to `fit`
        as x: `model.fit(sampler.resident(x, y, batch_size=500, steps_per_call=1000,
        steps_per_epoch=10_000), epochs=10, callbacks=[sampler])`.

        Args:
          x: inputs, a nest of arrays `[N, ...]`.
          y: targets, a nest of arrays `[N, ...]`.
          sample_weight: weights, a nest of arrays `[N, ...]`.
          batch_size: B, the number of examples of every batch; of the first one if batches grow.
          reshuffle: "step" draws each batch independently, as `MinibatchLogProb` does. "epoch"
            takes each example once before any comes again, as `fit` does with arrays. "symmetric"
            then takes them in the opposite order, before it shuffles again.
          steps_per_call: the largest number of steps of one call, and no more than an epoch has.
            Short steps gain from a large number. The device holds as many samples at once as these
            steps leave.
          steps_per_epoch: steps of what `fit` calls an epoch. None takes floor(N / B). Keras does
            the same work after each epoch, however short it is.
          growth: the factor from the size of one step's batch to the next, at least 1. Batches grow
            as in `sgmcmc.GrowingBatch`, until they hold all N examples. This needs a model that is
            compiled with `jit_compile=False`, `reshuffle="step"` and `steps_per_epoch`.
        """
        messages.check_alone("resident data", "WorkerBatches(IndependentBatches(x, y, batch_size))")
        data = ResidentData(
            (x, y, sample_weight),
            batch_size,
            reshuffle,
            steps_per_call,
            steps_per_epoch,
            random.fold_in(self._seed, -2),  # no step has this number
            self._num_examples,
            growth,
        )
        self._steps.resident.append(data)
        return data


def _zeros(array: Any) -> tf.Tensor:
    return tf.zeros([size or 1 for size in array.shape], array.dtype)

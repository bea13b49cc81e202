"""A Keras callback that turns `model.fit` into a posterior sampler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.keras import batch_steps
from tfp_sgmcmc.keras.adaptation.automatic_fit import AutomaticFit, check_single_replica
from tfp_sgmcmc.keras.chain.chain import check_same_variables
from tfp_sgmcmc.keras.checks.data_check import cause_in_data
from tfp_sgmcmc.keras.data import training_data
from tfp_sgmcmc.keras.data.fit_batches import IndependentBatches, ResidentData
from tfp_sgmcmc.keras.fit_result import FitResult
from tfp_sgmcmc.keras.fit_settings import FitSettings
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.keras.options import Chains, Collect, accepts_old_arguments, forwards_old_attributes
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.keras.posterior.predict import Prediction
from tfp_sgmcmc.keras.records.fit_plan import FitPlan, Phase
from tfp_sgmcmc.keras.records.sample_log import StoredSampleLog, on_worker
from tfp_sgmcmc.kernels.base import StepSize
from tfp_sgmcmc.storage.directory import Directory


@forwards_old_attributes
class SamplerCallback(keras.callbacks.Callback):
    r"""Makes `model.fit` an ensemble that predicts, or with a kernel a sampler of the posterior.

    Without a kernel, `SamplerCallback()` answers "what does the network predict, and how sure is
    it?". Five chains run side by side in one `fit`: SGHMC whose masses follow the gradients
    (`AnnealedSGHMC`), with the first layer around its mean input, a prior that is tight at first
    and then relaxes, a temperature that falls from 0.03 to 0.001, and steps that grow until they
    fall in the last fifth. With recurrent layers or attention, steps are constant until then, and
    the temperature is 10 times as high, or with attention a tenth. With trainable embeddings and
    neither of them, it is a tenth, and the prior's variances are 100 times as large. Each of
    min(0.4 N, 400) rows is hidden from two of the chains, and with these rows the parts of the run
    are chosen whose states predict best. `predict` averages over them. No setting is needed. Chains
    start from the layers' initialisers, unless `chains` says otherwise. The number of epochs is
    about what one network needs to train; the batch size 32 was used where the rule was found. The
    states are no draws from the posterior: `posterior.is_tempered` is true, and R-hat and effective
    sample sizes are refused. Rows are told apart by their inputs, so augmentation belongs into
    layers of the model; data that give other rows when they are read again have no pool, and
    predict from the last fifth of the run. Weights of examples and classes count relative to their
    mean, and rows of weight 0 as absent. Validation data of `fit` are only reported, for the first
    chain. A further `fit` goes on with the settings of the end.

    With a kernel, or "posterior", it samples the posterior of the weights, at temperature 1 unless
    the kernel says otherwise. The rest of this page is about that, and the way in which `fit`
    works holds for both.

    Each batch of `fit` becomes one step of a kernel over the trainable variables, with log
    posterior

    \[
    \log p(\theta) - N \sum_k R_k(\theta) - \sum_{i=1}^N w_i\, \ell(y_i, f_\theta(x_i)),
    \]

    whose last sum is estimated by N/B times the sum over a batch of B rows. \( \ell \) is the
    compiled loss as a function of one example, so it must be a negative log likelihood: Keras'
    crossentropies and Poisson (their means over outputs count as sums), `sgmcmc.keras.losses`,
    `NegativeLogLikelihood`, or a function such as `0.5 * (y - f)**2 / sigma**2`. Its reduction does
    not matter. `loss_weights`, `sample_weight`, `class_weight` and masks count. \( R_k \) are
    regularisers and `add_loss` terms, which Keras adds to a mean, so they count N-fold. Rows of
    weight 0 count as absent, for the regularisers, too.

    Metrics, validation, `steps_per_execution`, `jit_compile`, `run_eagerly` and other callbacks
    work as in any `fit`. In the logs, and so in the progress bar, `loss` is Keras' loss. There are
    also `samples` (kept so far, 0 in the burn-in), `step_size` (the largest), `temperature`,
    `kinetic_temperature` if the kernel has momenta, and with `noise_every` `sampling_threshold`
    (the largest alpha of the chains) and `gradient_noise_share`. `failed_checks` counts the checks
    that failed when they were made last: the step size against the largest stable one, with
    `noise_every` alpha of kept samples against the `sampling_threshold` or 0.1, with "auto" the
    temperatures against the predicted ones, and whether scores were finite for a kernel that uses
    them. It is missing where nothing can be checked. A verbose `fit` prints how many samples it
    will keep, with their bytes (see `plan`), when burn-in and sampling begin, and which checks
    fail.
    `Traces` draws the chains in TensorBoard. The optimizer is not used. After `fit` the model
    carries the chain's last state, and another `fit` with the same callback goes on from there. The
    model gets its training function back after every batch, so a fit that fails or is interrupted
    leaves a model that trains as before.

    The batches of an epoch of `fit` are not independent, because each example comes once. This does
    not harm SGLD, but kernels that correct for the covariance of the gradient noise
    (`ModifiedSGLD`, `SGFS`, `SGHMC`, `CCAdL`, `NOGIN`) then over-correct the gradient noise,
    and variances come out too small. They refuse such batches before the first step. Give `fit`
    the data that `sampler.data(x, y, batch_size=...)` returns, or `IndependentBatches`. With their
    `growth`, batches grow as in `GrowingBatch`, which cannot wrap the target here, because the data
    make the batches.

    On several hosts, under `MultiWorkerMirroredStrategy`, data are `WorkerBatches`. Worker 0 alone
    writes the `output`, from which all go on; the others then hold the last sample alone. Metrics
    in the logs of a batch are those of one worker, and in the logs of an epoch those of all.

    If the step size changes along the run, `posterior` and `predict` weight samples by their step
    sizes (Welling & Teh 2011, equation 11), unless a `mixing_distance` lies between them. Samples
    of the sampling phases of a `Cyclical` have equal weights, as in Zhang et al. 2020.

    With "auto" for a kernel, the first three quarters of the burn-in's epochs are a pilot. It
    minimises from the model's weights by RMSprop without noise, measures the curvature and the
    gradient noise there, and freezes a diagonal preconditioner. It chooses kernel (`SGLD`,
    `UnderdampedLangevin`, or `NOGIN` if the batches are independent), step size, friction, and what
    the kernel knows of the noise. It tries the choice, measures the curvature where that leads, and
    chooses again. From there on the chain is an ordinary one. `result.choices` holds all numbers
    and explains them. The chosen step stays stable if the curvature grows ninefold.

    The noise of batches of n examples along the stiffest directions of a network is about N/n times
    the curvature there. With a small step the chain then hardly moves along flat directions, and
    with a large one it is too hot along stiff ones. "auto" predicts both. A warning says if the fit
    has too few steps for the bound, what the samples will be like, and which batch size or how many
    steps would do; `result.temperatures` shows whether the prediction holds.

    Layers that behave differently in training do so while sampling. Dropout adds noise to the
    gradient, so the law is not the posterior of the network without dropout; dropout is off in
    `predict`. BatchNormalization normalises by the batch, so the likelihood is not a sum over
    examples; its moving statistics are kept with every sample, and `predict` uses them.

    Attributes:
      result: the samples so far and how the fits went, a `FitResult`.
      recorder: the chain, for callbacks such as `Traces`.
      is_in_fit: whether a `fit` with this callback is under way.

    Examples:
      An ensemble that predicts:

      >>> import keras, numpy as np, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> keras.utils.set_random_seed(0)
      >>> x = np.random.default_rng(0).normal(size=[1000, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> sampler = sgmcmc.keras.SamplerCallback(seed=0)
      >>> _ = model.fit(x, x[:, :1] > x[:, 1:], epochs=5, verbose=0, callbacks=[sampler])
      >>> probability, spread = sampler.predict(np.array([[1., -1.], [-1., 1.]], np.float32))
      >>> bool(probability[0] > 0.9), bool(probability[1] < 0.1)
      (True, True)

      Draws from the posterior:

      >>> x = np.random.default_rng(0).normal(size=[1000, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> sampler = sgmcmc.keras.SamplerCallback(
      ...     lambda target: sgmcmc.SGLD(target, step_size=1e-3),
      ...     prior=tfp.distributions.Normal(0., 1.),
      ...     collect=sgmcmc.keras.Collect(20, 1), seed=0)
      >>> _ = model.fit(x, x[:, :1] > x[:, 1:], epochs=3, batch_size=50, verbose=0,
      ...               callbacks=[sampler])
      >>> [array.shape for array in sampler.samples]
      [(20, 2, 1), (20, 1)]
      >>> probability, spread = sampler.predict(np.array([[3., -3.], [-3., 3.]], np.float32))
      >>> bool(probability[0] > 0.9), bool(probability[1] < 0.1)
      (True, True)

    Args:
      kernel: None makes the annealed ensemble. Otherwise target -> kernel, such as `lambda target:
        SGLD(target, step_size=1e-6)`. The target estimates the log posterior on one batch. Each
        trace calls the function anew. The name of a kernel, such as "SGLD", takes it with
        `step_size`. "posterior" (or "auto") chooses the kernel, in the first three quarters of the
        burn-in's epochs.
      prior: the prior of the trainable variables. A scalar `tfd` distribution is the prior of every
        single weight. A dict maps patterns of variables' paths (see `by_variable`) to distributions
        or None, such as `{"bias": None, "*/kernel": tfd.Normal(0., 1.)}`; their batch or event
        shapes must fit the variables. A callable maps the list of variables' values to the log
        prior. None leaves the prior to regularisers. It must be given with a kernel, and left out
        without one, because the ensemble has its own.
      collect: burn-in, thinning and all else that decides which states are kept, a `Collect`. None
        discards half of the steps of the first `fit` and keeps about 100 states of the others. With
        "posterior" half of its epochs are burn-in, unless `num_burnin_epochs` is set. It must be at
        least 4.
        Without a kernel about 80 states along the whole run are kept.
      chains: C, the number of chains that run side by side, or `Chains` with their initial states.
        Samples then have shape `[num_kept, C, ...]`. None samples a single chain without such an
        axis; without a kernel, five chains. There it must be at least 3.
      output: where samples are streamed as they come, by `zarr` (`python -m pip install
        "tfp_sgmcmc[results]"`): a path, or a `sgmcmc.Directory`, whose `resume` and
        `seconds_between_commits` (a crash may cost this time in addition to an epoch) count. It
        holds everything else that the chain needs, so that the same script, run again after
        whatever stopped it, goes on with the same chain from the end of an epoch. The chain is the
        same bit for bit if the order of batches depends on the epoch alone, as with the data of
        `sampler.data`, or arrays with `shuffle=False`. A changed problem is refused by the name of
        the change: data, batches, prior, loss, layers, kernel, numbers. Changes in files,
        generators and `map` functions, and in functions that agree at the few places where they
        are compared, are not detected.
        `xarray.open_zarr(path + "/samples.zarr", group="posterior")` reads the samples.
      seed: one or two integers; step t draws from `fold_in(seed, t)`. None takes the seed of the
        run in `output`, or draws one, which `keras.utils.set_random_seed` determines.
      num_examples: N, the number of training examples without a validation split. None takes the
        number from the data of `fit`: arrays, `PyDataset`s, and `tf.data` whose rows come once,
        which is read to its end if its length is unknown and `fit` has no `steps_per_epoch`. Rows
        that `drop_remainder=True` leaves out of an epoch do not count; where each epoch leaves out
        others, pass the number of all rows and `check_num_examples=False`. Other data need the
        number.
      step_size: with the name of a kernel, its step size: a number, a schedule, or "learning_rate"
        for the learning rate of the compiled optimizer, as it is. The optimizer's schedule counts
        the steps of the chain; `LearningRateScheduler` and `ReduceLROnPlateau` set it between
        epochs, and a run with an `output` goes on with the value that it had (`ReduceLROnPlateau`
        begins to wait anew). In a function, `target.learning_rate` is the same: `lambda target:
        UnderdampedLangevin(target, target.learning_rate, friction=10.)`.
      num_groups: the covariance of the gradient noise is estimated from the scores of this many
        groups of a batch's examples instead of single examples. This takes less time and memory if
        the model has layers other than `Dense`, `Embedding` and convolutions.
      independent_batches: whether batches are independent, for kernels that expect this. None
        refuses batches by epochs and batches of unknown kind. True declares them independent.
        False accepts dependent ones.
      max_excess_temperature: with "auto", by how much the chain may be too hot in any direction, as
        a share of the temperature. None keeps to 0.1 where the fit's steps allow it, and takes the
        least bias where they do not.
      check_num_examples: whether to check that an epoch of `fit` has N examples.

    Raises:
      ValueError: numbers out of range. In `fit`: with the annealed ensemble, `EarlyStopping`, which
        would stop it before it has cooled; a model that is not compiled, has no trainable weights,
        overrides `train_step` or `compute_loss`, or has constraints; a Keras loss that is not a
        likelihood, such as squared errors; a prior that does not fit the variables; an epoch that
        does not have N examples; dependent batches for a kernel that expects others; outputs that
        are not the probabilities that the loss expects; no y, labels out of range, or rows of
        arrays whose loss is NaN; another problem than the chain's; NaN in the initial weights.
      MemoryError: in `fit`, kept states and the kernel's results would not fit into memory.
      OSError: in `fit`, the samples would not fit on the disk of the `output`.
      TypeError: arguments of a wrong type. In `fit`: `kernel` returns no kernel; y has strings, or
        data are ragged.
      NonFiniteChainError: in `fit`, the loss, its gradient or a sample became NaN or infinite.
        `samples` holds the samples before. The model is set back to the last of them, or to where
        the chain began.
    """

    @accepts_old_arguments
    def __init__(
        self,
        kernel: Callable[[ModelLogProb], tfp.mcmc.TransitionKernel] | str | None = None,
        *,
        prior: Any = ...,
        collect: Collect | None = None,
        chains: Chains | int | None = None,
        output: Directory | str | os.PathLike[str] | None = None,
        seed: Any = None,
        num_examples: int | None = None,
        step_size: StepSize | Literal["learning_rate"] | None = None,
        num_groups: int | None = None,
        independent_batches: bool | None = None,
        max_excess_temperature: float | None = None,
        check_num_examples: bool = True,
    ):
        super().__init__()
        settings = self._settings = FitSettings(
            kernel, prior, collect, chains, output, seed, num_examples, step_size, num_groups,
            independent_batches, max_excess_temperature, check_num_examples,
        )  # fmt: skip
        self._auto = settings.auto
        self.recorder = settings.make_recorder()
        self._preflight = settings.make_preflight()
        self.result = FitResult(self.recorder, self._preflight.results, settings)
        self._train_function: batch_steps.BatchTrainFunction | None = None
        self._workers, self._phase = batch_steps.WorkerGroup(), Phase()
        self._steps = batch_steps.BatchSteps(self.recorder, self._preflight, self._start_chain)
        self._data: list[Any] = []
        self.is_in_fit = False

    def __getstate__(self) -> dict[str, Any]:
        """Refuses copies and pickles of a callback whose chain runs; before, they may work."""
        if self.recorder.chain is not None:
            raise TypeError(
                "A SamplerCallback cannot be copied or pickled once it has a chain, which lives in "
                "its model's variables and in compiled functions. Save the samples by "
                "posterior.save(path), or give a new callback an output."
            )
        return dict(vars(self))

    def get_config(self) -> dict[str, Any]:
        """Returns the numbers that a stored chain must have been made with."""
        return self._settings.config()

    @property
    def samples(self) -> list[Any]:
        """Samples so far of each of `model.trainable_variables`; see `FitResult.samples`."""
        return self.result.samples

    @property
    def posterior(self) -> Posterior:
        """The samples so far as a `Posterior`; see `FitResult.posterior`."""
        return self.result.posterior

    @property
    def is_annealed(self) -> bool:
        """Whether the samples are an annealed ensemble, and no draws from a posterior."""
        return self._settings.ensemble is not None

    @property
    def seed(self) -> tuple[int, int]:
        """The seed of the chain, two integers, with which it can be repeated."""
        return random.integers_of(self._settings.seed)

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
          ...     "SGLD", prior=None, step_size=1e-3,
          ...     collect=sgmcmc.keras.Collect(num_burnin_epochs=2, num_steps_between_results=4))
          >>> plan = sampler.plan(model, np.zeros([1000, 2], np.float32), epochs=10, batch_size=50)
          >>> plan.num_samples, plan.bytes_of_sample, plan.memory, plan.disk
          (32, 12, 384, 0)

        Args:
          model: a model.
          x: the data of `fit`, of any kind. The length of a Python generator is unknown.
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
        source = training_data.source_of(x, y, batch_size, steps_per_epoch)
        return self._settings.plan(model, source, epochs, self._steps.most(model))

    def data(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int,
        steps_per_epoch: int | None = None,
        growth: float = 1.0,
    ) -> IndependentBatches:
        """Returns training data for `fit`, whose batches are independent and whose N is known.

        The data go to `fit` as x: `model.fit(sampler.data(x, y, batch_size=500), epochs=10,
        callbacks=[sampler])`. They suit every kernel. On a single device, `resident` data are
        faster.

        Args:
          x: inputs, a nest of arrays `[N, ...]`.
          y: targets, a nest of arrays `[N, ...]`.
          sample_weight: weights, a nest of arrays `[N, ...]`.
          batch_size: B, the number of examples of every batch; of the first one if batches grow.
          steps_per_epoch: batches of an epoch. None takes floor(N / B).
          growth: the factor from the size of one step's batch to the next, at least 1.

        Raises:
          ValueError: unequal leading axes, no data, or numbers out of range.
          TypeError: a leaf is not an array of numbers, or a number is of a wrong type.
        """
        data = IndependentBatches(
            x, y, sample_weight, batch_size, steps_per_epoch=steps_per_epoch, growth=growth
        )
        self._data.append(data)
        return data

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
        data = ResidentData(
            (x, y, sample_weight),
            batch_size,
            reshuffle,
            steps_per_call,
            steps_per_epoch,
            random.fold_in(self._settings.seed, -2),  # no step has this number
            self._settings.numbers.num_examples,
            growth,
        )
        self._steps.resident.append(data)
        self._data.append(data)
        return data

    # What Keras calls.

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if self._auto is not None:
            check_single_replica(model)
        compiled_loss.check_likelihoods(model)
        internals.check_distribution(
            model, num_groups=self._settings.num_groups, noise_every=self._settings.monitor
        )
        chain = self.recorder.chain
        self.recorder.samples = on_worker(self.recorder.samples, model.distribute_strategy)
        if self.recorder.failed:
            raise ValueError("This callback's chain became NaN or infinite; make a new callback.")
        if chain is not None and chain.state.is_new:
            chain = self.recorder.chain = None  # weights may have been set since
        if chain is not None:
            check_same_variables(chain, model)
        else:
            self._train_function = None
            if internals.has_all_variables(model) and self._settings.is_complete:
                self._start_chain()
        self._callback_list = training_data.calling_list()
        self.is_in_fit = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._check_fit("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._check_fit("predict")

    def _check_fit(self, method: str) -> None:
        if not self.is_in_fit:
            raise ValueError(f"A SamplerCallback must be given to fit. Received: by {method}.")

    def on_train_begin(self, logs: Any = None) -> None:
        self.is_in_fit = "epochs" in (self.params or {})
        self._check_fit("another loop, or in a CallbackList without epochs=")
        is_stored = isinstance(self.recorder.samples, StoredSampleLog)
        batch_steps.check_callbacks(self._callback_list, self, is_stored)
        num_epochs, model = self.params["epochs"], self.model
        source = training_data.training_source(model, self._data)
        if self.recorder.chain is None:
            self._settings.settle(source, model, self.params)
            if internals.has_all_variables(model):
                self._start_chain()
        chain = self.recorder.chain
        self.recorder.cause_in_data = self._cause_in_data
        self._preflight.is_verbose = bool(self.params.get("verbose"))
        self.result.begin_fit()
        settings = {**self.get_config(), **(chain.kernel_description if chain else {})}
        problem = self._workers.begin(
            model,
            lambda is_described: self._preflight.begin_fit(
                model, self._callback_list, chain, is_described, source
            ),
            is_stored,
            {**settings, "epochs": num_epochs},
        )
        if self._auto is not None:
            self._auto.pilot.check(source)
        initial_epoch = self.recorder.begin_fit(num_epochs, problem, settings)
        self.result.begin_steps()
        internals.begin_at_epoch(model, initial_epoch)
        shares = batch_steps.takes_shares(model, source)
        if shares:
            self._workers.start(model)
        compilation = (*internals.compilation(model), self._steps.most(model), shares)
        if self._train_function is None or compilation != self._compilation:
            self._compilation = compilation
            self._make_train_function()
        if self._callback_list is not None:
            batch_steps.guard(self._callback_list, self._restore)

    def _make_train_function(self) -> None:
        shares = batch_steps.takes_shares(self.model, self._preflight.source)
        self._train_function = batch_steps.BatchTrainFunction(
            self.model,
            self._steps,
            shares,
            self._after_execution,
            self._cause_in_data,
            after_failure=self._workers.end,
        )

    def _after_execution(self) -> None:
        self.recorder.after_execution(self._steps.most(self.model))
        self.result.end_execution()
        self._preflight.after_steps(self.recorder.chain)

    def _cause_in_data(self) -> str | None:
        return cause_in_data(self.model, self._preflight.source)

    def _restore(self) -> None:
        if self._train_function is not None:  # a pilot may have made another one since
            self._train_function.restore()

    def on_train_end(self, logs: Any = None) -> None:
        internals.begin_at_epoch(self.model, None)
        self._workers.end()
        chain = self.recorder.chain
        if chain is not None and isinstance(self.recorder.samples, StoredSampleLog):
            self._preflight.warn_of_other_weights(chain)  # which would be saved as its state
        try:
            if self._auto is not None:
                self._auto.check_prediction(chain, self._preflight.source)
        finally:
            self.recorder.end_fit(is_stopped=self.model.stop_training)
        self._preflight.end_fit()
        for data in self._data:
            data.was_read = False
        self.is_in_fit = False
        self.result.end_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        internals.begin_at_epoch(self.model, None)
        if self._auto is not None:
            self._go_on(self._auto, epoch)
        first_step = self.recorder.begin_epoch(
            may_be_resident=bool(self._steps.resident), counts_rows=self._preflight.counts_rows
        )
        left = self.params["epochs"] - epoch
        burnin = min(left, self.recorder.burnin_epochs_left)
        self._preflight.begin_epoch(
            first_step, random.fold_in(self._settings.seed, -2), left, burnin
        )
        chain = self.recorder.chain
        if chain is not None and chain.state.has_run:
            self._preflight.before_variables(chain, None, self._steps.most(self.model))
        if chain is not None and self.params.get("verbose"):
            phase = self._phase.line(chain.state.status(), chain.is_pilot, burnin)
            for line in (phase, self._preflight.results.line()):
                if line is not None and replicas.is_first(self.model.distribute_strategy):
                    print(line)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        assert self._train_function is not None  # made by on_train_begin
        if self._auto is not None:
            self._auto.at_batch(batch, self.recorder.chain, self._preflight.source)
        self._preflight.before_steps(self.recorder.chain, batch, self._steps.most(self.model))
        self._train_function.install()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.recorder.end_epoch(epoch, is_whole=not self.model.stop_training)
        chain, results = self.recorder.chain, self._preflight.results
        if chain is not None:
            self._preflight.end_epoch(chain, self.recorder.total_epochs)
            if self._settings.monitor is not None and not chain.uses_noise_covariance:
                results.record("gradient noise", self._settings.monitor.has_failed(logs or {}))
        if self._auto is not None:
            results.record("temperature", self._auto.has_failed)
        if logs is not None:
            logs |= results.logs | ({} if self._auto is None else self._auto.logs)

    def _go_on(self, auto: AutomaticFit, epoch: int) -> None:
        """Goes on to the pilot's next part, or to the chain, if it is time."""
        recorder, source = self.recorder, self._preflight.source
        if recorder.chain is not None and auto.pilot.is_due(recorder.total_epochs):
            left = self.params["epochs"] - epoch
            auto.pilot.measure_and_choose(recorder.chain, source, recorder.total_epochs, left)
            self._start_chain()
            self._preflight.new_chain()
            self._make_train_function()
            if auto.pilot.choices is not None and self.params.get("verbose"):
                print(auto.pilot.choices)
        if not recorder.burnin_epochs_left:
            auto.after_burnin(recorder.chain, source, self.params)

    def _start_chain(self) -> None:
        chain = self._settings.make_chain(self.model)
        if self._auto is not None and self._auto.pilot.choices is not None:
            self._auto.pilot.choices.describe(chain, self.recorder)
        self.recorder.start(chain)

"""A Keras callback that turns `model.fit` into a posterior sampler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.adaptation.automatic_fit import Automatic
from tfp_sgmcmc.keras.adaptation.network_pilot import pilot_of
from tfp_sgmcmc.keras.arguments import (
    check_options,
    checked_collection,
    checked_kernel,
    sampling_phases,
)
from tfp_sgmcmc.keras.chain.noise_monitor import noise_monitor
from tfp_sgmcmc.keras.checks.fit_preflight import Preflight
from tfp_sgmcmc.keras.checks.progress_lines import Phase
from tfp_sgmcmc.keras.data.train_function import BatchTrainFunction
from tfp_sgmcmc.keras.fit_result import Access
from tfp_sgmcmc.keras.hooks import Hooks
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.keras.model.priors import check_prior
from tfp_sgmcmc.keras.records.fit_fingerprint import describe_keep
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.keras.records.sample_log import SampleLog, StoredSampleLog, stored_seed
from tfp_sgmcmc.keras.workers.batch_steps import BatchSteps
from tfp_sgmcmc.keras.workers.worker_group import Gang
from tfp_sgmcmc.kernels.base import StepSize


class SamplerCallback(Access, Hooks):
    r"""Samples the posterior of a model's weights by `model.fit`.

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
    regularisers and `add_loss` terms, which Keras adds to a mean, so they count N-fold.

    Metrics, validation, `steps_per_execution`, `jit_compile`, `run_eagerly` and other callbacks
    work as in any `fit`. In the logs, and so in the progress bar, `loss` is Keras' loss. Beside it
    stand `samples` (kept so far, 0 in the burn-in), `step_size` (the largest), `temperature`,
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
    not harm SGLD, but kernels that make up for the covariance of the gradient noise
    (`ModifiedSGLD`, `SGFS`, `SGHMC`, `CCAdL`, `NOGIN`) then make up for more noise than there is,
    and variances come out too small. They refuse such batches before the first step. Give them
    `IndependentBatches`, or `resident` data on a single device. With their `growth`, batches grow
    as in `GrowingBatch`, which itself cannot wrap the target here: the data make the batches.

    On several hosts, under `MultiWorkerMirroredStrategy`, data are `WorkerBatches`. Worker 0 alone
    writes a `directory`, from which all go on; the others then hold the last sample alone. Metrics
    in the logs of a batch are those of one worker, and in the logs of an epoch those of all.

    If the step size changes along the run, `posterior` and `predict` weight samples by their step
    sizes (Welling & Teh 2011, equation 11), unless a `mixing_distance` lies between them. Samples
    of the sampling phases of a `Cyclical` have equal weights, as in Zhang et al. 2020.

    With "auto" for a kernel, the first three quarters of the burn-in's epochs are a pilot. It comes
    down from the model's weights by RMSprop without noise, measures the curvature and the gradient
    noise there, and freezes a diagonal preconditioner. It chooses kernel (`SGLD`,
    `UnderdampedLangevin`, or `NOGIN` if the batches are independent), step size, friction, and what
    the kernel knows of the noise. It tries the choice, looks at the curvature where that leads, and
    chooses again. From there on the chain is an ordinary one. `choices` holds all numbers and says
    them in words. Nine times the curvature would still be stable.

    The noise of batches of n examples along the stiffest directions of a network is about N/n times
    the curvature there. With a small step the chain then hardly moves along flat directions, and
    with a large one it is too hot along stiff ones. "auto" predicts both. A warning says if the fit
    has too few steps for the bound, what the samples will be like, and which batch size or how many
    steps would do; `temperatures` tells whether the prediction holds.

    Layers that behave differently in training do so while sampling. Dropout adds noise to the
    gradient, so the law is not the posterior of the network without dropout; dropout is off in
    `predict`. BatchNormalization normalises by the batch, so the likelihood is not a sum over
    examples; its moving statistics are kept with every sample, and `predict` uses them.

    Examples:
      >>> import keras, numpy as np, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(size=[1000, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> sampler = sgmcmc.keras.SamplerCallback(
      ...     lambda target: sgmcmc.SGLD(target, step_size=1e-3),
      ...     num_examples=1000, prior=tfp.distributions.Normal(0., 1.),
      ...     num_burnin_steps=20, num_steps_between_results=1, seed=0)
      >>> _ = model.fit(x, x[:, :1] > x[:, 1:], epochs=3, batch_size=50, verbose=0,
      ...               callbacks=[sampler])
      >>> [kernel.shape for kernel in sampler.samples]
      [(20, 2, 1), (20, 1)]
      >>> probability, spread = sampler.predict(np.array([[3., -3.], [-3., 3.]], np.float32))
      >>> bool(probability[0] > 0.9), bool(probability[1] < 0.1)
      (True, True)

    Args:
      make_kernel_fn: target -> kernel, such as `lambda target: SGLD(target, step_size=1e-6)`. The
        target estimates the log posterior on one batch. Each trace calls the function anew.
        The name of a kernel, such as "SGLD", takes it with `step_size`. "auto" chooses the kernel,
        in the first three quarters of the `num_burnin_epochs`.
      num_examples: N, the number of training examples without a validation split.
      prior: the prior of the trainable variables. A scalar `tfd` distribution is the prior of every
        single weight. A dict maps patterns of variables' paths (see `by_variable`) to distributions
        or None, such as `{"bias": None, "*/kernel": tfd.Normal(0., 1.)}`; their batch or event
        shapes must fit the variables. A callable maps the list of variables' values to the log
        prior. None leaves the prior to regularisers.
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones, as in `tfp.mcmc.sample_chain`.
      seed: one or two integers; step t draws from `fold_in(seed, t)`. None takes the seed of the
        run in `directory`, or draws one, which `keras.utils.set_random_seed` determines.
      num_chains: C, the number of chains that run side by side on the same batches, each with its
        own start and noise. Samples then have shape `[num_kept, C, ...]`. The model, its logs and
        its validation show the first chain. None samples a single chain without such an axis.
      initial_states: where the chains start, except the first, which starts at the model's weights:
        "initializers" draws from the initializers of the weights, "model" takes the model's
        weights. A list of arrays `[C, ...]`, one for each trainable variable, starts all chains. So
        does a list of C trained models of the same architecture, of paths that `save` or
        `save_weights` wrote, or of `Posterior`s, whose last samples count (MILE, Sommer et al.
        2024), and a `Posterior` with a sample or a chain for each chain, such as `SWAG` draws.
      num_groups: the covariance of the gradient noise is estimated from the scores of this many
        groups of a batch's examples instead of single examples. This takes less time and memory if
        the model has layers other than `Dense`, `Embedding` and convolutions.
      num_burnin_epochs: epochs before the first step that may be kept, in addition.
      sampling_threshold: burn-in lasts until \( \alpha \), the `sampling_threshold` of
        `sgmcmc.diagnostics`, is below this number, such as 0.1. For SGLD and ModifiedSGLD.
      noise_every: steps from one comparison of gradient noise and injected noise to the next, for
        SGLD and ModifiedSGLD. None means 100 with a `sampling_threshold`, and never without.
      keep: step -> whether a state that is due is kept. "sampling" keeps those of the sampling
        phases of the `step_size`, a `Cyclical` (Zhang et al. 2020), as its `is_sampling` does. With
        either, samples have equal weights. With another function they have those of their steps.
      mixing_distance: keeps a state whenever the sum of the step sizes since the end of burn-in
        passes a multiple of this number, as `sgmcmc.diagnostics.indices_by_distance` does. These
        samples have equal weights although steps decrease. It takes the place of
        `num_steps_between_results`. A step larger than the distance counts as the distance.
      directory: where samples are streamed as they come, by `zarr` (`python -m pip install
        "tfp_sgmcmc[results]"`), with everything else that the chain needs, so that the same script,
        run again after whatever stopped it, goes on with the same chain. It goes on from the end of
        an epoch. The chain is the same bit for bit if the order of batches depends on the epoch
        alone, as with `resident` data, `IndependentBatches`, or arrays with `shuffle=False`. A
        changed problem is refused by the name of what changed: data, batches, prior, loss, layers,
        kernel, numbers. Not seen are changes in data that no array holds (files, generators), in
        what `map` does to a `tf.data.Dataset`, and in functions that agree at the few places where
        they are compared. `xarray.open_zarr(directory + "/samples.zarr", group="posterior")` reads
        the samples.
      seconds_between_commits: the time that a crash may cost, in addition to an epoch.
      check_num_examples: whether to check that an epoch of `fit` has N examples.
      max_excess_temperature: with "auto", by how much the chain may be too hot in any direction, as
        a share of the temperature. None keeps to 0.1 where the fit's steps allow it, and takes the
        least bias where they do not.
      independent_batches: what is known of the batches, for kernels that expect independent ones.
        None refuses batches by epochs and batches of unknown kind. True says that they are
        independent. False goes on although they are not.
      step_size: with the name of a kernel, its step size: a number, a schedule, or "learning_rate"
        for the learning rate of the compiled optimizer, as it is. The optimizer's schedule counts
        the steps of the chain; `LearningRateScheduler` and `ReduceLROnPlateau` set it between
        epochs, and a run in a `directory` goes on with the value that it had (`ReduceLROnPlateau`
        begins to wait anew). In a function, `target.learning_rate` is the same: `lambda target:
        UnderdampedLangevin(target, target.learning_rate, friction=10.)`.

    Raises:
      ValueError: numbers out of range. In `fit`: a model that is not compiled, has no trainable
        weights, overrides `train_step` or `compute_loss`, or has constraints; a Keras loss that is
        not a likelihood, such as squared errors; a prior that does not fit the variables; an epoch
        that does not have N examples; dependent batches for a kernel that expects others; outputs
        that are not the probabilities that the loss expects; another problem than the chain's; NaN
        in the initial weights.
      MemoryError: in `fit`, kept states and the kernel's results would not fit into memory.
      OSError: in `fit`, the samples would not fit on the disk of the directory.
      TypeError: arguments of a wrong type. In `fit`: `make_kernel_fn` returns no kernel.
      NonFiniteChainError: in `fit`, the loss, its gradient or a sample became NaN or infinite.
        `samples` holds the samples before. The model is set back to the last of them, or to where
        the chain began.
    """

    def __init__(
        self,
        make_kernel_fn: Callable[[ModelLogProb], tfp.mcmc.TransitionKernel] | str,
        num_examples: int,
        prior: Any,
        num_burnin_steps: int = 0,
        num_steps_between_results: int = 0,
        *,
        seed: Any = None,
        num_chains: int | None = None,
        initial_states: Any = "initializers",
        num_groups: int | None = None,
        num_burnin_epochs: int = 0,
        sampling_threshold: float | None = None,
        noise_every: int | None = None,
        keep: Callable[[tf.Tensor], tf.Tensor] | Literal["sampling"] | None = None,
        mixing_distance: float | None = None,
        directory: str | os.PathLike[str] | None = None,
        seconds_between_commits: float = 10.0,
        check_num_examples: bool = True,
        independent_batches: bool | None = None,
        max_excess_temperature: float | None = None,
        step_size: StepSize | Literal["learning_rate"] | None = None,
    ):
        super().__init__()
        self._make_kernel_fn = checked_kernel(make_kernel_fn, step_size)
        self._num_examples = checks.integer("num_examples", num_examples, 1)
        check_prior(prior)
        self._prior, keep = prior, sampling_phases(keep, step_size)
        self._collection = checked_collection(
            num_burnin_steps,
            num_steps_between_results,
            num_burnin_epochs,
            sampling_threshold,
            keep,
            mixing_distance,
        )
        self._num_burnin_epochs = num_burnin_epochs
        pilot = pilot_of(
            self._make_kernel_fn,
            max_excess_temperature,
            directory,
            num_burnin_epochs,
            sampling_threshold=sampling_threshold,
            noise_every=noise_every,
        )
        self._auto = None if pilot is None else Automatic(pilot, num_burnin_epochs)
        self._monitor = noise_monitor(noise_every, sampling_threshold, num_burnin_steps)
        self._noise = {"sampling_threshold": sampling_threshold, "noise_every": noise_every}
        check_options(
            directory,
            num_chains,
            num_groups,
            seconds_between_commits,
            check_num_examples,
            independent_batches,
        )
        seed = stored_seed(directory) if seed is None else seed
        self._seed = random.as_seed(random.fresh_seed() if seed is None else seed)
        self._num_chains, self._num_groups = num_chains, num_groups
        self._initial_states = initial_states
        fingerprint = {**self.get_config(), **self._noise, "keep": describe_keep(keep)}
        self._recorder = Recorder(
            self._collection,
            SampleLog()
            if directory is None
            else StoredSampleLog(directory, fingerprint, self._num_chains),
            seconds_between_commits,
            num_burnin_epochs,
            self._num_examples if check_num_examples else None,
        )
        self._preflight = Preflight(
            self._num_examples,
            check_num_examples,
            independent_batches,
            self._collection,
            directory,
        )
        self._train_function: BatchTrainFunction | None = None
        self._gang, self._phase = Gang(), Phase()
        self._steps = BatchSteps(self._recorder, self._preflight, self._start_chain)

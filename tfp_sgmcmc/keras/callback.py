"""A Keras callback that turns `model.fit` into a posterior sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics import NonFiniteChainError
from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.keras.chain import Chain, Status
from tfp_sgmcmc.keras.predict import Prediction, Predictor
from tfp_sgmcmc.keras.priors import as_log_prior, check_prior
from tfp_sgmcmc.keras.restore import BatchTrainFunction, calling_list, check_single, guard
from tfp_sgmcmc.keras.samples import Samples, Thinning
from tfp_sgmcmc.keras.target import ModelLogProb

# Reading a variable makes an accelerator wait: while no sample is due, look for NaN this often.
_STEPS_UNSEEN = 100


class SamplerCallback(keras.callbacks.Callback):
    r"""Samples the posterior of a model's weights by `model.fit`.

    Each batch of `fit` becomes one step of a kernel over the trainable variables, with log
    posterior

    \[
    \log p(\theta) - N \sum_k R_k(\theta) - \sum_{i=1}^N w_i\, \ell(y_i, f_\theta(x_i)),
    \]

    whose sum is estimated by N/B times that over a batch of B rows. \( \ell \) is the compiled loss
    as a function of one example, which therefore has to be a negative log likelihood: of Keras' own
    losses the crossentropies and Poisson (their means over outputs count as sums), else
    `NegativeLogLikelihood` or a function such as `0.5 * (y - f)**2 / sigma**2`. Its reduction has
    no influence, `loss_weights`, `sample_weight`, `class_weight` and masks have theirs. \( R_k \)
    are regularisers and `add_loss` terms, which Keras adds to a mean: they count N-fold.

    Metrics, validation, `steps_per_execution`, `jit_compile`, `run_eagerly` and other callbacks
    work as in any `fit`; `loss` in the logs is Keras' own. The optimizer is not used. The model
    carries the chain's last state after `fit`, and another `fit` with the same callback goes on
    from there. Its own training function is back in place after every batch, so that a fit
    that fails or is interrupted leaves a model that trains as before.

    Layers that behave differently in training do so while sampling. Dropout's noise goes into the
    gradient, so the law is not the posterior of the network without dropout; it is off in
    `predict`. BatchNormalization normalises by the batch, so that the likelihood is no sum over
    examples; its moving statistics are kept with every sample, and `predict` uses them.

    #### Example

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
        target estimates the log posterior on one batch; it is called anew in each trace.
      num_examples: N, the number of training examples (without a validation split).
      prior: of the trainable variables: a scalar `tfd` distribution, of every single weight; a
        dict from patterns of variables' paths, as in `by_variable`, to distributions or None, such
        as `{"bias": None, "*/kernel": tfd.Normal(0., 1.)}`, with batch or event shapes that fit
        the variables'; a callable, list of variables' values -> log prior; or None, where
        regularisers say it all.
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones, as in `tfp.mcmc.sample_chain`.
      seed: an integer or two; step t draws from `fold_in(seed, t)`.
      num_chains: C, chains that run side by side on the same batches, each with a start and noise
        of its own; samples then are `[num_kept, C, ...]`. The model itself, and with it logs and
        validation, is that of the first chain. None is one chain, whose samples have no such axis.
      initial_states: where the chains but the first, which starts at the model's weights, start:
        at draws from the "initializers" of the weights, at the weights of the "model", too; or a
        list of arrays `[C, ...]`, one for each trainable variable, for all of them.
      num_groups: for kernels that use the covariance of the gradient noise: it is estimated from
        the scores of so many groups of a batch's examples, and not of single ones, which takes less
        time and memory where a model has layers other than `Dense`, `Embedding` and convolutions.
      check_num_examples: whether an epoch of `fit` is checked to have N examples.

    Raises:
      ValueError: numbers out of range. In `fit`: a model that is not compiled, has no trainable
        weights, overrides `train_step` or `compute_loss`, has constraints, or is distributed; a
        loss of Keras that is no likelihood, as squared errors; a prior that does not fit the
        variables; an epoch that has not N examples; NaN in the initial weights.
      TypeError: arguments of a wrong type; in `fit`, `make_kernel_fn` that returns no kernel.
      NonFiniteChainError: in `fit`, the loss or a sample became NaN or infinite. `samples` holds
        those before; the model is set back to the last of them, or to where the chain began.
    """

    def __init__(
        self,
        make_kernel_fn: Callable[[ModelLogProb], tfp.mcmc.TransitionKernel],
        num_examples: int,
        prior: Any,
        num_burnin_steps: int,
        num_steps_between_results: int = 0,
        *,
        seed: Any,
        num_chains: int | None = None,
        initial_states: Any = "initializers",
        num_groups: int | None = None,
        check_num_examples: bool = True,
    ):
        super().__init__()
        if not callable(make_kernel_fn):
            raise TypeError(
                f"make_kernel_fn is a {type(make_kernel_fn).__name__}; a callable, target -> "
                "kernel, is expected."
            )
        self._make_kernel_fn = make_kernel_fn
        self._num_examples = _integer("num_examples", num_examples, 1)
        check_prior(prior)
        self._prior = prior
        self._thinning = Thinning(
            _integer("num_burnin_steps", num_burnin_steps, 0),
            _integer("num_steps_between_results", num_steps_between_results, 0),
        )
        self._seed = random.as_seed(seed)
        self._num_chains = None if num_chains is None else _integer("num_chains", num_chains, 1)
        self._initial_states = initial_states
        self._num_groups = None if num_groups is None else _integer("num_groups", num_groups, 2)
        self._check_num_examples = check_num_examples
        self._chain: Chain | None = None
        self._train_function: BatchTrainFunction | None = None
        self._failed = False
        self._predictor: tuple[Any, Predictor] | None = None  # compiled, of the last arguments
        self._samples = Samples(self._thinning)
        self._num_unseen = 0  # at most so many steps were taken since the last look
        self._rows_before = 0  # examples seen before this epoch

    @property
    def samples(self) -> list[np.ndarray]:
        """Samples so far, `[num_kept, ...]` for each of `model.trainable_variables`.

        With chains their axis is the second one, `[num_kept, num_chains, ...]`.
        """
        variables = self._chain.variables if self._chain else []
        if not len(self._samples):
            return [np.zeros([0, *self._chains, *v.shape], v.dtype) for v in variables]
        return self._samples.values[: len(variables)]

    @property
    def non_trainable_samples(self) -> dict[str, np.ndarray]:
        """Moving statistics that belong to the samples, shaped as they are, by variable path."""
        if not len(self._samples):
            return {}
        recorded = zip(self._chain.recorded, self._samples.values, strict=True)
        return {v.path: x for v, x in list(recorded)[len(self._chain.variables) :]}

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        activation: Callable[[Any], Any] | str | None = "auto",
    ) -> Prediction:
        """Averages the model's outputs over the posterior samples.

        Averages of logits would be wrong: probabilities are what is averaged. With
        `activation="auto"` outputs get a softmax or sigmoid where the compiled loss is a
        crossentropy object with `from_logits=True`.

        Args:
          x: an array or nest of arrays, `[rows, ...]`.
          batch_size: rows evaluated at once.
          activation: "auto", None (outputs as they are), or a callable on the outputs.

        Raises:
          ValueError: no samples yet; an unknown `activation`.
        """
        return self._predictor_of(activation)(
            self._flat_samples(), x, _integer("batch_size", batch_size, 1)
        )

    def outputs(
        self,
        x: Any,
        batch_size: int = 32,
        activation: Callable[[Any], Any] | str | None = "auto",
    ) -> Any:
        """The model's outputs by each sample, `[num_kept, rows, ...]`.

        With chains `[num_kept, num_chains, rows, ...]`: in this layout `tfp.mcmc` has the R-hat
        and the effective sample size of predictions, as it has those of the weights in `samples`.
        All outputs are in memory at once; `predict` needs only their mean.

        >>> import keras, numpy as np, tensorflow_probability as tfp
        >>> import tfp_sgmcmc as sgmcmc
        >>> x = np.random.default_rng(0).normal(size=[200, 1]).astype(np.float32)
        >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        >>> model.compile(loss=sgmcmc.keras.NegativeLogLikelihood(
        ...     lambda out: tfp.distributions.Normal(out, 1.)), steps_per_execution=5)
        >>> sampler = sgmcmc.keras.SamplerCallback(
        ...     lambda target: sgmcmc.SGLD(target, step_size=1e-3), num_examples=200, prior=None,
        ...     num_burnin_steps=100, seed=0, num_chains=4)
        >>> _ = model.fit(x, 2. * x, batch_size=40, epochs=100, verbose=0, callbacks=[sampler])
        >>> outputs = sampler.outputs(x[:3])
        >>> outputs.shape
        (400, 4, 3, 1)
        >>> r_hat = tfp.mcmc.potential_scale_reduction(outputs, split_chains=True)
        >>> bool(np.max(r_hat) < 1.2)
        True

        Arguments and exceptions are those of `predict`.
        """
        flat = self._predictor_of(activation).outputs(
            self._flat_samples(), x, _integer("batch_size", batch_size, 1)
        )
        if self._num_chains is None:
            return flat
        return keras.tree.map_structure(
            lambda y: y.reshape(-1, self._num_chains, *y.shape[1:]), flat
        )

    def _predictor_of(self, activation: Callable[[Any], Any] | str | None) -> Predictor:
        if not len(self._samples):
            raise ValueError(
                "There are no samples yet; run fit for more than num_burnin_steps = "
                f"{self._thinning.num_burnin_steps} steps (batches) first."
            )
        model = self.model
        key = (activation, model.loss, model.jit_compile, model.run_eagerly)
        if self._predictor is None or self._predictor[0] != key:
            self._predictor = key, Predictor(model, self._chain.recorded, activation)
        return self._predictor[1]

    def _flat_samples(self) -> list[np.ndarray]:
        """`[num_kept * num_chains, ...]` for each recorded variable."""
        values = self._samples.values
        if self._num_chains is None:
            return values
        return [v.reshape(-1, *v.shape[2:]) for v in values]

    @property
    def _chains(self) -> list[int]:
        return [] if self._num_chains is None else [self._num_chains]

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"The Keras backend is {keras.backend.backend()}; tensorflow is expected."
            )
        losses.check_model(model)
        if model.distribute_strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"The model is distributed over {model.distribute_strategy.num_replicas_in_sync} "
                "replicas; a chain runs on one."
            )
        if getattr(model.optimizer, "use_ema", False):
            raise ValueError(
                "The model's optimizer has use_ema=True and would replace the weights by its "
                "averages after fit; the optimizer is not used, compile with any other."
            )
        if self._failed:
            raise ValueError("This callback's chain became NaN or infinite; make a new callback.")
        if self._chain is not None and (
            self._chain.model is not model
            or [id(v) for v in self._chain.variables] != [id(v) for v in model.trainable_variables]
        ):
            raise ValueError(
                "This callback holds samples of another model or of other trainable variables; "
                "make a new callback."
            )
        if model.built and self._chain is None:
            self._start_chain()
        self._callback_list = calling_list()
        self._is_fit = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._check_fit("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._check_fit("predict")

    def _check_fit(self, method: str) -> None:
        if not self._is_fit:
            raise ValueError(f"A SamplerCallback samples in fit; it was given to {method}.")

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_fit = True
        check_single(self._callback_list, type(self))
        compilation = losses.compilation(self.model)
        if self._train_function is None or compilation != self._compilation:
            self._compilation = compilation
            self._train_function = BatchTrainFunction(
                self.model, self._train_step, self._after_execution
            )
        if self._callback_list is not None:
            guard(self._callback_list, "on_train_batch_begin", self._train_function.restore)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._rows_before = self._chain.status().num_rows if self._chain else 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        assert self._train_function is not None  # as of on_train_begin
        self._train_function.install()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._chain is None:
            return
        status = self._look()
        if not self.model.stop_training:
            self._check_rows(status, expected_at_least=self._num_examples)

    def _train_step(self, data: Any) -> Any:
        losses.build(self.model, *keras.utils.unpack_x_y_sample_weight(data))
        if self._chain is None:
            with tf.init_scope():
                self._start_chain()
        return self._chain.step(data)

    def _start_chain(self) -> None:
        self._chain = Chain(
            self.model,
            self._make_kernel_fn,
            self._num_examples,
            as_log_prior(self._prior, self.model),
            self._thinning,
            self._seed,
            self._num_chains,
            self._initial_states,
            self._num_groups,
        )
        self._initial = [(v, v.numpy()) for v in self.model.weights]

    def _after_execution(self) -> None:
        if self._chain is None:  # its first batch failed
            return
        self._num_unseen += self.model.steps_per_execution
        is_long_unseen = self._num_unseen >= _STEPS_UNSEEN or self.model.run_eagerly
        if is_long_unseen or self._samples.are_due(self._num_unseen):
            self._look()

    def _look(self) -> Status:
        """Takes over new samples, and stops the fit if something is wrong."""
        status = self._chain.status()
        self._num_unseen = 0
        loss_is_finite = status.first_bad < 0
        num_steps = status.num_steps if loss_is_finite else status.first_bad
        bad_step = self._samples.take(self._chain.buffers, num_steps)
        if bad_step is not None or not loss_is_finite:
            self._fail(num_steps if bad_step is None else bad_step)
        self._check_rows(status, expected_at_least=0)
        return status

    def _check_rows(self, status: Status, expected_at_least: int) -> None:
        rows = status.num_rows - self._rows_before
        if self._check_num_examples and not expected_at_least <= rows <= self._num_examples:
            so_far = "" if expected_at_least else " so far"
            raise ValueError(
                f"One epoch of fit gave {rows} examples{so_far}, but num_examples is "
                f"{self._num_examples}. N is the number of training examples, without the "
                "validation split; if steps_per_epoch makes an epoch shorter or longer than the "
                "data, pass check_num_examples=False."
            )

    def _fail(self, step: int) -> None:
        self._failed = True
        bad = self._chain.not_finite()
        for variable, value in self._initial:
            variable.assign(value)
        if len(self._samples):
            for variable, values in zip(self._chain.recorded, self._samples.values, strict=True):
                variable.assign(values[-1] if self._num_chains is None else values[-1, 0])
        start = "the last of them" if len(self._samples) else "where the chain began"
        raise NonFiniteChainError(
            f"{bad[0] if bad else 'The loss'} became NaN or infinite by step {step} of the chain. "
            f"The {len(self._samples)} samples before it are in the error's and the callback's "
            f"`samples`; the model is set back to {start}. A smaller step_size is the usual cure.",
            step,
            tuple(bad[:1]),
            self.samples,
        )


def _integer(name: str, value: Any, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; an integer is expected.")
    if value < at_least:
        raise ValueError(f"{name} is {value}; at least {at_least} is expected.")
    return int(value)

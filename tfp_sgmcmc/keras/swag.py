"""SWAG: a normal distribution of the weights along an ordinary training run."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.convergence import RunningMoments
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.data.training_data import initial_epoch_of_fit
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior.batches import Batches, num_rows, tensors
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.storage import npz


class SWAG(keras.callbacks.Callback):
    r"""Fits a normal distribution to the weights that an optimizer passes in `model.fit`.

    With the weights \( \theta_1, \dots, \theta_T \) that are collected and K = min(T, `rank`),

    \[
    \theta \sim N\Big(\bar\theta_T,\; \tfrac12 \big(\Sigma_\mathrm{diag} + \tfrac{1}{K-1}
      \hat D \hat D^\top\big)\Big), \qquad
    \Sigma_\mathrm{diag} = \mathrm{diag}\big(\overline{\theta^2} - \bar\theta_T^2\big),
    \]

    where the columns of \( \hat D \) are the last K deviations \( \theta_i - \bar\theta_i \) from
    the running mean (Maddox et al. 2019, equation 1 and algorithm 1, without the initial weights
    among the collected ones). This is a cheap baseline of a sampler and a start of its chains. It
    describes where the optimizer goes, which depends on its learning rate and batch size: a
    constant, rather large learning rate is usual. `fit` runs as without the callback, with any
    optimizer and loss, and the model keeps the weights that the optimizer leaves.

    Further `fit`s with the same callback continue to collect, and epochs and steps are counted
    over all of them. The moments are in host memory, as 2 numbers of double precision and `rank`
    numbers of the weights' precision for each weight.

    Draws have no moving statistics. For a model with BatchNormalization, `posterior` therefore
    needs inputs, from which it computes the statistics of each draw. Statistics of other layers
    that change in training are refused.

    Examples:
      >>> import keras, numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(size=[256, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
      >>> swag = sgmcmc.keras.SWAG(burn_in=2)
      >>> _ = model.fit(x, x[:, :1] > 0, epochs=6, verbose=0, callbacks=[swag])
      >>> swag.num_collected
      4
      >>> posterior = swag.posterior(10, seed=0)
      >>> [s.shape for s in posterior.samples]
      [(10, 2, 1), (10, 1)]

    Args:
      burn_in: epochs, or steps, before the first whose weights are collected. None is half of those
        of the first `fit`.
      collect_every: collects the weights after every so many epochs, or steps, from there on. With
        `steps_per_execution`, steps end where an execution ends.
      unit: "epochs" or "steps", what `burn_in` and `collect_every` count.
      rank: K, the number of deviations to keep, at least 2. 0 keeps none, so that weights are drawn
        independently. Maddox et al. take 20, and draw from the whole of \( \Sigma_\mathrm{diag} \),
        `scale=1.`, with 0.

    Raises:
      ValueError: a number is out of range. In `fit`: the model has no trainable weights, collected
        weights are not finite, or the callback has collected weights of another model.
      TypeError: a number is not an integer.

    References:
      W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson. A simple baseline for
      Bayesian uncertainty in deep learning. NeurIPS, 2019.
    """

    def __init__(
        self,
        burn_in: int | None = None,
        collect_every: int = 1,
        *,
        unit: Literal["epochs", "steps"] = "epochs",
        rank: int = 20,
    ):
        super().__init__()
        self._burn_in = None if burn_in is None else checks.integer("burn_in", burn_in, 0)
        self._every = checks.integer("collect_every", collect_every, 1)
        self._unit = checks.one_of("unit", unit, ("epochs", "steps"))
        rank = checks.integer("rank", rank, 0)
        checks.require("rank", rank, rank != 1, "0, or at least 2 to have a covariance")
        self._deviations: collections.deque[list[np.ndarray]] = collections.deque(maxlen=rank)
        self._moments: list[RunningMoments] = []  # of each variable
        self._variables: list[keras.Variable] = []
        self._moving: list[tuple[keras.Variable, np.ndarray]] = []  # as first collected
        self._num_seen = self._num_before = 0  # epochs or steps; before this epoch

    @property
    def num_collected(self) -> int:
        """T, the number of weights' values that were collected."""
        return self._moments[0].count if self._moments else 0

    @property
    def mean(self) -> list[np.ndarray]:
        """The mean weights, in double precision, one array for each trainable variable.

        Raises:
          ValueError: nothing has been collected.
        """
        self._check_collected(1)
        return [part.mean for part in self._moments]

    @property
    def variance(self) -> list[np.ndarray]:
        r"""The diagonal of \( \Sigma_\mathrm{diag} \), in the layout of `mean`.

        Raises:
          ValueError: nothing has been collected.
        """
        self._check_collected(1)
        return [part.squares / part.count for part in self._moments]

    @property
    def deviations(self) -> list[np.ndarray]:
        r"""The columns of \( \hat D \), `[K, ...]` for each trainable variable, the oldest first.

        Raises:
          ValueError: nothing has been collected.
        """
        shapes = [(len(self._deviations), *m.shape) for m in self.mean]
        found = enumerate(shapes)
        return [np.reshape([p[i] for p in self._deviations], shape) for i, shape in found]

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if self._variables:
            self._check_variables()

    def on_train_begin(self, logs: Any = None) -> None:
        if self._burn_in is not None:
            return
        params = self.params or {}
        count = params.get("epochs")
        if count is not None:
            count -= initial_epoch_of_fit(self.model)
        if self._unit == "steps":
            steps = params.get("steps")
            count = None if count is None or steps is None else count * steps
        if count is None:
            raise ValueError(
                "burn_in must be an integer where an epoch has no known length. Received: None."
            )
        self._burn_in = count // 2

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._num_before = self._num_seen

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._unit == "steps":
            # The last execution of an epoch may be cut short.
            in_epoch = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
            self._advance(self._num_before + in_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._unit == "epochs":
            self._advance(self._num_seen + 1)

    def posterior(
        self,
        num_samples: int = 30,
        *,
        seed: Any = None,
        scale: float = 0.5,
        x: Any = None,
        batch_size: int | None = None,
    ) -> Posterior:
        r"""Returns draws of the weights as a `Posterior`.

        Args:
          num_samples: the number of draws.
          seed: one or two integers. None draws one, which `keras.utils.set_random_seed` determines.
          scale: the factor of \( \Sigma_\mathrm{diag} + \hat D \hat D^\top / (K - 1) \) in the
            covariance, 1/2 in the paper. At 0 all draws are the mean weights.
          x: the training inputs, for a model with BatchNormalization: an array or nest of arrays
            `[rows, ...]`, or other data that `model.predict` takes. Each draw goes through them
            once. Its moving means and variances are averages over the batches. Dropout is
            on, as in training.
          batch_size: rows of a batch of x, preferably as in training.

        Raises:
          ValueError: fewer than 2 weights were collected, a number is out of range, the model has
            moving statistics and there is no `x`, or other layers than BatchNormalization have
            moving statistics.
          TypeError: an argument is of another type.
        """
        checks.integer("num_samples", num_samples, 1)
        checks.number("scale", scale, "a number of at least 0", lambda s: s >= 0)
        self._check_collected(2)
        statistics = MovingStatistics(self.model)
        self._check_moving(statistics.variables, x is not None)
        seed = random.as_seed(random.fresh_seed() if seed is None else seed)
        data = None if x is None else Batches(self.model, x, batch_size=batch_size, verbose=0)
        samples = self._draws(num_samples, seed, scale)
        if data is not None and statistics.variables:
            samples += statistics(samples, data)
            return Posterior(self.model, [*self._variables, *statistics.variables], samples)
        return Posterior(self.model, self._variables, samples)

    def _draws(self, num_samples: int, seed: tf.Tensor, scale: float) -> list[np.ndarray]:
        r"""Returns draws `[num_samples, ...]` of each part, in the dtypes of the iterates.

        Their mean is `mean`, and their covariance `scale` times \( \Sigma_\mathrm{diag} + \hat D
        \hat D^\top / (K - 1) \), with the deviations as columns of \( \hat D \).
        """
        rank_seed, *seeds = random.split(seed, len(self.mean) + 1)
        num_columns, drawn = len(self._deviations), []
        dtypes = [npz.numpy_dtype(v.dtype) for v in self._variables]
        shared = random.normal((num_samples, num_columns), tf.float32, rank_seed).numpy()
        for i, (mean, variance) in enumerate(zip(self.mean, self.variance, strict=True)):
            dtype = tf.float64 if dtypes[i] == np.float64 else tf.float32
            noise = random.normal((num_samples, *mean.shape), dtype, seeds[i]).numpy()
            noise *= np.sqrt(variance)
            if num_columns:
                columns = np.stack([part[i] for part in self._deviations])
                noise += np.tensordot(shared, columns, axes=1) / math.sqrt(num_columns - 1)
            noise *= math.sqrt(scale)
            drawn.append((noise + mean).astype(dtypes[i]))
        return drawn

    def _advance(self, num_seen: int) -> None:
        """Collects the weights if an epoch or step up to `num_seen` is due."""
        burn_in = self._burn_in or 0
        due = [-(-max(n - burn_in, 0) // self._every) for n in (self._num_seen, num_seen)]
        self._num_seen = num_seen
        if due[1] == due[0]:
            return
        if not self._variables:
            self._variables = list(self.model.trainable_variables)
            others = self.model.non_trainable_variables
            self._moving = [(v, v.numpy()) for v in others if internals.is_floating(v)]
        self._check_variables()
        values = [v.numpy() for v in self._variables]
        for variable, value in zip(self._variables, values, strict=True):
            if not np.isfinite(value).all():
                raise ValueError(
                    f"{variable.path} must be finite where weights are collected. Received: NaN or "
                    f"infinity after {num_seen} {self._unit}. Training has diverged."
                )
        self._moments = self._moments or [RunningMoments() for _ in values]
        for x, part in zip(values, self._moments, strict=True):
            part.add(x[np.newaxis])
        pairs = zip(values, self.mean, strict=True)
        self._deviations.append([(x - mean).astype(x.dtype) for x, mean in pairs])

    def _check_collected(self, least: int) -> None:
        if self.num_collected < least:
            raise ValueError(
                f"SWAG must have collected weights at least {least} times. Received: "
                f"{self.num_collected}, after {self._num_seen} {self._unit} with burn_in="
                f"{self._burn_in} and collect_every={self._every}."
            )

    def _check_variables(self) -> None:
        found = self.model.trainable_variables
        if not found:
            raise ValueError("The model has no trainable weights; there is nothing to collect.")
        if [id(v) for v in found] != [id(v) for v in self._variables]:
            raise ValueError(
                "This callback holds weights of another model or of other trainable variables; "
                "make a new callback."
            )

    def _check_moving(self, known: list[keras.Variable], has_data: bool) -> None:
        if known and not has_data:
            raise ValueError(
                f"x must be the training inputs, because the model has moving statistics, such as "
                f"{known[0].path}, which each draw needs anew. Received: None."
            )
        ids = {id(v) for v in known}
        for variable, value in self._moving:
            if id(variable) not in ids and not np.array_equal(variable.numpy(), value):
                raise ValueError(
                    "The model's moving statistics must be those of BatchNormalization, which SWAG "
                    f"can compute for each draw. Received: {variable.path}, which training changes."
                )


class MovingStatistics:
    """Computes moving means and variances as averages over the batches of data.

    The average weights each batch by its rows. It takes the place of the exponential average that
    training leaves, and is exact for given weights. The model stays as it is.

    Attributes:
      variables: the moving means and variances of the layers that update them in training.

    Args:
      model: a built model.

    Raises:
      ValueError: a layer renormalises, so that its outputs depend on its moving statistics.
    """

    def __init__(self, model: keras.Model):
        normalizations = [
            layer
            for layer in internals.layers(model)
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]
        for layer in normalizations:
            if layer.renorm:
                raise ValueError(
                    f"{layer.path} must have renorm=False, so that its moving statistics can be "
                    "computed for other weights. Received: renorm=True."
                )
        self._model, self._trainable = model, list(model.trainable_variables)
        self.variables: list[keras.Variable] = []
        self._shares: list[float] = []  # of a batch in a new value
        for layer in normalizations:
            self.variables += [layer.moving_mean, layer.moving_variance]
            self._shares += [1 - layer.momentum] * 2
        self._of_batch = tf.function(self._traced, autograph=False)

    def __call__(self, samples: Sequence[np.ndarray], data: Batches) -> list[np.ndarray]:
        """Returns the statistics `[S, ...]` for samples `[S, ...]` of the trainable variables."""
        num_samples = len(samples[0])
        totals = [np.zeros([num_samples, *v.shape]) for v in self.variables]
        rows = 0
        for block, tick in data.blocks():
            for number, (x, _, _) in enumerate(block):
                more, x = num_rows(x), tensors(x)
                rows += more
                for s in range(num_samples):
                    found = self._of_batch([values[s] for values in samples], x)
                    for total, value in zip(totals, found, strict=True):
                        total[s] += more * value.numpy()
                tick((number + 1) / len(block))
        pairs = zip(totals, self.variables, strict=True)
        return [(total / rows).astype(v.dtype) for total, v in pairs]

    def _traced(self, values: list[tf.Tensor], x: Any) -> list[tf.Tensor]:
        # From a value of zero, a new value is the batch's statistic times its share.
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.variables]
        variables = [*self._trainable, *self.variables]
        updates = internals.forward(self._model, variables, [*values, *zeros], x, training=True)
        places = {id(v): i for i, v in enumerate(self._model.non_trainable_variables)}
        found = [updates.updates[places[id(v)]] for v in self.variables]
        return [x / share for x, share in zip(found, self._shares, strict=True)]

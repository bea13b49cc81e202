"""Compares a chain's step size with the largest stable one at its state."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, num_entries
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model.example_scores import count_rows
from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.keras.records.fit_plan import CheckResults
from tfp_sgmcmc.targets.base import GradientEstimate, Target
from tfp_sgmcmc.targets.laplace.curvature import largest_curvature
from tfp_sgmcmc.targets.minibatch import noise_scale
from tfp_sgmcmc.targets.validation.step_size_check import check_approach

_ROWS = 512  # examples that stand for all; the largest eigenvalue needs few
_PARTS = 32  # of them, whose gradients show the noise
_PRODUCTS = 12  # with the Hessian
# A random vector's share in the leading eigenvector is smaller than 1 / (_RARE sqrt(D)) with
# probability 0.03.
_RARE = 30.0


class StabilityCheck:
    """Warns if a chain's step size is above the largest stable one.

    The curvature is estimated by a few products with the Hessian on at most 512 examples, outside
    the compiled step: before the first step, after burn-in, and after 1, 2, 4, 8, ... epochs.
    Nothing is estimated for a kernel without a limit, data that are not visible, or layers without
    second derivatives. There is at most one warning at the start and one later.

    Args:
      results: takes the result of each check, unless nothing was estimated.
    """

    def __init__(self, results: CheckResults):
        self._results = results
        self._has_warned, self._was_burning_in = False, True
        self._target: tuple[Chain, Target] | None = None  # keeps what it has compiled

    def end_fit(self) -> None:
        """Releases the data."""
        self._target = None

    def at_epoch_end(self, chain: Chain, source: Source, total_epochs: int) -> None:
        """Repeats the check if it is due after `total_epochs` epochs."""
        status = chain.state.status()
        is_first_kept = self._was_burning_in and status.num_kept > 0
        self._was_burning_in = not status.num_kept
        is_due = is_first_kept or total_epochs & (total_epochs - 1) == 0
        if is_due and not self._has_warned:
            self._has_warned = self.check(chain, source)

    def check_start(self, chain: Chain, source: Source) -> None:
        """Compares the step with the curvature, and the noise with the distance to the posterior.

        Warns:
          UserWarning: the step is above the largest stable one, or the chain will need long from
            a distant start because of noise.
        """
        self.check(chain, source)
        kernel = chain.kernel_for_one(None)
        batch = source.batch(_ROWS) if hasattr(kernel, "relaxation_steps") else None
        if batch is None or not source.batch_size or source.sizes is not None:
            return  # the noise of growing batches ends with their growth
        rows = count_rows(batch[0]) // _PARTS
        if not rows:
            return
        target, ratio = _Parts(chain, batch, rows), rows / source.batch_size
        with contextlib.suppress(LookupError, NotImplementedError, ValueError, tf.errors.OpError):
            check_approach(kernel, target, chain.first_state(), ratio, stacklevel=2)

    def check(self, chain: Chain, source: Source) -> bool:
        """Compares the step with the curvature at the first chain; returns whether it has warned.

        Warns:
          UserWarning: the step is above the largest stable one.
        """
        if (batch := source.batch(_ROWS)) is None:
            return False
        try:
            if self._target is None or self._target[0] is not chain:
                self._target = chain, chain.target_of_one(batch)
            found = _step_and_limit(chain, self._target[1], batch, source.batch_size)
        except (LookupError, NotImplementedError, ValueError, tf.errors.OpError):
            return False  # no second derivatives, or none that are finite
        if found is None:
            return False
        step_size, limit, curvature, noise = found
        self._results.record("step size", step_size > limit)
        if step_size <= limit:
            return False
        if num_steps := chain.state.status().num_steps:
            place, more = f"after {num_steps} steps", "Make a new chain with a smaller step_size."
        else:
            place, more = "where the chain starts", (
                "If the log posterior is flatter at typical states, a schedule with small first "
                "steps is enough. fit checks again after the first epoch."
            )  # fmt: skip
        warnings.warn(
            f"step_size must be below {limit:.3g} to be stable {place}, where the largest "
            f"curvature of the log posterior is about {curvature:.3g}{noise}. "
            f"Received: {step_size:.3g}. Above it, samples can be finite and wrong. A third of the "
            "limit is a good size. "
            f"{more}",
            stacklevel=2,
        )
        return True


class _Parts(Target):
    """The log posterior on a part of a batch, whose number is the second word of the seed.

    So one graph serves all parts.
    """

    def __init__(self, chain: Chain, batch: Any, rows: int):
        def split(a: tf.Tensor) -> tf.Tensor:
            return tf.reshape(a[: rows * _PARTS], [rows, _PARTS, *a.shape[1:]])

        self._chain, self._parts = chain, map_arrays(split, batch)

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        raise NotImplementedError

    def chain_shape(self, state: State) -> tf.TensorShape:
        return tf.TensorShape([])

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        target = self._chain.target_of_one(map_arrays(lambda a: a[:, seed[1]], self._parts))
        found = target.estimate(state, seed, (), probe, with_scores)
        return found._replace(target_state=target_state)


def _step_and_limit(
    chain: Chain, target: Target, batch: Any, batch_size: int | None
) -> tuple[float, float, float, str] | None:
    """Returns step size, largest stable step, largest curvature and a word on the noise, or None.

    None stands for a kernel without a limit.

    Where the limit also falls with the gradient noise, that of batches of `batch_size` counts.
    If a cheap upper bound of the curvature already allows the step, the result uses this bound.
    """
    kernel = chain.kernel_for_one(batch)
    if not hasattr(kernel, "largest_stable_step"):
        return None
    step = tf.constant(chain.state.status().num_steps, tf.int64)
    everywhere, results = chain.state.read(), chain.state.read_results()
    one, state = chain.state.num_chains is None, chain.first_state()
    sizes = tf.nest.flatten(results.step_size)
    step_size = min(float(np.min(s)) for s in sizes)  # variables with larger steps may be flat

    noise, word = {}, ""
    if hasattr(kernel, "largest_noise") and batch_size:
        scale = noise_scale(chain.num_examples, batch_size, replacement=False)
        noise["largest_noise"] = kernel.largest_noise(state, scale, num_minibatches=1)
        if np.max(noise["largest_noise"]):
            word = (
                ", and the largest eigenvalue of Sigma about "
                f"{np.max(noise['largest_noise']):.3g}, which sets no limit with scheme='midpoint'"
            )

    def limit(curvature: float) -> float:
        return float(np.min(kernel.largest_stable_step(curvature, int(step), results, **noise)))

    def metric(vector: State) -> State:
        if one:
            return kernel.metric_product(vector, state, results)
        spread = [tf.broadcast_to(v, x.shape) for v, x in zip(vector, everywhere, strict=True)]
        return [x[0] for x in kernel.metric_product(spread, everywhere, results)]

    if math.isinf(limit(1.0)):
        return None
    bound = _bound(target, state, metric)
    if step_size <= limit(bound):
        return step_size, limit(bound), bound, word
    curvature = largest_curvature(target, state, metric=metric, num_iterations=_PRODUCTS)
    return step_size, limit(curvature), curvature, word


def _bound(target: Target, state: State, metric: Any) -> float:
    """Returns an upper bound of the largest eigenvalue of M H, which holds with high probability.

    It takes two products. Most step sizes are so far below the limit that this is enough.
    """
    generator = np.random.RandomState(0)
    vector = [tf.constant(generator.standard_normal(x.shape), x.dtype) for x in state]
    size = num_entries(state)
    norms = [float(tf.linalg.global_norm(vector))]
    for _ in range(2):
        found = target.estimate(state, tf.zeros([2], tf.int32), probe=vector).hessian_product
        vector = metric(found)
        norms.append(float(tf.linalg.global_norm(vector)))
    if not np.isfinite(norms).all():
        raise ValueError("The second derivatives must be finite. Received: NaN or infinity.")
    return math.sqrt(_RARE * math.sqrt(size) * norms[-1] / norms[0])

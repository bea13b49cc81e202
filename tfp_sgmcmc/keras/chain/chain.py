"""The chains inside `fit`, with the step that Keras compiles instead of its training step."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState
from tfp_sgmcmc.covariance.base import covariance_states
from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.internal.checks import a_type, accepts
from tfp_sgmcmc.keras.chain.chain_state import ChainState, Status
from tfp_sgmcmc.keras.chain.collection import Collection, NoiseMonitor, RingBuffer
from tfp_sgmcmc.keras.chain.initial_states import (
    are_members,
    check_shared,
    member_values,
    stacked_starts,
    values_for_chains,
)
from tfp_sgmcmc.keras.data.fit_batches import ResidentData
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.example_scores import ExampleScores, known_rows
from tfp_sgmcmc.keras.model.log_prob import (
    BatchEvaluation,
    LearningRate,
    ModelLogProb,
    RowsOfChains,
)
from tfp_sgmcmc.keras.model.priors import LogPrior
from tfp_sgmcmc.kernels.base import setting_at
from tfp_sgmcmc.sampling.run_fingerprint import describe_kernel
from tfp_sgmcmc.targets.base import FullDataLogProb, Target

_NO_ESTIMATE = (
    "The kernel must use estimates of the target that `kernel` is given, and its results "
    "must hold the estimate's target_state, from which fit takes the forward pass. Received: {}, "
    "without an estimate of this target."
)


def check_variables(variables: list[keras.Variable]) -> None:
    """Raises ValueError if there are no variables, or one cannot be sampled."""
    if not variables:
        raise ValueError("The model has no trainable weights; there is nothing to sample.")
    for v in variables:
        if v.constraint is not None:
            raise ValueError(
                f"{v.path} must have no constraint, because a chain would violate it. Received: "
                f"{v.constraint!r}. Remove it, and use the prior to express what is known of the "
                "weights."
            )
        if v.dtype in ("bfloat16", "float16"):
            raise ValueError(
                f"{v.path} must be of float32 or float64. Received: {v.dtype}, which would "
                "round most of a chain's small steps away. With the dtype policy "
                f"'mixed_{v.dtype}', layers compute in {v.dtype} and variables have float32."
            )


def check_same_variables(chain: Chain, model: keras.Model) -> None:
    """Raises ValueError unless a chain samples the trainable variables of a model."""
    variables = [id(v) for v in model.trainable_variables]
    if chain.model is not model or [id(v) for v in chain.state.variables] != variables:
        raise ValueError(
            "The model and its trainable variables must be those that this callback has sampled. "
            "Received: another model, or other trainable variables. Make a new callback."
        )


class Chain:
    """Chains over a model's trainable variables, which take one step for each batch.

    Attributes:
      state: the variables that a step changes.
      rings: the states to keep, on the device.
      uses_noise_covariance: whether the kernel corrects for the covariance of the gradient noise;
        known once the first batch has come.
      num_groups: see `SamplerCallback`.
      kernel_description: values that identify the kernel; empty in a pilot.
      role: "chain", or "descent" and "trial" in a pilot, which chooses the kernel. A trial may
        become NaN or infinite.
      log_prior_fn: list of values -> log prior.
      num_examples: N.
      follows_learning_rate: whether the kernel uses the optimizer's learning rate.

    Args:
      model: a compiled and built model.
      log_prior_fn: list of values -> log prior.
      collection: selects the states to keep.
      monitor: monitor of the gradient noise.
      rows_of_chains: which rows of the data each chain sees; None shows all of them to all chains.
      scale_starts: changes the states that come from initializers; None leaves them.
      make_kernel_fn, num_examples, seed, num_chains, initial_states, num_groups: see
        `SamplerCallback`.

    Raises:
      ValueError: invalid `initial_states`, or a kernel over another target.
      TypeError: `make_kernel_fn` returns no kernel.
    """

    def __init__(
        self,
        model: keras.Model,
        make_kernel_fn: Callable[[ModelLogProb], tfp.mcmc.TransitionKernel],
        num_examples: int,
        log_prior_fn: LogPrior,
        collection: Collection,
        seed: tf.Tensor,
        num_chains: int | None = None,
        initial_states: Any = "initializers",
        num_groups: int | None = None,
        monitor: NoiseMonitor | None = None,
        role: Literal["chain", "descent", "trial"] = "chain",
        rows_of_chains: RowsOfChains | None = None,
        scale_starts: Callable[[list[tf.Tensor]], list[tf.Tensor]] | None = None,
    ):
        self.log_prior_fn, self.role, self.num_examples = log_prior_fn, role, num_examples
        self.model, self._make_kernel_fn = model, make_kernel_fn
        self._seed, self._monitor = seed.numpy(), monitor
        self._make_target = functools.partial(
            ModelLogProb, model, num_examples, log_prior_fn, num_chains=num_chains,
            rows_of_chains=rows_of_chains,
        )  # fmt: skip
        target = self._make_target()
        accepts("kernel", make_kernel_fn, target)
        kernel = _checked(make_kernel_fn(target))
        description = describe_kernel(kernel)
        self._temperature = getattr(kernel, "parameters", {}).get("temperature", 1.0)
        self.kernel_description = {} if self.is_pilot else description
        self.follows_learning_rate = "learning_rate" in vars(target)  # which the kernel has read
        self._scores, self.uses_noise_covariance = ExampleScores(model, num_groups), False
        self.num_groups = num_groups
        starts: list[tf.Tensor] = []
        self._members: dict[int, np.ndarray] = {}  # moving statistics, by id of the variable
        if num_chains is not None:
            variables = list(model.trainable_variables)
            if are_members(initial_states):
                self._members = member_values(model, initial_states, num_chains)
                initial_states = [self._members.pop(id(v)) for v in variables]
            starts = stacked_starts(model, variables, num_chains, initial_states, self._start_seed)
            if scale_starts is not None:
                starts = scale_starts(starts)
        with model.distribute_strategy.scope():
            self.rings = RingBuffer(collection)
        monitored = [] if monitor is None else [monitor.alpha, monitor.share]
        monitored = (*monitored, *self.rings.travelled)
        self.state = ChainState(model, num_chains, starts, collection.first, monitored)
        if self.follows_learning_rate:  # of the optimizer that was compiled last
            self.state.learning_rate = lambda: LearningRate(model).variable

    def steps(self, data: ResidentData, num_steps: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes many steps on batches drawn from resident data; returns the logs after the last."""

        def step(i: tf.Tensor) -> list[tf.Tensor]:
            batch = data.batch(self.state.read_status().num_steps)
            self.step(batch, is_resident=True)
            return [i + 1]

        start = [tf.zeros([], tf.int64)]
        tf.while_loop(lambda i: i < num_steps, step, start, parallel_iterations=1)
        metrics, num_kept = self.model.get_metrics_result(), self.state.read_status().num_kept
        return self._logs(metrics, self.state.read_results(), num_kept)

    def step(
        self, batch: tuple[Any, Any, Any], is_resident: bool = False, total_rows: Any = None
    ) -> dict[str, tf.Tensor]:
        """Takes one step on a batch, instead of `model.train_step`; returns the logs.

        Metrics in the logs are summed over all replicas. With `total_rows`, the number of rows of
        the batch on all replicas, they are the metrics of this replica alone.
        """
        model, (x, y, sample_weight) = self.model, batch
        target = self._target(batch, total_rows=total_rows)
        status, before = self.state.read_status(), self.state.read()
        seed = random.fold_in(tf.constant(self._seed), status.num_steps)
        kernel = self._make_kernel_fn(target)
        after, results = kernel.one_step(before, self.state.read_results(), seed=seed)
        evaluation, results = _take_evaluation(results)
        shown = self._shown(evaluation.forward)
        loss = internals.reported_loss(model, y, shown, sample_weight, target.local_rows)
        figures = [evaluation.log_prob, getattr(results, "gradient_norm", evaluation.log_prob)]
        if replicas.count() == 1:  # several replicas have different losses
            figures.append(loss)
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(f)) for f in figures])
        # The dependence on `before` lets XLA write in place. Without it, XLA copies the state.
        after = [tf.where(is_finite, new, old) for new, old in zip(after, before, strict=True)]
        updates = evaluation.forward.updates
        moved = [
            *zip(self.state.variables, after, strict=True),
            *((model.non_trainable_variables[i], new) for i, new in updates.items()),
        ]
        # Data of unknown length end with a step without a batch, which must not count.
        with tf.control_dependencies([is_finite]):
            self.state.move(moved, results)
        first_kept = status.first_kept
        if self._monitor is not None:
            first_kept = self._monitor.update(target, kernel, before, results, seed, first_kept)
        kept = [(v, new) for v, new in moved if internals.is_floating(v)]
        epsilon = _largest(getattr(results, "step_size", math.nan))
        num_kept = self.rings.write(status.num_steps, epsilon, kept, first_kept, status.num_kept)
        bad = tf.where(is_finite, tf.constant(-1, tf.int64), status.num_steps)
        if tf.executing_eagerly() and not all(np.isfinite(new).all() for new in after):
            bad = status.num_steps + 1  # before the next kernel refuses the state
        self.state.write_status(
            Status(
                num_steps=status.num_steps + 1,
                first_bad=tf.where(status.first_bad < 0, bad, status.first_bad),
                num_rows=status.num_rows + tf.cast(0 if is_resident else target.num_rows, tf.int64),
                first_kept=first_kept,
                num_kept=num_kept,
            )
        )
        metrics = model.compute_metrics(x, y, shown.outputs, sample_weight=sample_weight)
        if replicas.count() > 1 and total_rows is None:
            metrics = internals.metrics_result(model)
        return self._logs(metrics, results, num_kept)

    def create(self, x: Any) -> None:
        """Creates the variables whose shapes depend on a batch's inputs or their specification."""
        state = self.state
        if state.num_chains is not None and state.others is None:
            with tf.init_scope():
                others = internals.changed_by_call(self.model, x)
                check_shared(self.model, self._members, others)
                values = values_for_chains(
                    others, state.num_chains, self._start_seed, self._members
                )
                state.create_others(others, values)
        if not state.has_run:
            # Not in an init_scope if eager: there a kernel's gradient tapes do not record.
            with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
                kernel = self._make_kernel_fn(self._target(None, known_rows(x)))
                results = kernel.bootstrap_results(state.read())
                self.uses_noise_covariance = bool(_covariance_states(results))
                state.create_results(results)

    def create_rings(self, x: Any) -> None:
        """Creates the ring buffers before the first step writes to them."""
        shape = self.state.chain_shape
        specs = [(v, tf.TensorSpec([*shape, *v.shape], v.dtype)) for v in self.recorded(x)]
        self.rings.create(specs)

    def recorded(self, x: Any) -> list[keras.Variable]:
        """Returns the variables whose values make a sample, as the first step finds them."""
        if not self.rings.recorded:
            self.rings.recorded = recorded_variables(self.model, x, self.state.others)
        return self.rings.recorded

    def temperature(self, step: int) -> float:
        """Returns the kernel's temperature at a step, the mean over parts and chains."""
        values = [
            setting_at(t, tf.constant(step, tf.int64)) for t in tf.nest.flatten(self._temperature)
        ]
        return float(np.mean([np.mean(x) for x in values]))

    def first_state(self) -> list[tf.Tensor]:
        """Returns the state of the first chain."""
        state = self.state.read()
        return state if self.state.num_chains is None else [x[0] for x in state]

    def num_skipped(self) -> int:
        """Returns the number of minibatches that the covariance has skipped."""
        found = _covariance_states(self.state.read_results())
        return max((int(np.max(x.num_skipped)) for x in found), default=0)

    @property
    def is_pilot(self) -> bool:
        """Whether the chain belongs to a pilot, which chooses the kernel."""
        return self.role != "chain"

    @property
    def num_variables(self) -> int:
        """D, the number of weights that are sampled."""
        return sum(math.prod(v.shape) for v in self.state.variables)

    def results_size(self) -> tuple[int, bool]:
        """Returns the bytes of the kernel's results, and whether a part of them is D x D.

        Allocates nothing.
        """
        kernel = self._make_kernel_fn(self._target(None))
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in self.state.read()]
        traced = tf.function(kernel.bootstrap_results, autograph=False).get_concrete_function(specs)
        parts = [x for x in tf.nest.flatten(traced.structured_outputs) if hasattr(x, "shape")]
        size = sum(x.dtype.size * (x.shape.num_elements() or 0) for x in parts)
        return size, any(x.shape[-2:] == [self.num_variables] * 2 for x in parts)

    def target_of_one(self, batch: Any) -> ModelLogProb:
        """Returns the log posterior of a single chain on a batch."""
        return self._make_target(batch, num_chains=None)

    def kernel_for_one(self, batch: Any) -> tfp.mcmc.TransitionKernel:
        """Returns the kernel over the log posterior of a single chain."""
        return self._make_kernel_fn(self.target_of_one(batch))

    def _target(
        self, batch: Any, num_rows: int | None = None, total_rows: Any = None
    ) -> ModelLogProb:
        return self._make_target(
            batch,
            others=self.state.read_others(),
            scores=self._scores,
            num_rows=num_rows,
            total_rows=total_rows,
        )

    def _shown(self, forward: internals.Forward) -> internals.Forward:
        """Returns the first chain's forward pass, from which the logs are computed."""
        if self.state.num_chains is not None:
            forward = tf.nest.map_structure(lambda x: x[0], forward)
        return forward._replace(outputs=internals.with_marks(forward.outputs, forward.marks))

    def _logs(
        self, metrics: dict[str, tf.Tensor], results: Any, num_kept: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns metrics, samples, largest step size, temperatures, and the monitored noise."""
        logs = {**metrics, "samples": num_kept}
        if hasattr(results, "step_size"):
            logs["step_size"] = _largest(results.step_size)
        if hasattr(results, "temperature"):
            logs["temperature"] = tf.cast(_largest(results.temperature), tf.float32)
        if hasattr(results, "kinetic_temperature"):
            logs["kinetic_temperature"] = tf.reduce_mean(results.kinetic_temperature)
        return logs if self._monitor is None else {**logs, **self._monitor.logs()}

    @property
    def _start_seed(self) -> tf.Tensor:
        return random.fold_in(tf.constant(self._seed), -1)  # no step has this number


def _checked(kernel: Any) -> tfp.mcmc.TransitionKernel:
    """Returns the kernel; raises TypeError or ValueError unless it estimates a target."""
    if not isinstance(kernel, tfp.mcmc.TransitionKernel):
        raise TypeError(
            "kernel must return a tfp.mcmc.TransitionKernel over the target that it was "
            f"given. Received: {a_type(kernel)}."
        )
    given = getattr(kernel, "parameters", {}).get("target_log_prob_fn")
    if given is not None and (isinstance(given, FullDataLogProb) or not isinstance(given, Target)):
        raise ValueError(_NO_ESTIMATE.format(type(kernel).__name__))
    return kernel


def _covariance_states(results: Any) -> list[CovarianceState]:
    """Returns the states of the covariance of the gradient noise in a kernel's results."""
    return [x for x in covariance_states(results) if tf.nest.flatten(list(x.averages))]


def _take_evaluation(results: Any) -> tuple[BatchEvaluation, Any]:
    """Returns the target's evaluation in a kernel's results, and the results without it."""
    found: list[BatchEvaluation] = []

    def take(x: Any) -> Any:
        if not isinstance(x, BatchEvaluation):
            return None  # look inside
        found.append(x)
        return ()

    rest = tree.traverse(take, results)
    if not found:
        raise ValueError(_NO_ESTIMATE.format(f"results of type {type(results).__name__}"))
    return found[-1], rest


def recorded_variables(
    model: keras.Model, x: Any, others: list[keras.Variable] | None = None
) -> list[keras.Variable]:
    """Returns the variables whose values make a sample.

    Args:
      model: a built model.
      x: a batch of inputs, or its specification.
      others: the non-trainable variables that a step changes; None determines them.
    """
    if others is None:
        may_change = any(map(internals.is_floating, model.non_trainable_variables))
        others = internals.changed_by_call(model, x) if may_change else []
    return [v for v in [*model.trainable_variables, *others] if internals.is_floating(v)]


def _largest(numbers: Any) -> tf.Tensor:
    return tf.reduce_max(tf.stack([tf.reduce_max(x) for x in tf.nest.flatten(numbers)]))

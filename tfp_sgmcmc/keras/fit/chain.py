"""The chain inside `fit`: its variables, and the step that Keras compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.keras.fit.initial_states import own_values, stacked_starts
from tfp_sgmcmc.keras.fit.monitor import NoiseMonitor, scalars
from tfp_sgmcmc.keras.fit.packing import PackedVariables
from tfp_sgmcmc.keras.fit.resident_data import ResidentData
from tfp_sgmcmc.keras.fit.ring_buffer import Collection, Rings
from tfp_sgmcmc.keras.model import internals, replicas
from tfp_sgmcmc.keras.model.example_scores import ExampleScores, count_rows, known_rows
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.keras.model.priors import LogPrior
from tfp_sgmcmc.storage.checkpoint import Checkpoint
from tfp_sgmcmc.storage.fingerprint import describe_kernel
from tfp_sgmcmc.targets.base import FullDataLogProb, Target

_NO_ESTIMATE = (
    "The kernel takes steps without an estimate from the target it was given; make_kernel_fn is "
    "expected to pass its argument to the kernel."
)


class Status(NamedTuple):
    """What the host reads after an execution.

    Attributes:
      num_steps: steps taken.
      first_bad: number of steps before the first loss or gradient that is NaN or infinite; -1
        without one.
      num_rows: examples that `fit` has brought; none of those that are resident.
      first_kept: the first step to keep.
      num_kept: states kept so far.
    """

    num_steps: Any
    first_bad: Any
    num_rows: Any
    first_kept: Any
    num_kept: Any


def check_variables(variables: list[keras.Variable]) -> None:
    """Raises ValueError for variables that cannot be sampled, or where there are none."""
    if not variables:
        raise ValueError("The model has no trainable weights; there is nothing to sample.")
    for v in variables:
        if v.constraint is not None:
            raise ValueError(
                f"{v.path} has the constraint {v.constraint!r}, which a chain would leave; "
                "remove it and say what is known of the weights by the prior."
            )
        if v.dtype in ("bfloat16", "float16"):
            raise ValueError(
                f"{v.path} is of {v.dtype}, which would round most of a chain's small steps away; "
                f"with the dtype policy 'mixed_{v.dtype}' layers compute in {v.dtype}, and "
                "variables are of float32."
            )


class Chain:
    """Chains over a model's trainable variables; all that changes is in `tf.Variable`s.

    The model's own variables hold the state: of a single chain all of it, of several that of the
    first one, beside variables `[num_chains, ...]` that hold it for all. States to keep are written
    to `rings`.

    Args:
      model: compiled, built.
      make_kernel_fn: target -> kernel.
      num_examples: N.
      log_prior_fn: list of values -> log prior.
      collection: which states are kept.
      seed: of the whole chain; step t draws from `fold_in(seed, t)`.
      num_chains: C, or None for a single chain whose samples have no axis of chains.
      initial_states: where the chains start; see `stacked_starts`.
      num_groups: of the examples' scores; see `ExampleScores`.
      monitor: of the gradient noise.

    Raises:
      ValueError: unfit `initial_states`; a kernel of another target.
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
    ):
        self.model, self.variables = model, list(model.trainable_variables)
        self.num_chains = num_chains
        self._make_kernel_fn, self._num_examples = make_kernel_fn, num_examples
        self._log_prior_fn, self._seed = log_prior_fn, seed.numpy()
        # With several chains, the values of all of them, by id of the variable.
        self._stacked: dict[int, tf.Variable] = {}
        self._others: list[keras.Variable] | None = None  # known when the first batch comes
        self._scores, self._monitor = ExampleScores(model, num_groups), monitor
        self._restored: Checkpoint | None = None
        # Known when the first batch comes, whose rows they depend on.
        self._results: PackedVariables | None = None
        self.uses_scores = False
        kernel = make_kernel_fn(self._target(None))
        if not isinstance(kernel, tfp.mcmc.TransitionKernel):
            raise TypeError(
                f"make_kernel_fn returned a {type(kernel).__name__}; a "
                "tfp.mcmc.TransitionKernel over the target it was given is expected."
            )
        own = getattr(kernel, "parameters", {}).get("target_log_prob_fn")
        if own is not None and (isinstance(own, FullDataLogProb) or not isinstance(own, Target)):
            raise ValueError(_NO_ESTIMATE)
        self.kernel_description = describe_kernel(kernel)
        with model.distribute_strategy.scope():  # each replica has a copy of what changes
            if num_chains is not None:
                starts = stacked_starts(
                    model, self.variables, num_chains, initial_states, self._start_seed
                )
                self._stack(self.variables, starts)
            elif not isinstance(initial_states, str):
                raise ValueError(
                    "initial_states is given, but num_chains is not; a single chain starts at the "
                    "model's weights."
                )
            self._status = tf.Variable(
                Status(0, -1, 0, collection.first, 0), trainable=False, dtype=tf.int64
            )
            self.rings = Rings(collection)

    def status(self) -> Status:
        return Status(*self._status.numpy().tolist())

    def keep_from(self, step: int) -> None:
        """Sets the first step to keep."""
        self._status.assign(self.status()._replace(first_kept=step))

    @property
    def chain_shape(self) -> list[int]:
        return [] if self.num_chains is None else [self.num_chains]

    @property
    def has_run(self) -> bool:
        """Whether there was a first step."""
        return self._results is not None

    @property
    def is_new(self) -> bool:
        """Whether it has taken no step, here or in a run that it goes on from."""
        return not self.has_run and self._restored is None

    @property
    def results(self) -> Any:
        """Of the last step, as NumPy arrays; None before the first."""
        return None if self._results is None else self._results.numpy()

    def saved(self) -> dict[str, Any]:
        """All that changes, once a step was taken, as nests of variables for `restore`."""
        return {**self._early(), "others": self._own(self._others), "results": self.results}

    def restore(self, saved: Checkpoint, recorded: list[keras.Variable]) -> None:
        """Takes over what `saved` returned; of what the first batch makes, when that comes.

        Raises:
          ValueError: other variables, shapes or dtypes.
        """
        self._restored, self.rings.recorded = saved, recorded
        self._take_over(self._early())

    def _early(self) -> dict[str, Any]:
        """What there is before the first batch."""
        monitor = () if self._monitor is None else (self._monitor.alpha, self._monitor.share)
        return {
            "weights": [v.value for v in self.model.variables],
            "stacked": self._own(self.variables),
            "monitor": monitor,
            "status": self._status,
        }

    def _own(self, variables: list[keras.Variable] | None) -> list[tf.Variable]:
        """The values of several chains."""
        return [] if self.num_chains is None else [self._stacked[id(v)] for v in variables or ()]

    def _take_over(self, nests: dict[str, Any]) -> None:
        if self._restored is None:
            return
        for name, nest in nests.items():
            values = self._restored.restore(f"chain[{name!r}]", nest)
            tf.nest.map_structure(lambda v, x: v.assign(x), nest, values)

    def not_finite(self) -> list[str]:
        """Paths of the variables that have become NaN or infinite in a chain."""
        pairs = zip(self.variables, self._state(), strict=True)
        return [v.path for v, x in pairs if not np.isfinite(x).all()]

    def steps(self, data: ResidentData, num_steps: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes many steps at once, on batches drawn here; returns the logs after the last."""

        def step(i: tf.Tensor) -> list[tf.Tensor]:
            batch = data.batch(self._status.read_value()[0])
            self._take_step(batch, is_resident=True)
            return [i + 1]

        tf.while_loop(
            lambda i: i < num_steps, step, [tf.zeros([], tf.int64)], parallel_iterations=1
        )
        return self._logs(self.model.get_metrics_result())

    def step(self, batch: tuple[Any, Any, Any]) -> dict[str, tf.Tensor]:
        """In place of `model.train_step`: one step of the kernel on one batch."""
        return self._logs(self._take_step(batch))

    def _take_step(
        self, batch: tuple[Any, Any, Any], is_resident: bool = False
    ) -> dict[str, tf.Tensor]:
        model = self.model
        x, y, sample_weight = batch
        rows = count_rows(x)
        self._create(x)
        target = self._target(batch)
        status = Status(*tf.unstack(self._status.read_value()))
        seed = random.fold_in(tf.constant(self._seed), status.num_steps)
        kernel, before = self._make_kernel_fn(target), self._state()
        assert self._results is not None  # as of _create
        results = self._results.read()
        state, results = kernel.one_step(before, results, seed=seed)
        self.uses_scores = target.gave_scores
        evaluated = target.evaluated
        if evaluated is None:
            raise ValueError(_NO_ESTIMATE)
        shown = self._first(evaluated)
        loss = internals.reported_loss(model, y, shown, sample_weight, rows)
        seen = [loss, target.log_prob, *_norms(results)]
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in seen])
        # It also tells XLA that all of the old state was read before the new one is written in
        # its place: else it makes a copy first.
        state = [tf.where(is_finite, x, old) for x, old in zip(state, before, strict=True)]
        moved = [*zip(self.variables, state, strict=True), *evaluated.updates]
        self._move(moved)
        self._results.assign(results)
        first = status.first_kept
        if self._monitor is not None:
            other = self._target(batch)
            first = self._monitor.update(other, kernel, before, results, seed, first)
        num_kept = self.rings.write(
            status.num_steps,
            [(v, x) for v, x in moved if _is_kept(v)],
            first,
            status.num_kept,
        )
        bad = tf.where(is_finite, tf.constant(-1, tf.int64), status.num_steps)
        if tf.executing_eagerly() and not all(np.isfinite(x).all() for x in state):
            bad = status.num_steps + 1  # kernels refuse such a state before its loss is known
        self._status.assign(
            [
                status.num_steps + 1,
                tf.where(status.first_bad < 0, bad, status.first_bad),
                status.num_rows + tf.cast(0 if is_resident else target.num_rows, tf.int64),
                first,
                num_kept,
            ]
        )
        metrics = model.compute_metrics(x, y, shown.outputs, sample_weight=sample_weight)
        return metrics if replicas.count() == 1 else replicas.metrics_result(model)

    def prepare(self, x: Any) -> None:
        """Creates all that the first step would create, of the specification of its inputs."""
        self._create(x)
        self.rings.create(
            [
                (v, tf.TensorSpec([*self.chain_shape, *v.shape], v.dtype))
                for v in self.rings.recorded or self._recorded(x)
            ]
        )

    def _recorded(self, x: Any) -> list[keras.Variable]:
        """Those whose values make a sample, as the first step will find."""
        others = self._others
        if others is None:
            may_change = any(map(_is_kept, self.model.non_trainable_variables))
            others = internals.changed_by_call(self.model, x) if may_change else []
        return [v for v in [*self.variables, *others] if _is_kept(v)]

    def _create(self, x: Any) -> None:
        """Creates what can be known only when the first batch, or its specification, is there."""
        if self.num_chains is not None and self._others is None:
            with tf.init_scope():
                self._others = internals.changed_by_call(self.model, x)
                values = own_values(self._others, self.num_chains, self._start_seed)
                self._stack(self._others, values)
                self._take_over({"others": self._own(self._others)})
        if self._results is None:
            # In an init_scope, tapes of a kernel that wants a gradient here do not record.
            with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
                kernel = self._make_kernel_fn(self._target(None, known_rows(x)))
                self._results = PackedVariables(kernel.bootstrap_results(self._state()))
                if self._restored is not None:
                    like = self._results.numpy()
                    self._results.assign(self._restored.restore("chain['results']", like))
            self._restored = None  # all of it is in variables

    def _logs(self, metrics: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        kernel = self._make_kernel_fn(self._target(None))
        results = () if self._results is None else self._results.read()
        noise = {} if self._monitor is None else self._monitor.logs()
        return {**metrics, **scalars(kernel, results), **noise}

    @property
    def _start_seed(self) -> tf.Tensor:
        return random.fold_in(tf.constant(self._seed), -1)  # no step's

    def _stack(self, variables: list[keras.Variable], values: list[tf.Tensor]) -> None:
        for variable, value in zip(variables, values, strict=True):
            self._stacked[id(variable)] = tf.Variable(value, trainable=False)

    def _target(self, batch: Any, num_rows: Any = None) -> ModelLogProb:
        others = [(v, self._stacked[id(v)].read_value()) for v in self._others or ()]
        return ModelLogProb(
            self.model,
            self._num_examples,
            self._log_prior_fn,
            batch,
            self.num_chains,
            others,
            self._scores,
            num_rows,
        )

    def _state(self) -> list[tf.Tensor]:
        if self.num_chains is None:
            # Keras returns the variables themselves, whose values will have changed.
            return [tf.convert_to_tensor(v.value) for v in self.variables]
        return [self._stacked[id(v)].read_value() for v in self.variables]

    def _move(self, moved: list[tuple[keras.Variable, tf.Tensor]]) -> None:
        for variable, value in moved:
            if self.num_chains is not None:
                self._stacked[id(variable)].assign(value)
                value = value[0]
            variable.assign(value)

    def _first(self, evaluated: internals.Forward) -> internals.Forward:
        """What the model itself shows: its only chain's forward pass, or the first one's."""
        if self.num_chains is None:
            return evaluated
        outputs, marks = tf.nest.map_structure(lambda x: x[0], (evaluated.outputs, evaluated.marks))
        return evaluated._replace(
            outputs=internals.with_marks(outputs, marks),
            losses=[x[0] for x in evaluated.losses],
            metrics=[(v, x[0]) for v, x in evaluated.metrics],
        )


def _is_kept(variable: keras.Variable) -> bool:
    return variable.dtype.startswith(("float", "bfloat"))


def _norms(results: Any) -> list[tf.Tensor]:
    """The gradient's norm, of kernels that tell it."""
    return [results.gradient_norm] if hasattr(results, "gradient_norm") else []

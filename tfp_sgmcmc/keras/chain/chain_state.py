"""All that changes in the course of a chain, in `tf.Variable`s on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.chain.packing import PackedVariables
from tfp_sgmcmc.keras.distributed import replica_context
from tfp_sgmcmc.storage.checkpoint import Checkpoint


class Status(NamedTuple):
    """The numbers that the host reads after an execution.

    Attributes:
      num_steps: steps taken.
      first_bad: number of steps before the first loss or gradient that is NaN or infinite; -1 if
        there was none.
      num_rows: examples that `fit` has brought. Resident examples do not count.
      first_kept: the first step whose state may be kept.
      num_kept: states kept so far.
    """

    num_steps: Any
    first_bad: Any
    num_rows: Any
    first_kept: Any
    num_kept: Any


class ChainState:
    """The variables that hold the chains' states, the kernel's results and the status.

    A single chain lives in the model's variables. If there are several chains, further variables
    `[num_chains, ...]` hold all of them, and the model's variables hold the first.

    Attributes:
      variables: the model's trainable variables.
      others: the non-trainable variables that have a value for each chain. None until the first
        batch shows which they are.
      learning_rate: returns the optimizer's variable that gives the step size, or None.

    Args:
      model, num_chains, first_kept: see `Chain` and `Status`.
      starts: first values of the trainable variables, `[C, ...]` each. Only with `num_chains`.
      monitored: variables of the noise monitor and of the collection, which are saved as well.
    """

    def __init__(
        self,
        model: keras.Model,
        num_chains: int | None,
        starts: Sequence[tf.Tensor],
        first_kept: int,
        monitored: tuple[tf.Variable, ...],
    ):
        self.model, self.variables = model, list(model.trainable_variables)
        self.num_chains = num_chains
        self.others: list[keras.Variable] | None = None
        self.learning_rate: Callable[[], keras.Variable | None] = lambda: None
        self._stacked: dict[int, tf.Variable] = {}  # by id of the Keras variable
        self._monitored = monitored
        self._restored: Checkpoint | None = None
        self._results: PackedVariables | None = None  # their shapes depend on the first batch
        with model.distribute_strategy.scope():  # each replica has a copy
            if num_chains is not None:
                self._stack(self.variables, starts)
            self._status = tf.Variable(
                Status(0, -1, 0, first_kept, 0), trainable=False, dtype=tf.int64
            )

    @property
    def chain_shape(self) -> list[int]:
        return [] if self.num_chains is None else [self.num_chains]

    @property
    def has_run(self) -> bool:
        """Whether the first step has been prepared."""
        return self._results is not None

    @property
    def is_new(self) -> bool:
        """Whether no step was taken, neither here nor in a restored run."""
        return self._restored is None and self.status().num_steps == 0

    @property
    def results(self) -> Any:
        """The kernel's results after the last step, as NumPy arrays; None before the first."""
        return None if self._results is None else self._results.numpy()

    def status(self) -> Status:
        """Returns the status as Python integers."""
        return Status(*self._status.numpy().tolist())

    def keep_from(self, step: int) -> None:
        """Sets the first step whose state may be kept."""
        self._status.assign(self.status()._replace(first_kept=step))

    # Read and written by the compiled step.

    def read_status(self) -> Status:
        return Status(*tf.unstack(self._status.read_value()))

    def read(self) -> list[tf.Tensor]:
        """Returns the state: the trainable variables' values, with an axis of chains if any."""
        if self.num_chains is None:
            # Keras returns the variables themselves, whose values change later.
            return [tf.convert_to_tensor(v.value) for v in self.variables]
        return self._values(self.variables)

    def read_others(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the non-trainable variables that have a value for each chain, with the values."""
        others = self.others or []
        return list(zip(others, self._values(others), strict=True))

    def read_results(self) -> Any:
        """Returns the kernel's results after the last step, `()` before the first."""
        return () if self._results is None else self._results.read()

    def move(self, moved: Sequence[tuple[keras.Variable, tf.Tensor]], results: Any) -> None:
        """Writes what a step left: the variables' new values, and the kernel's results."""
        for variable, value in moved:
            if self.num_chains is not None:
                self._stacked[id(variable)].assign(value)
                value = value[0]
            variable.assign(value)
        assert self._results is not None  # made before the first step
        self._results.assign(results)

    def write_status(self, status: Status) -> None:
        self._status.assign(list(status))

    # Made when the first batch shows the shapes.

    def create_others(self, variables: list[keras.Variable], values: Sequence[tf.Tensor]) -> None:
        """Creates the values of non-trainable variables for each chain."""
        self.others = variables
        self._stack(variables, values)
        self._take_over({"others": self._stacked_variables(variables)})

    def create_results(self, first: Any) -> None:
        """Creates the variables of the kernel's results, from the results before the first step."""
        self._results = PackedVariables(first)
        if self._restored is not None:
            saved = self._restored.restore("chain['results']", self._results.numpy())
            self._results.assign(saved)
        self._restored = None  # all of it is in variables now

    # Saved and restored.

    def saved(self) -> dict[str, Any]:
        """Returns all that changes as nests of variables and arrays, once a step was taken."""
        others = self._stacked_variables(self.others or [])
        early = tf.nest.map_structure(replica_context.on_this_process, self._early())
        return {**early, "others": others, "results": self.results}

    def restore(self, saved: Checkpoint) -> None:
        """Takes over what `saved` returned; values that need the first batch follow with it.

        Raises:
          ValueError: the checkpoint has other variables, shapes or dtypes.
        """
        self._restored = saved
        self._take_over(self._early())

    def not_finite(self) -> list[str]:
        """Returns the paths of the variables that are NaN or infinite in a chain."""
        pairs = zip(self.variables, self.read(), strict=True)
        return [v.path for v, x in pairs if not np.isfinite(x).all()]

    def _early(self) -> dict[str, Any]:
        """Returns what exists before the first batch."""
        rate = self.learning_rate()
        return {
            **({} if rate is None else {"learning_rate": rate.value}),
            "weights": [v.value for v in self.model.variables],
            "stacked": self._stacked_variables(self.variables),
            "monitor": self._monitored,
            "status": self._status,
        }

    def _take_over(self, nests: dict[str, Any]) -> None:
        if self._restored is None:
            return
        for name, nest in nests.items():
            values = self._restored.restore(f"chain[{name!r}]", nest)
            tf.nest.map_structure(lambda v, x: v.assign(x), nest, values)

    def _stack(self, variables: list[keras.Variable], values: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(variables, values, strict=True):
            self._stacked[id(variable)] = tf.Variable(value, trainable=False)

    def _stacked_variables(self, variables: list[keras.Variable]) -> list[tf.Variable]:
        return [] if self.num_chains is None else [self._stacked[id(v)] for v in variables]

    def _values(self, variables: list[keras.Variable]) -> list[tf.Tensor]:
        return [self._stacked[id(v)].read_value() for v in variables]

"""The variables on the device that a chain changes, packed where they are small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import Packing
from tfp_sgmcmc.storage.checkpoint import Checkpoint


class Status(NamedTuple):
    """The numbers that the host reads after an execution.

    Attributes:
      num_steps: steps taken.
      first_bad: steps before the first loss or gradient that is NaN or infinite; -1 for none.
      num_rows: examples that `fit` has delivered, without resident examples.
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

    A single chain lives in the model's variables. Several chains live in further variables
    `[num_chains, ...]`, and the model's variables hold the first chain.

    Attributes:
      variables: the model's trainable variables.
      others: the non-trainable variables that have a value for each chain. None until the first
        batch is known.
      learning_rate: returns the optimizer's variable that sets the step size, or None.

    Args:
      model, num_chains, first_kept: see `Chain` and `Status`.
      starts: initial values of the trainable variables, `[C, ...]` each. Empty for one chain.
      monitored: variables of the noise monitor and of the ring buffer, which are saved as well.
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
        """Whether no step was taken, here or in a restored run."""
        return self._restored is None and self.status().num_steps == 0

    @property
    def results(self) -> Any:
        """The kernel's results after the last step, as NumPy arrays; None before the first."""
        return None if self._results is None else self._results.numpy()

    def status(self) -> Status:
        """Returns the status as Python integers."""
        return Status(*self._status.numpy().tolist())

    def mark(self) -> tuple[int, list[float]] | None:
        """Returns the number of steps, and numbers that change with the model's weights.

        None with several chains, whose states are not the model's weights.
        """
        if self.num_chains is not None:
            return None
        sums = [float(tf.reduce_sum(tf.abs(x))) for x in self.read()]
        return self.status().num_steps, np.nan_to_num(sums).tolist()  # which equal themselves

    # Read and written by the compiled step.

    def read_status(self) -> Status:
        return Status(*tf.unstack(self._status.read_value()))

    def read(self) -> list[tf.Tensor]:
        """Returns the values of the trainable variables, with an axis of chains if there is one."""
        if self.num_chains is None:
            # Keras returns the variables themselves, whose values change later.
            return [tf.convert_to_tensor(v.value) for v in self.variables]
        return self._values(self.variables)

    def read_others(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the non-trainable variables with a value for each chain, and these values."""
        others = self.others or []
        return list(zip(others, self._values(others), strict=True))

    def read_results(self) -> Any:
        """Returns the kernel's results after the last step, `()` before the first."""
        return () if self._results is None else self._results.read()

    def move(self, moved: Sequence[tuple[keras.Variable, tf.Tensor]], results: Any) -> None:
        """Writes the variables' values after a step, and the kernel's results."""
        for variable, value in moved:
            if self.num_chains is not None:
                self._stacked[id(variable)].assign(value)
                value = value[0]
            variable.assign(value)
        assert self._results is not None  # made before the first step
        self._results.assign(results)

    def write_status(self, status: Status) -> None:
        """Writes numbers or tensors."""
        self._status.assign(list(status))

    # Created when the first batch shows the shapes.

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
        """Returns the whole state as nests of variables and arrays, once a step was taken."""
        others = self._stacked_variables(self.others or [])
        early = tf.nest.map_structure(_on_this_process, self._early())
        return {**early, "others": others, "results": self.results}

    def restore(self, saved: Checkpoint) -> None:
        """Restores what `saved` returned. Values that need the first batch are restored with it.

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
        """Returns the variables that exist before the first batch."""
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


class PackedVariables:
    """Variables that hold a nest of tensors with known shapes.

    Numbers of `int32` are kept as `int64`: TensorFlow has variables of `int32` in the memory of the
    host alone, where steps that XLA compiles for a GPU cannot read them.
    """

    def __init__(self, nest: Any):
        leaves = [tf.convert_to_tensor(x) for x in tf.nest.flatten(nest)]
        # Only the structure, because tensors would stay in memory beside the variables.
        self._like = tf.nest.map_structure(lambda x: 0, nest)
        self._dtypes = [x.dtype for x in leaves]
        leaves = self._kept(leaves)
        self._packing = Packing(leaves)
        self._variables = [tf.Variable(x, trainable=False) for x in self._packing.pack(leaves)]

    def read(self) -> Any:
        return self._nest([v.read_value() for v in self._variables])

    def numpy(self) -> Any:
        return self._nest([v.numpy() for v in self._variables])

    def assign(self, nest: Any) -> None:
        leaves = self._kept([tf.convert_to_tensor(x) for x in tf.nest.flatten(nest)])
        for variable, value in zip(self._variables, self._packing.pack(leaves), strict=True):
            variable.assign(value)

    @staticmethod
    def _kept(leaves: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.cast(x, tf.int64) if x.dtype == tf.int32 else x for x in leaves]

    def _nest(self, packed: Sequence[Any]) -> Any:
        leaves = zip(self._packing.unpack(packed), self._dtypes, strict=True)
        given = [x if x.dtype == dtype else _as_dtype(x, dtype) for x, dtype in leaves]
        return tf.nest.pack_sequence_as(self._like, given)


def _as_dtype(x: Any, dtype: tf.DType) -> Any:
    return tf.cast(x, dtype) if tf.is_tensor(x) else x.astype(dtype.as_numpy_dtype)


def _on_this_process(variable: Any) -> Any:
    """Returns the first replica's copy of a variable in this process.

    Reading a metric's variable itself would sum it over all workers, which must then all read it.
    """
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return variable.values[0] if is_distributed else variable

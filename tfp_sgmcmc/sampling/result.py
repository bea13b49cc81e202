"""The result of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tree

from tfp_sgmcmc.internal.arviz_import import import_arviz
from tfp_sgmcmc.storage.stored_draws import Variable
from tfp_sgmcmc.storage.zarr_store import LIBRARY


class Timings(NamedTuple):
    """The times of a run.

    Attributes:
      compile_seconds: time for tracing and compiling.
      seconds: time for taking steps and keeping draws.
      steps_per_second: steps a second of this call; NaN without a step.
    """

    compile_seconds: float
    seconds: float
    steps_per_second: float


class Kept(NamedTuple):
    """The group, the name, and the form of one draw of an array of draws."""

    group: str
    name: str
    variable: Variable


def kept_arrays(kept: Any, chain_shape: tuple[int, ...]) -> list[Kept]:
    """Returns names and forms for the state, trace and step size that a `Loop` keeps.

    An array whose shape begins with the shape of the chains has a value for each chain.
    """
    states, trace, step_size = kept
    stats, sizes = variable_names(trace, "trace"), variable_names(step_size, "step_size")
    sizes = [f"{name}.used" if name in stats else name for name in sizes]
    groups = ["posterior"] * len(tree.flatten(states)) + ["sample_stats"] * len(stats + sizes)
    names = [*variable_names(states, "state"), *stats, *sizes]
    ndims = len(chain_shape)
    found = []
    for group, name, spec in zip(groups, names, tree.flatten(kept), strict=True):
        shape = tuple(spec.shape)
        chain_ndims = ndims if shape[:ndims] == chain_shape else None
        found.append(Kept(group, name, Variable(shape, spec.dtype.name, chain_ndims)))
    return found


def variable_names(nest: Any, root: str) -> list[str]:
    """Returns names that ArviZ and zarr allow for the leaves, in the order of `tf.nest.flatten`.

    >>> variable_names({"w": [1, 2], "b": {"x/y": 3}}, "state")
    ['b.x.y', 'w.0', 'w.1']
    >>> variable_names([1, 2], "state"), variable_names(1, "state")
    (['state.0', 'state.1'], ['state'])

    Raises:
      ValueError: two leaves have the same name.
    """
    names = []
    for path, _ in tree.flatten_with_path(nest):
        keys = [str(key).replace("/", ".").replace("\\", ".") for key in path]
        is_named = path and isinstance(path[0], str)
        names.append(".".join(keys if is_named else [root, *keys]))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two arrays are named {twice[0]!r}. Give the parts other keys.")
    return names


@dataclasses.dataclass(frozen=True, repr=False)
class SampleResult:
    """The draws of a run, and its settings, times and flags.

    Attributes:
      states: the draws, in the structure of the state, `[num_results, chains..., event...]`: NumPy
        arrays, or with a directory arrays that read only what is indexed (`np.asarray` reads all).
      trace: what `trace_fn` returned, in arrays as in `states`; None without `trace_fn`.
      weights: step sizes, for averages weighted by them, `[num_results, ...]`; None if the kernel's
        results have no `step_size`.
      is_complete: False if Ctrl-C ended the run before all draws were taken.
      final_state: the chain's last state.
      final_kernel_results: the kernel's last results.
      timings: the times that the call took.
      directory: the directory with the draws, or None.
      kernel: the kernel of the run.
      seed: two integers, with which the run can be repeated.
      bijector: maps the kernel's states to the draws of `sample`, which are constrained if the
        target has a bijector. None for `sample_chain`, which keeps the states.
      choices: the settings that `sample` chose, which can be printed; None for `sample_chain`.
      explanation: what `sample` did and why, in a few lines; empty for `sample_chain`.
      flags: sentences about what is wrong with the draws or cannot be promised.
    """

    states: Any
    trace: Any
    weights: Any
    is_complete: bool
    final_state: Any
    final_kernel_results: Any
    timings: Timings
    directory: Path | None
    kernel: Any
    seed: tuple[int, int]
    _kept: Sequence[Kept]
    _attributes: dict[str, Any]
    bijector: Any = None
    choices: Any = None
    explanation: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def is_trusted(self) -> bool | None:
        """Whether `sample` found nothing wrong with its draws; None for `sample_chain`."""
        return None if self.choices is None else not self.flags

    @property
    def num_results(self) -> int:
        return len(tree.flatten(self.states)[0])

    def __repr__(self) -> str:
        """Returns a line for each array, because the arrays would fill pages."""
        state = "complete" if self.is_complete else "interrupted"
        where = "" if self.directory is None else f", in {self.directory}"
        arrays = [
            f"  {group}/{name}: {variable.dtype} {[self.num_results, *variable.shape]}"
            for group, name, variable in self._kept
        ]
        lines = [f"  - {line}" for line in self.explanation]
        lines += [f"  - not to be trusted: {line}" for line in self.flags]
        first = f"SampleResult: {self.num_results} results, {state}{where}"
        return "\n".join([first, *arrays, *lines])

    def _leaves(self) -> list[Any]:
        """Returns all arrays, in the order of `_kept`."""
        trace = () if self.trace is None else self.trace
        weights = () if self.weights is None else self.weights
        return tree.flatten((self.states, trace, weights))

    def named_draws(self) -> dict[str, np.ndarray]:
        """Returns the draws by the names of `to_inference_data`, `[draws, chains, event...]`."""
        found = {}
        for (_, name, variable), x in zip(self._kept, tree.flatten(self.states), strict=False):
            rows = variable.flatten_chains(np.asarray(x, variable.stored_dtype))
            found[name] = np.moveaxis(rows, 0, 1)
        return found

    def to_inference_data(self) -> Any:
        """Returns an `arviz.InferenceData` with groups `posterior` and `sample_stats`.

        Arrays are named by the keys of their nests, such as `w.kernel` or `state.0`. Draws in a
        directory are read on use.

        Raises:
          ModuleNotFoundError: ArviZ and xarray are not installed.
        """
        arviz = import_arviz()
        import xarray

        if self.directory is not None:
            for x in self._leaves():
                x.verify()  # xarray reads zeros for missing files
            read = xarray.open_datatree(self.directory / "samples.zarr", engine="zarr")
            groups: dict[str, Any] = {
                name: group.to_dataset().isel(draw=slice(self.num_results))
                for name, group in read.children.items()
            }
            return arviz.InferenceData(**groups)
        variables: dict[str, dict[str, Any]] = {}
        for (group, name, variable), x in zip(self._kept, self._leaves(), strict=True):
            x = np.asarray(x, variable.stored_dtype)
            entry = variable.dimensions(name), variable.flatten_chains(x)
            variables.setdefault(group, {})[name] = entry
        groups = dict[str, Any]()
        for group, members in variables.items():
            data = xarray.Dataset(members, attrs={**LIBRARY, **self._attributes})
            axes = {"chain", "draw"} & set(data.sizes)
            groups[group] = data.assign_coords({a: np.arange(data.sizes[a]) for a in axes})
        return arviz.InferenceData(**groups)

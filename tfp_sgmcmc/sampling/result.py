"""What a run returns."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tree

from tfp_sgmcmc import __version__
from tfp_sgmcmc.storage.names import variable_names
from tfp_sgmcmc.storage.store import Variable, dimensions, flatten_chains


class Timings(NamedTuple):
    """Where the time of this call went.

    Attributes:
      compile_seconds: tracing and compiling.
      seconds: taking steps, and keeping what they gave.
      steps_per_second: of this call; NaN where it took no step.
    """

    compile_seconds: float
    seconds: float
    steps_per_second: float


class Kept(NamedTuple):
    """An array of which each draw is kept: where, under which name, and its form."""

    group: str
    name: str
    variable: Variable


def kept_arrays(kept: Any, chain_shape: tuple[int, ...]) -> list[Kept]:
    """Names and forms for what `Loop` keeps: state, trace and step size, as TensorSpecs.

    An array of several chains is one whose shape begins with that of the chains.
    """
    states, trace, step_size = kept
    stats = variable_names(trace, "trace")
    sizes = [
        name if name not in stats else f"{name}.used"
        for name in variable_names(step_size, "step_size")
    ]
    groups = ["posterior"] * len(tree.flatten(states)) + ["sample_stats"] * len(stats + sizes)
    names = [*variable_names(states, "state"), *stats, *sizes]
    ndims = len(chain_shape)

    def form(spec: Any) -> Variable:
        shape = tuple(spec.shape)
        return Variable(shape, spec.dtype.name, ndims if shape[:ndims] == chain_shape else None)

    forms = [form(spec) for spec in tree.flatten(kept)]
    return [Kept(*entry) for entry in zip(groups, names, forms, strict=True)]


@dataclasses.dataclass(frozen=True, repr=False)
class SampleResult:
    """Draws, and how they came about.

    Attributes:
      states: the draws, in the structure of the state, `[num_results, chains..., event...]`: NumPy
        arrays, or where a directory was given arrays that read what is indexed (`np.asarray` reads
        all).
      trace: what `trace_fn` returned, likewise; None without one.
      weights: step sizes, for averages weighted by them, `[num_results, ...]`; None where the
        kernel's results have no `step_size`.
      is_complete: False after Ctrl-C: then there are fewer draws than asked for.
      final_state: of the chain.
      final_kernel_results: likewise.
      timings: seconds.
      directory: where the draws are, or None.
    """

    states: Any
    trace: Any
    weights: Any
    is_complete: bool
    final_state: Any
    final_kernel_results: Any
    timings: Timings
    directory: Path | None
    _kept: Sequence[Kept]
    _attributes: dict[str, Any]

    @property
    def num_results(self) -> int:
        return len(tree.flatten(self.states)[0])

    def __repr__(self) -> str:
        """A line for each array; the arrays themselves would fill pages."""
        state = "complete" if self.is_complete else "interrupted"
        where = "" if self.directory is None else f", in {self.directory}"
        arrays = [
            f"  {group}/{name}: {variable.dtype} {[self.num_results, *variable.shape]}"
            for group, name, variable in self._kept
        ]
        return "\n".join([f"SampleResult: {self.num_results} results, {state}{where}", *arrays])

    def to_inference_data(self) -> Any:
        """Returns an `arviz.InferenceData` with groups `posterior` and `sample_stats`.

        Arrays are named by the keys of their nests: `w.kernel`, `state.0`. Draws in a directory
        are read when they are used.

        Raises:
          ModuleNotFoundError: ArviZ and xarray are not installed.
        """
        try:
            import xarray

            with warnings.catch_warnings():
                # ArviZ 0.23 says at its import that 1.0 will be another package.
                warnings.simplefilter("ignore", FutureWarning)
                import arviz
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_inference_data needs ArviZ and xarray: "
                'python -m pip install "tfp_sgmcmc[results]"'
            ) from error
        if self.directory is not None:
            read = xarray.open_datatree(self.directory / "samples.zarr", engine="zarr")
            groups: dict[str, Any] = {
                name: group.to_dataset().isel(draw=slice(self.num_results))
                for name, group in read.children.items()
            }
            return arviz.InferenceData(**groups)
        attributes = {
            "inference_library": "tfp_sgmcmc",
            "inference_library_version": __version__,
            **self._attributes,
        }
        trace = () if self.trace is None else self.trace
        weights = () if self.weights is None else self.weights
        leaves = tree.flatten((self.states, trace, weights))
        variables: dict[str, dict[str, Any]] = {}
        for (group, name, variable), x in zip(self._kept, leaves, strict=True):
            x = np.asarray(x, variable.stored_dtype)
            entry = dimensions(name, variable), flatten_chains(x, variable)
            variables.setdefault(group, {})[name] = entry
        groups = {
            group: _with_coordinates(xarray.Dataset(members, attrs=attributes))
            for group, members in variables.items()
        }
        return arviz.InferenceData(**groups)


def _with_coordinates(data: Any) -> Any:
    sizes = {name: data.sizes[name] for name in ("chain", "draw") if name in data.sizes}
    return data.assign_coords({name: np.arange(size) for name, size in sizes.items()})

"""Packages that only extras install: ArviZ, for `results`, and Matplotlib, for `plots`."""

from __future__ import annotations

import functools
import importlib
import io
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np


def import_arviz(needed_by: str = "to_inference_data") -> ModuleType:
    """Returns the module `arviz`.

    Raises:
      ModuleNotFoundError: ArviZ is not installed; the message begins with `needed_by`.
    """
    with warnings.catch_warnings():
        # The import of version 0 warns that the interface of ArviZ is going to change.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except ImportError as error:
            raise ModuleNotFoundError(
                f"{needed_by} needs ArviZ and xarray. Install them by "
                'python -m pip install "tfp_sgmcmc[results]"'
            ) from error
    return arviz


def inference_data(groups: Mapping[str, Any]) -> Any:
    """Returns what ArviZ works on: an `xarray.DataTree`, for version 0 an `InferenceData`.

    Args:
      groups: an `xarray.Dataset` with the dimensions chain and draw for each name.
    """
    arviz = import_arviz()
    import xarray

    found = xarray.DataTree.from_dict(dict(groups))
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData.from_datatree(found)
    return found


def as_dataset(arrays: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> Any:
    """Returns arrays as an `xarray.Dataset` with coordinates, as ArviZ expects it.

    Args:
      arrays: pairs (names of the dimensions, array), or arrays `[chain, draw, ...]`, by name.
      attributes: attributes of the dataset.
    """
    import_arviz()
    import xarray

    variables = {}
    for name, entry in arrays.items():
        if not isinstance(entry, tuple):
            entry = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(entry.ndim - 2))), entry
        variables[name] = entry
    return with_coordinates(xarray.Dataset(variables, attrs=dict(attributes or {})))


def with_coordinates(data: Any) -> Any:
    """Returns a dataset whose dimensions all have coordinates, numbers from 0."""
    return data.assign_coords({axis: range(size) for axis, size in data.sizes.items()})


def pareto_smoothed(log_ratios: Any, efficiency: float) -> tuple[Any, Any]:
    """Returns normalised log weights by Pareto-smoothed importance sampling, and shapes k.

    Args:
      log_ratios: logarithms of the importance ratios, `[..., draws]`.
      efficiency: effective sample size of the draws, divided by their number.

    Returns:
      `[..., draws]` and `[...]`.

    References:
      A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry. Pareto smoothed importance sampling.
      Journal of Machine Learning Research 25(72), 2024.
    """
    arviz = import_arviz("loo")
    if arviz.__version__.startswith("0."):
        return arviz.psislw(log_ratios, efficiency)
    stats = importlib.import_module("arviz_stats.base")  # version 0 has no such package
    # Version 1 takes log likelihoods, whose negatives are the log ratios.
    return stats.array_stats.psislw(-np.asarray(log_ratios), r_eff=efficiency)


def import_figure(needed_by: str = "plot") -> Any:
    """Returns a class of matplotlib figures that notebooks show.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{needed_by} needs matplotlib. Install it by python -m pip install "tfp_sgmcmc[plots]"'
        ) from error
    return _result_figure(Figure)


@functools.cache
def _result_figure(base: Any) -> Any:
    class ResultFigure(base):
        """A figure that a notebook shows, also where nothing has imported `pyplot`."""

        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            self.savefig(png, format="png")
            return png.getvalue()

    return ResultFigure

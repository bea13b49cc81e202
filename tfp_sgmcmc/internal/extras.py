"""Packages that only extras install, and calls that an executor makes in other processes.

ArviZ is for `results` and Matplotlib for `plots`. A call travels as bytes, which only the process
that makes it unpacks: an engine's scheduler unpickles what it passes on, and in this form a call
makes it import neither the function's module nor TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import pickle
import time
import warnings
from collections.abc import Generator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tfp_sgmcmc.internal.checks import a_type

_PATIENCE_SECONDS, _LOOK_SECONDS = 60.0, 5.0


@contextlib.contextmanager
def advised(message: str) -> Generator[None]:
    """Raises ModuleNotFoundError with `message` if an import within it finds no package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(message) from error


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
    install = 'python -m pip install "tfp_sgmcmc[plots]"'
    with advised(f"{needed_by} needs matplotlib. Install it by {install}"):
        from matplotlib.figure import Figure
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


def pack_call(name: str, function: Any, *arguments: Any) -> bytes:
    """Returns a call as bytes for `make_call`.

    >>> make_call(pack_call("make_kernel", divmod, 7, 2))
    (3, 1)

    Args:
      name: the name of the user's function among the arguments, for messages.
      function: a function of a module.
      arguments: its arguments, which may hold lambdas and local functions if cloudpickle is
        installed, as it is with dask.

    Raises:
      TypeError: the arguments cannot be sent to another process.
    """
    has_cloudpickle = importlib.util.find_spec("cloudpickle") is not None
    try:
        if has_cloudpickle:
            import cloudpickle

            return cloudpickle.dumps((function, arguments))
        return pickle.dumps((function, arguments))
    except Exception as error:  # an object that is captured may raise anything
        advice = (
            "Let the function load or make there what it captures."
            if has_cloudpickle
            else "Define it at the top of a module that workers can import, or install cloudpickle "
            "(python -m pip install cloudpickle), which sends lambdas and local functions as well."
        )
        raise TypeError(
            f"{name} must be a function that can be sent to the workers of an executor. Received: "
            f"one for which pickle says: {str(error).rstrip('.')}. {advice}"
        ) from error


def make_call(packed: bytes) -> Any:
    """Makes a call of `pack_call`, and returns what it returns."""
    function, arguments = pickle.loads(packed)
    return function(*arguments)


def check_executor(executor: Any) -> None:
    """Raises an error unless an executor is None or has a method `submit` and does not fork.

    A forked process never ends its first TensorFlow operation.

    Raises:
      TypeError: it has no such method.
      ValueError: it forks this process.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must have a method submit(function, argument), such as an executor of "
            "concurrent.futures or a Client of dask.distributed (python -m pip install "
            f'"tfp_sgmcmc[distributed]"). Received: {a_type(executor)}.'
        )
    context = getattr(executor, "_mp_context", None)  # of a ProcessPoolExecutor
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "executor must start processes of its own, because TensorFlow hangs in a process that "
            "was forked: ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')). "
            "Received: one whose processes are forks."
        )


def submit_call(executor: Any, call: bytes) -> Any:
    """Returns the future of a call of `pack_call`."""
    # dask would compute two equal calls only once, and cache the result.
    options = {"pure": False} if type(executor).__module__.startswith("distributed.") else {}
    return executor.submit(make_call, call, **options)


class Workers:
    """Warns once if an executor, a client of dask, has had no worker for a minute.

    dask closes workers for good that it does not find again in time after they died. When the last
    one is closed, what was submitted waits without end.
    """

    def __init__(self, executor: Any):
        self._info = getattr(executor, "scheduler_info", None)  # no other executor tells
        self._seen = self._looked = time.monotonic()

    def look(self) -> None:
        """Asks for the workers, every five seconds at most."""
        now = time.monotonic()
        if self._info is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if self._info()["workers"]:
            self._seen = now
        elif now - self._seen > _PATIENCE_SECONDS:
            self._info = None
            warnings.warn(
                "The workers of the executor must be alive. Received: a cluster that has had none "
                f"for {now - self._seen:.0f} seconds, so that this call waits. dask closes a "
                "worker for good that it does not find again in time after it died (its setting "
                "distributed.deploy.lost-worker-timeout). Start workers, as by cluster.scale(2), "
                "and the call goes on; or interrupt it. What is in a directory is kept.",
                stacklevel=2,
            )

    def result_of(self, future: Any) -> Any:
        """Waits for the result of a future, and looks meanwhile."""
        while self._info is not None:
            try:
                return future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if future.done():  # just now, or it is what the call raised
                    break
                self.look()
        return future.result()

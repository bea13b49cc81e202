"""Function calls as bytes, which only the process that makes the call unpacks.

An engine's scheduler unpickles what it passes on. In this form a call makes it import neither the
function's module nor TensorFlow.
"""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any


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
    """Raises TypeError unless an executor is None or has a method `submit`."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must have a method submit(function, argument), such as an executor of "
            "concurrent.futures or a Client of dask.distributed (python -m pip install "
            f'"tfp_sgmcmc[distributed]"). Received: a {type(executor).__name__}.'
        )


def submit_call(executor: Any, call: bytes) -> Any:
    """Returns the future of a call of `pack_call`."""
    # dask would compute two equal calls only once, and cache the result.
    options = {"pure": False} if type(executor).__module__.startswith("distributed.") else {}
    return executor.submit(make_call, call, **options)

"""Stochastic-gradient MCMC for TensorFlow Probability and Keras."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

from tfp_sgmcmc.internal import keras_backend

__version__ = "0.2.0"


def _homes() -> dict[str, str]:
    """Returns the module that each public name comes from, as the stub `__init__.pyi` says."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


# Names are loaded on first use, so that `import tfp_sgmcmc` does not wait for TensorFlow.
_HOMES = _homes()
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        keras_backend.check()
    if _HOMES.get(name) == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])

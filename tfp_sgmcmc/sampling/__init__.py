"""Runs: the driver `sample`, and runs on disk that go on after a crash."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfp_sgmcmc.sampling.driver import sample
    from tfp_sgmcmc.sampling.result import SampleResult
    from tfp_sgmcmc.sampling.streaming import StreamedLogProb
    from tfp_sgmcmc.sampling.tuning import tune

# Loaded on first use: what reads and writes runs on disk waits for no TensorFlow.
_HOMES = {
    "SampleResult": "result",
    "StreamedLogProb": "streaming",
    "sample": "driver",
    "tune": "tuning",
}

__all__ = ["SampleResult", "StreamedLogProb", "sample", "tune"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

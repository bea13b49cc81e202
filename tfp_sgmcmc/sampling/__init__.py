"""Runs of a kernel: its steps, its draws in memory or on disk, and its result."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from tfp_sgmcmc.sampling.programs import export_program
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import sample_chain
from tfp_sgmcmc.sampling.shards.shard_driver import sample_shards
from tfp_sgmcmc.sampling.shards.sharded_result import ShardedResult, open_shards

__all__ = [
    "SampleResult",
    "ShardedResult",
    "export_program",
    "open_shards",
    "sample_chain",
    "sample_shards",
]


def __getattr__(name: str) -> Any:
    if name in ("sample", "tune"):
        warnings.warn(
            f"tfp_sgmcmc.sampling.{name} is now tfp_sgmcmc.{name}. The old name will be removed in "
            "the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module("tfp_sgmcmc"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

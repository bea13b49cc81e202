"""Runs of a kernel: the driver `sample`, and `tune`, which chooses a kernel's settings."""

from __future__ import annotations

import warnings
from typing import Any

from tfp_sgmcmc.sampling.driver import sample
from tfp_sgmcmc.sampling.export import export_program
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.shards.result import ShardedResult, open_shards
from tfp_sgmcmc.sampling.tuning import tune

__all__ = ["SampleResult", "ShardedResult", "export_program", "open_shards", "sample", "tune"]


def __getattr__(name: str) -> Any:
    if name == "StreamedLogProb":
        from tfp_sgmcmc.targets import StreamedLogProb

        warnings.warn(
            "tfp_sgmcmc.sampling.StreamedLogProb is now tfp_sgmcmc.StreamedLogProb. The old name "
            "will be removed in the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return StreamedLogProb
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Targets: log posteriors whose gradients are estimated from minibatches."""

from tfp_sgmcmc.targets.base import FullDataLogProb, GradientEstimate, Target, as_target
from tfp_sgmcmc.targets.control_variates.control_variate import SVRG, ControlVariate
from tfp_sgmcmc.targets.growing_batch import GrowingBatch
from tfp_sgmcmc.targets.laplace.curvature import largest_curvature
from tfp_sgmcmc.targets.laplace.laplace import whiten
from tfp_sgmcmc.targets.laplace.mode import CenterReport, find_center
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.model_target import LinearModel
from tfp_sgmcmc.targets.read_faults import StreamReadError
from tfp_sgmcmc.targets.sharded import ShardedLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.pooled import PoolReport
from tfp_sgmcmc.targets.streaming.row_pool import draw_pool
from tfp_sgmcmc.targets.validation.gradient_check import preflight

__all__ = [
    "SVRG",
    "CenterReport",
    "ControlVariate",
    "FullDataLogProb",
    "GradientEstimate",
    "GrowingBatch",
    "LinearModel",
    "MinibatchLogProb",
    "PoolReport",
    "ShardedLogProb",
    "StreamReadError",
    "StreamedLogProb",
    "Target",
    "as_target",
    "draw_pool",
    "find_center",
    "largest_curvature",
    "preflight",
    "whiten",
]

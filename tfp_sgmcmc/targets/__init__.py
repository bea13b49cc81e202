"""What is sampled: log posteriors, and how their gradients are estimated from few examples."""

from tfp_sgmcmc.targets.base import FullDataLogProb, GradientEstimate, Target, as_target
from tfp_sgmcmc.targets.growing_batch import GrowingBatch
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.preflight import preflight

__all__ = [
    "FullDataLogProb",
    "GradientEstimate",
    "GrowingBatch",
    "MinibatchLogProb",
    "Target",
    "as_target",
    "preflight",
]

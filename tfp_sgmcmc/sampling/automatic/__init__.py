"""`sample` for a target: it chooses sampler, step and minibatch itself, and checks them."""

from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.automatic.flow import sample_target
from tfp_sgmcmc.sampling.automatic.problem import refuse_settings

__all__ = ["Choices", "refuse_settings", "sample_target"]

"""Samplers as `tfp.mcmc.TransitionKernel`s, one a file."""

from tfp_sgmcmc.kernels.corrected_langevin import CorrectedLangevin
from tfp_sgmcmc.kernels.nogin import NOGIN
from tfp_sgmcmc.kernels.sgld import SGLD

__all__ = ["NOGIN", "SGLD", "CorrectedLangevin"]

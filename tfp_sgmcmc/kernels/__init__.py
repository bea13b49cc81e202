"""Samplers as `tfp.mcmc.TransitionKernel`s, one in each file."""

# Bases of a sampler of one's own; `__all__` lists the samplers.
from tfp_sgmcmc.kernels.base import OverdampedKernel as OverdampedKernel
from tfp_sgmcmc.kernels.base import StochasticGradientKernel as StochasticGradientKernel
from tfp_sgmcmc.kernels.ccadl import CCAdL
from tfp_sgmcmc.kernels.corrected_langevin import CorrectedLangevin
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.kernels.modified_sgld import ModifiedSGLD
from tfp_sgmcmc.kernels.momentum import MomentumKernel as MomentumKernel
from tfp_sgmcmc.kernels.nogin import NOGIN
from tfp_sgmcmc.kernels.replica_exchange_sgld import ReplicaExchangeSGLD
from tfp_sgmcmc.kernels.sgfs import SGFS
from tfp_sgmcmc.kernels.sghmc import SGHMC
from tfp_sgmcmc.kernels.sgld import SGLD
from tfp_sgmcmc.kernels.sgnht import SGNHT
from tfp_sgmcmc.kernels.underdamped_langevin import UnderdampedLangevin

__all__ = [
    "NOGIN",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "CCAdL",
    "CorrectedLangevin",
    "IndependentMetropolis",
    "ModifiedSGLD",
    "ReplicaExchangeSGLD",
    "UnderdampedLangevin",
]

"""Automatic runs: `sample` chooses all settings for a target, `tune` those of a kernel."""

from tfp_sgmcmc.adaptation.drivers import sample
from tfp_sgmcmc.adaptation.settings import Choices
from tfp_sgmcmc.adaptation.tuning import tune

__all__ = ["Choices", "sample", "tune"]

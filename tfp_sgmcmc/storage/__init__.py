"""The files of a run: directory, checkpoints and draws, without pickle."""

from tfp_sgmcmc.storage.directory import Directory

__all__ = ["Directory"]

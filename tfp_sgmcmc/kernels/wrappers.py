"""Wrappers of `tfp.mcmc` that need a Metropolis test, which stochastic-gradient kernels lack."""

from __future__ import annotations

import sys
from typing import Any

_MCMC = "tensorflow_probability.python.mcmc."
_ADAPT = (
    "the acceptance probability of a Metropolis test. Choose the step with tfp_sgmcmc.tune, or "
    "adapt that of CorrectedLangevin"
)
_NEEDS = {
    "metropolis_hastings": (
        "MetropolisHastings",
        "exact log posteriors of proposals and their correction, log_acceptance_correction. Use "
        "CorrectedLangevin, which has the test",
    ),
    "replica_exchange_mc": (
        "ReplicaExchangeMC",
        "exact log posteriors at every state. Use ReplicaExchangeSGLD, whose swaps allow for noise",
    ),
    "simple_step_size_adaptation": ("SimpleStepSizeAdaptation", _ADAPT),
    "dual_averaging_step_size_adaptation": ("DualAveragingStepSizeAdaptation", _ADAPT),
}


def refuse_wrappers(kernel: str, results: Any) -> None:
    """Raises TypeError if a wrapper that needs a Metropolis test is bootstrapping `kernel`.

    A wrapper does not tell the kernel what it is, and some only fail in later steps or never move.
    The call stack tells, once in each run. Results that have a correction pass.
    """
    if hasattr(results, "log_acceptance_correction"):
        return
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_MCMC) and module.removeprefix(_MCMC) in _NEEDS:
            name, needs = _NEEDS[module.removeprefix(_MCMC)]
            raise TypeError(
                f"The kernel inside tfp.mcmc.{name} must have a Metropolis test or be made for "
                f"one. Received: {kernel}, which has none. {name} needs {needs}."
            )
        frame = frame.f_back

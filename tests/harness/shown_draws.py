"""Records the draws that the code of a page makes, and has `report` look for bias in them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.target_arguments import as_problem

DOORS = ("sample", "sample_chain", "sample_shards")


class ShownDraws:
    """The results of `DOORS` while this object's patches hold, each with its log posterior."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.results: list[tuple[str, Any, Any]] = []
        for door in DOORS:
            monkeypatch.setattr(sgmcmc, door, self._recorded(door, getattr(sgmcmc, door)))

    def _recorded(self, door: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def recorded(what: Any, *args: Any, **kwargs: Any) -> Any:
            result = fn(what, *args, **kwargs)
            if not isinstance(what, sgmcmc.targets.Target) and door == "sample":
                what = as_problem(what, kwargs.get("bijector"))
            self.results.append((door, what, result))
            return result

        return recorded

    def biased(self) -> list[str]:
        """Returns what `report` says of bias, a text for each result that has a problem.

        Its tests of one result reject sound draws with probability 1e-3, all together.
        """
        return [text for i, found in enumerate(self.results) if (text := _bias(i, *found))]


def _bias(number: int, door: str, what: Any, result: Any) -> str:
    if door == "sample_shards" and not isinstance(what, tfp.mcmc.TransitionKernel):
        what = what()
    target = getattr(what, "target_log_prob_fn", what)
    of_chains = sgmcmc.report(result).problems  # R-hat and numbers of draws, without gradients
    problems = [p for p in sgmcmc.report(result, target).problems if p not in of_chains]
    return f"result {number}, of {door}: {' '.join(problems)}" if problems else ""

"""A `fit` on several workers: all must begin the same one, and take steps without Keras' faults."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from typing import Any

import keras

from tfp_sgmcmc.keras.data.training_data import Source, validation_of_fit
from tfp_sgmcmc.keras.data.worker_batches import WorkerBatches
from tfp_sgmcmc.keras.distributed import messages
from tfp_sgmcmc.keras.records.fit_fingerprint import FitProblem
from tfp_sgmcmc.keras.workers.train_functions import ShareFunction, WorkerFit
from tfp_sgmcmc.storage.checkpoint import differences

_PACKAGES = ("tensorflow", "keras", "tensorflow-probability", "numpy")


class WorkerGroup:
    """The workers of a fit. In one process without replicas it does nothing."""

    def __init__(self) -> None:
        self._fit: WorkerFit | None = None

    def begin(
        self,
        model: keras.Model,
        begin: Callable[[bool], FitProblem],
        is_stored: bool,
        settings: Mapping[str, Any],
    ) -> FitProblem:
        """Returns what `begin` returns, which all workers call.

        Args:
          model: the model.
          begin: checks the data, and describes the problem: all that is known of it, if its
            argument is True.
          is_stored: whether the chain is saved in a directory.
          settings: what else must be the same, by name.

        Raises:
          ValueError: `begin` failed on another worker, or workers differ in something, which the
            message names.
        """
        self.end()
        if not messages.are_several(model.distribute_strategy):
            return begin(is_stored)
        problems: list[FitProblem] = []

        def describe() -> bytes:
            _check_validation(validation_of_fit(model))
            problems.append(begin(True))
            found = {**_versions(), **settings, "a directory": is_stored}
            found |= {**problems[0].of_fit, **problems[0].of_all}
            return json.dumps(found).encode()

        found = [json.loads(x) for x in messages.exchanged(model.distribute_strategy, describe)]
        for number, other in enumerate(found):
            if what := differences(found[0], other):
                what = what.replace("but here", f"but worker {number} has")
                raise ValueError(
                    "All workers must have the same data, settings and versions. Received: other "
                    f"ones on worker {number}. Worker 0 has {what}."
                )
        return problems[0]

    def function(
        self, model: keras.Model, source: Source, step: Callable[[Any, Any], Any]
    ) -> Callable[[Any], Any] | None:
        """Returns the train function of a fit with `WorkerBatches` on several replicas, or None.

        `step` takes a share of a batch and the number of rows of the whole batch.
        """
        if not self.is_needed(model, source):
            return None
        return ShareFunction(model, step, with_totals=True)

    def start(self, model: keras.Model, source: Source) -> None:
        """Gives the model what it needs for the length of the fit."""
        if self.is_needed(model, source):
            self._fit = WorkerFit(model)

    def end(self) -> None:
        """Takes it away, if that was not done yet."""
        if self._fit is not None:
            self._fit.end()
        self._fit = None

    def is_needed(self, model: keras.Model, source: Source) -> bool:
        """Returns whether a fit takes its steps on shares."""
        strategy = model.distribute_strategy
        on_several = messages.are_several(strategy) or strategy.num_replicas_in_sync > 1
        return source.has_shares and on_several


def _check_validation(data: Any) -> None:
    """Raises TypeError if Keras would fail with such validation data."""
    if data is not None and not isinstance(data, WorkerBatches):
        raise TypeError(
            "validation_data must be WorkerBatches, too, on several workers. Received: "
            f"{'arrays' if isinstance(data, tuple) else f'a {type(data).__name__}'}. "
            "WorkerBatches(data) takes IndependentBatches or another keras.utils.PyDataset."
        )


def _versions() -> dict[str, str]:
    from tfp_sgmcmc import __version__

    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    found = {name: _main(version) for name, version in found.items()}
    return {f"version of {n}": v for n, v in {**found, "tfp_sgmcmc": __version__}.items()}


def _main(version: str) -> str:
    return version.partition("+")[0]  # without what a distributor adds

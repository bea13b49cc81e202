"""The result of a run in shards: one view of all draws, and what became of each shard."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.arviz_import import import_arviz
from tfp_sgmcmc.sampling.result import SampleResult, Timings
from tfp_sgmcmc.sampling.shards import moments
from tfp_sgmcmc.sampling.shards.shard_worker import Outcome
from tfp_sgmcmc.sampling.shards.sharded_draws import ShardedDraws
from tfp_sgmcmc.storage.directory import SAMPLES
from tfp_sgmcmc.storage.stored_draws import open_draws
from tfp_sgmcmc.storage.zarr_store import LIBRARY


@dataclasses.dataclass(frozen=True, repr=False)
class ShardedResult(SampleResult):
    """The draws of all shards that ended well, and how the run went.

    Chains are those of shard 0, then those of shard 1, and so on. Shards that failed are left out.
    `states` and `trace` hold `ShardedDraws` `[num_results, chains, event...]`, which read only what
    is indexed; `np.asarray` reads all. An array without chains, such as step sizes or a step
    number, is that of the first shard. `timings` has the longest compilation and the steps of all
    shards a second. `final_kernel_results` is None.

    Attributes:
      failures: number of a shard -> the error that ended it for good.
      shards: the numbers of the shards that are here, in the order of their chains.
      seeds: the seed of each of them, with which `sample` gives the same draws of its chains alone.
      shard_timings: those of each of them.
      processes: the process in which each of them ran.
    """

    failures: dict[int, Exception] = dataclasses.field(default_factory=dict)
    shards: tuple[int, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    shard_timings: tuple[Timings, ...] = ()
    processes: tuple[int, ...] = ()
    _moments: Sequence[Sequence[moments.Moments] | None] = ()

    def rhat(self) -> Any:
        """Returns split R-hat of each entry, in the structure of the state.

        It follows from moments that each shard computed of its draws, so that none are read here.

        Raises:
          ValueError: there are fewer than 40 draws, or shards have different numbers of them.
        """
        return self._of_moments(moments.rhat)

    def effective_sample_size(self) -> Any:
        """Returns the effective sample size of each entry's mean, of all chains; see `rhat`."""
        return self._of_moments(moments.effective_sample_size)

    def _of_moments(self, function: Callable[[moments.Moments], np.ndarray]) -> Any:
        known = [part for part in self._moments if part is not None]
        if len(known) < len(self._moments):
            raise ValueError(
                f"R-hat and ESS need {2 * moments.NUM_SEGMENTS} draws of each shard. Received: "
                f"{self.num_results}."
            )
        leaves = [function(moments.concatenate(parts)) for parts in zip(*known, strict=True)]
        return tree.unflatten_as(self.states, leaves)

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else "incomplete"
        where = "" if self.directory is None else f", in {self.directory}"
        chains = tree.flatten(self.states)[0].shape[1]
        first = f"ShardedResult: {self.num_results} results of {chains} chains in "
        first += f"{len(self.shards)} shards, {state}{where}"
        failed = [f"  - shard {i} failed: {error}" for i, error in self.failures.items()]
        return "\n".join([first, *failed])

    def named_draws(self) -> dict[str, np.ndarray]:
        """Returns the draws by the names of `to_inference_data`, `[draws, chains, event...]`."""
        draws = zip(self._kept, tree.flatten(self.states), strict=False)
        return {k.name: np.asarray(x, k.variable.stored_dtype) for k, x in draws}

    def to_inference_data(self) -> Any:
        """Returns an `arviz.InferenceData` with the group `posterior`.

        With a directory and dask, draws are read when they are used; otherwise they are read now.

        Raises:
          ModuleNotFoundError: ArviZ and xarray are not installed.
        """
        arviz = import_arviz()
        if self.directory is not None:
            for x in tree.flatten(self.states):
                x.verify()  # xarray reads zeros for missing files
            data = open_shards(self.directory, self.shards).isel(draw=slice(self.num_results))
            return arviz.InferenceData(posterior=data)
        import xarray

        draws, members = self.named_draws(), {}
        for k in self._kept[: len(draws)]:
            members[k.name] = k.variable.dimensions(k.name), np.swapaxes(draws[k.name], 0, 1)
        data = xarray.Dataset(members, attrs=LIBRARY)
        return arviz.InferenceData(
            posterior=data.assign_coords({a: np.arange(data.sizes[a]) for a in ("chain", "draw")})
        )


def open_shards(directory: str | os.PathLike[str], shards: Iterable[int] | None = None) -> Any:
    """Returns the draws of a run in shards as an `xarray.Dataset`, also while it is under way.

    Draws that all shards have written are there, with the chains of the shards one after another.
    If dask is installed, they are read when they are used.

    Args:
      directory: that of the run.
      shards: numbers of the shards; None takes all that have written draws.

    Raises:
      TypeError: `directory` is not a path, or `shards` are no integers.
      ValueError: none of these shards has written draws there.
      ModuleNotFoundError: xarray or zarr is not installed.
    """
    folder = checks.path("directory", directory)
    if shards is None:
        shards = [int(path.name.removeprefix("shard-")) for path in folder.glob("shard-*")]
    elif not isinstance(shards, Sequence | set | frozenset | np.ndarray):
        raise TypeError(f"shards must be numbers of shards. Received: {shards!r}.")
    numbers = sorted(checks.integer("shards", i, 0) for i in shards)
    import_arviz("open_shards")
    import xarray

    stores = [folder / f"shard-{i}" / SAMPLES for i in numbers]
    stores = [store for store in stores if _shows_draws(store)]
    if not stores:
        raise ValueError(
            f"directory must hold a run in shards with draws. Received: {os.fspath(directory)!r}, "
            f"of which shards {numbers} have none."
        )
    chunks: Any = {} if importlib.util.find_spec("dask") else None
    parts = [xarray.open_zarr(store, group="posterior", chunks=chunks) for store in stores]
    length = min(part.sizes["draw"] for part in parts)
    data = xarray.concat(
        [part.isel(draw=slice(length)) for part in parts], "chain", data_vars="minimal"
    )
    return data.assign_coords(chain=np.arange(data.sizes["chain"]))


def _shows_draws(store: Path) -> bool:
    """Returns whether the store has the metadata that its first checkpoint writes last."""
    metadata = store / "zarr.json"
    return metadata.exists() and bool(json.loads(metadata.read_text()).get("consolidated_metadata"))


def gather(
    outcomes: Sequence[Outcome],
    failures: dict[int, Exception],
    seeds: Sequence[tuple[int, int]],
    seed: tuple[int, int],
    directory: Path | None,
    is_complete: bool,
    kernel: Any,
    seconds: float,
) -> ShardedResult:
    """Returns the result of the shards that ended well, of which there is at least one."""
    first = outcomes[0]

    def arrays_of(outcome: Outcome) -> list[Any]:
        if outcome.arrays is not None:
            return outcome.arrays
        assert directory is not None
        store = directory / f"shard-{outcome.index}" / SAMPLES
        return [
            open_draws(store, k.group, k.name, k.variable.chain_shape).first(outcome.num_results)
            for k in outcome.kept
        ]

    leaves = [
        ShardedDraws(parts) if kept.variable.chain_shape else parts[0]
        for kept, parts in zip(first.kept, zip(*map(arrays_of, outcomes), strict=True), strict=True)
    ]
    states, trace, weights = tree.unflatten_as(first.structure, leaves)
    finals = [tree.flatten(outcome.final_state) for outcome in outcomes]
    timings = [outcome.timings for outcome in outcomes]
    steps = sum(t.seconds * t.steps_per_second for t in timings if t.steps_per_second > 0)
    return ShardedResult(
        states=states,
        trace=None if isinstance(trace, tuple) and not trace else trace,
        weights=None if isinstance(weights, tuple) and not weights else weights,
        is_complete=is_complete,
        final_state=tree.unflatten_as(
            states, [np.concatenate(parts) for parts in zip(*finals, strict=True)]
        ),
        final_kernel_results=None,
        timings=Timings(max(t.compile_seconds for t in timings), seconds, steps / seconds),
        directory=directory,
        kernel=kernel,
        seed=seed,
        _kept=first.kept,
        _attributes={},
        failures=failures,
        shards=tuple(outcome.index for outcome in outcomes),
        seeds=tuple(seeds[outcome.index] for outcome in outcomes),
        shard_timings=tuple(timings),
        processes=tuple(outcome.process for outcome in outcomes),
        _moments=[outcome.moments for outcome in outcomes],
    )

"""The result of a run in shards: one view of all draws, and the end of each shard."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.extras import import_arviz
from tfp_sgmcmc.internal.tables import Table
from tfp_sgmcmc.sampling.result import SampleResult, Timings
from tfp_sgmcmc.sampling.result_table import num_chains_of, table_of, title_of
from tfp_sgmcmc.sampling.shards import shard_worker
from tfp_sgmcmc.storage import checkpoint
from tfp_sgmcmc.storage.directory import CHECKPOINT, SAMPLES
from tfp_sgmcmc.storage.lock import read_object
from tfp_sgmcmc.storage.stored_draws import StoredDraws, check_metadata, named
from tfp_sgmcmc.storage.zarr_store import import_zarr

_ADVICE = "Restore it from a copy, or name the other shards."
_OF_DRAWS = "checksums['posterior']", "tail['posterior']"  # leaves of a checkpoint


class ShardedDraws:
    """An array `[num_draws, chains, event...]` whose chains are in several shards.

    Nothing is copied before it is indexed: `x[-1]`, `x[100:200]` and `x[:, 3]` read only the draws
    and the shards that they name. `np.asarray(x)` reads all draws.

    >>> x = ShardedDraws([np.zeros([5, 2, 3]), np.ones([5, 1, 3])])
    >>> x.shape, x[-1].shape, x[:2, 2].tolist()
    ((5, 3, 3), (3, 3), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

    Args:
      parts: arrays or `StoredDraws`, `[num_draws, chains of the shard, event...]`.
    """

    def __init__(self, parts: Sequence[Any]):
        self._parts = list(parts)
        self._edges = np.cumsum([0, *(part.shape[1] for part in parts)])
        first = self._parts[0]
        self.shape = (min(map(len, parts)), int(self._edges[-1]), *first.shape[2:])
        self.dtype, self.ndim = first.dtype, len(first.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ShardedDraws(shape={self.shape}, dtype={np.dtype(self.dtype).name})"

    def verify(self) -> None:
        """Raises ValueError unless the files of all draws are those that the run wrote."""
        for part in self._parts:
            part.verify()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy must be True or None for draws of shards. Received: copy=False.")
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        draws, *rest = index if isinstance(index, tuple) else (index,)
        if not isinstance(draws, int | np.integer | slice):
            return np.asarray(self)[index]
        draws = _within(draws, len(self))
        if rest and isinstance(rest[0], int | np.integer):
            chain = range(self.shape[1])[rest[0]]
            shard = int(np.searchsorted(self._edges, chain, side="right")) - 1
            return self._parts[shard][(draws, chain - int(self._edges[shard]), *rest[1:])]
        axis = 0 if isinstance(draws, int) else 1
        read = np.concatenate([np.asarray(part[draws]) for part in self._parts], axis=axis)
        return read[(slice(None),) * axis + tuple(rest)] if rest else read


def _within(index: Any, length: int) -> Any:
    """Returns an index into the first `length` draws; a shard under way may hold more."""
    if isinstance(index, slice):
        chosen = range(length)[index]
        stop = chosen.stop if chosen.stop >= 0 else None
        return slice(chosen.start, stop, chosen.step)
    return range(length)[index]


@dataclasses.dataclass(frozen=True, repr=False)
class ShardedResult(SampleResult):
    """The draws of all shards that ended well, and their seeds, times and errors.

    The chains of shard 0 come first, then the chains of shard 1, and so on. Shards that failed are
    left out. `states` and `trace` hold `ShardedDraws` `[num_results, chains, event...]`, which read
    only what is indexed; `np.asarray` reads all. Arrays without chains, such as step sizes or a
    step number, come from the first shard. `timings` has the longest compilation and the steps of
    all shards a second. `final_kernel_results` is None.

    Attributes:
      failures: number of a shard -> the error that ended it.
      shards: numbers of the shards in this result, in the order of their chains.
      seeds: their seeds, with which `sample_chain` gives the same draws of their chains alone.
      shard_timings: their times.
      processes: numbers of the processes that ran them.
      checked: what the checks of their draws found, if `sample` chose the settings.
    """

    failures: dict[int, Exception] = dataclasses.field(default_factory=dict)
    shards: tuple[int, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    shard_timings: tuple[Timings, ...] = ()
    processes: tuple[int, ...] = ()
    checked: tuple[Any, ...] = ()
    _moments: Sequence[Sequence[shard_worker.SegmentMoments] | None] = ()

    def rhat(self) -> Any:
        """Returns split R-hat of each entry, in the structure of the state.

        It is computed from moments of each shard's draws, so no draws are read.

        Raises:
          ValueError: there are fewer than 40 draws, or shards have different numbers of them.
        """
        return self._of_moments(shard_worker.rhat)

    def effective_sample_size(self) -> Any:
        """Returns the effective sample size of each entry's mean, over all chains; see `rhat`."""
        return self._of_moments(shard_worker.batch_means_sample_size)

    def _of_moments(self, function: Callable[[shard_worker.SegmentMoments], np.ndarray]) -> Any:
        known = [part for part in self._moments if part is not None]
        if len(known) < len(self._moments):
            raise ValueError(
                f"R-hat and ESS need {2 * shard_worker.NUM_SEGMENTS} draws of each shard. "
                f"Received: {self.num_results}."
            )
        leaves = [function(shard_worker.concatenate(parts)) for parts in zip(*known, strict=True)]
        return tree.unflatten_as(self.states, leaves)

    def _table(self) -> Table:
        of_chains = f"each of {num_chains_of(self)} chains in {len(self.shards)} shards"
        failed = [f"shard {i} failed: {error}" for i, error in self.failures.items()]
        return table_of(self, title_of(self, "ShardedResult", of_chains), failed)

    def _datasets(self) -> dict[str, Any]:
        """Returns the group `posterior`; from a directory it is read on use if dask is there."""
        if self.directory is None:
            return {"posterior": super()._datasets()["posterior"]}
        for x in tree.flatten(self.states):
            x.verify()  # xarray reads zeros for missing files
        data = open_shards(self.directory, self.shards).isel(draw=slice(self.num_results))
        return {"posterior": data}


def open_shards(directory: str | os.PathLike[str], shards: Iterable[int] | None = None) -> Any:
    """Returns the draws of a run in shards as an `xarray.Dataset`, even while it is under way.

    The draws that all shards have written are there, with the chains of the shards one after
    another. If dask is installed, they are read on use.

    Args:
      directory: the directory of the run.
      shards: numbers of the shards; None takes all that have written draws.

    Raises:
      TypeError: `directory` is not a path, or `shards` are not integers.
      ValueError: none of these shards has written draws there, or they are damaged.
      ModuleNotFoundError: xarray or zarr is not installed.
    """
    folder, is_chosen = checks.path("directory", directory), shards is not None
    if shards is None:
        names = [path.name.removeprefix("shard-") for path in folder.glob("shard-*")]
        shards = [int(name) for name in names if name.isdecimal() and name == str(int(name))]
    elif not isinstance(shards, Sequence | set | frozenset | np.ndarray):
        raise TypeError(f"shards must be numbers of shards. Received: {shards!r}.")
    numbers = sorted(checks.integer("shards", i, 0) for i in shards)
    import_arviz("open_shards")
    import xarray

    stores = [folder / f"shard-{i}" / SAMPLES for i in numbers]
    stores = [store for store in stores if _shows_draws(store)]
    if not stores:
        found = "which has no folders shard-i"
        if numbers or is_chosen:
            found = f"where shards {numbers} have none"
        if _shows_draws(folder / SAMPLES):
            found = (
                "which is a run of sample_chain or sample: "
                f"xarray.open_zarr({str(folder / SAMPLES)!r}, group='posterior') reads it"
            )
        raise ValueError(
            f"directory must hold a run in shards with draws. Received: {os.fspath(directory)!r}, "
            f"{found}."
        )
    parts = [_opened(store) for store in stores]
    length = min(part.sizes["draw"] for part in parts)
    data = xarray.concat(
        [part.isel(draw=slice(length)) for part in parts], "chain", data_vars="minimal"
    )
    return data.assign_coords(chain=np.arange(data.sizes["chain"]))


def _shows_draws(store: Path) -> bool:
    """Returns whether the store has the metadata that its first checkpoint writes last.

    Raises:
      ValueError: the metadata is damaged, or missing beside a checkpoint.
    """
    metadata = store / "zarr.json"
    if metadata.exists():
        return bool(read_object(metadata, _ADVICE).get("consolidated_metadata"))
    if (store.parent / CHECKPOINT).exists():
        raise ValueError(f"{metadata} is missing. {_ADVICE}")
    return False


def _opened(store: Path) -> Any:
    """Returns the draws in a store, whose files are all there: xarray reads zeros for others."""
    import xarray

    chunks: Any = {} if importlib.util.find_spec("dask") else None
    saved: dict[str, Any] = {}
    # There is none before the first checkpoint, and draws beside a damaged one can be read.
    with contextlib.suppress(OSError, ValueError):
        saved = checkpoint.load(store.parent / CHECKPOINT, _OF_DRAWS).leaves
    _verify(store, saved)
    with named(store, _ADVICE):
        data = xarray.open_zarr(store, group="posterior", chunks=chunks)
        return data.load() if chunks is None else data


def _verify(store: Path, saved: Mapping[str, Any]) -> None:
    """Raises ValueError unless all chunks of draws in a store are there.

    Chunks of another run are told by `saved`, the checksums of whole chunks and the other draws in
    the run's checkpoint.
    """
    zarr: Any = import_zarr()
    with named(store, _ADVICE):
        for name, array in zarr.open_group(store, mode="r")["posterior"].arrays():
            if name != "chain":
                lead, draw_axis = (None, 0) if name == "draw" else (array.shape[:1], 1)
                known = saved.get(f"checksums['posterior'][{name!r}]")
                tail = saved.get(f"tail['posterior'][{name!r}]")
                event = array.chunks[draw_axis + 1 :]
                check_metadata(zarr, array, array.chunks[:draw_axis], event)
                num_draws, checksums = array.shape[draw_axis], [] if known is None else [*known]
                draws = StoredDraws(array, lead, num_draws, None, checksums)
                draws.verify()
                start = len(checksums) * array.chunks[draw_axis]
                # During a run, the draws of the tail are not in the store yet.
                if known is None or tail is None or num_draws < start + len(tail):
                    continue
                found = draws[start : start + len(tail)]
                if found.tobytes() != tail.astype(found.dtype).tobytes():
                    raise ValueError(
                        f"{store / array.path} has other draws from number {start} on than the "
                        f"checkpoint beside {store.name}"
                    )


def gather(
    shards: Sequence[shard_worker.ShardDraws],
    failures: dict[int, Exception],
    seed: tuple[int, int],
    directory: Path | None,
    is_complete: bool,
    kernel: Any,
    seconds: float,
) -> ShardedResult:
    """Returns the result of one or more shards that ended well."""
    results = [shard.result for shard in shards]
    first, timings = results[0], [result.timings for result in results]
    arrays = zip(*(result._leaves() for result in results), strict=True)
    leaves = [
        ShardedDraws(parts) if kept.variable.chain_shape else parts[0]
        for kept, parts in zip(first._kept, arrays, strict=True)
    ]
    # dm-tree takes None for a leaf.
    nests = tuple(() if x is None else x for x in (first.states, first.trace, first.weights))
    states, trace, weights = tree.unflatten_as(nests, leaves)
    finals = [tree.flatten(result.final_state) for result in results]
    shapes = [x.shape[1:] for x in leaves]
    kept = [
        k._replace(variable=k.variable._replace(shape=shape))
        for k, shape in zip(first._kept, shapes, strict=True)
    ]
    steps = sum(t.seconds * t.steps_per_second for t in timings if t.steps_per_second > 0)
    return ShardedResult(
        states=states,
        trace=None if first.trace is None else trace,
        weights=None if first.weights is None else weights,
        is_complete=is_complete,
        final_state=tree.unflatten_as(
            states, [np.concatenate(parts) for parts in zip(*finals, strict=True)]
        ),
        final_kernel_results=None,
        timings=Timings(max(t.compile_seconds for t in timings), seconds, steps / seconds),
        directory=directory,
        kernel=kernel,
        seed=seed,
        _kept=kept,
        _attributes={},
        failures=failures,
        shards=tuple(shard.index for shard in shards),
        seeds=tuple(result.seed for result in results),
        shard_timings=tuple(timings),
        processes=tuple(shard.process for shard in shards),
        checked=tuple(shard.checked for shard in shards if shard.checked is not None),
        _moments=[shard.moments for shard in shards],
    )

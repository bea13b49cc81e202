"""Checks that the draws in a store are there, and are those of the checkpoint beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfp_sgmcmc.storage import stored_draws
from tfp_sgmcmc.storage.zarr_store import import_zarr


def verify_store(store: Path, advice: str, saved: Mapping[str, Any]) -> None:
    """Raises ValueError, with `advice`, unless all chunks of draws in a store are there.

    Chunks of another run are told by `saved`, the checksums of whole chunks and the other draws in
    the run's checkpoint.
    """
    zarr: Any = import_zarr()
    with stored_draws.named(store, advice):
        for name, array in zarr.open_group(store, mode="r")["posterior"].arrays():
            if name != "chain":
                lead, draw_axis = (None, 0) if name == "draw" else (array.shape[:1], 1)
                known = saved.get(f"checksums['posterior'][{name!r}]")
                tail = saved.get(f"tail['posterior'][{name!r}]")
                num_draws, checksums = array.shape[draw_axis], [] if known is None else [*known]
                draws = stored_draws.StoredDraws(array, lead, num_draws, None, checksums)
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

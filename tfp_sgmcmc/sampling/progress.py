"""A progress bar, and a Ctrl-C that waits for the end of a call."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.sampling.loop import Position, log_prob_of


@contextlib.contextmanager
def progress(
    wanted: bool | None, total: int, initial: int = 0, unit: str = "step"
) -> Generator[Callable[[int, Position | None], None]]:
    """Shows how many of `total` units are done, and the health of a chain at its position.

    Args:
      wanted: whether to show a bar; None shows it if tqdm is installed.
      total: number of units.
      initial: number of units that were done before.
      unit: the name of a unit.

    Yields:
      A function of the number of units done, and of a position or None.

    Raises:
      ModuleNotFoundError: `wanted` is True, and tqdm is not installed.
    """
    try:
        if wanted is False:
            raise ModuleNotFoundError
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        if wanted:
            raise ModuleNotFoundError(
                "progress_bar=True needs tqdm, which is not installed: python -m pip install tqdm"
            ) from error
        yield lambda done, position: None
        return
    with tqdm(total=total, initial=initial, unit=unit, unit_scale=unit == "step") as bar:

        def update(done: int, position: Position | None) -> None:
            if position is not None:
                bar.set_postfix(chain_health(position), refresh=False)
            bar.update(done - bar.n)

        yield update


def chain_health(position: Position) -> dict[str, Any]:
    """Returns a number that shows when a chain breaks down.

    This is the mean over chains of the log posterior that the kernel last estimated, or the root
    mean square of the state if the kernel's results have no estimate.
    """
    log_prob = log_prob_of(position.results)
    if log_prob is not None:
        return {"log_prob": f"{float(np.mean(np.asarray(log_prob, np.float64))):.5g}"}
    leaves = [np.asarray(x, np.float64) for x in tree.flatten(position.state)]
    mean = sum(np.sum(x**2) for x in leaves) / sum(x.size for x in leaves)
    return {"rms": f"{mean**0.5:.5g}"}


@contextlib.contextmanager
def defer_interrupt() -> Generator[threading.Event]:
    """Sets an event at the first Ctrl-C instead of raising `KeyboardInterrupt`; a second raises.

    So a write is never cut off in the middle. Only the main thread receives signals, so nothing
    changes in other threads.
    """
    interrupt = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)

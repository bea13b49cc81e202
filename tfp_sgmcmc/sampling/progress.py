"""A progress bar, and a Ctrl-C that waits for the end of a chunk of steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import numpy as np

from tfp_sgmcmc.sampling.introspection import log_prob_of
from tfp_sgmcmc.sampling.loop import Position


@contextlib.contextmanager
def progress(
    wanted: bool | None, total: int, initial: int
) -> Generator[Callable[[Position], None]]:
    """Shows steps taken, steps a second, the time left and the log posterior.

    Args:
      wanted: None shows a bar where tqdm is installed.
      total: steps of the run.
      initial: steps taken before.

    Raises:
      ModuleNotFoundError: a bar is wanted, and tqdm is not installed.
    """
    try:
        if wanted is False:
            raise ModuleNotFoundError
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        if wanted:
            raise ModuleNotFoundError(
                "progress_bar is True, but tqdm is not installed: python -m pip install tqdm"
            ) from error
        yield lambda position: None
        return
    with tqdm(total=total, initial=initial, unit="step", unit_scale=True) as bar:

        def update(position: Position) -> None:
            bar.set_postfix(health(position), refresh=False)
            bar.update(int(position.step) - bar.n)

        yield update


def health(position: Position) -> dict[str, Any]:
    """One figure that leaves its range when a chain breaks down.

    The log posterior, its mean over chains, as the kernel last estimated it; for a kernel whose
    results have none, the root mean square of the state.
    """
    log_prob = log_prob_of(position.results)
    if log_prob is not None:
        return {"log_prob": f"{float(np.mean(np.asarray(log_prob, np.float64))):.5g}"}
    import tree

    leaves = [np.asarray(x, np.float64) for x in tree.flatten(position.state)]
    mean = sum(np.sum(x**2) for x in leaves) / sum(x.size for x in leaves)
    return {"rms": f"{mean**0.5:.5g}"}


class Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def held_back() -> Generator[Interrupt]:
    """Notes the first Ctrl-C instead of raising `KeyboardInterrupt`; a second one raises.

    So what is written is never cut off in the middle. Elsewhere than in the main thread, which
    alone gets signals, nothing changes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)

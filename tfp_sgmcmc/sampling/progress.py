"""Progress as a bar, a widget or lines, and a Ctrl-C that waits for the end of a call."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.sampling.loop import Position, log_prob_of

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress(
    wanted: bool | None, total: int, initial: int = 0, unit: str = "step"
) -> Generator[Callable[[int, Position | None], None]]:
    """Shows how many of `total` units are done, and the health of a chain at its position.

    A terminal gets a bar, a notebook a widget, and a file or pipe plain lines, one every ten
    seconds and one at the end.

    Args:
      wanted: whether to show progress; None shows it if tqdm is installed.
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
        bar_type = _bar_type()
    except ModuleNotFoundError as error:
        if wanted:
            raise ModuleNotFoundError(
                "progress_bar=True needs tqdm, which is not installed: python -m pip install tqdm"
            ) from error
        yield lambda done, position: None
        return
    if bar_type is None:
        lines = ProgressLines(total, initial, unit)
        yield lines.update
        lines.finish()
        return
    with bar_type(total=total, initial=initial, unit=unit, unit_scale=unit == "step") as bar:

        def update(done: int, position: Position | None) -> None:
            if position is not None:
                bar.set_postfix(chain_health(position), refresh=False)
            bar.update(done - bar.n)

        yield update


def _bar_type() -> Any:
    """Returns tqdm for a terminal, its widget for a notebook, and None for a file or pipe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
        from tqdm.auto import tqdm
    is_notebook = any(parent.__module__ == "tqdm.notebook" for parent in tqdm.__mro__)
    has_stderr = sys.stderr is not None and not getattr(sys.stderr, "closed", False)
    is_shown = is_notebook or (has_stderr and sys.stderr.isatty())
    return tqdm if is_shown else None


class ProgressLines:
    """Writes lines to stderr, one every ten seconds and one at the end.

    Args:
      total: number of units.
      initial: number of units that were done before.
      unit: the name of a unit.
    """

    def __init__(self, total: int, initial: int, unit: str):
        self._total, self._initial = total, initial
        self._units = unit + ("es" if unit.endswith("ch") else "s")
        self._done: float = initial
        self._health = ""
        self._began = self._told = time.monotonic()

    def update(self, done: float, position: Position | None = None) -> None:
        """Notes the units that are done, and writes a line if the last one is ten seconds old."""
        self._done = done
        if position is not None:
            self._health = "".join(f", {k}={v}" for k, v in chain_health(position).items())
        if time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES and done < self._total:
            self._tell()

    def finish(self) -> None:
        if self._done > self._initial:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        seconds = max(self._told - self._began, 1e-9)
        rate = (self._done - self._initial) / seconds
        left = (self._total - self._done) / max(rate, 1e-9)
        rest = f", {left:.0f} s left" if rate > 0 and self._done < self._total else ""
        percent = int(100 * self._done / max(self._total, 1))
        pace = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        write_line(
            f"{percent} % of {self._total:,} {self._units} in {seconds:.1f} s{rest}, "
            f"{pace} {self._units}/s{self._health}"
        )


def write_line(line: str) -> None:
    """Writes a line to stderr, above a progress bar; a full disk or a closed pipe ends no run."""
    if sys.stderr is None:  # a process without a console
        return
    with contextlib.suppress(ModuleNotFoundError, OSError, ValueError):
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


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
    changes in other threads, nor where the process ignores them.
    """
    interrupt = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        # Python does not know a handler that another language set.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

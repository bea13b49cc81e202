"""Chooses from an annealed run the windows of time whose states predict best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Window = tuple[float, float]

#: Shares of the run, `(after, until)`.
WINDOWS: tuple[Window, ...] = (
    (0.05, 0.15), (0.1, 0.2), (0.15, 0.3), (0.2, 0.4), (0.3, 0.5),
    (0.4, 0.6), (0.5, 0.7), (0.6, 0.8), (0.7, 0.9), (0.8, 1.0),
)  # fmt: skip
_ROUNDING = 1e-9


class WindowChoice(NamedTuple):
    """The windows whose states make the ensemble.

    Attributes:
      windows: the windows, as shares of the run.
      loss: the extrapolated loss of each window of `WINDOWS` that has states, in nats, by window.
        Empty where there was no pool to choose with.
      num_rows: the rows of the pool.
      is_chosen: whether a state belongs to a window, `[S]`.
    """

    windows: tuple[Window, ...]
    loss: dict[Window, float]
    num_rows: int
    is_chosen: np.ndarray

    def __str__(self) -> str:
        shown = ", ".join(f"{100 * a:.0f}-{100 * b:.0f} %" for a, b in self.windows)
        states = f"{int(self.is_chosen.sum())} states a chain from {shown} of the run"
        if not self.loss:
            return f"{states}. No rows were left out to choose with, so these are the last ones."
        best = min(self.loss.values())
        return f"{states}, chosen by {self.num_rows} rows: loss {best:.4f} nats (extrapolated)."


def choose_windows(log_likelihood: np.ndarray, times: np.ndarray, fold: np.ndarray) -> WindowChoice:
    r"""Chooses all windows that are as good as the best within one standard error.

    Two of the C chains have never seen a row of the pool. With the mean predictions p1 and p2 of
    these chains over the states of a window, the loss of the mean over C chains is extrapolated as

    \[
    E = -\log \frac{p_1 + p_2}{2}
      - \Bigl( 1 - \frac 2 C \Bigr) \frac{\delta^2}{2},
    \qquad \delta = \frac{p_1 - p_2}{p_1 + p_2},
    \]

    because the loss of a mean of c chains falls about as 1/c, from one chain to two by
    \( -\tfrac12 \log(1 - \delta^2) \), of which this is the leading term. (The logarithm itself
    would promise no end of gain where one of the chains is sure of a wrong class.) A window is
    chosen if the mean over rows of its E minus that of the best window is at most its standard
    error.

    Args:
      log_likelihood: of the pool's rows by each state, `[S, C, q]`.
      times: the share of the run after which each state was left, in (0, 1], `[S]`.
      fold: the first of the two chains that have not seen a row, `[q]`.
    """
    num_chains, rows = log_likelihood.shape[1], np.arange(len(fold))
    extrapolated: dict[Window, np.ndarray] = {}
    for window in WINDOWS:
        inside = log_likelihood[_is_in(times, window)]
        if not len(inside):
            continue
        by_chain = np.logaddexp.reduce(inside, axis=0) - np.log(len(inside))  # [C, q]
        pair = np.stack([by_chain[(fold + i) % num_chains, rows] for i in (0, 1)])
        delta = np.tanh((pair[0] - pair[1]) / 2)
        loss = np.log(2) - np.logaddexp(*pair)
        extrapolated[window] = loss - (1 - 2 / num_chains) * delta**2 / 2
    if not extrapolated:
        return last_window(times)
    means = {window: float(e.mean()) for window, e in extrapolated.items()}
    best = extrapolated[min(means, key=lambda w: means[w])]
    chosen = []
    for window, e in extrapolated.items():
        gap = e - best
        if gap.mean() <= gap.std() / len(gap) ** 0.5 + 1e-12:
            chosen.append(window)
    return WindowChoice(tuple(chosen), means, len(fold), _is_in(times, *chosen))


def last_window(times: np.ndarray) -> WindowChoice:
    """Returns the states of the last window; of a run that ended before, the last fifth of it."""
    after, until = (x * min(1.0, float(times.max())) for x in WINDOWS[-1])
    return WindowChoice(((after, until),), {}, 0, _is_in(times, (after, until)))


def _is_in(times: np.ndarray, *windows: Window) -> np.ndarray:
    """Returns whether a time is in one of the windows."""
    inside = [(times > a + _ROUNDING) & (times <= b + _ROUNDING) for a, b in windows]
    return np.any(inside, axis=0)

"""The library's answers to thousands of calls with one wrong argument each.

Each call of the catalogue is valid but for one argument, and goes as far as the argument is used:
it constructs, takes a step or two, fits or predicts. What happens is one of

  told       an error of the library whose message names the argument, a warning of the library that
             does so, or an error of the system that names a path
  unnamed    an error of the library that does not name it
  inside     an error from inside: an operator's, TensorFlow's, Keras' or NumPy's
  harmless   accepted, for a reason that `accepted.py` states
  accepted   accepted without a reason, with NaN or with what may be a wrong result

The aim is that 97 % of the calls that are not harmless are told, and that none is accepted.
Functions run eagerly here, which takes minutes instead of hours, so what is wrong only in a
compiled program is not seen.
"""

from __future__ import annotations

import collections
import dis
import random
import re
import signal
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.robustness.accepted import reason
from benchmarks.robustness.values import label

OUTCOMES = ("told", "unnamed", "inside", "harmless", "accepted")
AIM = 0.97
_PACKAGE = str(Path(sgmcmc.__file__).parent)
_SECONDS = 10  # after which a call counts as one that hangs
_ERRORS = (TypeError, ValueError, MemoryError, OSError, ImportError, NotImplementedError)


class Entry(NamedTuple):
    """A callable, with a valid call and the wrong values of its arguments.

    Attributes:
      room: the part of the library, for the table.
      name: the callable's name.
      call: takes all arguments by name and returns what can become NaN.
      valid: a valid call.
      wrong: argument -> values that it must refuse.
      also: argument -> other words that name it in a message.
    """

    room: str
    name: str
    call: Callable[..., Any]
    valid: Mapping[str, Any]
    wrong: Mapping[str, Sequence[Any]]
    also: Mapping[str, str] = {}


class Call(NamedTuple):
    """One wrong call: `entry`, with `value` for `argument`."""

    entry: Entry
    argument: str
    value: Any


class Row(NamedTuple):
    """The outcome of a call."""

    room: str
    name: str
    argument: str
    value: str
    outcome: str
    said: str


def calls_of(entries: Sequence[Entry]) -> list[Call]:
    return [Call(e, a, v) for e in entries for a, values in e.wrong.items() for v in values]


def raised_by_library(error: BaseException) -> bool:
    """Returns whether a `raise` statement in the package made the error.

    An operator that fails in the package, such as `value < 0` of a string, does not count.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def names(message: str, argument: str, also: str = "") -> bool:
    """Returns whether a message names an argument, with spaces or underscores."""
    words = [argument, argument.replace("_", " "), *filter(None, also.split("|"))]
    return any(re.search(rf"(?<![A-Za-z_]){re.escape(w)}(?![A-Za-z_])", message) for w in words)


def classify(call: Call, usual: Set[str] = frozenset()) -> Row:
    """Makes a call and returns what happened; `usual` are the warnings of the valid call."""
    entry, argument, value = call
    row = Row(entry.room, entry.name, argument, label(value), "accepted", "")
    also = entry.also.get(argument, "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = _within_seconds(lambda: entry.call(**{**entry.valid, argument: value}))
        except Exception as error:  # anything that a wrong argument may cause
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if isinstance(error, OSError) and error.filename is not None:
                return row._replace(outcome="told", said=said)  # the system names the path
            if not (isinstance(error, _ERRORS) and raised_by_library(error)):
                return row._replace(outcome="inside", said=said)
            told = names(str(error), argument, also)
            return row._replace(outcome="told" if told else "unnamed", said=said)
    told = [text for text in _texts(caught) if names(text, argument, also) and text not in usual]
    if told:
        return row._replace(outcome="told", said=f"UserWarning: {told[0]}")
    if not is_finite(result):
        return row._replace(said="accepted, and the result is NaN or infinite")
    why = reason(entry.name, argument, row.value)
    return row._replace(outcome="harmless" if why else "accepted", said=why or "accepted")


def is_finite(result: Any) -> bool:
    """Returns whether all floating numbers in a nest are finite."""
    for leaf in tf.nest.flatten(result):
        kind = getattr(getattr(leaf, "dtype", None), "is_floating", None)
        if isinstance(leaf, float | np.ndarray | np.generic) or kind:
            entries = np.asarray(leaf)
            if entries.dtype.kind in "fc" and not np.all(np.isfinite(entries)):
                return False
    return True


def _within_seconds(run: Callable[[], Any]) -> Any:
    def stop(signal_number: int, frame: types.FrameType | None) -> None:
        del signal_number, frame
        raise TimeoutError(f"The call took more than {_SECONDS} seconds.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        return run()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def catalogue() -> list[Entry]:
    """Returns all entries. Each valid call is made once, and must work."""
    from benchmarks.robustness import (
        catalogue_core,
        catalogue_keras,
        catalogue_results,
        catalogue_runs,
    )

    modules = (catalogue_core, catalogue_runs, catalogue_results, catalogue_keras)
    return [entry for module in modules for entry in module.entries()]


def _texts(caught: Sequence[warnings.WarningMessage]) -> set[str]:
    """Returns the warnings for users, without the numbers in them."""
    texts = (str(w.message) for w in caught if w.category is UserWarning)
    return {re.sub(r"[-+]?\d[\d.e+-]*", "0", text) for text in texts}


def check_valid(entries: Sequence[Entry]) -> dict[str, set[str]]:
    """Returns the warnings of the valid calls; raises RuntimeError if one fails or gives NaN."""
    usual = {}
    for entry in entries:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                finite = is_finite(entry.call(**entry.valid))
            except Exception as error:
                raise RuntimeError(f"The valid call of {entry.name} fails.") from error
        if not finite:
            raise RuntimeError(f"The valid call of {entry.name} gives NaN.")
        usual[entry.name] = _texts(caught)
    return usual


def rows(quick: bool = False, rooms: Sequence[str] = ()) -> list[Row]:
    """Makes the calls, or a fixed tenth of them, and returns what happened in each."""
    tf.config.run_functions_eagerly(True)
    try:
        return _rows(quick, rooms)
    finally:
        tf.config.run_functions_eagerly(False)


def _rows(quick: bool, rooms: Sequence[str]) -> list[Row]:
    entries = [e for e in catalogue() if not rooms or e.room in rooms]
    usual = check_valid(entries)
    chosen = calls_of(entries)
    if quick:
        chosen = random.Random(0).sample(chosen, len(chosen) // 10)
    return [classify(call, usual[call.entry.name]) for call in chosen]


def share_told(found: Sequence[Row]) -> float:
    """Returns the share of the calls that are not harmless which is told."""
    wrong = [row for row in found if row.outcome != "harmless"]
    return sum(row.outcome == "told" for row in wrong) / max(len(wrong), 1)


def table(found: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    """Yields a line for each room, and one for all."""
    for room in [*dict.fromkeys(row.room for row in found), "all"]:
        inside = [row for row in found if room in (row.room, "all")]
        counts = collections.Counter(row.outcome for row in inside)
        yield room, len(inside), *(counts[o] for o in OUTCOMES), 100 * share_told(inside)


def run(
    *, quick: bool = False, rooms: tuple[str, ...] = (), list: tuple[str, ...] = ()
) -> tuple[Sequence[Row], tuple[str, ...]]:
    """Makes the calls.

    Args:
      quick: makes a fixed tenth of the calls.
      rooms: the rooms whose calls are made; none stands for all.
      list: rooms whose calls are listed unless they were told.
    """
    return rows(quick, rooms), list


def show(result: tuple[Sequence[Row], tuple[str, ...]]) -> None:
    """Prints the table and the lists; raises SystemExit if the aim is missed."""
    found, listed = result
    for row in found:
        if row.outcome != "told" and row.room in listed:
            print(f"{row.outcome:9}{row.name}({row.argument}={row.value}): {row.said[:200]}")
    formats = {"room": "16s", "calls": "d", **dict.fromkeys(OUTCOMES, "d"), "told %": ".1f"}
    command_line.print_table(formats, [*table(found)])
    accepted = sum(row.outcome == "accepted" for row in found)
    if share_told(found) < AIM or accepted:
        raise SystemExit(
            f"{100 * share_told(found):.1f} % of the wrong calls were told in words that name the "
            f"argument (aim: {100 * AIM:.0f} %), and {accepted} were accepted (aim: none)."
        )


def main() -> None:
    command_line.main(__doc__, run, show)


if __name__ == "__main__":
    main()

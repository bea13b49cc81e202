"""The parts of a stream, and passes over all of them, here or by the workers of an executor."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from tfp_sgmcmc.internal.checks import function, integer
from tfp_sgmcmc.internal.shipped_call import check_executor, make_call, pack_call, submit_call
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.passes import Size
from tfp_sgmcmc.targets.streaming.pool_report import Pass

_MOST_KEPT = 8  # parts that a worker keeps, with their compiled programs

Show = Callable[[str, int], None]


class StreamParts:
    """The rows of a stream in parts, each of which is one `StreamedLogProb`.

    Args:
      source: a `StreamedLogProb`, the only part; or a function from the number of a part to one.
      num_parts: the number of parts; None for a `StreamedLogProb`.
      executor: an object with `submit` whose workers make passes; None makes them here.
      show: receives what a pass does, and the number of rows that it has read.

    Attributes:
      num_parts: the number of parts.
      first: the first part, which has the functions of the model.
      sizes: the number of rows of each part.
    """

    def __init__(self, source: Any, num_parts: int | None, executor: Any, show: Show):
        check_executor(executor)
        self._executor, self._show = executor, show
        expected = (
            "target must be a StreamedLogProb, or with num_parts a function from the number of a "
            "part to one, which workers of an executor call"
        )
        is_whole = isinstance(source, StreamedLogProb)
        if is_whole == (num_parts is not None) or (is_whole and executor is not None):
            raise TypeError(
                f"{expected}. Received: a {type(source).__name__}, num_parts={num_parts} and "
                f"executor={executor!r}."
            )
        if not is_whole:
            function("target", source, "part -> StreamedLogProb")
        self.num_parts = 1 if is_whole else integer("num_parts", num_parts, 1)
        self._make = (lambda i: source) if is_whole else functools.cache(source)
        self._source, self.first = source, _checked(self._make(0), 0)
        found, _ = self.run(Size())
        forms = [form for _, form in found]
        if len({*forms}) > 1:
            wrong = next(i for i, form in enumerate(forms) if form != forms[0])
            raise ValueError(
                f"All parts must have rows of one form. Received: {forms[0]} in part 0, and "
                f"{forms[wrong]} in part {wrong}."
            )
        self.sizes = [size for size, _ in found]

    def run(self, work: Any) -> tuple[list[Any], Pass]:
        """Returns what `work` finds in each part, in order, and the pass.

        Raises:
          Exception: what `work` raised in the first part that failed, with a note of the part.
        """
        began, seen, found = time.perf_counter(), 0, []
        waiting = [self._submitted(work, i) for i in range(self.num_parts)]
        for i, future in enumerate(waiting):
            try:
                result, count = self._here(work, i, seen) if future is None else future.result()
            except BaseException as error:
                for other in waiting[i:]:
                    if other is not None:
                        other.cancel()
                if self.num_parts > 1:
                    error.add_note(f"This was in part {i} of the stream.")
                raise
            found.append(result)
            seen += count
            if count:
                self._show(work.name, seen)
        return found, Pass(seen, time.perf_counter() - began)

    def _here(self, work: Any, part: int, seen: int) -> tuple[Any, int]:
        target = _checked(self._make(part), part)
        return work(target, part, lambda count: self._show(work.name, seen + count))

    def _submitted(self, work: Any, part: int) -> Any:
        if self._executor is None:
            return None
        make = pack_call("target", self._source, part)
        return submit_call(self._executor, pack_call("target", _work_there, make, work, part))


def _checked(target: Any, part: int) -> StreamedLogProb:
    if not isinstance(target, StreamedLogProb):
        raise TypeError(
            f"target({part}) must return a StreamedLogProb. Received: a {type(target).__name__}."
        )
    return target


def _work_there(make: bytes, work: Any, part: int) -> tuple[Any, int]:
    """Makes a pass over a part on a worker."""
    return work(_checked(_kept(make), part), part, lambda count: None)


@functools.lru_cache(maxsize=_MOST_KEPT)
def _kept(make: bytes) -> Any:
    return make_call(make)

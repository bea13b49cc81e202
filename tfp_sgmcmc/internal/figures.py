"""Matplotlib's figures, which the extra `plots` installs; they need no window."""

from __future__ import annotations

import functools
import io
from typing import Any


def import_figure(needed_by: str = "plot") -> Any:
    """Returns a class of matplotlib figures that notebooks show.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{needed_by} needs matplotlib. Install it by python -m pip install "tfp_sgmcmc[plots]"'
        ) from error
    return _result_figure(Figure)


@functools.cache
def _result_figure(base: Any) -> Any:
    class ResultFigure(base):
        """A figure that a notebook shows, also where nothing has imported `pyplot`."""

        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            self.savefig(png, format="png")
            return png.getvalue()

    return ResultFigure

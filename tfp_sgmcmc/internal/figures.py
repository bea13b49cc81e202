"""Matplotlib's figures, which the extra `plots` installs; they need no window."""

from __future__ import annotations

from typing import Any


def import_figure(needed_by: str = "plot") -> Any:
    """Returns the class of matplotlib's figures.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{needed_by} needs matplotlib. Install it by python -m pip install "tfp_sgmcmc[plots]"'
        ) from error
    return Figure

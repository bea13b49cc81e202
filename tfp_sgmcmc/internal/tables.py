"""Tables of results as text and as HTML, with bars, small pictures and flags."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

COLORS = {"wrong": "#d32f2f", "doubt": "#c77700", "note": "#1976d2"}
_NUMBERS = re.compile(r"[-+.,%x\s\d]*(e[-+]?\d+)?|-?inf|nan")
_WIDTH, _HEIGHT, _BINS = 90, 20, 30  # pixels and bars of a picture


class Table(NamedTuple):
    """A title, rows of text, and what stands below them.

    Attributes:
      title: the first line.
      columns: the titles of the columns. The first column holds names.
      rows: the cells of each row.
      notes: lines below the table.
      flags: what is wrong or in doubt, as pairs (grade, text); see `graded`.
      bars: lengths in 0 .. 1 of the bars behind the cells of a column, by the column's title.
      pictures: an SVG for each row, or none.
      details: lines that HTML hides until they are opened; text leaves them out.
    """

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    flags: Sequence[tuple[str, str]] = ()
    bars: Mapping[str, Sequence[float]] = {}
    pictures: Sequence[str] = ()
    details: Sequence[str] = ()


def first_rows(title: str, columns: Mapping[str, Sequence[str]], num_rows: int) -> Table:
    """Returns a table of columns of text that are numbered from 0, and of how many rows follow."""
    rows = [(str(i), *cells) for i, cells in enumerate(zip(*columns.values(), strict=True))]
    hidden = num_rows - len(rows)
    return Table(title, ["row", *columns], rows, [f"{hidden:,} more rows."] if hidden else [])


def graded(flag: Any) -> tuple[str, str]:
    """Returns the grade ("note", "doubt" or "wrong") and the text of a flag.

    A flag is a sentence, or an object with a `grade` and perhaps a `remedy` that its text lacks.
    """
    text, remedy = str(flag), str(getattr(flag, "remedy", "") or "")
    if remedy and remedy not in text:
        text = f"{text} {remedy}"
    return str(getattr(flag, "grade", "doubt")), text


def as_text(table: Table) -> str:
    """Returns the table as lines, with names to the left and numbers to the right."""
    lines = []
    if table.rows:
        cells = [table.columns, *table.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
        lines = [_line(row, widths) for row in cells]
    flags = [f"{grade}: {text}" for grade, text in table.flags]
    parts = [table.title] if table.title else [], lines, table.notes, flags
    return "\n\n".join("\n".join(part) for part in parts if part)


def shown_by(table_of: Callable[[Any], Table]) -> tuple[Callable[[Any], str], ...]:
    """Returns `__repr__` and `_repr_html_` of a class whose objects a table shows."""
    return lambda shown: as_text(table_of(shown)), lambda shown: as_html(table_of(shown))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = (
        f"{cell:>{width}}" if i else f"{cell:<{width}}"
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([name, *numbers]).rstrip()


def as_html(table: Table) -> str:
    """Returns the table for a notebook, in the colours of the page around it."""
    parts = [f"<div><b>{html.escape(table.title)}</b></div>"] if table.title else []
    parts += [_flag(grade, text) for grade, text in table.flags]
    if table.rows:
        columns = zip(*table.rows, strict=True)
        is_text = [not (i and all(map(_NUMBERS.fullmatch, x))) for i, x in enumerate(columns)]
        heads = [
            _cell("th", html.escape(title), left)
            for title, left in zip(table.columns, is_text, strict=True)
        ]
        head = "".join(heads[:1] + ["<th></th>"] * bool(table.pictures) + heads[1:])
        body = "".join(_row(table, i, is_text) for i in range(len(table.rows)))
        parts.append(
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;'
            f'font-size:0.9em"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
    parts += [f'<div style="opacity:0.75">{html.escape(line)}</div>' for line in table.notes]
    if table.details:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in table.details)
        parts.append(
            f"<details><summary>What was done, and why</summary><ul>{lines}</ul></details>"
        )
    return f"<div>{''.join(parts)}</div>"


def code_block(lines: Sequence[str]) -> str:
    """Returns lines of code as HTML that scrolls instead of breaking them."""
    code = html.escape("\n".join(lines))
    return f'<pre style="overflow-x:auto"><code style="white-space:pre">{code}</code></pre>'


def _row(table: Table, i: int, is_text: Sequence[bool]) -> str:
    cells = [_cell("td", html.escape(table.rows[i][0]), True)]
    if table.pictures:
        cells.append(_cell("td", table.pictures[i], False))
    for title, text, left in zip(table.columns[1:], table.rows[i][1:], is_text[1:], strict=True):
        bar = table.bars.get(title)
        cells.append(_cell("td", html.escape(text), left, None if bar is None else bar[i]))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, content: str, is_text: bool, bar: float | None = None) -> str:
    style = f"text-align:{'left' if is_text else 'right'};padding:1px 8px;white-space:nowrap"
    if bar is not None and np.isfinite(bar):
        share = 100 * min(max(float(bar), 0.0), 1.0)
        color = "rgba(25,118,210,0.25)"
        style += f";background:linear-gradient(to right,{color} {share:.0f}%,transparent 0)"
    return f'<{tag} style="{style}">{content}</{tag}>'


def _flag(grade: str, text: str) -> str:
    color = COLORS.get(grade, COLORS["doubt"])
    return (
        f'<div style="border-left:4px solid {color};background:{color}1a;padding:2px 8px;'
        f'margin:2px 0"><b style="color:{color}">{html.escape(grade)}</b> {html.escape(text)}</div>'
    )


def histogram_picture(values: np.ndarray) -> str:
    """Returns an SVG of a histogram of numbers `[n]`, without the outermost percent."""
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    low, high = np.quantile(values, [0.005, 0.995])
    counts = np.histogram(values, _BINS, (low, high))[0] if high > low else np.zeros(_BINS)
    if not counts.max():
        return ""
    heights = _HEIGHT * (1 - counts / counts.max())
    width = _WIDTH / _BINS
    steps = " ".join(f"V{y:.1f}h{width:.1f}" for y in heights)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" style="max-width:none" role="img" '
        'aria-label="marginal">'
        f'<path d="M0 {_HEIGHT}{steps}V{_HEIGHT}Z" fill="currentColor" fill-opacity="0.45"/></svg>'
    )


def decimals_for(scale: float) -> int | None:
    """Returns the decimals that show two or three digits of `scale`; None for an exponent.

    >>> decimals_for(0.0123), decimals_for(0.98), decimals_for(2886.), decimals_for(1e-9)
    (4, 2, 0, None)
    """
    if not (np.isfinite(scale) and 1e-5 <= scale < 1e9):
        return None
    return max(0, 2 - round(float(np.log10(scale))))


def number(x: float, decimals: int | None) -> str:
    """Returns a number with the given decimals, or with four digits and an exponent.

    >>> number(62433.2, 0), number(0.12345, 3), number(1.23456e-9, None), number(np.nan, 2)
    ('62,433', '0.123', '1.235e-09', 'nan')
    """
    return f"{x:.4g}" if decimals is None else f"{x:z,.{decimals}f}"

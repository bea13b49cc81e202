"""An experiment of a paper: its run, its claims beside ours, its figure, and the files of these."""

from __future__ import annotations

import inspect
import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.common import command_line
from benchmarks.common.environment import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


UNDECIDED = "undecided"  # of a claim whose difference is within the noise of the run
VERDICTS = {True: "yes", False: "**no**", None: "not in the paper", UNDECIDED: "not decided"}

# One style for all figures; see https://matplotlib.org/stable/users/explain/customizing.html.
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
COLOURS, MOST_BYTES = 64, 60_000  # of a figure's file


class Claim(NamedTuple):
    """A statement of the paper and what was found here."""

    paper: str  # the paper's number, or its curve in words
    ours: str  # what this run measured, with its error
    # Whether the statement held here, or `UNDECIDED`; None for a finding that is ours alone.
    held: bool | str | None
    why: str = ""  # the likely cause where it did not hold, or what differs


class Experiment(NamedTuple):
    """One figure or table of a paper.

    `run` takes keywords that all have defaults, which are those of the full form. What it returns
    goes to `show`, `claims` and `plot`.
    """

    paper: str  # authors and year, as in `page.PAPERS`, or `page.BEYOND`
    figure: str  # number of the figure, table or section
    title: str
    run: Callable[..., Any]
    quick: Mapping[str, Any]  # keywords of the quick form, which takes about half a minute
    show: Callable[[Any], None]  # prints the result
    claims: Callable[[Any], list[Claim]]
    plot: Callable[[Any], Figure]


def main(experiment: Experiment, description: str | None) -> None:
    """Runs the experiment with the options of the command line; prints and saves what was found.

    The options are the keywords of `run`, `--quick` for the quick form, and `--folder` for a folder
    that receives the claims (`NAME.json`) and the figure (`NAME.png`), from which
    `python -m benchmarks.reproductions` makes its page.
    """
    parser = command_line.parser(description, experiment.run, with_output=False)
    parser.add_argument("--quick", action="store_true", help="the quick form")
    parser.add_argument("--folder", help="folder for the claims and the figure")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**experiment.quick)
    arguments = vars(parser.parse_args())
    quick, folder = arguments.pop("quick"), arguments.pop("folder")
    print(describe(), flush=True)
    start = time.perf_counter()
    result = experiment.run(**command_line.keywords(arguments))
    seconds = time.perf_counter() - start
    experiment.show(result)
    claims = experiment.claims(result)
    for claim in claims:
        print(f"{VERDICTS[claim.held]}: {claim.paper} | {claim.ours} | {claim.why}")
    print(f"{seconds:.0f} s")
    if folder:
        save(experiment, description, result, claims, seconds, quick, Path(folder))


def save(
    experiment: Experiment,
    description: str | None,
    result: Any,
    claims: list[Claim],
    seconds: float,
    quick: bool,
    folder: Path,
) -> None:
    """Writes the claims and the figure of one run, named after the module of `run`."""
    name = module_name(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    options = [a for a in sys.argv[1:] if a != "--quick"]
    for name_of_folder in {"--folder", "--keep"}.intersection(options):
        at = options.index(name_of_folder)
        del options[at : at + 2]
    if "--programs" in options:
        options[options.index("--programs") + 1] = "FOLDER"
    form = ["--quick"] if quick else []
    record = {
        "paper": experiment.paper,
        "figure": experiment.figure,
        "title": experiment.title,
        "description": inspect.cleandoc(description or ""),
        "command": shlex.join(
            ["python", "-m", f"benchmarks.reproductions.{name}", *form, *options]
        ),
        "form": ("quick" if quick else "full") + " with options" * bool(options),
        "seconds": seconds,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe(),
        "claims": [
            {
                **claim._asdict(),
                "held": claim.held if claim.held in (None, UNDECIDED) else bool(claim.held),
            }
            for claim in claims
        ],
    }
    figure = folder / f"{name}.png"
    figure.unlink(missing_ok=True)  # the page must not show a figure of another run
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    figure.write_bytes(picture(experiment, result))


def picture(experiment: Experiment, result: Any) -> bytes:
    """Returns the experiment's figure in the page's style, as a PNG of at most `MOST_BYTES`.

    It has few colours, and fewer dots where that does not suffice.
    """
    from matplotlib import rc_context
    from PIL import Image

    for dots_per_inch in (100, 80, 60):
        drawn, small = io.BytesIO(), io.BytesIO()
        with rc_context(STYLE):
            figure = experiment.plot(result)
            _label_short_log_scales(figure)
            figure.savefig(drawn, dpi=dots_per_inch)
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(small, "png", optimize=True)
        if len(small.getvalue()) <= MOST_BYTES:
            break
    return small.getvalue()


def _label_short_log_scales(figure: Figure) -> None:
    """Labels 1, 2, 5, 10, ... on logarithmic axes of under two decades, 1 to 9 of under one."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = axis.get_view_interval()
        if axis.get_scale() == "log" and high < 100 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else range(1, 10)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())


def module_name(experiment: Experiment) -> str:
    """Returns the name of the experiment's module, also where it runs as a script."""
    module = sys.modules[experiment.run.__module__]
    return Path(str(module.__file__)).stem


def subplots(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.0, 3.0)
) -> tuple[Figure, Any]:
    """Returns a figure in the page's style and its axes, an array `[rows, columns]`.

    `size` is width and height of one of the axes with its labels, in inches (of 100 dots).
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)

"""Cost of an effective sample against N and D, from the tables of benchmarks/README.md."""

import re
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

TABLES = Path(__file__).parents[2] / "benchmarks" / "README.md"
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
KINDS = {"plain minibatches": "C1", "control variates, first order": "C0"}
SECOND = "control variates, second order"


class Problem(NamedTuple):
    """N, D, and the cost of each kind as a multiple of whitened HMC's."""

    num_examples: float
    dimension: int
    costs: dict[str, float]


def first_order() -> list[Problem]:
    """Returns the best sampler of each kind in each of the long tables."""
    text = TABLES.read_text(encoding="utf-8")
    found = []
    for title, table in re.findall(
        r"^([^\n]*D = \d+[^\n]*):\n\n```text\n(.*?)```", text, re.S | re.M
    ):
        best: dict[str, float] = {}
        for line in table.splitlines()[2:]:
            *_, milliseconds, _, sd = line.split()
            name = line[:25].strip()
            if not 1 / 1.1 < float(sd) < 1.1:
                continue
            if name == "HMC whitened":
                kind = "HMC"
            elif name in ("HMC", "NUTS", "corrected Langevin"):
                continue
            else:
                kind = list(KINDS)["+" in name]
            best[kind] = min(best.get(kind, float("inf")), float(milliseconds))
        hmc = best.pop("HMC")
        found.append(Problem(*size(title), {kind: ms / hmc for kind, ms in best.items()}))
    return found


def second_order() -> list[Problem]:
    """Returns the cheapest row of each posterior, of control variates of second order."""
    table = TABLES.read_text(encoding="utf-8").split("| posterior | sampler | E1, s |")[1]
    title, best = "", dict[str, float]()  # by posterior, milliseconds as a multiple of HMC's
    for line in table.split("\n\n")[0].splitlines()[2:]:
        posterior, sampler, *_, ratio, sd, _ = (cell.strip() for cell in line.split("|")[1:-1])
        title = posterior or title
        if sampler != "HMC whitened" and 1 / 1.1 < float(sd) < 1.1:
            best[title] = min(best.get(title, float("inf")), 1 / float(ratio))
    return [Problem(*size(title), {SECOND: cost}) for title, cost in best.items()]


def size(title: str) -> tuple[float, int]:
    """Returns N and D as a title gives them: MNIST 7 v 9 has 12,214 examples, a9a 26,048."""
    (dimension,) = re.findall(r"D = (\d+)", title)
    if "MNIST" in title or "a9a" in title:
        return (12_214.0 if "MNIST" in title else 26_048.0), int(dimension)
    (power,) = re.findall(r"N = 10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", title)
    return 10.0 ** int(power.translate(SUPERSCRIPTS)), int(dimension)


def draw(folder: Path) -> Path:
    """Writes cost.png."""
    problems = first_order() + second_order()
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    against_n = [p for p in problems if p.dimension == 20]
    against_d = [p for p in problems if p.num_examples < 13_000]
    for axes, chosen, x in ((panels[0], against_n, 0), (panels[1], against_d, 1)):
        for kind, colour in (KINDS | {SECOND: "C2"}).items():
            points = sorted((p[x], p.costs[kind]) for p in chosen if kind in p.costs)
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=kind)
        axes.axhline(1, color="0.4", linewidth=1)
        axes.set(yscale="log")
        axes.grid(alpha=0.3)
    panels[0].set(xscale="log", xlabel="N, with D = 20", ylabel="time, HMC = 1")
    panels[0].set_title("synthetic data", fontsize=10)
    panels[1].set(xlabel="D, with N = 10,000 or 12,214", xticks=[20, 51, 129])
    panels[1].set_title("synthetic data, and MNIST 7 v 9 twice", fontsize=10)
    panels[1].legend(fontsize=8)
    figure.savefig(folder / "cost.png", dpi=110)
    return folder / "cost.png"

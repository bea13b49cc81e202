"""The page of all experiments: for each the paper's claims, ours, the command and the time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.reproductions.experiment import UNDECIDED, VERDICTS
from benchmarks.reproductions.protocols import PROTOCOLS, Protocol

# The order of the page; each is a module of this folder with an `EXPERIMENT`.
EXPERIMENTS = (
    "tied_means",
    "a9a",
    "ica_artificial",
    "ica",
    "growing_batch",
    "growing_batch_mnist",
    "sgfs_ellipses",
    "sgfs_bias",
    "sgfs_mnist",
    "drbm_kdd",
    "drbm_kdd_posterior",
    "gaussian_table1",
    "blr_shang",
    "blr_shang_marginals",
    "drbm_shang",
    "mixture",
    "nogin_logistic",
    "nogin_others",
    "drbm_modes",
    "mnist_7v9",
    "mnist_7v9_fit",
    "mnist_networks",
)

PAPERS = {
    "Welling & Teh 2011": "M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient"
    " Langevin dynamics. ICML, 2011.",
    "He & Xin 2013": "Q. He and J. Xin. Hybrid deterministic-stochastic gradient Langevin dynamics"
    " for Bayesian learning. Communications in Information and Systems, 2013.",
    "Ahn, Korattikara & Welling 2012": "S. Ahn, A. Korattikara and M. Welling. Bayesian posterior"
    " sampling via stochastic gradient Fisher scoring. ICML, 2012.",
    "Shang, Zhu, Leimkuhler & Storkey 2015": "X. Shang, Z. Zhu, B. Leimkuhler and A. Storkey."
    " Covariance-controlled adaptive Langevin thermostat for large-scale Bayesian sampling. NIPS,"
    " 2015.",
    "Matthews & Weare 2018": "C. Matthews and J. Weare. Langevin Markov chain Monte Carlo with"
    " stochastic gradients. arXiv:1805.08863, 2018.",
}
BEYOND = "beyond the papers"  # the `paper` of an experiment that is in none of them

NOT_REPRODUCED = (
    (
        "Ahn, Korattikara & Welling 2012, figure 3, Heritage Health Prize",
        "the data of the competition can no longer be had",
    ),
    (
        "Shang, Zhu, Leimkuhler & Storkey 2015, figure 3, acoustic",
        "the loader is tested on a small file in the data's format, and the data were not at hand",
    ),
)
OTHER_PROTOCOL = "no, under another protocol"

INTRODUCTION = """\
# The five papers, figure by figure

Five papers introduced the samplers of this library, or measured them. Each of their experiments is
repeated here, with the paper's claim beside what was found, and a figure. Where an experiment
differs from its paper, or a claim did not hold, the page says so and gives the likely cause.
"""

READING = """\
## How to read this page

"no" stands only where all that the paper gives was run; elsewhere a claim that did not hold here is
"no, under another protocol", which says nothing against the paper.

Each experiment is one command, `python -m benchmarks.reproductions.NAME`. Its full form has the
settings that the text describes. Its quick form (`--quick`) takes about half a minute, with fewer
chains or steps and so more noise. `python -m benchmarks.reproductions` runs all quick forms and
writes this page. A claim *held* if the numbers of that run say so; the program decides it by a rule
that is fixed in the code. "not decided" marks a claim on a difference that is within the noise of
the run, and "not in the paper" a finding of this library alone. Minutes are of machines that other
work may have shared.
"""

FIELDS = ("paper", "figure", "title", "description", "command", "form")
FIELDS += ("seconds", "date", "machine", "claims")


def write_page(folder: Path, failed: Mapping[str, str] | None = None) -> None:
    """Writes `README.md` in the folder from the results `NAME.json` and `NAME.png` there.

    Args:
      folder: the folder of the results; it is made if it does not exist.
      failed: experiments that failed now, with the reason. Their results may be of an earlier run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, troubles = _read(folder)
    troubles += [f"`{name}` failed: {reason}." for name, reason in (failed or {}).items()]
    lines = [INTRODUCTION, *_counts(found), *_summary(found)]
    if troubles:
        lines += ["## Troubles with this page", "", *(f"- {t}" for t in troubles), ""]
    lines += [READING, *_failures(found)]
    sections = {**PAPERS, BEYOND: "The claims here are this library's; no paper has them."}
    for paper, source in sections.items():
        names = [name for name in found if found[name]["paper"] == paper]
        if names:
            lines += [f"## {paper[0].upper()}{paper[1:]}", "", source, ""]
        for name in names:
            lines += _section(name, found[name], (folder / f"{name}.png").exists())
    lines += ["## Not reproduced", "", *(f"- {what}: {why}." for what, why in NOT_REPRODUCED)]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Returns the records that can be used, in the page's order, and what is wrong with others."""
    found, troubles = {}, []
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            lacking = [field for field in FIELDS if field not in record]
            if lacking:
                raise ValueError(f"it lacks {', '.join(lacking)}")
            if record["paper"] not in {*PAPERS, BEYOND}:
                raise ValueError(f"its paper, {record['paper']!r}, is not on the page")
            held = [claim["held"] for claim in record["claims"]]
            if any(h not in VERDICTS for h in held):
                raise ValueError(f"claims have held {held}")
        except (ValueError, TypeError, KeyError) as error:  # json.JSONDecodeError is a ValueError
            troubles.append(f"`{path.name}` cannot be used: {error}. Run the experiment again.")
            continue
        found[name] = record
    unknown = sorted({path.stem for path in folder.glob("*.json")} - {*EXPERIMENTS})
    troubles += [f"`{name}.json` belongs to no experiment." for name in unknown]
    return found, troubles


def _protocol(name: str) -> Protocol:
    return PROTOCOLS.get(name, Protocol(""))


def _verdict(name: str, claim: Mapping[str, Any]) -> str:
    is_other = claim["held"] is False and _protocol(name).differences
    return OTHER_PROTOCOL if is_other else VERDICTS[claim["held"]]


def _counts(found: Mapping[str, Any]) -> list[str]:
    """Returns how many of the papers' claims were run with its protocol, and how many hold."""
    judged = [
        (name, claim)
        for name, record in found.items()
        for claim in record["claims"]
        if record["paper"] != BEYOND and claim["held"] is not None
    ]
    undecided = [claim for _, claim in judged if claim["held"] == UNDECIDED]
    judged = [(name, claim) for name, claim in judged if claim["held"] != UNDECIDED]
    same = [(name, claim) for name, claim in judged if not _protocol(name).differences]
    other = [(name, claim) for name, claim in judged if _protocol(name).differences]
    failed = [claim["paper"] for _, claim in same if not claim["held"]]
    names = sorted({f"`{name}`" for name, claim in other if not claim["held"]})
    return [
        f"- {len(judged)} claims of the papers are judged below; {len(undecided)} more are not "
        "decided, as the differences are within the noise.",
        f"- {len(same)} of them were run with all settings that the paper gives, and "
        f"{sum(claim['held'] for _, claim in same)} of these hold.",
        f"- Claims that did not hold with these settings: {'; '.join(failed) or 'none'}.",
        f"- {len(other)} were run with other settings, which each section lists; "
        f"{sum(claim['held'] for _, claim in other)} of these hold.",
        "- Experiments with a claim that did not hold under other settings: "
        f"{', '.join(names) or 'none'}. [Each has its likely cause](#claims-that-did-not-hold).",
        "",
    ]


def _differences(name: str) -> list[str]:
    protocol = _protocol(name)
    if not protocol.place:
        return []
    rows = [("what differs", "the paper", "here"), ("---",) * 3, *protocol.differences]
    table = [*map(_row, rows), ""] if protocol.differences else []
    same = "" if protocol.differences else " All settings that the paper gives are used."
    absent = [f"Not repeated: {'; '.join(protocol.absent)}.", ""] if protocol.absent else []
    chosen = f"The paper does not give, and chosen here: {'; '.join(protocol.chosen)}."
    chosen = [chosen, ""] if protocol.chosen else []
    return [f"In the paper: {protocol.place}.{same}", "", *table, *chosen, *absent]


def _failures(found: Mapping[str, Any]) -> list[str]:
    rows = [
        f"- [{record['title']}](#{name}) ({record['paper']}, {record['figure']}, {record['form']}"
        f" form{', under another protocol' if _protocol(name).differences else ''})."
        f" The claim: {claim['paper']}. Here: {claim['ours']}."
        f" Likely cause: {_cause(claim)}."
        for name, record in found.items()
        for claim in record["claims"]
        if claim["held"] is False
    ]
    none = "Every claim of the experiments below held." if found else "No experiment has run."
    return ["## Claims that did not hold", "", *(rows or [none]), ""]


def _summary(found: Mapping[str, Any]) -> list[str]:
    rows = [("experiment", "claims that held", "paper", "figure", "form", "minutes"), ("---",) * 6]
    for name in EXPERIMENTS:
        if name not in found:
            rows.append((f"`{name}`", "not run", "", "", "", ""))
            continue
        record = found[name]
        held = [c["held"] for c in record["claims"] if c["held"] not in (None, UNDECIDED)]
        count = f"{sum(held)} of {len(held)}" if held else "no claim"
        rows.append(
            (
                f"[{record['title']}](#{name})",
                count if all(held) else f"**{count}**",
                record["paper"],
                record["figure"],
                record["form"],
                _minutes(record),
            )
        )
    total = sum(record["seconds"] for record in found.values()) / 60
    return [*map(_row, rows), "", f"Together {total:.0f} minutes.", ""]


def _section(name: str, record: Mapping[str, Any], has_figure: bool) -> list[str]:
    rows = [("the claim", "here", "held", "what differs, or the likely cause"), ("---",) * 4]
    rows += [(c["paper"], c["ours"], _verdict(name, c), _cause(c)) for c in record["claims"]]
    figure = f"![{record['title']}]({name}.png)"
    missing = f"The figure is missing: there is no `{name}.png` beside this page."
    setting = record["description"].partition("\n")[2].strip()  # its first line is the title
    return [
        f'<a id="{name}"></a>',
        "",
        f"### {record['figure']}: {record['title']}",
        "",
        *map(_row, rows),
        "",
        *_differences(name),
        figure if has_figure else f"**{missing}**",
        "",
        *([setting, ""] if setting else []),
        f"`{record['command']}`, the {record['form']} form, took {_minutes(record)} minutes on"
        f" {record['date']}; {record['machine']}.",
        "",
    ]


def _cause(claim: Mapping[str, Any]) -> str:
    return claim["why"] or ("not known" if claim["held"] is False else "")


def _minutes(record: Mapping[str, Any]) -> str:
    return f"{record['seconds'] / 60:.1f}"


def _row(cells: Iterable[str]) -> str:
    """Returns a row of a Markdown table; a cell must have no line break and no bare `|`."""
    return "| " + " | ".join(" ".join(c.replace("|", r"\|").split()) for c in cells) + " |"

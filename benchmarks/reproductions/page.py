"""The page of all experiments: for each the paper's claims, ours, the command and the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.reproductions.experiment import VERDICTS

# The order of the page; each is a module of this folder with an `EXPERIMENT`.
EXPERIMENTS = ("tied_means", "a9a", "growing_batch", "growing_batch_mnist")

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


def write_page(folder: Path) -> None:
    """Writes `README.md` in the folder from the results `NAME.json` and `NAME.png` there."""
    lines = ["# The five papers, figure by figure", ""]
    paths = folder.glob("*.json")
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    lines += _summary(found)
    for name in EXPERIMENTS:
        if name in found:
            lines += _section(name, found[name])
    lines += ["## Not reproduced", ""]
    lines += [f"- {what}: {reason}." for what, reason in NOT_REPRODUCED]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summary(found: dict[str, Any]) -> list[str]:
    rows = [
        "| paper | figure | what | claims that held | form | minutes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in EXPERIMENTS:
        if name not in found:
            rows.append(f"| | | {name} | not run | | |")
            continue
        record = found[name]
        held = [claim["held"] for claim in record["claims"] if claim["held"] is not None]
        link = f"[{record['title']}](#{name.replace('_', '-')})"
        rows.append(
            f"| {record['paper']} | {record['figure']} | {link} | {sum(held)} of {len(held)}"
            f" | {'quick' if record['quick'] else 'full'} | {record['seconds'] / 60:.1f} |"
        )
    return [*rows, ""]


def _section(name: str, record: dict[str, Any]) -> list[str]:
    claims = [
        f"| {c['paper']} | {c['ours']} | {VERDICTS[c['held']]} | {c['why']} |"
        for c in record["claims"]
    ]
    return [
        f"## {name.replace('_', ' ')}",
        "",
        f"{record['paper']}, {record['figure']}: {record['title']}.",
        "",
        "| the paper | here | held | what differs, or the likely cause |",
        "| --- | --- | --- | --- |",
        *claims,
        "",
        f"![{record['title']}]({name}.png)",
        "",
        f"`{record['command']}`, {record['seconds'] / 60:.1f} minutes on {record['date']};"
        f" {record['machine']}.",
        "",
    ]

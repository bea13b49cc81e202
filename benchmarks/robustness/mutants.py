"""Plants small changes in a copy of the package, and names those that no test of their room tells.

    python -m benchmarks.robustness.mutants                     # all
    python -m benchmarks.robustness.mutants --rooms random      # those of some rooms
    python -m benchmarks.robustness.mutants --output table.md

Each mutant is one replacement in one file. Its room's tests run against a copy of the tree with
this change alone. A mutant survives if they pass. One that is equivalent says why, and is not run.
Quick tests run first, and the room's others only where those tell nothing. Mutants whose tests fail
without any change would count as killed, so each set of tests first runs on the unchanged copy.
Where processes can fork, TensorFlow is loaded once for all of them.

A run that was cut off goes on with `--kept FILE`, which keeps the verdicts.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import command_line, tables
from benchmarks.robustness.mutant_list import FIRST, MUTANTS, TESTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("tfp_sgmcmc", "tests", "benchmarks", "datasets", "docs", "conftest.py", "pyproject.toml")


class Outcome(NamedTuple):
    """The fate of a mutant: "killed", "survived", "equivalent" or "not run"."""

    mutant: Mutant
    verdict: str


def plant(folder: Path, mutant: Mutant) -> None:
    """Changes the copy in `folder`. Raises ValueError unless the old text occurs exactly once."""
    path = folder / "tfp_sgmcmc" / mutant.path
    source = path.read_text(encoding="utf-8")
    if (count := source.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.old!r} must occur once in {mutant.path}. Received: {count}.")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")


def passes(folder: Path, tests: tuple[str, ...], timeout: float) -> bool:
    """Returns whether the tests pass in `folder`; tests that run out of time do not."""
    multiprocessing.set_start_method("fork" if hasattr(os, "fork") else "spawn", force=True)
    process = multiprocessing.Process(target=_run_tests, args=(folder, tests))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


def _run_tests(folder: Path, tests: tuple[str, ...]) -> None:
    """Runs the tests of the tree in `folder` in this process, and ends it with their verdict."""
    import pytest

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    for name in [n for n in sys.modules if n.partition(".")[0] in COPIED]:
        del sys.modules[name]
    os._exit(pytest.main(["-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]))


def run(
    *,
    rooms: tuple[str, ...] = tuple(TESTS),
    timeout: float = 600.0,
    output: str = "",
    kept: str = "",
) -> list[Outcome]:
    """Runs the mutants of the rooms.

    Args:
      rooms: names of rooms.
      timeout: seconds for the tests of a mutant.
      output: a file for the table in Markdown.
      kept: a file of the verdicts so far, which are not found again.
    """
    import tensorflow  # noqa: F401  # loaded once, before the processes fork
    import tensorflow_probability  # noqa: F401

    path = Path(kept) if kept else None
    known = json.loads(path.read_text()) if path and path.exists() else {}
    found, sound = [], {}
    with tempfile.TemporaryDirectory() as name:
        for mutant in (m for m in MUTANTS if m.room in rooms):
            key = f"{mutant.path}: {mutant.old} > {mutant.new}"
            verdict = "equivalent" if mutant.equivalent else known.get(key, "")
            if not verdict:
                verdict = _verdict(Path(name), mutant, timeout, sound)
                print(f"{verdict}: {key}", flush=True)
                if verdict != "not run":
                    known[key] = verdict
                if path:
                    path.write_text(json.dumps(known, indent=1), encoding="utf-8")
            found.append(Outcome(mutant, verdict))
    if output:
        Path(output).write_text(table(found), encoding="utf-8")
    return found


def _verdict(
    parent: Path, mutant: Mutant, timeout: float, sound: dict[tuple[str, ...], bool]
) -> str:
    """Returns what the tests say; `sound` keeps which sets of tests pass without a change."""
    for tests in (FIRST.get(mutant.room, ()), TESTS[mutant.room]):
        if tests:
            folder = _copy(parent)
            if tests not in sound:
                sound[tests] = passes(folder, tests, timeout)
            if not sound[tests]:
                return "not run"
            plant(folder, mutant)
            if not passes(folder, tests, timeout):
                return "killed"
    return "survived"


def _copy(parent: Path) -> Path:
    folder = parent / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def table(found: list[Outcome]) -> str:
    """Returns the table in Markdown."""
    lines = ["| room | file | change | verdict |", "| --- | --- | --- | --- |"]
    for mutant, verdict in found:
        change = f"`{mutant.old}` > `{mutant.new}`".replace("|", r"\|").replace("\n", " ")
        why = f": {mutant.equivalent}" if mutant.equivalent else ""
        lines.append(f"| {mutant.room} | {mutant.path} | {change} | {verdict}{why} |")
    return "\n".join(lines) + "\n"


def summary(found: list[Outcome]) -> tables.Table:
    """Returns the number of mutants by room and verdict, with those that were not killed below."""
    verdicts = ("killed", "survived", "not run", "equivalent")
    lines = []
    for room in dict.fromkeys(x.mutant.room for x in found):
        of_room = [x.verdict for x in found if x.mutant.room == room]
        lines.append((room, str(len(of_room)), *(str(of_room.count(v)) for v in verdicts)))
    every = [x.verdict for x in found]
    lines.append(("all", str(len(found)), *(str(every.count(v)) for v in verdicts)))
    notes = []
    for mutant, verdict in found:
        if verdict != "killed":
            change = f"`{mutant.old}` > `{mutant.new}`".replace("\n", " ")
            why = f": {mutant.equivalent}" if mutant.equivalent else ""
            notes.append(f"- `{mutant.path}`, {change}, {verdict}{why}")
    return tables.Table(("room", "changes", *verdicts), lines, "\n".join(notes))


def show(found: list[Outcome]) -> tables.Table:
    print(table(found))
    shown = summary(found)
    print(shown.markdown())
    return shown


def main() -> None:
    """Runs the command, and fails if a mutant survived or was not run."""
    outcomes: list[Outcome] = []
    command_line.main(
        __doc__,
        run,
        lambda found: (outcomes.extend(found), show(found))[1],
        choices={"rooms": TESTS},
        table="robustness.mutants",
    )
    if bad := sum(x.verdict in ("survived", "not run") for x in outcomes):
        sys.exit(f"{bad} of {len(outcomes)} mutants survived or were not run.")


if __name__ == "__main__":
    main()

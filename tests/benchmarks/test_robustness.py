"""The table of wrong calls: how a call is judged, and a fixed part of the table."""

import inspect
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness import calls, catalogue_core, mutants, panel
from benchmarks.robustness.accepted import UNCALLED
from benchmarks.robustness.values import Named, integer, number
from tfp_sgmcmc.internal import checks


def outcome(call: Any, value: Any, also: str = "") -> str:
    entry = calls.Entry("room", "call", call, {"size": 1.0}, {"size": [value]}, {"size": also})
    return calls.classify(calls.Call(entry, "size", value)).outcome


def test_a_check_of_the_library_is_told_apart_from_an_error_from_inside() -> None:
    assert outcome(lambda size: checks.positive("size", size), "x") == "told"
    assert outcome(lambda size: checks.positive("other", size), "x") == "unnamed"
    assert outcome(lambda size: checks.positive("other", size), "x", "size|other") == "told"
    # A comparison that fails in a file of the package, and an error of the caller's.
    assert outcome(lambda size: checks.integer("size", 1, least=size), "x") == "inside"
    assert outcome(lambda size: int(size), "x") == "inside"


@pytest.mark.thorough
def test_a_function_that_checks_nothing_is_caught() -> None:
    """The negative control: NaN gets through, and words fail in NumPy."""

    def unchecked(size: Any) -> Any:
        return np.sqrt(size)

    assert outcome(unchecked, float("nan")) == "accepted"
    assert outcome(unchecked, 2.0) == "accepted"
    assert outcome(unchecked, "x") == "inside"
    entry = calls.Entry("room", "unchecked", unchecked, {"size": 1.0}, {"size": number(-1.0)})
    found = [calls.classify(call) for call in calls.calls_of([entry])]
    assert calls.share_told(found) == 0
    with pytest.raises(SystemExit, match=r"0.0 % .* accepted \(aim: none\)"):
        calls.show((found, ()))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("step_size must be positive.", True),
        ("The step size must be positive.", True),
        ("step_sizes must be positive.", False),
        ("last_step_size must be positive.", False),
    ],
)
def test_a_message_names_an_argument_by_whole_words(message: str, told: bool) -> None:
    assert calls.names(message, "step_size") == told


def test_a_valid_call_that_fails_is_an_error_of_the_catalogue() -> None:
    for call in (lambda size: 1 / 0, lambda size: np.nan):
        with pytest.raises(RuntimeError, match="The valid call of f"):
            calls.check_valid([calls.Entry("room", "f", call, {"size": 1.0}, {})])


def test_every_kind_of_wrong_value_has_a_short_name() -> None:
    values = [*integer(1, 8), Named("returns None", lambda: None)]
    names = [calls.label(value) for value in values]
    assert all(0 < len(name) <= 80 for name in names) and names[-1] == "a function, returns None"


def test_a_fixed_part_of_the_catalogue_is_told_in_the_words_of_the_library() -> None:
    core = catalogue_core
    rooms = core.kernels(), core.preconditioners(), core.schedules(), core.random_numbers()
    chosen = calls.calls_of([entry for room in rooms for entry in room])
    chosen = random.Random(1).sample(chosen, 300)
    found = [calls.classify(call) for call in chosen]
    assert [row for row in found if row.outcome == "accepted"] == []
    assert calls.share_told(found) >= calls.AIM, [row for row in found if row.outcome != "told"]


def public_names(module: Any, prefix: str = "") -> Iterator[str]:
    """Yields the names of public functions, classes and methods with the rooms that hold them."""
    own = [
        n
        for n, found in vars(module).items()
        if getattr(found, "__module__", "") == module.__name__
    ]
    for name in getattr(module, "__all__", [n for n in own if not n.startswith("_")]):
        found = getattr(module, name)
        if inspect.ismodule(found):
            yield from public_names(found, f"{prefix}{name}.")
        elif inspect.isclass(found) and not issubclass(found, tuple):
            yield f"{prefix}{name}"
            for method, function in inspect.getmembers(found, callable):
                home = getattr(function, "__module__", None) or ""
                if not method.startswith("_") and home.startswith("tfp_sgmcmc"):
                    yield f"{prefix}{name}.{method}"
        elif inspect.isfunction(found):
            yield f"{prefix}{name}"


@pytest.mark.thorough
def test_every_public_callable_is_called_or_has_a_reason() -> None:
    rooms = [name for name in sgmcmc.__all__ if inspect.ismodule(getattr(sgmcmc, name))]
    called = {entry.name.partition(" ")[0] for entry in calls.catalogue()}
    names = [n for room in rooms for n in public_names(getattr(sgmcmc, room), f"{room}.")]
    missing = [n for n in names if n.partition(".")[2] not in called]
    unexplained = [n for n in missing if not any(re.fullmatch(r, n) for r in UNCALLED)]
    assert unexplained == []
    stale = [r for r in UNCALLED if not any(re.fullmatch(r, n) for n in missing)]
    assert stale == [] and len(names) > 150


def test_every_planted_change_can_be_planted(tmp_path: Path) -> None:
    """Its old text occurs once, and the changed file compiles; its room has tests that exist."""
    for mutant in mutants.MUTANTS:
        path = tmp_path / "tfp_sgmcmc" / mutant.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mutants.ROOT / "tfp_sgmcmc" / mutant.path, path)
        mutants.plant(tmp_path, mutant)
        compile(path.read_text(), str(path), "exec")
        tests = (*mutants.FIRST.get(mutant.room, ()), *mutants.TESTS[mutant.room])
        for name, _, test in (test.partition("::") for test in tests):
            assert f"def {test}" in (mutants.ROOT / name).read_text()
    with pytest.raises(ValueError, match="must occur once"):
        mutants.plant(tmp_path, mutants.MUTANTS[-1])
    (row,) = mutants.table([mutants.Outcome(mutants.MUTANTS[0], "killed")]).splitlines()[2:]
    assert row.startswith("| random | random.py | `num_rounds = 5") and "killed" in row
    assert len(mutants.MUTANTS) >= 60
    found = [
        mutants.Outcome(m, "equivalent" if m.equivalent else "killed") for m in mutants.MUTANTS
    ]
    shown = mutants.summary([*found, found[0]._replace(verdict="survived")])
    assert shown.lines[-1][:4] == ("all", str(len(found) + 1), *shown.lines[-1][2:3], "1")
    assert shown.note.count("equivalent: ") == sum(bool(m.equivalent) for m in mutants.MUTANTS)
    assert ", survived" in shown.note


@pytest.mark.thorough
def test_the_panel_judges_groups_of_chains_of_a_run() -> None:
    """A likelihood that counts 20 times is told in both groups of four chains."""
    p = panel.gaussian(1.0, 2.0)

    def counted_too_often(p: panel.Problem) -> Any:
        return sgmcmc.CorrectedLangevin(p.target(scale=20.0), 0.05 / p.root**2)

    run = panel.Run("times 20", "bad", p, counted_too_often, 0, 50, num_results=200)
    rows = [*panel.judged_run(run, 2)]
    assert [row.said for row in rows] == ["problem"] * 2 and all(row.is_right for row in rows)

"""Tables that commands write into a page again."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import command_line, tables
from benchmarks.common.tables import Place, Table
from benchmarks.cost import equal_error_tables

ROOT = Path(__file__).resolve().parents[2]
PAGE = "before\n<!-- room.name -->\nold\n<!-- end of room.name -->\nafter\n"
TABLE = Table(("n", "E1"), [("100", "0.5")])


def test_a_table_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):  # the second time, its own
        Place(page, "room.name").write({"N = 10": TABLE, "N = 20": TABLE}, "23 November")
    assert page.read_text() == (
        "before\n<!-- room.name -->\n23 November\n\n"
        "N = 10:\n\n| n | E1 |\n| --- | --- |\n| 100 | 0.5 |\n\n"
        "N = 20:\n\n| n | E1 |\n| --- | --- |\n| 100 | 0.5 |\n"
        "<!-- end of room.name -->\nafter\n"
    )


@pytest.mark.parametrize("text", ["", PAGE * 2, PAGE.replace("end of", "end"), PAGE[::-1]])
def test_a_page_without_the_place_is_refused(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="must have a line <!-- room.name -->"):
        Place(page, "room.name").write(TABLE, "")
    assert page.read_text() == text


def test_the_head_names_the_command_without_the_page() -> None:
    found = tables.head(12.3, 0.5, ["--seed", "1", "--page", "a.md", "--quick"], "room.__main__")
    assert "`python -m room --seed 1 --quick`, 12 s, load 0.5 before; device: " in found


def test_a_command_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    calls: list[int] = []

    def run(*, n: int = 1) -> list[tuple[int, float]]:
        calls.append(n)
        return [(n, 0.25)]

    def show(rows: list[tuple[int, float]]) -> Table:
        return command_line.print_table({"n": "d", "E1": ".3f"}, rows)

    monkeypatch.setattr("sys.argv", ["program", "--n", "7", "--page", str(page)])
    command_line.main("What it does.", run, show, table="room.name")
    assert "| 7 | 0.250 |" in page.read_text() and "--n 7`, 0 s" in page.read_text()
    assert "7 0.250" in capsys.readouterr().out
    with pytest.raises(ValueError, match="other.name"):
        command_line.main("What it does.", run, show, table="other.name")
    assert calls == [7]  # refused before the work


def test_a_command_without_a_table_may_have_a_page_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages: list[str] = []
    monkeypatch.setattr("sys.argv", ["program", "--page", "folder"])

    def run(*, page: str = "") -> str:
        return page

    command_line.main("What it does.", run, pages.append)
    assert pages == ["folder"]


def test_the_cheapest_of_each_kind() -> None:
    def row(seconds: float, sd: float = 1.0) -> equal_error_tables.Row:
        reached = equal_error_tables.Reached(1.0, 10 * seconds, seconds, 0.01)
        return equal_error_tables.Row(
            reached, None, equal_error_tables.Effective(1.0, 3.0, seconds / 4, 0.0, sd)
        )

    rows = {"a": {"SGLD": row(2.0), "NOGIN": row(1.0, sd=1.2), "HMC": row(4.0), "Laplace": row(0)}}
    found = equal_error_tables.cheapest(rows)
    assert found.lines == [
        ("a", "all data", "HMC, 4 s (40 passes)", "not reached", "HMC, 1 s (3 passes)"),
        (
            "a",
            "plain minibatches",
            "NOGIN, 1 s (10 passes)",
            "not reached",
            "SGLD, 0.5 s (3 passes)",
        ),
    ]


def test_second_order_beside_whitened_hmc() -> None:
    def row(seconds: float, error: float) -> equal_error_tables.Row:
        reached = equal_error_tables.Reached(1.0, 1.0, seconds, error)
        missed = equal_error_tables.Reached(1.0, np.inf, np.inf, error)
        return equal_error_tables.Row(
            reached, missed, equal_error_tables.Effective(1.0, 3.0, seconds / 100, 0.0, 1.0)
        )

    laplace = equal_error_tables.Row(equal_error_tables.Reached(np.nan, 1.0, 1.0, 0.1), None, None)
    name = equal_error_tables.SECOND_ORDER[0]
    rows = {"a": {"HMC whitened": row(4.0, 0.2), name: row(0.5, 0.01), "Laplace": laplace}}
    assert equal_error_tables.beside_hmc(rows).lines == [
        ("a", "HMC whitened", "4", "not reached", "40", "1", "1.000", "0.2", "0.1"),
        ("a", name, "0.5", "not reached", "5", "8", "1.000", "0.01", "0.1"),
    ]
    without_hmc = {"a": {name: row(0.5, 0.01), "Laplace": laplace}}
    assert equal_error_tables.beside_hmc(without_hmc).lines == []


def test_every_place_of_the_page_belongs_to_a_command() -> None:
    page = ROOT / "benchmarks" / "README.md"
    texts = [path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'\btable="([^"]+)"', text)}
    assert len(names) >= 10
    for name in names:
        Place(page, name).parts()
    assert page.read_text().count("<!-- end of ") == len(names)

"""The main function of the scripts, and options from keywords."""

from pathlib import Path

import pytest

from benchmarks.common import command_line


def run(*, sizes: tuple[int, ...] = (1, 2), scale: float = 0.5, seed: int = 0) -> tuple:
    return sizes, scale, seed


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path):
    shown, figure = [], tmp_path / "figure.txt"
    options = ["--sizes", "3", "4", "5", "--scale", "2", "--output", str(figure)]
    monkeypatch.setattr("sys.argv", ["program", *options])
    command_line.main(
        "What it does.", run, shown.append, lambda r, path: Path(path).write_text(str(r))
    )
    assert shown == [((3, 4, 5), 2.0, 0)]
    assert figure.read_text() == str(shown[0])
    printed = capsys.readouterr().out
    assert printed.startswith("device: ") and printed.endswith(" s\n")


def test_without_plot_there_is_no_output(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["program", "--output", "file"])
    with pytest.raises(SystemExit):
        command_line.main("What it does.", run, print)

"""The page of the experiments: what it says of claims, of failures and of files that lack."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproductions import __main__, experiment, page
from benchmarks.reproductions.experiment import Claim, Experiment, subplots
from benchmarks.reproductions.protocols import PROTOCOLS, Difference, Protocol

FOLDER = Path(experiment.__file__).parent


def run(*, num_steps: int = 100, names: tuple[str, ...] = ("a", "b")) -> tuple[int, tuple]:
    return num_steps, names


def plot(result: Any) -> Any:
    figure, axes = subplots(1, 2)
    axes[0, 0].plot([0, 1], [0, result[0]], label="a line")
    axes[0, 0].set(xlabel="step", ylabel="error")
    axes[0, 0].legend()
    return figure


def claims(result: Any) -> list[Claim]:
    return [
        Claim("P(A|B) grows", f"{result[0]} steps", result[0] > 10),
        Claim("falls", "rises", False, "fewer steps"),
        Claim("at equal cost", "the same", None),
    ]


FAKE = Experiment("He & Xin 2013", "figure 9", "a test", run, {"num_steps": 7}, print, claims, plot)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the fake experiment from a command line; returns the folder of its page."""
    monkeypatch.setattr(page, "EXPERIMENTS", ("test_page", "absent"))
    monkeypatch.setattr(experiment, "module_name", lambda experiment: "test_page")
    monkeypatch.setattr(experiment, "describe", lambda: "a machine")

    def called(*options: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["program", *options, "--folder", str(tmp_path)])
        experiment.main(FAKE, "The title.\n\nWhat differs is text.")
        page.write_page(tmp_path)
        return tmp_path

    return called


def text(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_page_of_both_forms(
    call: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "picture", lambda *_: b"")
    quick = text(call("--quick"))
    assert "yes: P(A|B) grows" not in capsys.readouterr().out  # 7 steps
    assert quick.count("Likely cause") == 2
    assert "The claim: P(A|B) grows. Here: 7 steps. Likely cause: not known." in quick
    assert "The claim: falls. Here: rises. Likely cause: fewer steps." in quick
    assert r"| P(A\|B) grows | 7 steps | **no** |" in quick
    assert "| at equal cost | the same | not in the paper |" in quick
    assert "| **0 of 2** | He & Xin 2013 | figure 9 | quick | 0.0 |" in quick
    assert "`python -m benchmarks.reproductions.test_page --quick`, the quick form" in quick
    assert "; a machine.\n" in quick
    assert "| `absent` | not run |" in quick
    assert page.PAPERS["He & Xin 2013"] in quick
    assert "![a test](test_page.png)" in quick and "What differs is text." in quick
    assert "Troubles" not in quick
    assert all(f"- {what}: " in quick for what, _ in page.NOT_REPRODUCED)

    full = text(call())
    assert "| **1 of 2** | He & Xin 2013 | figure 9 | full | 0.0 |" in full
    assert full.count("Likely cause") == 1
    assert "`python -m benchmarks.reproductions.test_page`, the full form" in full
    other = text(call("--num-steps", "11"))
    assert "11 steps" in other and "| full with options |" in other
    assert "`python -m benchmarks.reproductions.test_page --num-steps 11`" in other


def test_another_protocol_says_nothing_against_the_paper(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "picture", lambda *_: b"")
    assert "- 2 of them were run with all settings that the paper gives, and 0 " in text(
        call("--quick")
    )
    other = Protocol("section 9", (Difference("steps", "10", "7"),), ("figure 3b",), ("the seed",))
    monkeypatch.setitem(PROTOCOLS, "test_page", other)
    found = text(call("--quick"))
    assert r"| P(A\|B) grows | 7 steps | no, under another protocol |" in found
    assert "**no**" not in found and "quick form, under another protocol). The claim" in found
    assert "In the paper: section 9.\n" in found and "| steps | 10 | 7 |" in found
    assert "Not repeated: figure 3b." in found
    assert "The paper does not give, and chosen here: the seed." in found
    assert "- 0 of them were run with all settings that the paper gives, and 0 of these" in found
    assert "under other settings: `test_page`. [Each has its likely cause]" in found
    assert found.index("- 2 claims of the papers") < found.index("| experiment | claims")


def test_every_experiment_of_a_paper_says_where_it_is() -> None:
    beyond = {"drbm_modes", "mnist_7v9", "mnist_7v9_fit", "mnist_networks"}
    assert set(PROTOCOLS) == set(page.EXPERIMENTS) - beyond
    assert all(protocol.place for protocol in PROTOCOLS.values())


def test_figure_is_small_and_in_the_style(call: Any) -> None:
    from PIL import Image

    path = call("--quick") / "test_page.png"
    assert path.stat().st_size < experiment.MOST_BYTES
    with Image.open(path) as image:
        assert image.size == (800, 300)
    axis = subplots()[1][0, 0]
    assert not axis.spines["top"].get_visible() and axis.xaxis.label.get_size() == 9


@pytest.mark.thorough
def test_a_missing_figure_is_told(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = call("--quick")
    # A plot that fails leaves no figure of an earlier run beside the new claims.
    monkeypatch.setitem(globals(), "FAKE", FAKE._replace(plot=lambda result: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        call("--quick")
    page.write_page(folder)
    assert "there is no `test_page.png`" in text(folder)
    assert "![" not in text(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda record: "{", "cannot be used: Expecting"),
        (lambda record: "[]", "cannot be used: it lacks paper, figure"),
        (lambda record: json.dumps(record | {"claims": [{}]}), "cannot be used: 'held'"),
        (lambda record: json.dumps(record | {"claims": None}), "cannot be used: "),
        (lambda record: json.dumps(record | {"paper": "No & One"}), "'No & One', is not on"),
        (lambda record: json.dumps({k: record[k] for k in record if k != "machine"}), "machine"),
    ],
)
def test_damaged_and_old_results_are_told(
    call: Any, change: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "picture", lambda *_: b"")
    folder = call("--quick")
    path = folder / "test_page.json"
    path.write_text(change(json.loads(path.read_text())))
    (folder / "other.json").write_text("{}")
    page.write_page(folder)
    troubles, _, rest = text(folder).partition("## Claims that did not hold")
    assert "`test_page.json` cannot be used" in troubles and told in troubles
    assert "`other.json` belongs to no experiment" in troubles
    assert "| `test_page` | not run |" in troubles and "No experiment has run" in rest


@pytest.mark.thorough
def test_a_failing_experiment_fails_the_command_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(page, "EXPERIMENTS", ("first", "breaks", "hangs", "last"))
    programs = {
        "first": f"open({str(tmp_path / 'first.txt')!r}, 'w').close()",
        "breaks": "raise ValueError('no data.')",
        "hangs": "import time; time.sleep(60)",
        "last": f"open({str(tmp_path / 'last.txt')!r}, 'w').close()",
    }
    monkeypatch.setattr(
        __main__, "command", lambda name, *_: [sys.executable, "-S", "-c", programs[name]]
    )
    failed = __main__.run(only=tuple(programs), folder=str(tmp_path), timeout=2.0)
    assert failed == ["breaks", "hangs"]
    assert all((tmp_path / f"{name}.txt").exists() for name in ("first", "last"))
    assert "- `breaks` failed: ValueError: no data." in text(tmp_path)
    assert "- `hangs` failed: it took longer than 2 s." in text(tmp_path)
    assert "Traceback" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="failed: breaks, hangs"):
        __main__.show(failed)
    __main__.show([])
    assert __main__.run(only_page=True, folder=str(tmp_path)) == []
    assert "Troubles" not in text(tmp_path)


def test_every_module_is_an_experiment_of_the_page() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")}
    modules -= {
        "__init__",
        "__main__",
        "against_passes",
        "drbm_hmc",
        "drbm_kdd_programs",
        "experiment",
        "page",
        "protocols",
    }
    assert {*page.EXPERIMENTS} == modules
    assert len({*page.EXPERIMENTS}) == len(page.EXPERIMENTS)
    papers = []
    for name in page.EXPERIMENTS:
        module = importlib.import_module(f"benchmarks.reproductions.{name}")
        found = module.EXPERIMENT
        assert experiment.module_name(found) == name
        assert {*found.quick} <= {*found.run.__kwdefaults__}
        assert module.__doc__ and len(module.__doc__.splitlines()) > 2
        papers.append(found.paper)
    order = [*page.PAPERS, page.BEYOND]
    assert papers == sorted(papers, key=order.index)


def test_committed_figures_are_small() -> None:
    folder = FOLDER.parents[1] / "docs" / "reproductions"
    large = [p.name for p in folder.glob("*.png") if p.stat().st_size > experiment.MOST_BYTES]
    assert not large

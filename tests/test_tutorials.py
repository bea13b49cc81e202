"""Tutorials run, their pages show the code that runs, and the site has every public name."""

import importlib
import inspect
import re
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import tfp_sgmcmc as sgmcmc
from tests.harness.shown_draws import ShownDraws

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SCRIPTS = sorted((DOCS / "tutorials").glob("*.py"))
ROOMS = ("covariance", "diagnostics", "keras", "kernels", "preconditioners", "random", "sampling")
SITE = "https://tfp-sgmcmc.github.io/tfp-sgmcmc/"
# Results that a tutorial shows because they are biased, or too few to tell.
BIASED = {"logistic_regression": 1, "million_examples": 1}
SECONDS = 600  # that a tutorial may take in the tests; alone on two cores it takes less than 120


def cells(script: Path) -> list[str]:
    """Returns the code cells of a percent script."""
    parts = re.split(r"^# %%(.*)\n", script.read_text(encoding="utf-8"), flags=re.M)
    kinds_and_bodies = zip(parts[1::2], parts[2::2], strict=True)
    return [body.strip() for kind, body in kinds_and_bodies if "[markdown]" not in kind]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_pages_show_the_code_of_their_scripts(script: Path) -> None:
    """A page that was not rendered again after its script changed fails here."""
    page = script.with_suffix(".md").read_text(encoding="utf-8")
    shown = [block.strip() for block in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)]
    assert shown == cells(script)
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", page)
    assert all((script.parent / picture).is_file() for picture in pictures)


def test_every_tutorial_is_listed() -> None:
    listed = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(SCRIPTS) >= 8
    for script in SCRIPTS:
        assert f"({script.stem}.md)" in listed and f"tutorials/{script.stem}.md" in menu


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_tutorials_run(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends, with its asserts, and `report` finds no bias in draws but where they say so."""
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    shown = ShownDraws(monkeypatch)
    start = time.perf_counter()
    names: dict = {"__name__": "tutorial"}  # not runpy, whose module workers of dask cannot import
    exec(compile(script.read_text(encoding="utf-8"), script, "exec"), names)
    assert len(names) > 10
    assert time.perf_counter() - start < SECONDS
    biased = shown.biased()
    assert len(biased) <= BIASED.get(script.stem, 0), biased


def documented() -> set[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    return set(re.findall(r"^::: (\S+)", text, re.M))


def test_every_public_name_has_a_place_in_the_api() -> None:
    """Names are given by the modules that define them, as the package loads them lazily."""
    places = documented()
    things = [getattr(sgmcmc, name) for name, home in sgmcmc._HOMES.items() if home != "tfp_sgmcmc"]
    for room in (*ROOMS, "targets", "schedules"):
        module = importlib.import_module(f"tfp_sgmcmc.{room}")
        names = getattr(module, "__all__", ["PolynomialDecay", "ConstantBelow", "Cyclical"])
        things += [getattr(module, name) for name in names]
    modules = [thing for thing in things if inspect.ismodule(thing)]  # keras.losses
    things += [getattr(module, name) for module in modules for name in module.__all__]
    things = [thing for thing in things if thing not in modules]
    expected = {f"{thing.__module__}.{thing.__qualname__}" for thing in things}
    assert expected - places == set()


def test_every_place_in_the_api_exists() -> None:
    for place in documented():
        module, _, name = place.rpartition(".")
        if name[0].islower() and inspect.ismodule(importlib.import_module(module)):
            found = importlib.import_module(module)
            if not hasattr(found, name):
                importlib.import_module(place)
        else:
            assert hasattr(importlib.import_module(module), name), place


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason='python -m pip install ".[docs]"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    source = re.compile(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="(https?:[^"]*)"')
    loaded = {url for page in pages for url in source.findall(page.read_text(encoding="utf-8"))}
    assert {url for url in loaded if not url.startswith(SITE)} == set()  # canonical addresses
    assert (tmp_path / "api/nogin/index.html").read_text().count("arithmatex") > 5
    assert not list(tmp_path.rglob("*.py"))


def test_the_picture_of_costs_has_the_numbers_of_the_tables() -> None:
    from docs.pictures import cost

    first = {(p.num_examples, p.dimension): p.costs for p in cost.first_order()}
    assert len(first) == 5
    minibatches, control = cost.KINDS
    assert first[12_214, 51] == {minibatches: 12.7 / 2.71, control: 8.68 / 2.71}
    assert minibatches not in first[1e6, 20]  # none is within 10 % of the exact deviations
    second = {(p.num_examples, p.dimension): p.costs[cost.SECOND] for p in cost.second_order()}
    assert len(second) == 6 and second[1e6, 20] == 1 / 1020


@pytest.mark.slow
@pytest.mark.parametrize("name", ["banana", "error", "traces"])
def test_pictures_are_drawn(name: str, tmp_path: Path) -> None:
    file = importlib.import_module(f"docs.pictures.{name}").draw(tmp_path)
    assert 10_000 < file.stat().st_size < 500_000

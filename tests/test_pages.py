"""Every Python block of README and of the documentation runs, and every internal link leads there.

The blocks of a page run in their order, in one namespace. A block that cannot run here follows a
comment `<!-- not run: reason -->`. `test_tutorials.py` runs the tutorials, by their scripts, and
`test_many_machines.py` the page about many machines.
"""

import re
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.shown_draws import ShownDraws

ROOT = Path(__file__).resolve().parents[1]
SITE = "https://tfp-sgmcmc.github.io/tfp-sgmcmc/"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "datasets/README.md",
)
PAGES += [ROOT / name for name in OUTSIDE]
RUN_ELSEWHERE = ("docs/reproductions", "docs/tutorials/", "docs/guides/many-machines.md")
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\n+)?^```python\n(?P<code>.*?)^```", re.S | re.M
)
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
PUBLISHED_BESIDE = ("asv/",)  # docs.yml puts the history of the benchmarks there
CHEAP = ("docs/guides/scale.md", "docs/guides/developers.md")
MODULE = re.compile(r"python -m ((?:benchmarks|docs|tfp_sgmcmc)(?:\.[a-z_0-9]+)*)(?![.\w])")
BIASED = {"docs/guides/is-it-right.md": 1}  # results that a page shows because they are biased
MOST_NOT_RUN = {"docs/guides/many-machines.md": 4}  # on a page; 2 on others


def blocks(page: Path) -> list[re.Match]:
    return [*BLOCK.finditer(page.read_text(encoding="utf-8"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


WITH_CODE = [
    pytest.param(
        page,
        id=name_of(page),
        marks=(pytest.mark.thorough if name_of(page) in CHEAP else pytest.mark.slow),
    )
    for page in PAGES
    if any(b["reason"] is None for b in blocks(page))
    and not name_of(page).startswith(RUN_ELSEWHERE)
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in an empty folder, asserts hold, and `report` finds no bias in draws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    keras.utils.set_random_seed(1)
    shown = ShownDraws(monkeypatch)
    names: dict = {"__name__": "page"}
    ran = 0
    for block in blocks(page):
        if block["reason"] is None:
            exec(compile(block["code"], name_of(page), "exec"), names)
            ran += 1
    assert ran
    biased = shown.biased()
    assert len(biased) == BIASED.get(name_of(page), 0), biased


def test_draws_of_pages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: HMC's draws are sound, and those of SGLD at half its limit are not.

    The variance is 4/3 of the exact one there. False alarms: 1e-3, with a fixed seed.
    """
    shown = ShownDraws(monkeypatch)
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    options: dict = dict(seed=0, jit_compile=False, progress_bar=False, preflight_check=False)
    for kernel in (
        tfp.mcmc.HamiltonianMonteCarlo(target, 0.8, 2),
        sgmcmc.SGLD(target, step_size=1.0),
    ):
        sgmcmc.sample_chain(kernel, tf.zeros([20, 2]), 300, num_burnin_steps=20, **options)
    (text,) = shown.biased()
    assert text.startswith("result 1, of sample_chain: ") and "too wide" in text


def test_blocks_that_do_not_run_are_few_and_say_why() -> None:
    reasons = {name_of(page): [b["reason"] for b in blocks(page) if b["reason"]] for page in PAGES}
    assert not [n for n, found in reasons.items() if len(found) > MOST_NOT_RUN.get(n, 2)]
    assert all(len(reason) > 10 for found in reasons.values() for reason in found)
    markers = sum(page.read_text(encoding="utf-8").count("\n<!-- not run:") for page in PAGES)
    assert markers == sum(map(len, reasons.values()))  # each marker stands before a block


def commands(page: Path) -> set[str]:
    """Returns the modules of this repository that the page's commands run."""
    return set(MODULE.findall(page.read_text(encoding="utf-8")))


def is_program(module: str) -> bool:
    file = ROOT / module.replace(".", "/")
    source = file.with_suffix(".py")
    return (file / "__main__.py").is_file() or (
        source.is_file() and '__name__ == "__main__"' in source.read_text(encoding="utf-8")
    )


def test_commands_exist() -> None:
    found = {(name_of(page), module) for page in PAGES for module in commands(page)}
    assert len(found) > 40
    missing = {(name, module) for name, module in found if not is_program(module)}
    assert missing == set()
    assert not is_program("benchmarks.common.chains")  # the negative control: not a program


def anchors(page: Path) -> set[str]:
    """Returns the ids of headings, as Python-Markdown and GitHub make them, and explicit ids."""
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for snippet in re.findall(r'^--8<-- "([^":]+)', text, re.M):
        found |= anchors(ROOT / snippet)
    for heading in re.findall(
        r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M
    ):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        plain = re.sub(r"[^\w\s-]", "", plain)
        found |= {re.sub(r"[-\s]+", "-", plain), re.sub(r"\s", "-", plain)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_internal_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))
    missing = []
    for link in links:
        path, _, anchor = link.partition("#")
        if path.startswith(tuple(SITE + name for name in PUBLISHED_BESIDE)):
            continue
        if path.startswith(SITE):
            path = path.removeprefix(SITE).removesuffix("/")
            found = [ROOT / "docs" / f"{path}.md", ROOT / "docs" / path / "index.md"]
            found += [ROOT / "docs" / path / "README.md", ROOT / "docs" / path]
            place = next((f for f in found if f.is_file()), ROOT / path)
        elif "://" in path or path.startswith("mailto:"):
            continue
        else:
            place = (page.parent / path).resolve() if path else page
        if not place.exists() or (
            anchor and place.suffix == ".md" and anchor not in anchors(place)
        ):
            missing.append(link)
    assert not missing, missing


def test_links_are_checked(tmp_path: Path) -> None:
    """The negative control: a broken path and a broken anchor are found."""
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[good](#a-heading) [bad](#another) [worse](none.md)\n")
    with pytest.raises(AssertionError, match=r"\['#another', 'none.md'\]"):
        test_internal_links_lead_somewhere(page)

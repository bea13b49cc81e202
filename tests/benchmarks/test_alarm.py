"""The alarm names the commits that made a figure worse, and no others."""

import datetime
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from asv.results import Results
from asv.runner import BenchmarkResult

from benchmarks.suite import alarm, bundle
from benchmarks.suite.alarm import Commit, Value, Worse
from benchmarks.suite.installed import refuse_copy

TIME, BIAS = "steps.Steps.time_steps({})", "accuracy.Accuracy.track_variance_bias({})"
THRESHOLD = {TIME: 0.3, BIAS: 1.5}


def commits(figures: dict[str, list[float | None]]) -> list[Commit]:
    """Returns a history; NaN is not measured."""
    length = len(next(iter(figures.values())))
    return [
        Commit(
            f"{i:040x}",
            i,
            {
                name: Value(values[i], values[i] or 0.0)
                for name, values in figures.items()
                if values[i] is None or not np.isnan(values[i])
            },
        )
        for i in range(length)
    ]


def named(found: list[Worse]) -> list[tuple[str, int, int]]:
    return sorted((w.figure, int(w.good, 16), int(w.bad, 16)) for w in found)


def test_two_measurements_name_each_cause_once_and_no_noise() -> None:
    """Among 400 figures with noise, exactly the two planted causes are named.

    Noise is lognormal with a quarter of 0.3 and 0.6 as standard deviation. Simulated with 1e6
    figures, noise exceeds the threshold of times, 0.3, with probability 2e-3, and again in the
    second measurement with 1.2e-5. So one of 1,800 comparisons is wrong with a probability of 2 %;
    the seed is fixed. The biases are four times as far from their threshold, 1.5.
    """
    rng = np.random.default_rng(0)
    histories = []
    for _ in range(2):
        figures = {}
        for form, t in ((TIME, 0.3), (BIAS, 0.6)):
            noise = np.exp(0.25 * t * rng.normal(size=[200, 12]))
            figures |= {form.format(i): [*row] for i, row in enumerate(noise)}
        figures[TIME.format(3)][5:] = [2 * x for x in figures[TIME.format(3)][5:]]
        figures[BIAS.format(7)][8:] = [6 * x for x in figures[BIAS.format(7)][8:]]
        histories.append(commits(figures))
    first = alarm.worsened(histories[0])
    again = {commit.name: commit for commit in histories[1]}
    found = named([w for w in first if alarm._is_worse_again(w, again)])
    assert found == [(BIAS.format(7), 7, 8), (TIME.format(3), 4, 5)]


def test_improvements_gaps_and_failures() -> None:
    nan, name = float("nan"), TIME.format("x")
    cases: list[tuple[list[float | None], list[tuple[int, int]]]] = [
        ([1, 1, 1.19, 1], []),  # within the threshold
        ([1, 1, 1.21, 1], [(1, 2)]),
        ([2, 2, 1, 1, 1.15], []),  # better, and then measured from there
        ([2, 2, 1, 1, 1.9], [(3, 4)]),
        ([1, nan, nan, 2, 2], [(0, 3)]),  # a range
        ([1, 1, None, 1], [(1, 2)]),  # failed
        ([None, None, 1, 1], []),  # never worked
        ([1, 2, 4, 4], [(0, 1), (1, 2)]),  # two causes
    ]
    for values, expected in cases:
        assert [
            x[1:] for x in named(alarm.worsened(commits({name: values}), least=1))
        ] == expected, values
    assert not alarm.worsened(commits({name: [1, 1, 2, 2, 2]}))  # too few before
    assert named(alarm.worsened(commits({name: [1, 1, 1, 2, 2]}))) == [(name, 2, 3)]
    wide = commits({name: [1, 1, 2]})
    wide[2].values[name] = Value(2.0, 1.1)  # its interval reaches down into what is allowed
    assert not alarm.worsened(wide, least=1)


def save(folder: Path, number: int, seconds: float, bias: float, machine: str = "m") -> None:
    """Saves results as asv does; the sampler "SGFS" is skipped."""
    results = Results(
        {"machine": machine}, {}, f"{number:02d}" * 20, 1000 * number, "3.11", "environment", {}
    )
    samples = [seconds * x for x in (0.99, 1.0, 1.01, 1.0, 0.995)]
    found = [
        ("steps.Steps.time_steps", [["'SGLD'"]], [seconds], [samples]),
        ("accuracy.Accuracy.track_variance_bias", [["'SGLD'", "'SGFS'"]],
         [bias, float("nan")], [None, None]),
    ]  # fmt: skip
    for name, params, values, drawn in found:
        benchmark = {"name": name, "version": "1", "params": params}
        result = BenchmarkResult(values, drawn, [1 if x else None for x in drawn], 0, "", None)
        results.add_result(benchmark, result, datetime.datetime.now(datetime.UTC))
    results.save(str(folder))


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0, None, 1.0, 1.0]])
def test_what_has_no_reference_was_not_compared(values: list[float | None]) -> None:
    """Three values must come before. Negative control: one value more is compared."""
    short = commits({TIME.format("a"): values})
    assert alarm.num_compared(short) == 0
    assert alarm.num_compared(commits({TIME.format("a"): [*values, 1.0]})) == 1
    assert alarm.num_compared(short, least=1) == 1


def test_nothing_compared_exits_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "machine.json").write_text(json.dumps({"machine": "here", "version": 1}))
    monkeypatch.setattr(sys, "argv", ["alarm", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(alarm.__file__), run_name="__main__")
    assert ended.value.code == 2 and "Nothing was compared" in capsys.readouterr().err


def test_a_copy_is_not_measured(tmp_path: Path) -> None:
    refuse_copy("existing")
    refuse_copy("virtualenv", tmp_path)
    with pytest.raises(RuntimeError, match=r"tfp_sgmcmc must be that of .*--editable"):
        refuse_copy("existing", tmp_path)


def test_results_of_asv_are_read_and_reported(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "machine.json").write_text(json.dumps({"machine": "m", "version": 1}))
    for number, (seconds, bias) in enumerate(
        [(1.0, 0.1), (1.02, 0.11), (0.98, 0.1), (1.5, 0.1), (1.5, 0.4)]
    ):
        save(tmp_path, number, seconds, bias)
    found = alarm.run(results=tmp_path)
    assert [(w.figure, w.good[:2], w.bad[:2]) for w in found] == [
        ("accuracy.Accuracy.track_variance_bias('SGLD')", "03", "04"),
        ("steps.Steps.time_steps('SGLD')", "02", "03"),
    ]
    report = tmp_path / "report.md"
    (only,) = alarm.run(results=tmp_path, last=1, report=str(report))
    assert only.bad[:2] == "04"
    assert "asv find 03030303..04040404 accuracy.Accuracy.track_variance_bias" in report.read_text()
    assert not alarm.run(results=tmp_path, commits=("00", "01"))
    assert len(alarm.run(results=tmp_path, commits=("00", "03"))) == 1
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "machine.json").write_text(json.dumps({"machine": "n", "version": 1}))
    for number, (seconds, bias) in {2: (1.0, 0.1), 3: (1.5, 0.12), 4: (1.5, 0.13)}.items():
        save(tmp_path, number, seconds, bias, "n")
    confirmed = alarm.run(results=tmp_path, machine="m", confirm="n")
    assert [w.figure for w in confirmed] == ["steps.Steps.time_steps('SGLD')"]
    with pytest.raises(SystemExit, match="1 figures became worse"):
        alarm.show([only])
    with pytest.raises(ValueError, match="machine must be one of.*: m, n. Received: 'other'"):
        alarm.run(results=tmp_path, machine="other")
    with pytest.raises(ValueError, match="commits must begin the hash of one commit"):
        alarm.run(results=tmp_path, machine="m", commits=("00", "77"))


def test_the_page_reads_its_own_copies(tmp_path: Path) -> None:
    page, cache = tmp_path / "page", tmp_path / "cache"
    page.mkdir()
    cache.mkdir()
    (cache / "a.js").write_text("one();")
    right = _digest(cache / "a.js")
    tag = '<script src="https://far.invalid/x/a.js" integrity="{}" crossorigin="anonymous">'
    (page / "index.html").write_text(
        f'<html>{tag.format(right)}</script><a href="https://far.invalid/">far</a></html>'
    )
    assert bundle.bundle(page=page, cache=str(cache)) == ["https://far.invalid/x/a.js"]
    assert (page / "index.html").read_text() == (
        '<html><script src="vendor/a.js"></script><a href="https://far.invalid/">far</a></html>'
    )
    assert (page / "vendor" / "a.js").read_text() == "one();"
    assert not bundle.bundle(page=page, cache=str(cache))  # nothing is left
    (page / "index.html").write_text(tag.replace('integrity="{}" ', ""))
    with pytest.raises(ValueError, match="must have a hash"):
        bundle.bundle(page=page, cache=str(cache))
    (page / "index.html").write_text(tag.format(_digest(page / "index.html")))
    with pytest.raises(Exception, match="hash|retrieve|HTTP|resolve|connect"):  # fetched anew
        bundle.bundle(page=page, cache=str(cache))


def _digest(path: Path) -> str:
    import base64
    import hashlib

    return "sha256-" + base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()

"""The demonstration: its command line, and its results in full and in a tenth of the steps.

The fast suite gives it the results of its samplers, which compile for half a minute.
"""

import base64
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfp_sgmcmc
from tfp_sgmcmc import __main__ as command_line

ROOT = Path(__file__).parents[1]
FILES = ("results.json", "marginals.png", "report.html")


def command(*arguments, options=()):
    return [sys.executable, *options, "-m", "tfp_sgmcmc", *arguments]


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("--quick", marks=pytest.mark.thorough),
        pytest.param("--seed=0", marks=pytest.mark.slow),
    ],
)
def default_run(request, tmp_path_factory):
    """Runs the command in an empty folder; returns the results, what it printed, and the folder."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        command(request.param), cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=480,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "oneDNN" not in done.stderr and "\r" not in done.stderr
    results = json.loads((folder / "output" / "results.json").read_text())
    return results, done.stdout, folder, request.param == "--quick"


def test_posterior_of_the_default_run(default_run):
    results, _, _, is_quick = default_run
    normal, *sampled, hmc = results["posterior"].values()
    assert len(sampled) == 3
    # Negative control: a chain that stays near the mode misses the bounds by a factor of 2.
    assert normal["E1"] > 0.15
    assert sampled[0]["E1"] < (0.075 if is_quick else 0.05)  # quick: 0.034
    assert all(row["E1"] < 0.15 for row in sampled)
    assert hmc["E1"] == hmc["E2"] == 0
    if not is_quick:
        assert sampled[0]["E2"] < 0.3 and all(row["ESS"] > 300 for row in sampled)
        assert hmc["R-hat"] < 1.01 and hmc["ESS"] > 2000


def test_classifier_of_the_default_run(default_run):
    rows = default_run[0]["classifier"]
    assert list(rows) == ["Adam", "posterior average"]
    for row in rows.values():  # ten classes, 360 test examples: chance is 0.1 +- 0.02
        assert row["accuracy"] > 0.95 and row["NLL"] < 0.2 and row["ECE"] < 0.05


def test_files_and_printed_tables_of_the_default_run(default_run):
    results, printed, folder, _ = default_run
    assert (folder / "output" / "marginals.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    for name in FILES:
        assert str(Path("output") / name) in printed
    assert f"{results['posterior']['SGLD']['E1']:.3g}" in printed
    page = (folder / "output" / "report.html").read_text()
    assert page.count("<table") == 2 and "data:image/png;base64," in page
    assert (folder / "output" / "report.html").as_uri() in printed
    assert f"{results['classifier']['posterior average']['NLL']:.3g}" in printed


def test_tables_and_figure_of_given_draws(monkeypatch, capsys, tmp_path):
    """The command hands over its options, and writes what its two samplers return."""
    demo = pytest.importorskip("tfp_sgmcmc.demo")
    given = []

    def sample_logistic_regression(x, y, seed, shortening):
        given.append((x.shape, set(y), seed, shortening))
        draws = np.random.default_rng(seed).normal(size=[500, 8, x.shape[1] + 1])
        rows = {demo.NORMAL: {"E1": 0.2}, "SGLD": {"E1": 0.034, "ESS": 200.0}}
        return rows, dict.fromkeys((demo.NORMAL, "SGLD", demo.REFERENCE), draws)

    def sample_network(train, test, seed, shortening):
        given.append((train[0].shape, test[0].shape, seed, shortening))
        return {"posterior average": {"NLL": 0.0969}}

    monkeypatch.setattr(demo, "sample_logistic_regression", sample_logistic_regression)
    monkeypatch.setattr(demo, "sample_network", sample_network)
    folder = tmp_path / "output"
    assert command_line.main(["--quick", "--seed", "3", "--output", str(folder)]) == 0
    assert given == [((1437, 61), {0, 1}, 3, 10), ((1437, 61), (360, 61), 3, 10)]
    results = json.loads((folder / "results.json").read_text())
    assert results["posterior"]["SGLD"]["ESS"] == 200 and results["seed"] == 3
    assert (folder / "marginals.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    from matplotlib import image

    code = (folder / "report.html").read_text().partition("base64,")[2].partition('"')[0]
    shown = image.imread(io.BytesIO(base64.b64decode(code)))
    assert shown[0, 0, 3] == 0  # no ground, for browsers in the dark
    printed = capsys.readouterr().out
    for piece in ("0.034", "200", "0.0969", *(str(folder / name) for name in FILES)):
        assert piece in printed


def test_help_is_complete_and_imports_no_tensorflow():
    done = subprocess.run(
        command("--help", options=["-X", "importtime"]),
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported  # the listing has the imports
    assert not imported & {"tensorflow", "tensorflow_probability", "keras", "matplotlib"}
    for word in ("--output", "--seed", "--quick", "--version", *FILES, "a minute"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "arguments", [["--seed", "one"], ["--seed", "-1"], ["--steps", "3"], ["--out", "x"]]
)
def test_bad_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        command_line.main(arguments)
    assert exit.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def last_line(text):
    assert text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text
    return text


def test_missing_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.delitem(sys.modules, "tfp_sgmcmc.demo", raising=False)
    monkeypatch.delattr(tfp_sgmcmc, "demo", raising=False)
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command_line.main(["--output", str(tmp_path)]) == 1
    message = last_line(capsys.readouterr().err)
    assert "sklearn" in message and 'python -m pip install "tfp_sgmcmc[demo]"' in message


@pytest.mark.parametrize("place", ["", "below"])
def test_output_that_cannot_be_written(place, capsys, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / place
    assert command_line.main(["--output", str(folder)]) == 1
    assert f"--output {folder}" in last_line(capsys.readouterr().err)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for child processes")
@pytest.mark.slow
def test_an_interrupt_gets_one_line(tmp_path):
    with subprocess.Popen(
        command("--output", str(tmp_path)),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        for line in process.stdout:
            if line.startswith("1. "):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.splitlines()[-1] == "python -m tfp_sgmcmc: interrupted"

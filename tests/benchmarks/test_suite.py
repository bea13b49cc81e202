"""The asv suite has the tracked benchmarks, and its profiles fit it. Nothing is measured."""

from __future__ import annotations

import inspect
import itertools
import json
import platform
import re
import subprocess
import tomllib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from benchmarks.suite import __main__ as suite_main
from benchmarks.suite import accuracy, device, exact, networks, profiles, scaling, steps
from benchmarks.suite.thresholds import CONFIGURATION, threshold

MODULES = {
    "accuracy": accuracy,
    "exact": exact,
    "networks": networks,
    "scaling": scaling,
    "steps": steps,
}
PREFIX = re.compile("time_|peakmem_|track_")
FOUND = {
    f"{module_name}.{class_name}.{name}": (found, method)
    for module_name, module in MODULES.items()
    for class_name, found in vars(module).items()
    if inspect.isclass(found) and not class_name.startswith("_")
    for name, method in inspect.getmembers(found, inspect.isfunction)
    if PREFIX.match(name)
}


def test_the_suite_has_what_is_tracked() -> None:
    names = {name.split(".")[-1] for name in FOUND}
    assert names >= {
        "time_first_step",
        "time_steps",
        "track_seconds_per_step",
        "peakmem_steps",
        "track_mean_error",
        "track_covariance_error",
        "track_variance_bias",
        "track_matched_bias",
        "track_seconds_per_effective_sample",
        "track_stein_discrepancy",
        "track_temperature_error",
        "track_log_loss",
        "track_calibration_error",
    }


@pytest.mark.parametrize("name", FOUND)
def test_each_benchmark_has_a_version_and_a_threshold_and_takes_its_parameters(name: str) -> None:
    found, method = FOUND[name]
    assert isinstance(vars(found).get("version", getattr(found, "version", None)), str)
    assert 0 < threshold(name) < 2
    cached = int(hasattr(found, "setup_cache"))
    assert len(inspect.signature(method).parameters) == 1 + cached + len(found.param_names)
    if len(found.param_names) > 1:
        assert len(found.params) == len(found.param_names)


def test_no_threshold_is_for_nothing() -> None:
    patterns = json.loads(CONFIGURATION.read_text())["regressions_thresholds"]
    assert all(any(re.match(pattern, name) for name in FOUND) for pattern in patterns)
    with pytest.raises(ValueError, match=r"has no threshold in asv.conf.json"):
        threshold("accuracy.Accuracy.track_luck")


def test_environments_hold_what_the_package_needs() -> None:
    """asv installs the package alone, because pip would install the latest dependencies."""
    configuration = json.loads(CONFIGURATION.read_text())
    assert "--no-deps" in configuration["install_command"][0]
    project = tomllib.loads((CONFIGURATION.parent / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["datasets"]
    names = {r.name for r in map(Requirement, needed) if r.marker is None}
    assert names == set(configuration["matrix"]["req"])


def test_profiles_name_samplers_of_the_table_and_add_up() -> None:
    from benchmarks.common import problems
    from benchmarks.suite import chains

    _, methods = chains.methods("synthetic", problems.BATCH_SIZE)
    assert set(methods) == {*profiles.SAMPLERS, *profiles.BASELINES}
    for profile in profiles.PROFILES.values():
        assert set(profile.samplers) | set(profile.compiled) <= set(profiles.SAMPLERS)
        assert set(profile.scored) <= set(methods)
        assert all(profile)  # asv runs each benchmark at least once
    by_size = (profiles.SMOKE, profiles.FAST, profiles.REGULAR, profiles.LARGE)
    for less, more in itertools.pairwise(by_size):
        for field in ("samplers", "compiled", "problems", "scored", "fitted"):
            assert set(getattr(less, field)) <= set(getattr(more, field))


def test_every_exact_setting_is_in_every_profile() -> None:
    """The registry's kernels are among them, each under its name."""
    from benchmarks.common.registry import SAMPLERS
    from benchmarks.suite import exact_entry_points, exact_laws

    settings = (*exact_laws.SETTINGS, *exact_entry_points.ENTRY_POINTS)
    assert settings == profiles.EXACT
    kept = (profiles.FAST, profiles.REGULAR, profiles.LARGE)
    assert all(profile.exact == profiles.EXACT for profile in kept)
    assert all(profile.lengths == profiles.Lengths() for profile in kept)
    assert {row.name for row in SAMPLERS} <= set(profiles.EXACT)


def test_planted_estimates() -> None:
    """Estimates of twice the gradient, and of the gradient at the state before."""
    from benchmarks.robustness import planted
    from benchmarks.suite import exact_laws

    target, seed = exact_laws.all_data(), tf.constant([0, 0])
    first, second = (tf.fill([2, exact_laws.DIMENSIONS], x) for x in (1.0, 5.0))
    twice = planted.with_estimate(target, planted._scaled(target, 2.0)).estimate(first, seed)
    np.testing.assert_array_equal(twice.gradient, -2 * first)
    late = planted.stale(target)
    now = late.estimate(first, seed, late.bootstrap(first))
    late = late.estimate(second, seed, now.target_state)
    np.testing.assert_array_equal(late.gradient, -first)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SGLD", "CCAdL", "SGFS", "GrowingBatch", "whiten"])
def test_an_exact_figure_tells_two_percent(name: str) -> None:
    """False alarms: 6e-7, at 5 standard errors. A gradient of 1.02 times the right one is told."""
    from benchmarks.robustness import planted
    from benchmarks.suite import exact_laws

    found = exact_laws.measure(name)
    assert abs(found.error) < 5 * found.standard_error < 0.0115
    with planted.planted(name, planted.SCALE) as wrap:
        wrong = exact_laws.Measurement(exact_laws.SETTINGS[name], wrap)(1)
    assert planted.tracked(wrong.error) > planted.LIMIT > planted.tracked(found.error)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["StreamedLogProb", "fit", "sample"])
def test_an_entry_point_samples_its_closed_form(name: str) -> None:
    """False alarms: 6e-7 at 5 standard errors. A variance 2 % too large is 4 of them at least."""
    from benchmarks.suite import exact_entry_points

    found = exact_entry_points.measure(name)
    assert abs(found.error) < 5 * found.standard_error < 0.025


def test_a_slowed_kernel_makes_thirteen_steps_in_ten() -> None:
    from benchmarks.robustness import planted

    class Counter:
        def one_step(self, state: tf.Tensor, results: tf.Tensor, seed: tf.Tensor) -> Any:
            return state + 1, results

    state, results = tf.constant(0), (tf.zeros([]), tf.constant(0))
    for i in range(20):
        state, results = planted.Slow(Counter()).one_step(state, results, seed=[0, i])
    assert state == 26 and results[1] == 20


def test_every_planted_fault_is_one_of_the_page() -> None:
    from benchmarks.robustness import planted

    names = [f for n in profiles.EXACT for f in planted.faults_of(n)]
    assert set(names) == {
        planted.NOISE, planted.SCALE, planted.STALE, planted.HALF, planted.SLOW, planted.THERMOSTAT
    }  # fmt: skip
    cells = [
        planted.Cell("SGLD", planted.NOISE, 0.05, True),
        planted.Cell("SGLD", planted.SLOW, 1.1, False),
        planted.Cell("SGLD", planted.NONE, 0.002, False),
    ]
    table = planted.show(cells)
    assert table.lines == [("SGLD", "+5.0%", "", "", "", "**not told** 1.10", "")]
    assert "1 of 2 planted changes were told. 1 reruns of 1 unchanged figures gave 0" in table.note


def test_an_unknown_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profiles.VARIABLE, "quick")
    with pytest.raises(ValueError, match="one of fast, smoke, regular, large. Received: 'quick'"):
        profiles.chosen()


def test_results_of_a_device_are_asked_of_that_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.environment("CPU") == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert device.environment("GPU") == {}
    monkeypatch.setenv(device.VARIABLE, "gpu")
    with pytest.raises(ValueError, match="one of CPU, GPU. Received: 'gpu'"):
        device.chosen()


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the environment variables that `main` sets for asv."""
    monkeypatch.setenv(device.VARIABLE, "CPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.mark.usefixtures("own_environment")
def test_a_device_that_is_not_there_is_told_before_asv_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: _devices(kind))
    monkeypatch.setattr("sys.argv", ["suite", "--device", "GPU", "run", "--quick"])
    monkeypatch.setattr(suite_main.subprocess, "run", lambda *_, **__: pytest.fail("asv started"))
    with pytest.raises(SystemExit) as error:
        suite_main.main()
    assert error.value.code == 2
    assert "The suite needs a GPU. TensorFlow sees only: CPU." in capsys.readouterr().err


@pytest.mark.usefixtures("own_environment")
def test_each_device_is_a_machine_to_asv(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command[3:])
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("sys.argv", ["suite", "--device", "CPU", "run", "--quick", "--bench", "x"])
    monkeypatch.setattr(suite_main.subprocess, "run", run)
    with pytest.raises(SystemExit) as error:
        suite_main.main()
    machine = f"{platform.node()}-cpu"
    assert commands == [
        ["machine", "--yes", "--machine", machine],
        ["run", "--machine", machine, "--quick", "--bench", "x"],
    ]
    assert error.value.code == 3


def _devices(kind: str | None) -> list[tf.config.PhysicalDevice]:
    return [] if kind == "GPU" else [tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU")]

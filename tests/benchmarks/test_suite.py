"""The asv suite: what asv finds, and that its profiles fit it. Nothing is measured."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from benchmarks.suite import accuracy, networks, profiles, scaling, steps
from benchmarks.suite.thresholds import CONFIGURATION, threshold

MODULES = {"accuracy": accuracy, "networks": networks, "scaling": scaling, "steps": steps}
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
        "time_500_steps",
        "peakmem_200_steps",
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


def test_profiles_name_samplers_of_the_table_and_add_up() -> None:
    from benchmarks.suite import chains, problems

    _, methods = chains.methods("synthetic", problems.BATCH_SIZE)
    assert set(methods) == {*profiles.SAMPLERS, *profiles.BASELINES}
    for profile in profiles.PROFILES.values():
        assert set(profile.samplers) | set(profile.compiled) <= set(profiles.SAMPLERS)
        assert set(profile.scored) <= set(methods)
        assert all(profile)  # asv runs each benchmark at least once
    for less, more in ((profiles.FAST, profiles.REGULAR), (profiles.REGULAR, profiles.LARGE)):
        for field in ("samplers", "compiled", "problems", "scored", "fitted"):
            assert set(getattr(less, field)) <= set(getattr(more, field))


def test_an_unknown_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profiles.VARIABLE, "quick")
    with pytest.raises(ValueError, match="'quick'; one of fast, regular, large is expected"):
        profiles.chosen()

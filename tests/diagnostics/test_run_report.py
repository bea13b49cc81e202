"""`report` names what is wrong with draws, and finds nothing wrong with good draws."""

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


def draws(shape: tuple[int, ...] = (3,), num: int = 500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal([num, 4, *shape])


def log_prob(w: Any, b: Any) -> Any:
    return -0.5 * (tf.reduce_sum(w**2, axis=-1) + b**2)


def report(scale: float = 1.0, **changes: Any) -> Any:
    given = {"w": scale * draws(), "b": scale * draws((), seed=1)} | changes
    return sgmcmc.report(given, log_prob)


def test_good_draws_have_no_problem() -> None:
    found = report()
    assert found.problems == () and "no problem was found" in str(found)
    assert [(r.name, r.num_entries) for r in found.rows] == [("w", 3), ("b", 1)]
    for row in found.rows:
        assert row.rhat < 1.01 and row.num_draws > 1500 and row.time < 1.4
    value, error = found.temperature
    assert abs(value - 1) < 5 * error and error < 0.05


def single_problem(found: Any) -> str:
    (problem,) = found.problems
    assert "do not trust" in str(found) and problem in str(found)
    return problem


def test_chains_that_disagree() -> None:
    apart = draws()
    apart[..., 1] += [0.0, 0.0, 0.0, 1.0]
    found = report(w=apart)
    problems = [p for p in found.problems if "disagree" in p]
    assert len(problems) == 1 and problems[0].startswith("w: the chains")
    np.testing.assert_array_equal(found.rows[0].trace, apart[..., 1])


def test_few_independent_draws() -> None:
    slow = np.repeat(draws(num=50), 10, axis=0)
    found = report(w=slow)
    assert any(p.startswith("w: the draws are worth") for p in found.problems)
    assert 40 < found.rows[0].num_draws < 400  # 200 of 2000 are independent, up to about a third
    assert not any(p.startswith("b") for p in found.problems)


def test_entries_that_never_move() -> None:
    frozen = draws()
    frozen[..., 2] = 0.5
    assert "w: 1 entries never move" in report(w=frozen).problems[0]


def test_entries_that_are_not_finite() -> None:
    bad = draws()
    bad[300, 2, 1] = np.nan
    assert single_problem(report(w=bad)) == "There are NaN or infinite entries in w."


@pytest.mark.parametrize("scale", [1.15, 0.85])
def test_another_temperature(scale: float) -> None:
    found = report(scale)
    assert f"temperature {found.temperature[0]:.2f}, not 1.0" in single_problem(found)
    np.testing.assert_allclose(found.temperature[0], scale**2, rtol=0.1)


def test_bias_is_not_judged_without_a_target() -> None:
    found = sgmcmc.report({"w": 1.5 * draws()})
    assert found.problems == () and found.temperature is None
    assert "Bias was not checked" in str(found)


def test_a_run_with_parts_and_one_with_minibatch_gradients() -> None:
    states = [draws().astype(np.float32), draws((), seed=1).astype(np.float32)]
    posterior = pytest.importorskip("xarray").Dataset(
        {
            "state.0": (("chain", "draw", "k"), np.swapaxes(states[0], 0, 1)),
            "state.1": (("chain", "draw"), np.swapaxes(states[1], 0, 1)),
        }
    )
    data = types.SimpleNamespace(posterior=posterior)
    result = types.SimpleNamespace(states=states, to_inference_data=lambda: data)
    found = sgmcmc.report(result, log_prob, seed=1)
    assert found.problems == () and abs(found.temperature[0] - 1) < 0.2
    assert [r.name for r in found.rows] == ["state.0", "state.1"]


def test_of_large_variables_it_looks_at_some_entries() -> None:
    row = sgmcmc.report({"w": draws((50, 50), num=20)}).rows[0]
    assert row.num_entries == 2500 and np.isfinite(row.rhat)


def test_the_page(tmp_path: Path) -> None:
    figure = sgmcmc.report({name: draws() for name in "abcd"}).figure()
    figure.savefig(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    top, *panels = figure.axes
    assert "Verdict" in top.texts[0].get_text()
    assert [len(axes.lines) for axes in panels] == [4, 4, 4]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="result must have variables"):
        sgmcmc.report({})
    with pytest.raises(ValueError, match=r"w must have shape .* Received: shape \(3, 2\)"):
        sgmcmc.report({"w": np.ones([3, 2])})
    for bad in ([np.ones([5, 2])], np.ones([5, 2]), None):
        with pytest.raises(TypeError, match=f"result must .* Received: a {type(bad).__name__}"):
            sgmcmc.report(bad)

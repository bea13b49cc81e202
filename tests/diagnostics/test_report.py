"""`report` names what is wrong with draws, and finds nothing wrong with good draws."""

import dataclasses
import html
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.covariance import CovarianceState
from tfp_sgmcmc.diagnostics import chain_checks

tfd = tfp.distributions


def draws(shape: tuple[int, ...] = (3,), num: int = 500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal([num, 4, *shape])


def log_prob(w: Any, b: Any) -> Any:
    return -0.5 * (tf.reduce_sum(w**2, axis=-1) + b**2)


def report(scale: float = 1.0, **changes: Any) -> Any:
    given = {"w": scale * draws(), "b": scale * draws((), seed=1)} | changes
    return sgmcmc.report(given, log_prob)


def test_good_draws_have_no_problem() -> None:
    found = report()
    assert found.problems == () == found.notes and "no problem was found" in str(found)
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


def test_chains_that_are_alike_count_for_what_they_are_worth() -> None:
    """Sixteen chains that correlate by 0.95 are worth one; sound ones pass. False alarms: 1e-6."""
    rng = np.random.default_rng(0)
    own, shared = rng.normal(size=[1500, 16, 2]), rng.normal(size=[1500, 1, 2])
    x = np.sqrt(0.95) * shared + np.sqrt(0.05) * own
    found = sgmcmc.report({"w": x}, lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    assert not found.problems and found.rows[0].num_draws < 3000
    (note,) = found.notes
    assert "w: the chains depend on each other, with a correlation of 0.95" in note
    assert "16 of them are worth 1." in note
    assert not sgmcmc.report({"w": own}).notes


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


def test_a_chain_that_never_moves() -> None:
    frozen = draws()
    frozen[:, 1] = frozen[0, 1]
    assert report(w=frozen).problems[0] == "w: 1 of 4 chains never move (1)."


def test_a_start_that_is_far_from_the_rest() -> None:
    """Five of 500 results make standard deviations 10 times too wide, and R-hat sees nothing."""
    far = draws()
    far[:5] += 100.0
    found = sgmcmc.report({"w": far})
    assert "w: the first results are far from the rest" in single_problem(found)
    assert "drop at least 5 of 500 results" in single_problem(found)
    assert found.rows[0].rhat < 1.01


def test_entries_that_are_not_finite() -> None:
    bad = draws()
    bad[300, 2, 1] = np.nan
    assert single_problem(report(w=bad)) == "There are NaN or infinite entries in w."


@pytest.mark.parametrize(("scale", "word"), [(1.25, "wide"), (0.8, "narrow")])
def test_another_temperature(scale: float, word: str) -> None:
    found = report(scale)
    assert f"too {word} on average (temperature" in found.problems[0]
    np.testing.assert_allclose(found.temperature[0], scale**2, rtol=0.1)


@pytest.mark.parametrize(
    ("scale", "size"),
    [pytest.param(1.09, "9 % too wide", marks=pytest.mark.thorough), (0.93, "7 % too narrow")],
)
def test_a_small_bias_is_a_note_with_its_size(scale: float, size: str) -> None:
    x = scale * draws((20,))
    found = sgmcmc.report({"w": x / x.std() * scale}, lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    assert found.problems == () and f"about {size} on average" in found.notes[0]
    assert "read the notes" in str(found) and "do not trust" not in str(found)


def test_bias_is_not_judged_without_a_target() -> None:
    found = sgmcmc.report({"w": 1.5 * draws()})
    assert found.problems == () and found.temperature is None
    assert "Bias was not checked" in str(found)


def test_the_last_line_says_what_is_not_seen() -> None:
    """Draws of one of two modes look sound, so the report says that it cannot tell."""
    found = sgmcmc.report(
        {"w": draws()},
        lambda w: tf.reduce_logsumexp(
            [-0.5 * tf.reduce_sum((w - a) ** 2, axis=-1) for a in (0.0, 9.0)], axis=0
        ),
    )
    assert found.problems == ()
    assert "all chains in one of several modes" in str(found).splitlines()[-1]


def test_negative_correlations() -> None:
    """An autoregression with rho = -0.8 has times of 1/9; the estimate stops at 1 / log10(8000)."""
    x = draws((1,), num=2000)
    for t in range(1, len(x)):
        x[t] = -0.8 * x[t - 1] + 0.6 * x[t]
    found = sgmcmc.report({"w": x}, lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    assert found.problems == () == found.notes
    assert 4000 < found.rows[0].num_draws < 9 * 8000  # the tails have no such correlations


def test_a_run_with_parts_and_one_with_minibatch_gradients() -> None:
    states = [draws().astype(np.float32), draws((), seed=1).astype(np.float32)]
    found = sgmcmc.report(of_states(states), log_prob, seed=1)
    assert found.problems == () and abs(found.temperature[0] - 1) < 0.2
    assert [r.name for r in found.rows] == ["state.0", "state.1"]


def of_states(states: Any, **fields: Any) -> Any:
    """Returns a stand-in for the result of `sample`."""
    parts = states if isinstance(states, list) else [states]
    arrays = {f"state.{i}": np.asarray(x) for i, x in enumerate(parts)}
    return types.SimpleNamespace(states=states, named_draws=lambda: arrays, **fields)


def test_an_inference_data_of_arviz() -> None:
    xarray = pytest.importorskip("xarray")
    arrays = {"w": (("chain", "draw", "k"), np.swapaxes(draws(), 0, 1))}
    data = types.SimpleNamespace(posterior=xarray.Dataset(arrays))
    found, expected = sgmcmc.report(data).rows[0], report().rows[0]
    assert found[:5] == expected[:5]


class Results(NamedTuple):
    step_size: Any = 0.02
    target_log_prob: Any = 0.0
    covariance: Any = ()


def noise_state(num_skipped: int) -> CovarianceState:
    return CovarianceState((), (), tf.constant(100), tf.fill([4], num_skipped))


def problems_of(results: Results, target: Any = None, **fields: Any) -> tuple[str, ...]:
    run = of_states(draws(), final_kernel_results=results, **fields)
    return sgmcmc.report(run, target).problems


def test_noisy_swaps_are_said() -> None:
    """With temperatures 1 and 2, swaps by 10 of 2,000 examples have far too much noise."""
    x = np.random.default_rng(0).normal(2.0, 1.0, size=[2000]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * theta**2, lambda theta, x: -0.5 * (x - theta[..., None]) ** 2, x, 10
    )

    def problems(temperatures: list[float]) -> str:
        kernel = sgmcmc.ReplicaExchangeSGLD(target, 5e-6, temperatures)
        options: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)
        options["preflight_check"] = False  # `report` makes it
        start = tf.fill([4], 2.0)
        run = sgmcmc.sample_chain(kernel, start, 20, num_burnin_steps=20, **options)
        return " ".join(sgmcmc.report(run).problems)

    assert "The noise of the log swap ratios had a variance of" in problems([1.0, 10.0])
    assert "swap" not in problems([1.0, 1.01])


def test_skipped_minibatches_are_said() -> None:
    assert problems_of(Results(covariance=noise_state(0))) == ()
    (found,) = problems_of(Results(covariance={"inner": [noise_state(3)]}))
    assert found.startswith("12 of 400 minibatches had scores that are NaN or infinite")


def test_a_log_posterior_that_is_nan_reported() -> None:
    (found,) = problems_of(Results(target_log_prob=np.array([0.0, np.nan])))
    assert found.startswith("The log posterior was NaN in 50 %")
    trace = {"target_log_prob": np.where(np.arange(500) < 5, np.nan, 0.0)}
    (found,) = problems_of(Results(), trace=trace)
    assert found.startswith("The log posterior was NaN in 1 %")


def test_gradients_that_are_nan_are_said() -> None:
    def nan_above_2(w: Any) -> Any:
        outside = tf.reduce_any(w > 2, axis=-1)
        return -0.5 * tf.reduce_sum(w**2, axis=-1) + tf.where(
            outside, np.nan * tf.reduce_sum(w, axis=-1), 0
        )

    assert "gradient of the log posterior is NaN or infinite at" in single_problem(
        sgmcmc.report({"w": draws()}, nan_above_2)
    )


@pytest.mark.parametrize(
    "reshuffle", ["step", pytest.param("epoch", marks=pytest.mark.thorough), "symmetric"]
)
def test_epochs_with_a_kernel_that_measures_the_noise(reshuffle: Any) -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda w: tf.zeros(w.shape[:-1], w.dtype),
        lambda w, batch: -0.005 * tf.reduce_sum((w[..., tf.newaxis, :] - batch) ** 2, axis=-1),
        np.zeros([100, 3]),
        batch_size=10,
        reshuffle=reshuffle,
    )
    assert problems_of(Results(), target) == ()
    found = problems_of(Results(covariance=noise_state(0)), target)
    assert len(found) == (reshuffle != "step")
    assert not found or f"(reshuffle='{reshuffle}')" in found[0]


class Kernel(NamedTuple):
    """A kernel with the stability limit of SGLD."""

    target_log_prob_fn: Any

    def largest_stable_step(self, largest_curvature: float, results: Any = None) -> float:
        return 4 / largest_curvature

    def metric_product(self, vector: Any, state: Any, results: Any) -> Any:
        return vector


@pytest.mark.parametrize(
    ("step_size", "scale", "said"),
    [(4.2, 1.0, "The step is too large: step_size is 4.2, and the largest")]
    + [(3.5, 1.3, "The step is too large"), (3.5, 1.0, "")]
    + [
        pytest.param(step_size, 1.0, said, marks=pytest.mark.thorough)
        for step_size, said in (
            (0.5, ""),
            ([4.1, 9.0, 5.0], "too large"),
            ([3.9, 4.1, 9.0], "too large"),
            ([3.9, 3.8, 1.0], ""),
        )
    ],
)
def test_the_step_is_compared_with_the_largest_stable_one(
    step_size: Any, scale: float, said: str
) -> None:
    def target(w: Any) -> Any:
        return -0.5 * tf.reduce_sum(w**2, axis=-1)

    x = scale * draws()
    results = Results(np.asarray(step_size))
    run = of_states(x, final_kernel_results=results, kernel=Kernel(target))
    problems = sgmcmc.report(run, target).problems
    assert (said in problems[0] and "the draws is 4." in problems[0]) if said else not problems


@pytest.mark.parametrize(("step_size", "reported"), [(3.5, True), (0.5, False)])
def test_draws_away_from_the_mode_by_a_step_near_the_limit(
    step_size: float, reported: bool
) -> None:
    """A chain that an unstable step threw from the mode stays where the step is just stable."""

    def target(w: Any) -> Any:
        return -0.5 * tf.reduce_sum(w**2, axis=-1)

    run = of_states(
        draws() + 1.0, final_kernel_results=Results(np.asarray(step_size)), kernel=Kernel(target)
    )
    problems = sgmcmc.report(run, target).problems
    assert problems and problems[0].startswith("The step is too large") == reported


def test_a_curvature_that_grows_along_the_run_is_noted() -> None:
    x = np.linspace(1.0, 3.0, 50)[:, np.newaxis] + np.zeros([50, 4])  # -w^4: curvature 12 w^2
    kernel = Kernel(lambda w: -(w**4))
    problems, notes = chain_checks.step_faults(kernel, x, Results(0.02), False, False)
    assert problems == [] and "The curvature grew along the run, from 12 " in notes[0]
    problems, _ = chain_checks.step_faults(kernel, x, Results(0.04), False, False)
    assert "The step is too large: step_size is 0.04, and the largest stable one" in problems[0]
    assert "The curvature grew" in problems[1]


def test_of_large_variables_it_looks_at_some_entries() -> None:
    row = sgmcmc.report({"w": draws((50, 50), num=20)}).rows[0]
    assert row.num_entries == 2500 and np.isfinite(row.rhat)


def test_many_variables_stay_on_a_page() -> None:
    found = sgmcmc.report({f"w{i}": draws((), num=8, seed=i) for i in range(20)})
    assert len(found.problems) == 13 and "more lines" in found.problems[-1]


@pytest.mark.slow
def test_of_200_reports_on_exact_draws_at_most_4_find_anything() -> None:
    """A report raises a false alarm with probability 1e-3 for the tests against the gradients, and
    1e-3 a variable for R-hat. More than 4 in 200 reports would be by chance with 1e-4."""
    found = [report(w=draws(seed=2 * s), b=draws((), seed=2 * s + 1)) for s in range(100, 300)]
    assert sum(bool(r.problems or r.notes) for r in found) <= 4


def test_the_page(tmp_path: Path) -> None:
    figure = sgmcmc.report({name: draws() for name in "abcd"}).figure()
    figure.savefig(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    top, *panels = figure.axes
    assert "Verdict" in top.texts[0].get_text()
    assert [len(axes.lines) for axes in panels] == [4, 4, 4]


def test_it_needs_neither_arviz_nor_scipy(monkeypatch: Any) -> None:
    for name in ("arviz", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert report().problems == ()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="result must have variables"):
        sgmcmc.report({})
    with pytest.raises(ValueError, match=r"w must have shape .* Received: shape \(3, 2\)"):
        sgmcmc.report({"w": np.ones([3, 2])})
    with pytest.raises(ValueError, match="w must hold real numbers. Received: dtype <U1"):
        sgmcmc.report({"w": np.full([5, 2], "a")})
    with pytest.raises(ValueError, match=r"same numbers of draws and chains. Received: b with"):
        sgmcmc.report({"w": np.ones([5, 2]), "b": np.ones([6, 2])})
    kinds = {"a list": [np.ones([5, 2])], "an ndarray": np.ones([5, 2]), "a NoneType": None}
    for kind, bad in kinds.items():
        received = f"result must .* Received: {kind}. Give draws the names"
        with pytest.raises(TypeError, match=received):
            sgmcmc.report(bad)
    chain = tfp.mcmc.StatesAndTrace(np.ones([5, 2], np.float32), ())
    for check in (sgmcmc.report, sgmcmc.certify):
        with pytest.raises(TypeError, match="Received: a StatesAndTrace of tfp.mcmc"):
            check(chain, lambda x: -(x**2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "x"), ("temperature", 0), ("temperature", True), ("temperature", np.inf)]
    + [("num_gradients", 2.5), ("num_gradients", 0), ("num_gradients", "x"), ("seed", "x")]
    + [("target_log_prob_fn", 3), ("kernel", "SGLD"), ("kernel", sgmcmc.SGLD)],
)
def test_bad_arguments_are_refused_by_name(name: str, value: Any) -> None:
    given = {"target_log_prob_fn": lambda w: w[..., 0], name: value}
    with pytest.raises((TypeError, ValueError), match=name):
        sgmcmc.report({"w": draws()}, **given)


@pytest.mark.slow
def test_draws_in_other_coordinates_than_the_kernel_s_are_judged_in_its_own() -> None:
    """Constrained draws with their bijector have the report of the unconstrained ones."""
    target = sgmcmc.MinibatchLogProb(
        tfd.LogNormal(0.0, 1.0).log_prob,
        lambda scale, batch: tfd.Normal(0.0, scale[..., tf.newaxis]).log_prob(batch),
        np.random.default_rng(0).normal(size=[40]).astype(np.float32),
        40,
        bijector=tfp.bijectors.Exp(),
    )
    result = sgmcmc.sample_chain(
        sgmcmc.SGLD(target, 2e-3), tf.zeros([4]), 400, seed=0, num_burnin_steps=100,
        num_steps_between_results=9, progress_bar=False, preflight_check=False,
    )  # fmt: skip
    plain = sgmcmc.report(result, target)
    moved = dataclasses.replace(result, states=np.exp(result.states), bijector=tfp.bijectors.Exp())
    found = sgmcmc.report(moved, target)
    np.testing.assert_allclose(found.temperature, plain.temperature, rtol=1e-3)
    assert found.problems == plain.problems
    # The control: constrained draws alone are taken for unconstrained ones.
    wrong = sgmcmc.report(dataclasses.replace(moved, bijector=None), target)
    assert wrong.problems != plain.problems


def test_arviz_data_of_parameters_are_judged_in_the_coordinates_of_the_target() -> None:
    """A result of `sample` holds parameters; `to_inference_data` says so."""
    pytest.importorskip("arviz")
    target = sgmcmc.MinibatchLogProb(
        lambda scale: tfd.LogNormal(0.0, 1.0).log_prob(scale),
        lambda scale, batch: tf.zeros([1]) * scale[..., tf.newaxis] * batch,
        np.ones([4], np.float32),
        bijector={"scale": tfp.bijectors.Exp()},
    )
    result = sgmcmc.sample_chain(
        sgmcmc.CorrectedLangevin(target, 1.0), {"scale": tf.zeros([4])}, 500, seed=0,
        num_burnin_steps=20, num_steps_between_results=4, progress_bar=False, jit_compile=False,
    )  # fmt: skip
    assert result.to_inference_data().posterior.attrs["draws_of"] == "state"
    plain = sgmcmc.report(result.to_inference_data(), target)
    exp = tfp.bijectors.JointMap({"scale": tfp.bijectors.Exp()})
    states = {"scale": np.exp(result.states["scale"])}
    data = dataclasses.replace(result, states=states, bijector=exp).to_inference_data()
    assert data.posterior.attrs["draws_of"] == "parameters"
    found = sgmcmc.report(data, target)
    assert plain.problems == found.problems == ()
    np.testing.assert_allclose(found.temperature, plain.temperature, rtol=1e-3)
    del data.posterior.attrs["draws_of"]  # the control
    assert sgmcmc.report(data, target).problems


@pytest.mark.parametrize(
    "parts", [pytest.param(1, marks=pytest.mark.thorough), 2], ids=["a tensor", "a list"]
)
def test_arviz_data_of_states_without_names_suit_the_target(parts: int) -> None:
    pytest.importorskip("arviz")
    target = sgmcmc.FullDataLogProb(lambda *w: -0.5 * sum(x**2 for x in w))
    state = tf.zeros([]) if parts == 1 else [tf.zeros([])] * parts
    result = sgmcmc.sample_chain(
        sgmcmc.CorrectedLangevin(target, 1.0), state, 60, seed=0, num_chains=4,
        progress_bar=False, jit_compile=False,
    )  # fmt: skip
    own, data = (sgmcmc.report(x, target) for x in (result, result.to_inference_data()))
    assert data.temperature is not None and data.temperature == own.temperature


def test_a_single_chain_without_an_axis_of_chains_is_told() -> None:
    target = sgmcmc.FullDataLogProb(lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    chain = draws()[:, 0]
    with pytest.raises(ValueError, match=r"target finds an axis of chains. .*'w': \(500, 3\)"):
        sgmcmc.report({"w": chain}, target)
    assert sgmcmc.report({"w": chain[:, np.newaxis]}, target).problems == ()


def test_a_result_of_a_single_chain_needs_no_axis_of_chains() -> None:
    target = sgmcmc.FullDataLogProb(lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    result = sgmcmc.sample_chain(
        sgmcmc.SGLD(target, 0.1), tf.zeros([3]), 20, seed=0, progress_bar=False, jit_compile=False
    )
    found = sgmcmc.report(result, target)
    expected = sgmcmc.report({"w": result.states[:, np.newaxis]}, target)
    assert found.temperature == expected.temperature and found.tested is not None


def test_a_data_tree_is_read_as_arviz_data() -> None:
    """An `xarray.DataTree` is a mapping, too: of names of groups, not of variables."""
    xarray = pytest.importorskip("xarray")
    arrays = {"w": (("chain", "draw", "k"), np.swapaxes(draws(), 0, 1))}
    tree = xarray.DataTree.from_dict({"posterior": xarray.Dataset(arrays)})
    assert sgmcmc.report(tree).rows[0][:5] == report().rows[0][:5]


def test_a_report_plots_what_the_gradients_say_of_each_entry() -> None:
    pytest.importorskip("matplotlib")
    wide = np.random.default_rng(3).standard_normal([500, 4, 5]) * [1, 1, 1.5, 1, 1]
    found = sgmcmc.report({"w": wide}, lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
    assert found.tested.names[2] == "w[2]" and found.tested.is_width_wrong.tolist()[2]
    np.testing.assert_allclose(np.exp(found.tested.log_width[2]), 1.5, rtol=0.1)
    width = found.plot(num_entries=3).axes[0]
    assert [t.get_text() for t in width.get_yticklabels()][0] == "w[2]"
    assert len(width.lines[-1].get_xdata()) == 1  # one entry is rejected
    with pytest.raises(ValueError, match="needs a report with gradients"):
        sgmcmc.report({"w": wide}).plot()


def test_a_report_in_a_notebook() -> None:
    bad = sgmcmc.report({"w": draws()[:20]})
    page = bad._repr_html_()
    assert bad.problems and all(html.escape(p) in page for p in bad.problems)
    assert "<svg" in page and repr(bad) == str(bad)

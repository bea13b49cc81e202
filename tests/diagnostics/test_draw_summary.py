"""The table of draws: its figures are NumPy's and ArviZ's, and it is short."""

import warnings

import numpy as np
import pytest

from tfp_sgmcmc.diagnostics.convergence import effective_sample_size
from tfp_sgmcmc.diagnostics.draw_summary import DrawSummary, entries_to_show, summarize

RNG = np.random.default_rng(0)
DRAWS = RNG.normal([0.0, 100.0, 1e-3], [1.0, 5.0, 1e-4], size=[500, 4, 3])
NAMES = ["a", "b", "c"]


def found(x: np.ndarray = DRAWS, **options: object) -> DrawSummary:
    return summarize(NAMES[: x.shape[-1]], x, x.shape[-1], **options)


def test_figures() -> None:
    s, flat = found(), DRAWS.reshape(-1, 3)
    np.testing.assert_allclose(s.mean, flat.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(s.standard_deviation, flat.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(s.quantiles, np.quantile(flat, [0.05, 0.5, 0.95], axis=0))
    expected = flat.std(axis=0, ddof=1) / np.sqrt(effective_sample_size(DRAWS, "mean"))
    np.testing.assert_array_equal(s.mcse, expected)
    assert np.all(np.abs(s.mean - [0, 100, 1e-3]) < 5 * s.mcse)  # 2e-6 by chance
    lines = str(s).split("\n")
    assert " ".join(lines[2].split()) == "mean sd 5% 50% 95% ESS bulk ESS tail R-hat MCSE"
    assert lines[4].split()[:3] == ["b", f"{s.mean[1]:.1f}", f"{s.standard_deviation[1]:.1f}"]
    assert len(s.pictures) == 3 and "<svg" in s._repr_html_()


def test_the_mcse_is_that_of_arviz() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        arviz = pytest.importorskip("arviz", exc_type=ImportError)
    expected = [arviz.mcse(DRAWS[..., i].T, method="mean") for i in range(3)]
    np.testing.assert_allclose(found().mcse, expected, rtol=1e-9)


def test_weights_count_in_moments_and_quantiles() -> None:
    x = np.repeat(np.array([[[0.0]], [[1.0]]]), 2, axis=1)
    s = found(np.concatenate([x, x]), weights=np.array([3.0, 1.0, 3.0, 1.0]))
    assert s.mean == 0.25 and s.standard_deviation == pytest.approx(np.sqrt(3) / 4)
    assert s.quantiles[:, 0].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        (DRAWS + np.arange(4)[:, None] * [0, 0, 1e-3], "do not agree"),
        (DRAWS[:50], "too few independent draws"),
        (DRAWS[:, [0, 0, 0, 0]], "depend on each other: 4 are worth 1."),
    ],
)
def test_what_is_wrong_is_said(draws: np.ndarray, words: str) -> None:
    assert words in str(found(draws)) and words not in str(found())


def test_few_draws_and_constants() -> None:
    assert "nan" in str(found(DRAWS[:3])) and np.isnan(found(DRAWS[:3]).rhat).all()
    s = found(np.ones([10, 2, 1]))
    assert s.standard_deviation == 0 and np.isnan(s.rhat).all() and "1.00" in str(s)


def test_many_entries_are_cut_and_the_worst_is_named() -> None:
    x = RNG.normal(size=[500, 4, 30])
    x[:, 3, 25] += 3.0
    s = summarize([f"w[{i}]" for i in range(30)], x, 1000)
    lines = str(s).split("\n")
    assert sum(line.startswith("w[") for line in lines) == 20
    assert "980 more entries. Of 30, the largest R-hat" in str(s) and "of w[25]" in str(s)


def test_variables_share_the_rows() -> None:
    shown, others = entries_to_show({"a": [], "b": [3], "c": [10, 10]}, 20, 8)
    assert [len(x) for x in shown] == [1, 3, 16] and [len(x) for x in others] == [0, 0, 8]
    assert others[2].min() == 16 and others[2].max() == 99
    shown, others = entries_to_show({"a": [2]}, 20, 8)
    assert shown[0].tolist() == [0, 1] and not len(others[0])

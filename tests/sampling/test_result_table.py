"""The table of a run that `print` and notebooks show."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.sampling.runs import Walk
from tfp_sgmcmc.diagnostics.certificate import Certificate
from tfp_sgmcmc.sampling import result_table

OPTIONS: dict[str, Any] = dict(seed=0, progress_bar=False, preflight_check=False, jit_compile=False)


@pytest.fixture(scope="module")
def result() -> sgmcmc.SampleResult:
    """Returns 200 draws of four chains of a scalar and a matrix, in single precision."""
    return sgmcmc.sample_chain(
        Walk(), {"scale": tf.zeros([]), "w": tf.zeros([12, 3])}, 200, num_chains=4, **OPTIONS
    )


def test_the_table_has_the_first_entries_of_each_parameter(result: Any) -> None:
    lines = repr(result).split("\n")
    assert lines[0] == "SampleResult: 200 draws of each of 4 chains, complete."
    names = [line.split("  ")[0] for line in lines[3:23]]
    assert names[:3] == ["scale", "w[0, 0]", "w[0, 1]"] and names[-1] == "w[6, 0]"
    mean = float(lines[3].split()[1])
    assert mean == pytest.approx(result.states["scale"].mean(), abs=0.006)
    assert "17 more entries. Of all, the largest R-hat" in repr(result)
    page = result._repr_html_()
    assert page.count("<svg") == 20 and "ESS bulk" in page


def test_flags_stand_below_with_their_grades(result: Any) -> None:
    flagged = dataclasses.replace(result, flags=("Nothing can be promised.",))
    assert repr(flagged).endswith("doubt: Nothing can be promised.")
    assert "Nothing can be promised" in flagged._repr_html_()


def test_a_certificate_is_told_if_it_can_be_believed(result: Any) -> None:
    names = [field.name for field in dataclasses.fields(Certificate)]
    for is_reliable in (True, False):
        found = dataclasses.replace(
            Certificate(**dict.fromkeys(names, 0.0)),
            pareto_k=0.2 if is_reliable else 0.8,
            num_draws=2000,
            mean_offset={"a": -0.02, "b": np.array([0.01, np.nan])},  # NaN: a constant
            mean_offset_error={"a": 0.005, "b": np.array([0.04, np.nan])},
            sd_ratio={"a": 0.97, "b": np.array([1.01, np.nan])},
            sd_ratio_error={"a": 0.012, "b": np.array([0.05, np.nan])},
        )
        text = repr(dataclasses.replace(result, certificate=found))
        line = (
            "Certificate: beside 2,000 importance-weighted draws, means differ by up to "
            "0.020 +- 0.005 sd, sds by up to 3.0 +- 1.2 %.\n"
        )
        assert (line in text + "\n") == is_reliable


def test_the_summary_has_all_entries(result: Any) -> None:
    found = result.summary()
    assert len(found.names) == 37 and found.names[-1] == "w[11, 2]"
    flat = result.states["w"].reshape(-1, 36).astype(np.float64)
    np.testing.assert_allclose(found.mean[1:], flat.mean(axis=0), rtol=1e-9)
    assert len(result.summary(most_entries=5).names) == 6
    with pytest.raises(ValueError, match="most_entries"):
        result.summary(0)


def test_long_runs_are_thinned_for_print(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_table, "_MOST_NUMBERS", 4000)
    assert "every 4th draw" in repr(result) and "more entries." in repr(result)


def test_large_runs_on_disk_say_how_large_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    on_disk = sgmcmc.sample_chain(Walk(), tf.zeros([2, 3]), 30, directory=tmp_path, **OPTIONS)
    assert "state[1, 2]" in repr(on_disk) and f"in {tmp_path}" in repr(on_disk)
    before = on_disk.summary().mean
    monkeypatch.setattr(result_table, "_BLOCK", 100)  # four draws
    np.testing.assert_array_equal(on_disk.summary().mean, before)
    monkeypatch.setattr(result_table, "_MOST_READ", 100)
    assert "720 bytes of draws of state float32 [2, 3]" in repr(on_disk)
    assert "state[1, 2]" not in repr(on_disk)


def test_a_run_whose_files_are_gone_still_has_a_text(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    on_disk = sgmcmc.sample_chain(Walk(), tf.zeros([2]), 30, directory=tmp_path / "a", **OPTIONS)
    (tmp_path / "a").rename(tmp_path / "b")
    assert "wrong: The draws cannot be read." in repr(on_disk)


def test_plots_show_the_worst_entries_and_a_reference(result: Any) -> None:
    pytest.importorskip("matplotlib")
    figure = result.plot(num_entries=2)
    titles = [a.get_title() for a in figure.axes if a.get_title()]
    rhat = result.summary().rhat
    assert len(figure.axes) == 4 and titles[0].endswith(f"R-hat {rhat.max():.3f}")
    ranks = figure.axes[1].patches[0].get_data().values
    assert ranks.sum() == 200  # of one chain
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows

    figure = result.plot_marginals(reference=result, num_entries=4)
    shown = [a.get_title() for a in figure.axes if a.get_title()]
    assert shown == ["scale", "w[0, 0]", "w[0, 1]", "w[0, 2]"]
    assert len(figure.axes[0].get_legend_handles_labels()[1]) == 2
    figure.canvas.draw()
    only = {"scale": np.zeros([10, 2])}
    panels = result.plot_marginals(reference=only).axes
    assert len(panels[0].get_legend_handles_labels()[1]) == 2
    assert panels[1].get_legend_handles_labels()[1] == ["draws"]
    of_last = result.plot_marginals(reference={"w": np.zeros([10, 2, 12, 3])}).legends[0]
    assert [text.get_text() for text in of_last.get_texts()] == ["reference", "draws"]
    with pytest.raises(TypeError, match="reference must be a result"):
        result.plot_marginals(reference=3)


def test_plots_name_the_extra(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for plot, name in ((result.plot, "plot"), (result.plot_marginals, "plot_marginals")):
        with pytest.raises(ModuleNotFoundError, match=rf"{name} needs.*tfp_sgmcmc\[plots\]"):
            plot()

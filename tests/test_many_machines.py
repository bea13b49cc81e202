"""The examples of the page about many machines, in order and in one namespace."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness.shown_draws import ShownDraws
from tests.test_pages import blocks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "many-machines.md"


def test_blocks_compile_and_say_why_they_are_not_run() -> None:
    found = blocks(PAGE)
    for number, block in enumerate(found):
        compile(block["code"], f"block {number}", "exec")
    reasons = [bool(block["reason"]) for block in found]
    assert reasons == [False, False, False, True, True, True, False, True]


@pytest.mark.slow
def test_examples_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page itself compares the draws of dask's workers with those of threads."""
    shown = ShownDraws(monkeypatch)
    names: dict = {}
    for number, block in enumerate(blocks(PAGE)):
        if not block["reason"]:
            exec(compile(block["code"], f"{PAGE.name}, block {number}", "exec"), names)
    assert shown.biased() == []
    assert names["shards"].is_complete and len(set(names["shards"].processes)) == 2
    assert names["posterior"].num_chains == 2
    first, second = np.swapaxes(names["posterior"].samples[0], 0, 1)
    assert np.abs(first - second).max() > 1e-3  # the tasks have different seeds
    r_hat = float(capsys.readouterr().out.split()[-1])
    assert 0.9 < r_hat < 1.5

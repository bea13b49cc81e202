"""The examples of the page about many machines, in order and in one namespace."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "many-machines.md"
BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?```python\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def test_blocks_compile_and_say_why_they_are_not_run() -> None:
    found = blocks()
    for number, (_, code) in enumerate(found):
        compile(code, f"block {number}", "exec")
    assert [bool(mark) for mark, _ in found] == [False, False, True, True, True, False, True]


@pytest.mark.slow
def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The page itself compares the draws of dask's workers with those of threads."""
    names: dict = {}
    for number, (mark, code) in enumerate(blocks()):
        if not mark:
            exec(compile(code, f"{PAGE.name}, block {number}", "exec"), names)
    assert names["shards"].is_complete and len(set(names["shards"].processes)) == 2
    assert names["posterior"].num_chains == 2
    first, second = np.swapaxes(names["posterior"].samples[0], 0, 1)
    assert np.abs(first - second).max() > 1e-3  # the tasks have different seeds
    r_hat = float(capsys.readouterr().out.split()[-1])
    assert 0.9 < r_hat < 1.5

"""Memory: what is free is known within reason, and what does not fit is refused by name."""

import re

import numpy as np
import pytest

from tfp_sgmcmc.internal import memory


@pytest.mark.slow
def test_free_memory_falls_when_an_array_is_filled() -> None:
    before = memory.available()
    if before is None:
        pytest.skip("this system does not tell")
    array = np.ones(2**28)  # 2 GiB
    after = memory.available()
    assert after is not None and before - after > 2**30, (before, after, array[0])


def test_a_container_counts_its_limit(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    free = memory.available()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 100000\n")
    assert memory.available() == (None if free is None else 400_000)


def test_what_does_not_fit_is_refused_with_its_parts() -> None:
    needs = {"Sigma": 43_000_000_000, "kept states": 1_000}
    message = (
        "The run must fit into the free memory, 2.0 GB. It needs 43.0 GB: "
        "Sigma 43.0 GB, kept states 1.0 kB. Use covariance='diag'."
    )
    with pytest.raises(MemoryError, match=re.escape(message)):
        memory.require(needs, "Use covariance='diag'.", most=2_000_000_000)
    memory.require(needs, "", most=43_000_001_000)


def test_much_is_told_and_more_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1000)
    memory.check_run({"draws": 250}, "Run fewer chains.", stacklevel=1)
    message = (
        "The run takes 251 bytes of the 1.0 kB of memory that are free: draws 250 bytes, Sigma 1 "
        "bytes. Run fewer chains."
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as told:
        memory.check_run({"draws": 250, "Sigma": 1}, "Run fewer chains.", stacklevel=1)
    assert told[0].filename == __file__
    with pytest.raises(MemoryError, match="the free memory, 1.0 kB"):
        memory.check_run({"draws": 1001}, "Run fewer chains.", stacklevel=1)
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check_run({"draws": 10**18}, "", stacklevel=1)

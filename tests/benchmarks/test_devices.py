"""The programs that are timed on devices can be made. Nothing is timed."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.devices import __main__ as devices

FAST = {("logistic", "NOGIN full"), ("logistic", "SGLD"), ("network, 79,510", "SGLD")}
MADE = {(c.model, c.sampler) for c in devices.CASES if c.model != "network, 10 million"}


@pytest.mark.parametrize(
    "model, sampler",
    [
        pytest.param(*case, marks=[pytest.mark.thorough] * (case not in FAST))
        for case in sorted(MADE)
    ],
)
def test_a_case_has_a_kernel_that_takes_a_step(
    model: str, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "N", 300)
    target, state = devices.MODELS[model](100)
    kernel = devices.KERNELS[sampler](target)
    state = [tf.broadcast_to(x, [2, *x.shape]) for x in state]
    results = kernel.bootstrap_results(state)
    after, _ = kernel.one_step(state, results, seed=[0, 1])
    assert [x.shape for x in after] == [x.shape for x in state]
    assert all(np.isfinite(x).all() for x in after)

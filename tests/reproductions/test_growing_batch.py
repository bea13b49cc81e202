"""At equal steps, a growing minibatch ends above a constant one of four examples."""

import numpy as np
import pytest

from benchmarks.reproductions import growing_batch


@pytest.mark.slow
def test_growing_minibatch_ends_higher() -> None:
    growing, constant, constant_long = growing_batch.run(seed=0)
    assert growing.steps[-1] == constant.steps[-1]
    # The means over 32 chains are about 4 standard errors apart.
    assert np.mean(growing.log_joint[-1]) > np.mean(constant.log_joint[-1])
    assert np.mean(growing.accuracy[-1]) > np.mean(constant.accuracy[-1])
    # At equal passes over the data it is worse.
    assert constant_long.passes[-1] == pytest.approx(growing.passes[-1], rel=0.02)
    assert np.mean(constant_long.log_joint[-1]) > np.mean(growing.log_joint[-1])

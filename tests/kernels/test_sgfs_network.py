"""SGFS runs on a network of 23,860 parameters, and reaches the posterior."""

import numpy as np
import pytest

from benchmarks.accuracy import sgfs_network


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_steps"), [("diag", 300), ("block", 40)])
def test_network(kind: str, num_steps: int) -> None:
    result = sgfs_network.run(kind, num_groups=25, num_steps=num_steps, seed=0)
    assert np.all(np.isfinite(result))
    assert result.first_log_prob < -138_000  # of a constant prediction
    assert result.last_log_prob > -30_000
    assert result.accuracy > 0.85
    assert result.num_frozen == 0

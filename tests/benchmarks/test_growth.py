"""Exponents of costs and the first steep one, of invented costs."""

import numpy as np

from benchmarks.cost.growth import DIRECTIONS, Row


def test_slopes_and_cliffs() -> None:
    row = Row("D", "us", (10, 100, 1000, 10_000), (1.0, 10.0, 1000.0, 1000.0))
    np.testing.assert_allclose(row.slopes, [1, 2, 0], atol=1e-12)
    assert row.cliff == "1,000"
    assert row._replace(costs=(1.0, 10.0, 100.0, 1000.0)).cliff == ""


def test_sizes_grow() -> None:
    for direction in DIRECTIONS.values():
        assert direction.sizes == tuple(sorted({*direction.sizes})) and len(direction.sizes) >= 4

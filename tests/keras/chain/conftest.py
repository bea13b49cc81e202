"""Fixtures for tests of chains in `fit`."""

from tests.keras.no_curvature_checks import no_curvature_checks  # noqa: F401

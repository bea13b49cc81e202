"""Fixtures for tests of samples and directories."""

from tests.keras.no_curvature_checks import no_curvature_checks  # noqa: F401

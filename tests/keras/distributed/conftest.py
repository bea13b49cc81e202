"""Fixtures for tests of replicas."""

from tests.keras.no_curvature_checks import no_curvature_checks  # noqa: F401

"""Fits without the checks of the step size, which `tests/keras/checks` tests."""

import pytest

from tfp_sgmcmc.keras.checks.curvature_check import StabilityCheck


@pytest.fixture(scope="module", autouse=True)
def no_curvature_checks():
    """Saves the Hessian products of every fit in the modules that import this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("check_start", "at_epoch_end"):
            patch.setattr(StabilityCheck, name, lambda *_: None)
        yield

"""Fixtures for all tests of the callback."""

import pytest

from tfp_sgmcmc.keras.checks.curvature_check import StabilityCheck


@pytest.fixture(scope="module", autouse=True)
def no_curvature_checks(request):
    """Saves the Hessian products of every fit, unless a module has `CHECKS_CURVATURE = True`."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "CHECKS_CURVATURE", False):
            for name in ("check_start", "at_epoch_end"):
                patch.setattr(StabilityCheck, name, lambda *_: None)
        yield

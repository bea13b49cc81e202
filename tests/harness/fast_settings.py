"""Settings of a test, of which the fast suite runs some."""

from collections.abc import Iterable
from typing import Any

import pytest


def fast_settings(settings: Iterable[Any], *fast: Any) -> list[Any]:
    """Returns the settings for `parametrize`; those that are not in `fast` are `thorough`."""
    settings = [*settings]
    assert {*fast} <= {*settings}, f"of the settings {fast}, some are not in {settings}"
    return [s if s in fast else pytest.param(s, marks=pytest.mark.thorough) for s in settings]

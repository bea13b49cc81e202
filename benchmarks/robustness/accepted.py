"""Values of the catalogue that are accepted, each with the reason why that does no harm."""

from __future__ import annotations

import re

# Patterns of "callable(argument=value)", and the reason.
REASONS: dict[str, str] = {}


def reason(name: str, argument: str, value: str) -> str:
    """Returns why a value does no harm, or an empty string if no reason is known."""
    text = f"{name}({argument}={value})"
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, text)), "")

"""The lines that a verbose `fit` prints about its phase and its checks."""

from __future__ import annotations

from typing import Literal

from tfp_sgmcmc.keras.chain.chain_state import Status
from tfp_sgmcmc.keras.chain.ring_buffer import NEVER


class Phase:
    """Reports when a pilot, burn-in or sampling has begun."""

    def __init__(self) -> None:
        self._last: Literal["pilot", "burn-in", "sampling"] | None = None

    def line(self, status: Status, is_pilot: bool, burnin_epochs: int) -> str | None:
        """Returns a line if the phase has changed since the last call.

        Args:
          status: the status of the chain.
          is_pilot: whether the chain belongs to a pilot.
          burnin_epochs: remaining epochs of the burn-in, including the pilot.
        """
        last = self._last
        if is_pilot:
            self._last = "pilot"
        else:
            self._last = "sampling" if status.first_kept <= status.num_steps else "burn-in"
        if self._last == last or (last is None and self._last == "sampling"):
            return None
        if self._last == "pilot":
            return f"Pilot. It and the burn-in take {burnin_epochs} epochs."
        if self._last == "sampling":
            kept = "" if not status.num_kept else f" ({status.num_kept} samples so far)"
            return f"Sampling since step {status.first_kept}{kept}."
        if status.first_kept < NEVER:
            return f"Burn-in until step {status.first_kept}."
        if burnin_epochs:
            return f"Burn-in for {burnin_epochs} epochs."
        return "Burn-in until the sampling threshold is reached."


class CheckResults:
    """Holds the latest result of each check, for the logs and for printed lines."""

    def __init__(self) -> None:
        self._failed: dict[str, bool] = {}
        self._printed: list[str] = []

    def record(self, check: str, has_failed: bool | None) -> None:
        """Records the result of a check; None if nothing was measured."""
        if has_failed is not None:
            self._failed[check] = has_failed

    def forget(self) -> None:
        """Drops all results, for a new chain."""
        self._failed.clear()

    @property
    def failed(self) -> list[str]:
        """The names of the checks whose latest result is a failure."""
        return [name for name, has_failed in self._failed.items() if has_failed]

    @property
    def logs(self) -> dict[str, float]:
        """The number of failed checks; empty if none was made."""
        return {"failed_checks": float(sum(self._failed.values()))} if self._failed else {}

    def line(self) -> str | None:
        """Returns a line with the failed checks, if they have changed since the last call.

        >>> results = CheckResults()
        >>> results.record("step size", True)
        >>> results.line(), results.line()
        ('Failed checks: step size.', None)
        >>> results.record("step size", False)
        >>> results.line()
        'All checks pass again.'
        """
        failed = self.failed
        if failed == self._printed:
            return None
        self._printed = failed
        return f"Failed checks: {', '.join(failed)}." if failed else "All checks pass again."

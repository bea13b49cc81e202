"""The line that a verbose `fit` prints when its chain goes from one phase to the next."""

from __future__ import annotations

from typing import Literal

from tfp_sgmcmc.keras.chain.chain_state import Status
from tfp_sgmcmc.keras.chain.ring_buffer import NEVER


class Phase:
    """Tells, at the beginnings of epochs, when a pilot, burn-in or sampling has begun."""

    def __init__(self) -> None:
        self._last: Literal["pilot", "burn-in", "sampling"] | None = None

    def line(self, status: Status, is_pilot: bool, burnin_epochs: int) -> str | None:
        """Returns a line if the phase is another one than at the last call.

        Args:
          status: where the chain is.
          is_pilot: whether the chain only finds out which kernel to take.
          burnin_epochs: epochs of the burn-in that follow, pilot included.
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

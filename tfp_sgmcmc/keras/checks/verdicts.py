"""Which of the checks that a `fit` makes failed when they were made last."""

from __future__ import annotations


class Verdicts:
    """The last verdict of each check, for the logs, and a line when a verdict changes."""

    def __init__(self) -> None:
        self._failed: dict[str, bool] = {}
        self._told: list[str] = []

    def tell(self, check: str, has_failed: bool | None) -> None:
        """Takes on the verdict of a check; None says that nothing was measured."""
        if has_failed is not None:
            self._failed[check] = has_failed

    def forget(self) -> None:
        """Begins with a new chain."""
        self._failed.clear()

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed when they were made last."""
        return [name for name, has_failed in self._failed.items() if has_failed]

    @property
    def logs(self) -> dict[str, float]:
        """The number of checks that failed; nothing if none was made."""
        return {"failed_checks": float(sum(self._failed.values()))} if self._failed else {}

    def line(self) -> str | None:
        """Returns the names of the checks that fail, if they are others than at the last call.

        >>> verdicts = Verdicts()
        >>> verdicts.tell("step size", True)
        >>> verdicts.line(), verdicts.line()
        ('Failed checks: step size.', None)
        >>> verdicts.tell("step size", False)
        >>> verdicts.line()
        'No check fails any more.'
        """
        failed = self.failed
        if failed == self._told:
            return None
        self._told = failed
        return f"Failed checks: {', '.join(failed)}." if failed else "No check fails any more."

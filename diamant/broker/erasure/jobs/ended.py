"""The end of a job that was not carried out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job that was not carried out, as its certificate has it."""

    what: str
    at_ms: int
    """On the broker's clock."""
    reason: str = ""
    """The reason that was given; "" if none was asked for."""

    def to_fields(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {"what": self.what, "reason": self.reason, "at_ms": self.at_ms}

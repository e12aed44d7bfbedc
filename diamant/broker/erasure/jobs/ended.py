"""The end of a job without completion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job without completion, as its certificate records it."""

    what: str
    at_ms: int
    """On the broker's clock."""
    reason: str = ""
    """The user's reason; "" if none is required."""

    def to_fields(self) -> dict[str, object]:
        """Return the fields of its JSON object."""
        return {"what": self.what, "reason": self.reason, "at_ms": self.at_ms}

"""The result of a call to `broker.erase`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diamant.broker.erasure.jobs.removal import RemovalResult
from diamant.broker.operation_errors import OperationError
from diamant.json_types import JsonObject


class EraseFailed(OperationError):
    """The erasure could not continue. Its intent remains, and the broker retries."""


@dataclass(frozen=True, slots=True)
class Erasure(RemovalResult):
    """The result of a call to `broker.erase` or `broker.erase_now`.

    Its state is `values-gone`, `key-gone`, `nothing-matched` or `not-certified`.
    """

    groups_behind: dict[str, list[str]]
    """The groups whose committed offset is not past the tombstone, by partition (`users-0`)."""
    is_now_refused: bool = False
    """True if a request to override the horizon was refused: `groups_behind` would miss the tombstone and the caller did not
    confirm that, or some groups are not known."""
    groups_not_known: list[str] = field(default_factory=list)
    """Partitions of `__consumer_offsets` that are not loaded, with the reason. Their groups may be behind as well."""

    @property
    def written_since(self) -> list[JsonObject]:
        """Records of the key that were written after its tombstone and before the scan."""
        found: list[JsonObject] = self.certificate["written_since"]
        return found

    @property
    def written_since_not_listed(self) -> int:
        """The number of further such records, which `written_since` does not list."""
        return int(self.certificate.get("written_since_not_listed", 0))

    def own_fields(self) -> Mapping[str, Any]:
        return {
            "next_due_ms": self.next_due_ms,
            "groups_behind": self.groups_behind,
            "groups_not_known": self.groups_not_known,
            "is_now_refused": self.is_now_refused,
            "written_since": self.written_since,
            "written_since_not_listed": self.written_since_not_listed,
        }

"""The operations as methods of `Admin`. Written by `make docs` from `dispatch/operations.py`: change that.

`timeout` bounds the wait for the answer; the work continues in the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from diamant.broker.client.json_types import Fields, JsonObject, Key, OnProgress
    from diamant.duration import Duration


class Asks(Protocol):
    """The part of `Admin` that the methods need."""

    def perform(self, route: str, given: Fields) -> JsonObject: ...


class RemoteOperations:
    """The operations of a broker elsewhere. Raises AdminError."""

    def compact(
        self: Asks,
        topic: str,
        partition: int | None = None,
        *,
        until: Literal["clean", "tombstones-gone"] = "clean",
        force: bool = False,
        wait: bool = True,
        engine: Literal["inline", "process", "spark"] | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Compact a topic now and wait until it is clean."""
        return self.perform("POST /v1/compact", locals())

    def roll(self: Asks, topic: str, partition: int | None = None, *, timeout: Duration | None = None) -> JsonObject:
        """Close the active segments of a topic."""
        return self.perform("POST /v1/roll", locals())

    def count(
        self: Asks,
        topic: str,
        partition: int | None = None,
        *,
        exact: bool | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Count the records of a topic, by kind."""
        return self.perform("POST /v1/count", locals())

    def explain(
        self: Asks,
        topic: str,
        *,
        partition: int | None = None,
        key: Key | None = None,
        offset: int | None = None,
        tombstones: bool = False,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Explain why records are still stored, and until when."""
        return self.perform("POST /v1/explain", locals())

    def ghosts(self: Asks, topic: str, group: str | None = None, *, timeout: Duration | None = None) -> JsonObject:
        """List deleted keys that consumer groups may still hold."""
        return self.perform("POST /v1/ghosts", locals())

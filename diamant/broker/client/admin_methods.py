"""The operations as methods of `Admin`. Written by `make docs` from `dispatch/operation_table.py`: change that.

`timeout` bounds the wait for the answer; the work continues in the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from diamant.duration import Duration
    from diamant.json_types import Fields, JsonObject, Key, OnProgress


class Asks(Protocol):
    """The part of `Admin` that the methods need."""

    def perform(self, route: str, given: Fields) -> JsonObject: ...

    def stream(self, route: str, given: Fields) -> Iterator[JsonObject]: ...


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

    def erase(
        self: Asks,
        key: Key,
        topics: str | Sequence[str],
        *,
        reason: str,
        reference: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        force: bool = False,
        engine: Literal["inline", "process", "spark"] | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Erase a key from topics and certify the removal."""
        return self.perform("POST /v1/erase", locals())

    def erase_now(
        self: Asks,
        id: str,
        *,
        confirm_groups_behind: bool = False,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Remove the tombstones of an erasure before their horizon."""
        return self.perform("POST /v1/erase/{id}/now", locals())

    def redact(
        self: Asks,
        topic: str,
        where: str,
        *,
        reason: str,
        reference: str = "",
        blank: str | Sequence[str] = (),
        blank_with: str = "null",
        set: str | Sequence[str] = (),
        yes_all: bool = False,
        undecided: Literal["hold", "remove", "keep"] = "hold",
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Remove matching records from a topic and certify it."""
        return self.perform("POST /v1/redact", locals())

    def cancel(
        self: Asks, id: str, *, reason: str, timeout: Duration | None = None, on_progress: OnProgress | None = None
    ) -> JsonObject:
        """Cancel a pending erasure or redaction."""
        return self.perform("POST /v1/cancel", locals())

    def certificates(self: Asks, *, timeout: Duration | None = None) -> JsonObject:
        """List the certificates of a broker, or fetch one."""
        return self.perform("GET /v1/certificates", locals())

    def certificate(self: Asks, id: str, *, as_it_is: bool = False, timeout: Duration | None = None) -> JsonObject:
        """Return the last certificate of an erasure or redaction."""
        return self.perform("GET /v1/certificates/{id}", locals())

    def verify(
        self: Asks,
        certificate: Mapping[str, Any],
        *,
        public_key: str | None = None,
        key: Key | None = None,
        where: str | None = None,
        set: str | Sequence[str] = (),
        identifiers: Mapping[str, Any] | None = None,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Check a certificate of an erasure or redaction."""
        return self.perform("POST /v1/verify", locals())

    def segments(
        self: Asks,
        topic: str,
        partition: int | None = None,
        *,
        all: bool = False,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Count the records of each segment of a topic, by kind."""
        return self.perform("POST /v1/segments", locals())

    def latest(
        self: Asks,
        topic: str,
        partition: int | None = None,
        *,
        tombstones: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[JsonObject]:
        """Read the latest record of each key of a topic."""
        return self.stream("POST /v1/latest", locals())

    def find(
        self: Asks,
        topic: str,
        partition: int | None = None,
        *,
        key: Key | None = None,
        text: str | None = None,
        where: str | None = None,
        limit: int = 1000,
        registry: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[JsonObject]:
        """Search the records of a topic, newest first."""
        return self.stream("POST /v1/find", locals())

    def produce(
        self: Asks,
        topic: str,
        value: Key | None = None,
        key: Key | None = None,
        *,
        tombstone: bool = False,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timeout: Duration | None = None,
    ) -> JsonObject:
        """Write one record."""
        return self.perform("POST /v1/produce", locals())

    def reset_offsets(
        self: Asks,
        group: str,
        topic: str,
        to: str,
        partition: int | None = None,
        *,
        validate_only: bool = False,
        timeout: Duration | None = None,
    ) -> JsonObject:
        """Reset the committed offsets of a group without members, in a topic."""
        return self.perform("POST /v1/groups/{group}/offsets", locals())

    def alter_configs(
        self: Asks, topic: str, set: Mapping[str, Any], *, validate_only: bool = False, timeout: Duration | None = None
    ) -> JsonObject:
        """Change configurations of a topic, all or none."""
        return self.perform("POST /v1/configs", locals())

    def status(self: Asks, *, timeout: Duration | None = None) -> JsonObject:
        """Show the state of a broker and its cleaner."""
        return self.perform("GET /v1/status", locals())

    def history(
        self: Asks, topic: str | None = None, *, since_ms: int = 0, timeout: Duration | None = None
    ) -> JsonObject:
        """Show figures of the last 24 hours, taken every 30 seconds."""
        return self.perform("GET /v1/history", locals())

    def snapshot(self: Asks, *, timeout: Duration | None = None) -> JsonObject:
        """Save the current state of the broker, for later resets."""
        return self.perform("POST /v1/snapshots", locals())

    def snapshots(self: Asks, *, timeout: Duration | None = None) -> JsonObject:
        """List all snapshots with their sizes, oldest first."""
        return self.perform("GET /v1/snapshots", locals())

    def delete_snapshot(self: Asks, id: str, *, timeout: Duration | None = None) -> JsonObject:
        """Delete a snapshot."""
        return self.perform("DELETE /v1/snapshots/{id}", locals())

    def reset(self: Asks, snapshot: str, *, seamless: bool = False, timeout: Duration | None = None) -> JsonObject:
        """Restore a snapshot of a broker."""
        return self.perform("POST /v1/reset", locals())


class RemotePersonOperations:
    """The operations of `admin.person`. Raises AdminError."""

    def __init__(self, of: Asks) -> None:
        self.of = of

    def show(
        self,
        identifiers: Mapping[str, Any],
        map: Mapping[str, Any],
        *,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[JsonObject]:
        """Show all records of a person in all topics of the map."""
        return self.of.stream("POST /v1/person/show", locals())

    def suggest(
        self,
        topics: str | Sequence[str] = (),
        *,
        records: int = 1000,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Suggest a map of people, from samples of the topics."""
        return self.of.perform("POST /v1/person/suggest", locals())

    def check(
        self,
        map: Mapping[str, Any],
        *,
        records: int = 1000,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Check a map of people against the topics."""
        return self.of.perform("POST /v1/person/check", locals())

    def preview(
        self,
        identifiers: Mapping[str, Any],
        map: Mapping[str, Any],
        *,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Show what forgetting a person would do, topic by topic."""
        return self.of.perform("POST /v1/person/preview", locals())

    def forget(
        self,
        identifiers: Mapping[str, Any],
        map: Mapping[str, Any],
        *,
        reason: str,
        reference: str = "",
        received: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Forget a person in all topics of a data map, and certify it."""
        return self.of.perform("POST /v1/person/forget", locals())

    def preview_each(
        self,
        subjects: Sequence[Mapping[str, Any]],
        map: Mapping[str, Any],
        *,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Show what forgetting several people would do."""
        return self.of.perform("POST /v1/person/preview-each", locals())

    def forget_each(
        self,
        subjects: Sequence[Mapping[str, Any]],
        map: Mapping[str, Any],
        *,
        reason: str,
        reference: str = "",
        received: str = "",
        now: bool = False,
        confirm_groups_behind: bool = False,
        confirm: bool = False,
        registry: str | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Forget several people in one job, and certify each on a paper of its own."""
        return self.of.perform("POST /v1/person/forget-each", locals())

    def requests(self, open: bool = False, *, timeout: Duration | None = None) -> JsonObject:
        """List persons' requests, the next due first."""
        return self.of.perform("GET /v1/person/requests", locals())

    def receive(
        self,
        identifiers: Mapping[str, Any],
        *,
        kind: Literal["forget", "show", "correct"] = "forget",
        reference: str = "",
        received: str = "",
        timeout: Duration | None = None,
    ) -> JsonObject:
        """Register a person's request."""
        return self.of.perform("POST /v1/person/requests", locals())

    def extend(self, id: str, *, reason: str, months: int = 2, timeout: Duration | None = None) -> JsonObject:
        """Extend the due date of a person's request, with a reason."""
        return self.of.perform("POST /v1/person/requests/{id}/extend", locals())

    def close(
        self, id: str, *, reason: str, timeout: Duration | None = None, on_progress: OnProgress | None = None
    ) -> JsonObject:
        """Close a person's request, with a reason; a request in progress is cancelled."""
        return self.of.perform("POST /v1/person/requests/{id}/close", locals())


class RemoteBrokersOperations:
    """The operations of `admin.brokers`. Raises AdminError."""

    def __init__(self, of: Asks) -> None:
        self.of = of

    def list(self, *, timeout: Duration | None = None) -> JsonObject:
        """List the brokers of the process, with their state."""
        return self.of.perform("GET /v1/brokers", locals())

    def down(self, broker: int, *, hard: bool = False, timeout: Duration | None = None) -> JsonObject:
        """Take a broker down: its leaders move, and its clients are cut off."""
        return self.of.perform("POST /v1/brokers/{broker}/down", locals())

    def up(self, broker: int, *, lag: Duration = 0, timeout: Duration | None = None) -> JsonObject:
        """Bring a broker back, in sync immediately or later."""
        return self.of.perform("POST /v1/brokers/{broker}/up", locals())

    def fence(self, broker: int, *, timeout: Duration | None = None) -> JsonObject:
        """Take a broker out of the cluster; it still answers."""
        return self.of.perform("POST /v1/brokers/{broker}/fence", locals())

    def move(self, topic: str, partition: int, broker: int, *, timeout: Duration | None = None) -> JsonObject:
        """Make an in-sync replica the leader of a partition."""
        return self.of.perform("POST /v1/brokers/move", locals())

    def shuffle(
        self, topic: str | None = None, *, seed: int | None = None, timeout: Duration | None = None
    ) -> JsonObject:
        """Move leaders to other in-sync replicas, at random."""
        return self.of.perform("POST /v1/brokers/shuffle", locals())

    def unclean(
        self, topic: str, partition: int, broker: int, offset: int, *, timeout: Duration | None = None
    ) -> JsonObject:
        """Make a replica the leader although it lacks the newest records, which are lost."""
        return self.of.perform("POST /v1/brokers/unclean", locals())

    def lag(self, broker: int, by: Any, *, timeout: Duration | None = None) -> JsonObject:
        """Let a broker lag in the partitions that it follows."""
        return self.of.perform("POST /v1/brokers/{broker}/lag", locals())

    def slow(self, broker: int, by: Duration, *, timeout: Duration | None = None) -> JsonObject:
        """Delay each request to a broker."""
        return self.of.perform("POST /v1/brokers/{broker}/slow", locals())

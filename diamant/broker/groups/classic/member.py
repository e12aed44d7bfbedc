"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Container, Sequence

from diamant.broker.groups.classic.events import GroupProtocol
from diamant.protocol.internal_topics.group_records import GroupMetadataMember


class ClassicMember:
    """A member of a classic group. Its `assignment` and the metadata in `protocols` are opaque bytes.

    `join_waiter` and `sync_waiter` are its parked requests. `is_new` is True until the first join phase of the member ends.

    Bound: the metadata of one JoinGroup request and one assignment.

    Source: ClassicGroupMember.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Sequence[GroupProtocol],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.join_waiter: object | None = None
        self.sync_waiter: object | None = None
        self.is_new = False

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether a request of the member is parked. If so, the member cannot expire unless it is new."""
        return self.join_waiter is not None or self.sync_waiter is not None

    @property
    def protocol_names(self) -> frozenset[str]:
        """The names of the protocols, without duplicates."""
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol. Raises LookupError if the member does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise LookupError(f"member {self.member_id} does not support protocol {protocol_name!r}")

    def vote(self, candidates: Container[str]) -> str:
        """Return the candidate that the member prefers. Raises LookupError if the member supports no candidate."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise LookupError(f"member {self.member_id} supports no protocol that all members support")

    def value(self, protocol_name: str | None, assignment: bytes) -> GroupMetadataMember:
        """Return the member's part of the group's record."""
        return GroupMetadataMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

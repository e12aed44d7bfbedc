"""Requests of classic members to the coordinator of a broker, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.groups.classic.events import GroupProtocol, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from diamant.broker.groups.membership.classic_service import ClassicGroups

SESSION_MS = 10_000


def join_request(member_id: str = "", *, version: int = 3, metadata: bytes = b"m", **more: Any) -> JoinRequest:
    fields: dict[str, Any] = {
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (GroupProtocol("range", metadata),),
        "fresh_id": more.pop("fresh_id", ""),
        **more,
    }
    return JoinRequest(member_id=member_id, version=version, **fields)


class Direct:
    """Requests without sockets. `answers`: by name, in the order of their arrival."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.joins: dict[str, JoinAnswer] = {}
        self.syncs: dict[str, SyncAnswer] = {}

    @property
    def groups(self) -> ClassicGroups:
        return self.broker.services.groups().classic

    def join(self, group_id: str, name: str, request: JoinRequest) -> bytes | asyncio.Future[bytes]:
        def encode(answer: JoinAnswer) -> bytes:
            self.joins[name] = answer
            return b"answered"

        return self.groups.join(group_id, request, encode)

    def sync(
        self, group_id: str, member_id: str, generation: int, assignments: Sequence[tuple[str, bytes]] = ()
    ) -> bytes | asyncio.Future[bytes]:
        def encode(answer: SyncAnswer) -> bytes:
            self.syncs[member_id] = answer
            return b"answered"

        request = SyncRequest(member_id, None, generation, None, None, tuple(assignments))
        return self.groups.sync(group_id, request, encode)

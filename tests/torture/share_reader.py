"""A member of a share group that takes one step at a time: it joins, or fetches and acknowledges."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from tests.broker.groups.share.share_requests import ACCEPT, RELEASE, ShareMemberClient
from tests.broker.request_fields import SET, alteration
from tests.broker.wire import INCREMENTAL_ALTER_CONFIGS, METADATA, WireClient
from tests.torture.history import Finding, History
from tests.torture.producing import RETRIABLE, expect, find

GROUP, GROUP_CONFIGS = "sharers", 32
LEFT = frozenset(
    {
        "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH",
        "INVALID_RECORD_STATE", "UNKNOWN_TOPIC_ID", "FENCED_STATE_EPOCH",
    }
)  # fmt: skip
"""Answers to a member or a lock of which the broker knows nothing any more: the member joins again."""


class ShareReader:
    """A member of the only share group; a new one after each loss of the connection."""

    def __init__(self, history: History, topic: str) -> None:
        self._history = history
        self._topic = topic
        self._member: ShareMemberClient | None = None

    def forget(self) -> None:
        """The connection is gone, and the member with it."""
        self._member = None

    async def step(self, wire: WireClient, rng: random.Random) -> None:
        """Fetch from partition 0, acknowledge most of what came and release the rest. Refused as by other clients."""
        member, self._member = self._member, None  # until all has gone well
        if member is None:
            member = await self._join(wire, rng)
        expect((await member.heartbeat()).error_code, "ShareGroupHeartbeat", LEFT)
        ranges = await self._fetch(member)
        types = {
            offset: ACCEPT if rng.random() < 0.8 else RELEASE
            for first, last in ranges
            for offset in range(first, last + 1)
        }
        if types:
            acks = [(first, last, [types[offset] for offset in range(first, last + 1)]) for first, last in ranges]
            answer = await member.acknowledge(acks)
            expect(answer.error_code, "ShareAcknowledge", LEFT)
            expect(answer.responses[0].partitions[0].error_code, "ShareAcknowledge", LEFT)
            self._history.accepted |= {offset for offset, kind in types.items() if kind == ACCEPT}
        self._member = member

    async def _fetch(self, member: ShareMemberClient) -> list[tuple[int, int]]:
        answer = await member.fetch(wait_ms=0, max_records=30)
        expect(answer.error_code, "ShareFetch", LEFT)
        ranges = []
        for partition in (partition for topic in answer.responses for partition in topic.partitions):
            expect(partition.error_code, f"ShareFetch of {self._topic}", LEFT)
            ranges += [(one.first_offset, one.last_offset) for one in partition.acquired_records]
        again = [
            offset for first, last in ranges for offset in range(first, last + 1) if offset in self._history.accepted
        ]
        if again:
            raise Finding(f"{GROUP} acknowledged {again[:10]} of {self._topic}, and gets them again")
        return ranges

    async def _join(self, wire: WireClient, rng: random.Random) -> ShareMemberClient:
        await find(wire, GROUP, 0)
        topic: Any = (await wire.call(METADATA, 12, {"topics": [{"name": self._topic}]})).topics[0]
        expect(topic.error_code, "Metadata")
        change = alteration(GROUP_CONFIGS, GROUP, ("share.auto.offset.reset", SET, "earliest"))
        expect(
            (await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change)).responses[0].error_code, "configurations of a group"
        )
        name = str(UUID(int=rng.getrandbits(128)))
        member = ShareMemberClient(wire, GROUP, self._topic, topic.topic_id, name)
        expect((await member.heartbeat(0)).error_code, "ShareGroupHeartbeat", LEFT | RETRIABLE)
        return member

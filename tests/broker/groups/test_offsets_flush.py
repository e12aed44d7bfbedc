"""`flush.messages` holds for what coordinators write."""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.offset_requests import commit, find_coordinator, wait_until_loaded
from tests.broker.wire import WireClient


async def test_a_commit_is_on_disk_when_it_is_answered(make_broker: Callable[..., Broker]) -> None:
    """With `log.flush.interval.messages=1` the answer to an OffsetCommit comes after the sync."""
    async with make_broker(log_flush_interval_messages=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("t", 1)
        assert await find_coordinator(client) is ErrorCode.NONE
        await wait_until_loaded(broker)
        await commit(client, "g", {("t", 0): 7})
        log = broker.groups.topic.log(broker.groups.topic.partition_of("g"))
        assert log.log_end_offset > 0
        assert log.recovery_point == log.log_end_offset


async def test_a_commit_that_cannot_be_synced_is_not_answered(make_broker: Callable[..., Broker]) -> None:
    """When the sync fails the connection is closed: the client must not believe that its offsets are safe."""
    async with make_broker(log_flush_interval_messages=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("t", 1)
        await find_coordinator(client)
        log = broker.groups.topic.log(broker.groups.topic.partition_of("g"))
        broker.flusher.flushed = lambda logs: _failing(log)  # type: ignore[method-assign,misc]
        fields = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
                }
            ],
        }
        client.send(8, 8, fields)
        assert await client.is_closed()


async def _failing(log: object) -> None:
    log.write_failure = OSError("no space")  # type: ignore[attr-defined]

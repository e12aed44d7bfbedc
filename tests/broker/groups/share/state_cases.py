"""Requests about states of share partitions as brokers send them, many of them wrong, and the answers.

`python -m tests.broker.groups.share.state_cases HOST:PORT` prints the answers of a broker. Apache Kafka 4.3.1 gave
tests/golden/groups/share_states_4.3.1.json.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import UUID, uuid4

from tests.broker.groups.share.share_requests import wait_for_coordinator
from tests.broker.wire import METADATA, WireClient

INITIALIZE, READ, WRITE, DELETE, SUMMARY = range(83, 88)
SHARE = 2
_BATCHES = [
    {"first_offset": 11, "last_offset": 15, "delivery_state": 0, "delivery_count": 1},
    {"first_offset": 16, "last_offset": 20, "delivery_state": 2, "delivery_count": 1},
]
_LATER = [{"first_offset": 12, "last_offset": 13, "delivery_state": 4, "delivery_count": 5}]
_WRITE = {"state_epoch": 3, "leader_epoch": 2, "start_offset": 11, "delivery_complete_count": 0, "state_batches": []}

CASES: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("read before the beginning", READ, 0, {"leader_epoch": 0}),
    ("summary before the beginning", SUMMARY, 1, {"leader_epoch": 0}),
    ("write before the beginning", WRITE, 1, _WRITE),
    ("delete before the beginning", DELETE, 0, {}),
    ("initialize", INITIALIZE, 0, {"state_epoch": 3, "start_offset": 10}),
    ("read", READ, 0, {"leader_epoch": 2}),
    ("read with an old leader epoch", READ, 0, {"leader_epoch": 1}),
    ("write", WRITE, 1, {**_WRITE, "delivery_complete_count": 1, "state_batches": _BATCHES}),
    ("write an unchanged start", WRITE, 0, {**_WRITE, "start_offset": -1, "state_batches": _LATER}),
    ("read what was written", READ, 0, {"leader_epoch": 2}),
    ("summary", SUMMARY, 1, {"leader_epoch": 2}),
    ("summary, version 0", SUMMARY, 0, {"leader_epoch": 2}),
    ("write with an old state epoch", WRITE, 1, {**_WRITE, "state_epoch": 2}),
    ("write with an old leader epoch", WRITE, 1, {**_WRITE, "leader_epoch": 1}),
    ("write with a new state epoch", WRITE, 1, {**_WRITE, "state_epoch": 4}),
    ("initialize with an old epoch", INITIALIZE, 0, {"state_epoch": 2, "start_offset": 5}),
    ("initialize again", INITIALIZE, 0, {"state_epoch": 3, "start_offset": 5}),
    ("read after that", READ, 0, {"leader_epoch": 2}),
    ("initialize a missing partition", INITIALIZE, 0, {"partition": 7, "state_epoch": 1, "start_offset": 5}),
    ("initialize a negative partition", INITIALIZE, 0, {"partition": -1, "state_epoch": 1, "start_offset": 5}),
    ("read a negative partition", READ, 0, {"partition": -1, "leader_epoch": 0}),
    ("initialize of a missing topic", INITIALIZE, 0, {"topic": 1, "state_epoch": 1, "start_offset": 5}),
    ("initialize without a group", INITIALIZE, 0, {"group_id": "", "state_epoch": 1, "start_offset": 5}),
    ("delete", DELETE, 0, {}),
    ("delete again", DELETE, 0, {}),
    ("read after the end", READ, 0, {"leader_epoch": 2}),
)  # fmt: skip


async def state_answers(wire: WireClient) -> dict[str, object]:
    """Ask everything; the answers by name."""
    name, group_id = f"t{uuid4().hex[:8]}", "states"
    await wire.create(name)
    await wait_for_coordinator(wire, group_id)
    topic_id = (await wire.call(METADATA, 12, {"topics": [{"name": name}]})).topics[0].topic_id
    await wait_for_coordinator(wire, f"{group_id}:AAAAAAAAAAAAAAAAAAAAAQ:0", SHARE)
    found: dict[str, object] = {}
    for case, api, version, fields in CASES:
        known = dict(fields)
        group, of_topic = known.pop("group_id", group_id), UUID(int=77) if known.pop("topic", 0) else topic_id
        if version == 0:
            known.pop("delivery_complete_count", None)
        topics = [{"topic_id": of_topic, "partitions": [{"partition": 0, **known}]}]
        answer = await wire.call(api, version, {"group_id": group, "topics": topics})
        found[case] = [_plain(one) for topic in answer.results for one in topic.partitions]
    return found


def _plain(one: Any) -> dict[str, object]:
    names = ("partition", "error_code", "error_message", "state_epoch", "leader_epoch", "start_offset")
    found = {name: getattr(one, name) for name in (*names, "delivery_complete_count") if hasattr(one, name)}
    found["error_code"] = int(one.error_code)
    if hasattr(one, "state_batches"):
        found["state_batches"] = [
            [batch.first_offset, batch.last_offset, int(batch.delivery_state), batch.delivery_count]
            for batch in one.state_batches
        ]
    return found


async def _main(address: str) -> None:
    async with WireClient(address) as wire:
        print(json.dumps(await state_answers(wire), indent=1))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

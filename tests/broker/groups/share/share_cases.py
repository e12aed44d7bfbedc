"""Fetches and acknowledgements of two members of a share group, most of them wrong, and the answers.

`python -m tests.broker.groups.share.share_cases HOST:PORT` prints the answers of a broker. Apache Kafka 4.3.1 gave
tests/golden/groups/share_answers_4.3.1.json (it releases records a moment after it answers, for which `wait_to_settle` waits).
"""

from __future__ import annotations

import asyncio
import json
import sys
from uuid import UUID, uuid4

from tests.broker.groups.share.share_requests import (
    ACCEPT,
    ALTER_SHARE_OFFSETS,
    DELETE_SHARE_OFFSETS,
    DESCRIBE_SHARE_OFFSETS,
    RENEW,
    ShareMemberClient,
    acquired,
    configure,
    plain,
    wait_for_coordinator,
)
from tests.broker.wire import METADATA, WireClient

NO_TOPIC = UUID(int=77)
WRITE_SHARE_STATE = 85
ODD_STARTS = {"beyond the end": 100, "to the last": (1 << 63) - 1, "below 0": -5, "to the first": -1 << 63, "to -1": -1}
FIRST, SECOND = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


async def answers(first: WireClient, second: WireClient, *, settle_s: float = 0.0) -> dict[str, object]:
    """Ask everything, on two connections; the answers by name."""
    topic = f"t{uuid4().hex[:8]}"
    group_id = f"group-{topic}"
    await first.create(topic)
    await wait_for_coordinator(first, group_id)
    described = await first.call(METADATA, 12, {"topics": [{"name": topic}]})
    topic_id = described.topics[0].topic_id
    await configure(first, group_id, share_auto_offset_reset="earliest")
    one = ShareMemberClient(first, group_id, topic, topic_id, FIRST)
    two = ShareMemberClient(second, group_id, topic, topic_id, SECOND)
    found: dict[str, object] = {}
    await _sessions(found, one, two)
    for count in (10, 10, 10, 5, 5):
        await first.produce(topic, [b"value"] * count)
    await _wrong_acknowledgements(found, one, two)
    await wait_to_settle(settle_s)
    await _again(found, one, two, settle_s)
    await _offsets(found, one, two)
    return found


async def wait_to_settle(settle_s: float) -> None:
    """Wait for a Kafka to release records."""
    if settle_s:
        await asyncio.sleep(settle_s)


async def _sessions(found: dict[str, object], one: ShareMemberClient, two: ShareMemberClient) -> None:
    stranger = ShareMemberClient(one.wire, "stranger", one.topic, one.topic_id, FIRST)
    found["fetch of a group without members"] = plain(await stranger.fetch(wait_ms=2_000))
    found["acknowledgement of it"] = plain(await stranger.acknowledge([(0, 0, [ACCEPT])]))
    await one.wait_until_assigned()
    await two.wait_until_assigned()
    found["fetch without a session"] = plain(await one.fetch(1, wait_ms=0))
    found["acknowledgement without a session"] = plain(await one.acknowledge([(0, 0, [ACCEPT])], 1))
    found["acknowledgement at epoch 0"] = plain(await one.acknowledge([(0, 0, [ACCEPT])], 0))
    await one.fetch(0)
    found["fetch at a wrong epoch"] = plain(await one.fetch(7, wait_ms=0))
    found["fetch without a member"] = plain(
        await ShareMemberClient(one.wire, one.group_id, one.topic, one.topic_id, "").fetch(wait_ms=0)
    )


async def _wrong_acknowledgements(found: dict[str, object], one: ShareMemberClient, two: ShareMemberClient) -> None:
    found["whole batches"] = plain(await one.fetch(adds=False, max_records=15))
    found["the rest, in small ranges"] = plain(await two.fetch(0, batch_size=5))
    wrong: list[tuple[str, list[tuple[int, int, list[int]]]]] = [
        ("of another member", [(20, 24, [1])]),
        ("of a part", [(0, 4, [1])]),
        ("twice", [(0, 4, [1])]),
        ("overlapping", [(5, 7, [1]), (7, 9, [1])]),
        ("out of order", [(8, 9, [1]), (5, 6, [1])]),
        ("reversed", [(9, 8, [1])]),
        ("of an unknown type", [(5, 5, [9])]),
        ("renewal not announced", [(5, 5, [4])]),
        ("without a type", [(5, 5, [])]),
        ("with too few types", [(5, 7, [1, 1])]),
        ("with a type for each", [(5, 9, [1, 2, 3, 0, 2])]),
        ("beyond the end", [(30, 60, [1])]),
        ("far beyond the end", [(100, 110, [1])]),
    ]
    for name, acks in wrong:
        found[f"acknowledgement {name}"] = plain(await one.acknowledge(acks))
    accept = [(0, 0, [ACCEPT])]
    found["of an unknown topic"] = plain(await one.acknowledge(accept, topic_id=NO_TOPIC))
    found["of an unknown partition"] = plain(await one.acknowledge(accept, partition=5))
    found["released ones again"] = plain(await one.fetch(adds=False, max_records=10))
    found["renewal"] = plain(await one.acknowledge([(6, 6, [RENEW]), (9, 9, [RENEW])], is_renew_ack=True))
    found["renewal in version 1"] = plain(await one.acknowledge([(6, 6, [RENEW])], version=1))
    found["acknowledgement with a fetch"] = plain(await one.fetch(acks=[(6, 6, [2])], max_records=1))
    found["renewal with a fetch"] = plain(await one.fetch(acks=[(9, 9, [RENEW])], is_renew_ack=True))
    found["acknowledgement in a first fetch"] = plain(await one.fetch(0, acks=[(9, 9, [ACCEPT])]))


async def _again(found: dict[str, object], one: ShareMemberClient, two: ShareMemberClient, settle_s: float) -> None:
    found["last fetch"] = plain(await one.fetch(-1, wait_ms=0))
    found["last fetch of the other"] = plain(await two.fetch(-1, adds=False, wait_ms=0))
    await wait_to_settle(settle_s)
    found["all again, throttled"] = plain(await two.fetch(0))
    found["unknown partition"] = plain(await one.fetch(0, partition=9, wait_ms=100))
    found["last acknowledgement"] = plain(await two.acknowledge([(20, 24, [1])], -1))
    await wait_to_settle(settle_s)
    found["three records"] = plain(await one.fetch(0, share_acquire_mode=1, max_records=3))
    found["four records"] = plain(await one.fetch(share_acquire_mode=1, max_records=4, adds=False))
    found["whole batches again"] = plain(await one.fetch(adds=False, max_records=3))
    found["release of what is not held"] = plain(await one.acknowledge([(10, 39, [2])]))
    found["more"] = plain(await one.fetch(adds=False, max_records=3))
    forgotten = [{"topic_id": one.topic_id, "partitions": [0]}]
    found["a forgotten partition"] = plain(await one.fetch(adds=False, wait_ms=0, forgotten_topics_data=forgotten))
    found["version 1"] = acquired(await one.fetch(0, version=1, max_records=2))
    found["an unknown mode"] = plain(await one.fetch(share_acquire_mode=5, adds=False, wait_ms=0))


async def _offsets(found: dict[str, object], one: ShareMemberClient, two: ShareMemberClient) -> None:
    topic, group_id, wire = one.topic, one.group_id, one.wire

    async def ask(name: str, api_key: int, version: int, fields: dict[str, object]) -> None:
        answer = await wire.call(api_key, version, fields)
        text = repr(getattr(answer, "groups", None) or (answer.error_code, answer.error_message, answer.responses))
        for secret, word in ((group_id, "GROUP"), (topic, "TOPIC"), (str(one.topic_id), "ID")):
            text = text.replace(secret, word)
        found[name] = text

    def partitions(name: str, *numbers: int) -> dict[str, object]:
        return {"topic_name": name, "partitions": list(numbers)}

    asked = [partitions(topic, 0, 7), partitions("none", 0)]
    groups = [{"group_id": group_id, "topics": asked}, {"group_id": group_id, "topics": None}]
    groups.append({"group_id": "none", "topics": [partitions(topic, 0)]})
    await ask("offsets", DESCRIBE_SHARE_OFFSETS, 1, {"groups": groups})
    moved = [{"partition_index": number, "start_offset": 12} for number in (0, 9)]
    alter = {"group_id": group_id, "topics": [{"topic_name": name, "partitions": moved} for name in (topic, "none")]}
    await ask("move with members", ALTER_SHARE_OFFSETS, 0, alter)
    delete = {"group_id": group_id, "topics": [{"topic_name": topic}, {"topic_name": "none"}]}
    await ask("deletion with members", DELETE_SHARE_OFFSETS, 0, delete)
    await one.heartbeat(-1)
    await two.heartbeat(-1)
    await ask("move", ALTER_SHARE_OFFSETS, 0, alter)
    everything = {"groups": [{"group_id": group_id, "topics": None}]}
    await ask("moved", DESCRIBE_SHARE_OFFSETS, 1, everything)
    for where, offset in ODD_STARTS.items():
        moved[:] = [{"partition_index": 0, "start_offset": offset}]
        await ask(f"move {where}", ALTER_SHARE_OFFSETS, 0, alter)
        await ask(f"moved {where}", DESCRIBE_SHARE_OFFSETS, 1, everything)
    epochs = {"state_epoch": -1, "leader_epoch": -1, "start_offset": 3, "state_batches": []}
    written = [{"topic_id": one.topic_id, "partitions": [{"partition": 0, **epochs}]}]
    await wire.call(WRITE_SHARE_STATE, 0, {"group_id": group_id, "topics": written})
    await ask("written without a count", DESCRIBE_SHARE_OFFSETS, 1, everything)
    await ask("deletion", DELETE_SHARE_OFFSETS, 0, delete)
    await ask("deletion in no group", DELETE_SHARE_OFFSETS, 0, {**delete, "group_id": f"no-{group_id}"})
    await ask("deleted", DESCRIBE_SHARE_OFFSETS, 1, everything)


async def _main(address: str) -> None:
    async with WireClient(address) as first, WireClient(address) as second:
        print(json.dumps(await answers(first, second, settle_s=0.5), indent=1))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

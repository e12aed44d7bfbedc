"""Requests about share and streams groups, whose answers are compared with a real Kafka's.

`python -m tests.broker.groups.coordinator.other_group_cases` has three steps for a new Kafka:

    make ADDRESS           make a topic and the groups "KIND REQUEST"
    ask ADDRESS            within half a minute after a restart: print the answers
    records DIRECTORY      after `make`, stopped: print the records of one group of each kind

Apache Kafka 4.3.1 produced tests/golden/groups/other_groups_4.3.1.json in this way.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from kio.serial import entity_reader, entity_writer

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.wire.apis import request_header_version
from tests.broker.request_fields import join_group, offset_commit
from tests.broker.wire import FIND_COORDINATOR, INIT_PRODUCER_ID, WireClient

KINDS = ("share-live", "share-empty", "streams-live", "streams-empty", "streams-offsets")
"""With a member, without one, and without one but with an offset."""

OFFSET_FETCH, LIST_GROUPS = 9, 16
MEMBER = str(UUID(int=5))
EPOCH = 3

Ask = Callable[[WireClient, str], Coroutine[Any, Any, Any]]


def _code(answer: Any) -> list[Any]:
    message = getattr(answer, "error_message", None)
    return [int(answer.error_code), *([message] if message else [])]


def _request(api_key: int, version: int, fields: Callable[[str], dict[str, Any]], *path: str) -> Ask:
    """Return a request; the errors at the end of `path` in the answer are compared."""

    async def ask(wire: WireClient, group: str) -> Any:
        found = [await wire.call(api_key, version, fields(group))]
        for name in path:
            found = [entry for one in found for entry in getattr(one, name)]
        return [_code(one) for one in found]

    return ask


def _join(group: str, **fields: Any) -> dict[str, Any]:
    return join_group(group, bytes(10), **fields)


def _commit(group: str, *, is_member: bool = False) -> dict[str, Any]:
    return offset_commit(group, ("t", [(0, 1, "")]), **({"member_id": "m", "epoch": EPOCH} if is_member else {}))


def _in_group(group: str, **fields: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id": 1, "member_id": "m", **fields}


def _heartbeat(group: str, epoch: int) -> dict[str, Any]:
    joins = (
        {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []} if not epoch else {}
    )
    rest = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    return {"group_id": group, "member_id": MEMBER, "member_epoch": epoch, **rest, **joins}


async def _describe(wire: WireClient, group: str) -> Any:
    answers = [await wire.call(15, version, {"groups": [group]}) for version in (5, 6)]
    return [[*_code(one), one.group_state, one.protocol_type] for answer in answers for one in answer.groups]


async def _fetch(wire: WireClient, group: str) -> Any:
    found = []
    for version, member in (
        (9, {"member_id": None, "member_epoch": -1}),
        (9, {"member_id": "m", "member_epoch": 3}),
        (8, {}),
    ):
        fields = {"group_id": group, "topics": None, **member}
        (answer,) = (await wire.call(OFFSET_FETCH, version, {"groups": [fields]})).groups
        found.append([*_code(answer), [one.committed_offset for topic in answer.topics for one in topic.partitions]])
    return found


async def _commit_transactional(wire: WireClient, group: str) -> Any:
    await wire.call(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["tx"]})
    async with asyncio.timeout(60):
        while True:
            fields = {
                "transactional_id": "tx",
                "transaction_timeout_ms": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            made = await wire.call(INIT_PRODUCER_ID, 4, fields)
            if not made.error_code:
                break
    fields = {"transactional_id": "tx", "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    await wire.call(25, 3, {**fields, "group_id": group})
    found = []
    for member in ({"generation_id": -1, "member_id": ""}, {"generation_id": EPOCH, "member_id": "m"}):
        topics = _commit(group)["topics"]
        answer = await wire.call(28, 3, {**fields, "group_id": group, "topics": topics, **member})
        found += [_code(one) for topic in answer.topics for one in topic.partitions]
    await wire.call(26, 3, {**fields, "committed": True})
    return found


REQUESTS: dict[str, Ask] = {
    "join": _request(11, 9, _join),
    "old join": _request(11, 3, _join),
    "join as member": _request(11, 9, lambda group: _join(group, member_id="m")),
    "static join": _request(11, 9, lambda group: _join(group, group_instance_id="i")),
    "join with another protocol": _request(11, 9, lambda group: _join(group, protocol_type="connect")),
    "sync": _request(14, 5, lambda group: _in_group(group, protocol_type="consumer", protocol_name="range")),
    "heartbeat": _request(12, 4, _in_group),
    "leave": _request(13, 5, lambda group: {"group_id": group, "members": [{"member_id": "m"}]}, "members"),
    "commit": _request(8, 9, _commit, "topics", "partitions"),
    "old commit": _request(8, 8, _commit, "topics", "partitions"),
    "commit as member": _request(8, 9, lambda group: _commit(group, is_member=True), "topics", "partitions"),
    "transactional commit": _commit_transactional,
    "fetch": _fetch,
    "delete": _request(42, 2, lambda group: {"groups_names": [group]}, "results"),
    "delete offsets": _request(
        47, 0, lambda group: {"group_id": group, "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    ),
    "describe": _describe,
    "join consumers": _request(68, 1, lambda group: _heartbeat(group, 0)),
    "consumer heartbeat": _request(68, 1, lambda group: _heartbeat(group, EPOCH)),
    "describe consumers": _request(69, 1, lambda group: {"group_ids": [group]}, "groups"),
}


async def ask(address: str) -> dict[str, Any]:
    """Send each request to a group of each kind; return the answers, and the listed groups before and after."""
    async with WireClient(address) as wire:
        await _until_loaded(wire)
        filters = (
            {},
            *({"types_filter": [one]} for one in ("share", "STREAMS", "classic")),
            {"states_filter": ["empty"]},
        )
        answers: dict[str, Any] = {f"list {one}": await _listed(wire, one) for one in filters}
        for name, request in REQUESTS.items():
            for kind in KINDS:
                answers[f"{kind} {name}"] = await request(wire, f"{kind} {name}")
        # Kafka forgets the offsets of a group that a member unknown to it tried to join, until a restart finds them again.
        answers["list after"] = [one for one in await _listed(wire, {}) if one[0] != "streams-offsets join as member"]
        return answers


async def _until_loaded(wire: WireClient) -> None:
    async with asyncio.timeout(60):
        while True:
            found = await wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
            if not found.coordinators[0].error_code and not (await wire.call(LIST_GROUPS, 5, {})).error_code:
                return


async def _listed(wire: WireClient, fields: dict[str, Any]) -> list[list[str]]:
    found = (await wire.call(LIST_GROUPS, 5, fields)).groups
    return sorted([str(one.group_id), one.group_type, one.group_state, one.protocol_type] for one in found)


# -- a real Kafka ------------------------------------------------------------------------------------------------------


async def _call(wire: WireClient, api_key: int, version: int, module: str, fields: Any) -> Any:
    """Send a request of an API that is not served here."""
    requests, answers = (
        importlib.import_module(f"kio.schema.{module}.v{version}.{one}") for one in ("request", "response")
    )
    name = "".join(part.title() for part in module.split("_"))
    entity, body = getattr(requests, f"{name}Request")(**fields(requests)), io.BytesIO()
    entity_writer(type(entity))(body, entity)
    assert request_header_version(api_key, version) == 2
    wire.writer.write(wire.frame(api_key, version, body.getvalue()))
    _, answer = await wire.receive_frame()
    return entity_reader(getattr(answers, f"{name}Response"))(answer[1:], 0)[0]


async def _share(wire: WireClient, group: str, member: str, epoch: int) -> Any:
    fields = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "rack_id": None,
        "subscribed_topic_names": ("t",),
    }
    return await _call(wire, 76, 1, "share_group_heartbeat", lambda _: fields)


async def _streams(wire: WireClient, group: str, member: str, epoch: int) -> Any:
    absent = ("instance_id", "rack_id", "user_endpoint", "client_tags", "task_offsets", "task_end_offsets")
    lists = ("source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics")

    def fields(module: Any) -> dict[str, Any]:
        part = module.Subtopology(
            subtopology_id="0", source_topics=("t",), copartition_groups=(), **dict.fromkeys(lists, ())
        )
        tasks = dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks"), None if epoch else ())
        return {
            "group_id": group, "member_id": member, "member_epoch": epoch, "endpoint_information_epoch": 0,
            "rebalance_timeout": timedelta(minutes=1), "process_id": None if epoch else "p", "shutdown_application": False,
            "topology": None if epoch else module.Topology(epoch=0, subtopologies=(part,)), **tasks, **dict.fromkeys(absent),
        }  # fmt: skip

    return await _call(wire, 88, 0, "streams_group_heartbeat", fields)


async def _make(address: str) -> None:
    async with WireClient(address) as wire:
        await wire.create("t")
        await _until_loaded(wire)
        for kind in KINDS:
            beat = _share if kind.startswith("share") else _streams
            for group in (f"{kind} {name}" for name in REQUESTS):
                member = str(uuid4())
                while (joined := await beat(wire, group, member, 0)).error_code:
                    pass  # the topic is not known everywhere yet
                if kind == "streams-offsets":
                    fields = offset_commit(group, ("t", [(0, 1, "")]), member_id=member, epoch=joined.member_epoch)
                    await wire.call(8, 9, fields)
                if not kind.endswith("live"):
                    await beat(wire, group, member, -1)


def _records(directory: str) -> dict[str, list[list[Any]]]:
    """Return the last records of one group of each kind: type, the key's rest after the group's id, value."""
    found: dict[str, dict[bytes, bytes | None]] = {kind: {} for kind in KINDS}
    for path in sorted(Path(directory).glob("__consumer_offsets-*/*.log")):
        data = path.read_bytes()
        for position, header in iter_headers(data):
            for record in iter_records(data[position : position + header.size]):
                for kind in KINDS:
                    front = f"{kind} describe".encode()
                    if (
                        record.key is not None
                        and record.key[2 : 4 + len(front)] == len(front).to_bytes(2, "big") + front
                    ):
                        found[kind].pop(record.key, None)
                        found[kind][record.key] = record.value
    return {
        kind: [
            [int.from_bytes(key[:2], "big"), key[4 + len(f"{kind} describe") :].hex(), value.hex()]
            for key, value in records.items()
            if value is not None
        ]
        for kind, records in found.items()
    }


if __name__ == "__main__":
    what, where = sys.argv[1:]
    if what == "make":
        asyncio.run(_make(where))
    else:
        print(json.dumps(asyncio.run(ask(where)) if what == "ask" else _records(where), separators=(",", ":")))

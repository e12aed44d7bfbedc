"""Groups with members, partitions and lags; share groups with acquired records; open transactions and records they hold back."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple
from urllib.parse import quote

from aiohttp import web

from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
from diamant.broker.groups.coordinator.share_figures import HeldRecords, held_records
from diamant.broker.groups.membership.description import owners
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.http.page.making.live import live_context
from diamant.broker.http.page.making.rendering import ShownCall, page, shown_call, view
from diamant.broker.http.serving.authorization import GROUP, STATUS
from diamant.broker.http.serving.route import Call
from diamant.broker.operation_errors import NotFound, no_group
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, parse_assignment
from diamant.protocol.internal_topics.share_records import SharePartitionKey

MAX_ROWS = 200
MAX_PLACES = 1_000
MAX_HELD_ROWS = 20


class GroupRow(NamedTuple):
    """A group in the list."""

    name: str
    group_type: str
    state: str
    members: int
    topics: tuple[str, ...]
    """Topics with committed offsets or owned partitions."""
    places: int
    """Partitions with a committed offset."""
    lag: int
    uncommitted: int
    """Owned partitions without a committed offset, whose lag is unknown."""


class MemberRow(NamedTuple):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    owned: str


class PlaceRow(NamedTuple):
    """A partition for which a group has committed an offset, or that a member owns."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    """The high watermark of the partition; None if the partition does not exist."""
    member: str | None
    """The member that owns the partition."""

    @property
    def lag(self) -> int | None:
        """The end minus the committed offset; None if either is missing, as in `kafka-consumer-groups`."""
        return None if self.end is None or self.committed is None else max(0, self.end - self.committed)


class SharePlaceRow(NamedTuple):
    """A partition that a share group reads."""

    topic: str
    partition: int
    start: int | None
    """The share-partition start offset; None if no member has fetched from the partition."""
    end: int | None
    lag: int | None
    in_flight: int
    held: tuple[HeldRecords, ...]
    """At most `MAX_HELD_ROWS` ranges."""
    held_more: int


class TransactionRow(NamedTuple):
    """An open transaction."""

    name: str
    producer_id: int
    state: str
    start_ms: int
    aborts_ms: int
    partitions: str


class HeldRow(NamedTuple):
    """A partition with records that a read_committed consumer does not get yet."""

    topic: str
    partition: int
    stable: int
    end: int


def _coordinator(call: Call) -> GroupCoordinator | None:
    """Return the coordinator; None while there are no groups."""
    services = call.services
    return services.groups() if GROUP_OFFSETS_TOPIC in services.node.topics.by_name else None


def _places(call: Call, group: Group) -> list[PlaceRow]:
    topics = call.services.node.topics
    owned = owners(group, topics.image)
    committed = {
        (topic, partition): committed_offset_of(stored[0])
        for topic, found in group.offsets.committed.items()
        for partition, stored in found.items()
    }
    rows = []
    for place in sorted({*committed, *owned}):
        known = topics.by_name.get(place[0])
        log = None if known is None else known.logs.get(place[1])
        end = None if log is None else log.high_watermark
        rows.append(PlaceRow(*place, committed.get(place), end, owned.get(place)))
    return [row for row in rows if call.may_know(row.topic)]


def _share_places(call: Call, groups: GroupCoordinator, group: Group) -> list[SharePlaceRow]:
    topics = call.services.node.topics
    rows = []
    for known in groups.share_offsets.topics_of(group):
        topic = topics.by_name.get(known.topic_name)
        if topic is None or not call.may_know(known.topic_name):
            continue
        for number in known.partitions:
            log = topic.logs.get(number)
            offset = groups.share_offsets.of(group.group_id, known.topic_id, number, log)
            start, lag = (None if one == UNKNOWN_OFFSET else one for one in (offset.start_offset, offset.lag))
            state = groups.share.delivery.state.states.get(SharePartitionKey(group.group_id, known.topic_id, number))
            live = None if state is None else state.live
            held = [] if live is None else list(held_records(live))
            shown, more = tuple(held[:MAX_HELD_ROWS]), max(0, len(held) - MAX_HELD_ROWS)
            end, in_flight = None if log is None else log.high_watermark, 0 if live is None else live.in_flight_count
            rows.append(SharePlaceRow(topic.name, number, start, end, lag, in_flight, shown, more))
    return sorted(rows)


def _members(call: Call, groups: GroupCoordinator, group: Group) -> list[MemberRow]:
    if group.consumer is not None or group.share is not None:
        described = groups.consumer.describe if group.share is None else groups.share.described
        found: Any = described(group.group_id)["members"]
        return [
            MemberRow(
                one["member_id"],
                one.get("instance_id"),
                one["client_id"],
                one["client_host"],
                _owned(
                    call, {each["topic_name"]: each["partitions"] for each in one["assignment"]["topic_partitions"]}
                ),
            )
            for one in found
        ]
    if group.classic is None:
        return []
    return [
        MemberRow(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            _assigned(call, one.assignment) if group.classic.protocol_type == PROTOCOL_TYPE else "",
        )
        for one in group.classic.members.values()
    ]


def _assigned(call: Call, assignment: bytes) -> str:
    try:
        return _owned(call, {name: list(found) for name, found in parse_assignment(assignment).partitions.items()})
    except ProtocolError:
        return ""


def _owned(call: Call, partitions: dict[str, list[int]]) -> str:
    known = {topic: found for topic, found in partitions.items() if call.may_know(topic)}
    return "; ".join(f"{topic} {', '.join(map(str, sorted(found)))}" for topic, found in sorted(known.items()))


def _row(call: Call, groups: GroupCoordinator, group: Group) -> GroupRow:
    if group.share is not None:
        shared = _share_places(call, groups, group)
        names, lag = tuple(dict.fromkeys(one.topic for one in shared)), sum(one.lag or 0 for one in shared)
        members = len(group.share.members)
        return GroupRow(group.group_id, group.group_type, group.state, members, names, len(shared), lag, 0)
    places = _places(call, group)
    members = len(group.classic.members) if group.classic is not None else 0
    if group.consumer is not None:
        members = len(group.consumer.members)
    return GroupRow(
        group.group_id,
        group.group_type,
        group.state,
        members,
        tuple(dict.fromkeys(one.topic for one in places)),
        sum(one.committed is not None for one in places),
        sum(one.lag or 0 for one in places),
        sum(one.committed is None for one in places),
    )


def _transactions(call: Call) -> list[TransactionRow]:
    made = call.services.transactions.made
    if made is None:
        return []
    return [
        TransactionRow(
            one.transactional_id,
            one.producer_id,
            one.state.name.replace("_", " ").lower(),
            one.start_ms,
            one.start_ms + one.timeout_ms,
            ", ".join(f"{topic}-{partition}" for topic, partition in sorted(one.partitions)[:20]),
        )
        for one in made.store.open_transactions[:MAX_ROWS]
    ]


def _context(call: Call) -> dict[str, object]:
    groups = _coordinator(call)
    found = [] if groups is None else sorted(groups.groups.values(), key=lambda group: group.group_id)
    held = [
        HeldRow(log.topic, log.partition, log.last_stable_offset, log.log_end_offset)
        for log in call.services.node.directory.logs.values()
        if log.last_stable_offset < log.log_end_offset
    ]
    return {
        "groups": [] if groups is None else [_row(call, groups, group) for group in found[:MAX_ROWS]],
        "more": max(0, len(found) - MAX_ROWS),
        "is_loading": groups is not None and groups.loading.is_loading,
        "transactions": _transactions(call),
        "held": sorted(held)[:MAX_ROWS],
    }


async def show(call: Call) -> web.StreamResponse:
    """Return the list."""
    return page("groups.html.j2", _context(call), title="Groups", view="Groups")


def _group(call: Call) -> tuple[GroupCoordinator, Group]:
    name = call.path["group"]
    groups = _coordinator(call)
    group = None if groups is None else groups.groups.get(name)
    if groups is None or group is None:
        raise NotFound(no_group(name))
    return groups, group


async def show_group(call: Call) -> web.StreamResponse:
    """Return one group. Raises NotFound."""
    groups, group = _group(call)
    places = _places(call, group) if group.share is None else _share_places(call, groups, group)
    context = {
        "group": _row(call, groups, group),
        "members": _members(call, groups, group),
        "places": places[:MAX_PLACES],
        "more": max(0, len(places) - MAX_PLACES),
        "reset": _reset_call(call, group.group_id),
    }
    return page("group.html.j2", context, title=group.group_id, view="Groups")


def _reset_call(call: Call, group: str) -> ShownCall:
    """Return the call that resets a group's offsets. page.js (`LOOKS`) fills in the typed values."""
    path, fields = f"/v1/groups/{quote(group, safe='')}/offsets", {"topic": "TOPIC", "to": "start"}
    return shown_call(
        call, "POST", path, fields, f"diamant group reset {shlex.quote(group)} --topic TOPIC --to start",
        f'diamant.Admin().reset_offsets({group!r}, "TOPIC", "start")',
    )  # fmt: skip


async def tombstones(call: Call) -> web.StreamResponse:
    """Return the number of tombstones that a group has not read, by partition. Raises NotFound, NotPossible."""
    from diamant.broker.operations.records.record_requests import ExplainRequest

    _, group = _group(call)
    found = []
    for topic in sorted(group.offsets.committed):
        known = call.services.node.topics.by_name.get(topic)
        if known is None or not call.may_know(topic) or not any(log.config.is_compacted for log in known.logs.values()):
            continue
        explanation = await call.services.explain().explain(ExplainRequest(topic, tombstones=True))
        for one in explanation.partitions:
            behind = [record for record in one.records if group.group_id in record.groups_behind]
            if behind:
                goes = min((record.goes_ms for record in behind if record.goes_ms is not None), default=None)
                found.append({"topic": topic, "partition": one.partition, "count": len(behind), "goes_ms": goes})
    example = found[0]["topic"] if found else "TOPIC"
    shown = shown_call(
        call, "POST", "/v1/explain", {"topic": example, "tombstones": True}, f"diamant explain {example} --tombstones",
        f'diamant.Admin().explain("{example}", tombstones=True)',
    )  # fmt: skip
    context = {"group": group.group_id, "found": found, "call": shown}
    return page("group_tombstones.html.j2", context, title=group.group_id, view="Groups")


ROUTES = (
    view("/groups", show, "The list of groups.", STATUS),
    live_context("groups", _context, STATUS),
    view("/groups/{group}", show_group, "A group.", GROUP),
    view("/groups/{group}/tombstones", tombstones, "Tombstones that a group has not read.", GROUP),
)

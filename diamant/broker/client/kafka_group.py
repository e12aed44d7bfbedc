"""Groups of any Kafka cluster: lists, describes and deletes them, and reads and commits offsets without being a member.

Requests for a group go to its coordinator. If the coordinator moves, it is looked up again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from diamant.broker.client.kafka_client import RETRIED, KafkaClient, KafkaRefusal, Place
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.operation_errors import no_group
from diamant.protocol.errors import ErrorCode, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, parse_assignment

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE = 15, 16, 42, 69
SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS = 77, 90
SHARE = "share"
"""The type and the protocol of a share group (KIP-932)."""
LAST_VERSION_WITH_NAMES = 9
"""Later versions of OffsetCommit and OffsetFetch name topics by id."""
GROUP_KEY = 0
NO_MEMBER = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "retention_time_ms": -1}
"""Fields of OffsetCommit for a caller that is not a member. The coordinator accepts such a commit while the group is empty."""


class ListedGroup(NamedTuple):
    """A group of the cluster. Fields that the broker is too old to send are empty."""

    name: str
    group_type: str
    protocol_type: str
    state: str


class MemberOfGroup(NamedTuple):
    """A member, and the partitions that it owns, by topic. A member that is not a consumer owns none."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Mapping[str, Sequence[int]]


class DescribedGroup(NamedTuple):
    """An existing group. `group_type` is consumer (KIP-848), classic or share; `coordinator` is a broker's ID."""

    name: str
    group_type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[MemberOfGroup, ...]


class SharePlace(NamedTuple):
    """A share group's progress in a partition. None: no member has fetched from it yet, or the broker is too old to report it."""

    start_offset: int | None
    lag: int | None


def list_groups(client: KafkaClient) -> list[ListedGroup]:
    """Return the groups of all brokers, sorted by name."""
    deadline = time.monotonic() + client.timeout_s
    found = {}
    for node_id in client.broker_ids():
        while (answer := client.broker(node_id).ask(LIST_GROUPS, {}))["error_code"]:
            client.pause(deadline, f"the groups of broker {node_id}", answer["error_code"])
        for group in answer["groups"]:
            kind, state = group.get("group_type", ""), group.get("group_state", "")
            found[group["group_id"]] = ListedGroup(group["group_id"], kind, group["protocol_type"], state)
    return [found[name] for name in sorted(found)]


class KafkaGroup:
    """A consumer group, which need not exist."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        if not name:
            raise ValueError("the name of the group is empty: is a variable not set?")
        self.name = name
        self._client = client
        self._coordinator: int | None = None

    def describe(self) -> DescribedGroup | None:
        """Return the group as its coordinator describes it; None if the group does not exist."""
        return (
            self._describe_by(CONSUMER_GROUP_DESCRIBE, "consumer", PROTOCOL_TYPE)
            or self._describe_classic()
            or self._describe_by(SHARE_GROUP_DESCRIBE, SHARE, SHARE)
        )

    def check_inactive(self) -> None:
        """Raise KafkaRefusal if the group is a share group, or if it is active, since then only its members may commit."""
        group = self.describe()
        if group is not None and group.group_type == SHARE:
            advice = "it is a share group, without committed offsets: `kafka-share-groups.sh --reset-offsets` moves its start"
            raise self.refusal(ErrorCode.INVALID_REQUEST, advice)
        if group is not None and (group.members or group.state not in ("Empty", "Dead")):
            count = len(group.members)
            raise self.refusal(
                ErrorCode.NON_EMPTY_GROUP,
                f"it has {count} active member{'' if count == 1 else 's'} (state {group.state}), expected none: stop them first",
            )

    def committed(self, *, stable: bool = False) -> dict[Place, int]:
        """Return the committed offsets. `stable`: wait until transactions with pending offset commits have ended."""
        asked = {"group_id": self.name, "topics": None}
        fields = {**asked, "groups": [{**asked, "member_id": None, "member_epoch": -1}], "require_stable": stable}
        answer = self._ask(OFFSET_FETCH, fields, _offset_codes, most=LAST_VERSION_WITH_NAMES)
        self._check(_offset_codes(answer))
        return {
            (topic["name"], partition["partition_index"]): partition["committed_offset"]
            for topic in _of_group(answer)["topics"]
            for partition in topic["partitions"]
            if partition["committed_offset"] >= 0
        }

    def share_places(self) -> dict[Place, SharePlace]:
        """Return a share group's start offset and lag in each partition that it has read."""
        asked = {"groups": [{"group_id": self.name, "topics": None}]}
        (found,) = self._ask(DESCRIBE_SHARE_GROUP_OFFSETS, asked, _group_codes)["groups"]
        self._check([found["error_code"]])
        return {
            (topic["topic_name"], one["partition_index"]): SharePlace(
                *(offset if offset >= 0 else None for offset in (one["start_offset"], one.get("lag", -1)))
            )
            for topic in found["topics"]
            for one in topic["partitions"]
        }

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit without being a member. Raises KafkaRefusal if the group has members."""
        topics: dict[str, list[Fields]] = {}
        for (topic, number), offset in offsets.items():
            partition = {"partition_index": number, "committed_offset": offset, "committed_metadata": ""}
            topics.setdefault(topic, []).append({**partition, "committed_leader_epoch": -1})
        asked = [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
        fields = {"group_id": self.name, **NO_MEMBER, "topics": asked}
        self._check(_partition_codes(self._ask(OFFSET_COMMIT, fields, _partition_codes, most=LAST_VERSION_WITH_NAMES)))

    def delete(self) -> None:
        """Delete the group. Raises KafkaRefusal if it has members or does not exist."""
        answer = self._ask(DELETE_GROUPS, {"groups_names": [self.name]}, _result_codes)
        self._check(_result_codes(answer))

    def refusal(self, code: int, message: str | None = None) -> KafkaRefusal:
        """Return the error for a code."""
        sentence = no_group(self.name) if code == ErrorCode.GROUP_ID_NOT_FOUND else None
        return KafkaRefusal(f"group {self.name!r}", code, message, sentence)

    def _describe_by(self, api_key: int, kind: str, protocol_type: str) -> DescribedGroup | None:
        """Return the group if it has the type that this API describes, else None."""
        if not self._client.broker(self._coordinated(self._deadline())).offers(api_key):
            return None
        asked = {"group_ids": [self.name], "include_authorized_operations": False}
        found = self._ask(api_key, asked, _group_codes)["groups"][0]
        if found["error_code"] in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        self._check([found["error_code"]])
        members = []
        for member in found["members"]:
            owned = {topic["topic_name"]: topic["partitions"] for topic in member["assignment"]["topic_partitions"]}
            members.append(
                MemberOfGroup(
                    member["member_id"], member.get("instance_id"), member["client_id"], member["client_host"], owned
                )
            )
        return self._described(kind, protocol_type, found["group_state"], found["assignor_name"], members)

    def _describe_classic(self) -> DescribedGroup | None:
        asked = {"groups": [self.name], "include_authorized_operations": False}
        found = self._ask(DESCRIBE_GROUPS, asked, _group_codes)["groups"][0]
        # Before version 6, a broker describes a missing group as dead.
        if found["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND or found["group_state"] == "Dead":
            return None
        self._check([found["error_code"]])
        is_consumer = found["protocol_type"] == PROTOCOL_TYPE
        members = [
            MemberOfGroup(
                member["member_id"],
                member.get("group_instance_id"),
                member["client_id"],
                member["client_host"],
                _assigned(member["member_assignment"]) if is_consumer else {},
            )
            for member in found["members"]
        ]
        return self._described("classic", found["protocol_type"], found["group_state"], found["protocol_data"], members)

    def _described(
        self, kind: str, protocol_type: str, state: str, assignor: str, members: Iterable[MemberOfGroup]
    ) -> DescribedGroup:
        coordinator = self._coordinated(self._deadline())
        return DescribedGroup(
            self.name, kind, protocol_type, state, assignor, coordinator, tuple(sorted(members, key=lambda one: one[0]))
        )

    def _ask(
        self, api_key: int, fields: Fields, codes: Callable[[Fields], list[int]], most: int | None = None
    ) -> Fields:
        """Send a request to the coordinator, and retry until none of the response's `codes` is a transient error."""
        deadline = self._deadline()
        while True:
            answer = self._client.broker(self._coordinated(deadline)).ask(api_key, fields, most=most)
            passing = RETRIED.intersection(codes(answer))
            if not passing:
                return answer
            self._client.pause(deadline, f"group {self.name!r}", min(passing))
            self._coordinator = None

    def _coordinated(self, deadline: float) -> int:
        """Return the broker ID of the coordinator."""
        while self._coordinator is None:
            fields = {"key": self.name, "key_type": GROUP_KEY, "coordinator_keys": [self.name]}
            answer = self._client.any_broker().ask(FIND_COORDINATOR, fields)
            # From version 4 on, the response has a list of coordinators.
            found = answer.get("coordinators", [answer])[0]
            if found["error_code"]:
                self._client.pause(deadline, f"the coordinator of group {self.name!r}", found["error_code"])
            else:
                self._coordinator = found["node_id"]
        return self._coordinator

    def _deadline(self) -> float:
        return time.monotonic() + self._client.timeout_s

    def _check(self, codes: Iterable[int]) -> None:
        for code in filter(None, codes):
            raise self.refusal(code)


def _of_group(answer: Fields) -> Fields:
    """Return the only group of an OffsetFetch response. From version 8 on, the response has a list of groups."""
    found: Fields = answer.get("groups", [answer])[0]
    return found


def _offset_codes(answer: Fields) -> list[int]:
    found = _of_group(answer)
    return [found["error_code"], *_partition_codes(found)]


def _partition_codes(found: Fields) -> list[int]:
    return [partition["error_code"] for topic in found["topics"] for partition in topic["partitions"]]


def _group_codes(answer: Fields) -> list[int]:
    return [group["error_code"] for group in answer["groups"]]


def _result_codes(answer: Fields) -> list[int]:
    return [one["error_code"] for one in answer["results"]]


def _assigned(assignment: bytes) -> Mapping[str, Sequence[int]]:
    try:
        return parse_assignment(assignment).partitions
    except ProtocolError:
        # The member has no assignment yet, or it is not a consumer.
        return {}

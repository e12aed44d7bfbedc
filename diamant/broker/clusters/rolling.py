"""Closes the active segments of a topic on every replica, by appends, and sees from outside that they are closed.

A segment rolls when a record is appended whose time is more than `segment.ms` after that of the segment's first batch. So the
append is either the marker of an aborted transaction without records, which no reader sees, or a tombstone of the erased key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from diamant.broker.client.kafka_client import RETRIED, RETRY_S, KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.broker.client.producing import ALL_REPLICAS, LAST_VERSION_WITH_NAMES
from diamant.broker.clusters.cluster_look import TRANSACTION_TOPIC, Cluster, now_ms
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.lowered_configs import SEGMENT_MS, CleaningDelays
from diamant.broker.clusters.outcome import replica_name
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import PRODUCE
from diamant.words import moment

FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 10, 22, 24, 26
TRANSACTION_KEY = 1
TRANSACTION_TIMEOUT_MS = 60_000
ROLL_SLACK_MS = 100
TRANSACTIONAL_ID = "diamant-roll"
"""The right WRITE on this transactional id allows rolling without a record."""
_LAST_CLIENT_VERSIONS = {ADD_PARTITIONS: 3, END_TXN: 4, INIT_PRODUCER_ID: 4}
_RETRIED_AS = {
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.LEADER_NOT_AVAILABLE,
}
"""Errors that pass for a tombstone: it may be written twice, and a broker that has just started may not know the topic yet."""
_CLOSING = "; a record that any producer writes to the partition closes it"
_LACKS = {
    True: f"this user lacks WRITE on the transactional id {TRANSACTIONAL_ID}{_CLOSING}",
    False: f"the topic {TRANSACTION_TOPIC} does not exist, as no producer has used a transaction yet, or this user lacks "
    f"DESCRIBE on it{_CLOSING}",
}
"""By `has_transactions`: what an aborted transaction lacks."""
_IN_PROGRESS = {ErrorCode.CONCURRENT_TRANSACTIONS, *RETRIED}


class Replica(NamedTuple):
    """A replica of a partition."""

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return replica_name(*self)


def write_tombstone(client: KafkaClient, topic: str, partition: int, key: bytes, timestamp_ms: int) -> int:
    """Write a tombstone with acks=all, and return its offset. A retry may write a second one, which does no harm.

    KafkaRefusal, also after the client's timeout, with NOT_ENOUGH_REPLICAS for one; ConnectionFailed.
    """
    batch = bytes(build_batch([Record(0, timestamp_ms, key, None)], base_offset=0))
    fields = {
        "transactional_id": None,
        "acks": ALL_REPLICAS,
        "timeout_ms": round(client.timeout_s * 1000),
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
    deadline = time.monotonic() + client.timeout_s
    while True:
        (leader,) = client.led(topic, [partition])
        try:
            answer = client.broker(leader).ask(PRODUCE, fields, most=LAST_VERSION_WITH_NAMES)
        except ConnectionFailed:
            client.forget(leader)
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
            continue
        found = answer["responses"][0]["partition_responses"][0]
        if not found["error_code"]:
            return int(found["base_offset"])
        code = found["error_code"]
        client.pause(deadline, f"the tombstone in {topic}-{partition}", _RETRIED_AS.get(code, code))


class EmptyTransaction:
    """Aborts transactions without records: each leaves one control batch in its partitions."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._producer: tuple[int, int] | None = None

    def is_allowed(self) -> bool:
        """Tell whether this user may write with the transactional id. Asking would create a missing `__transaction_state`."""
        try:
            self._begin()
        except (KafkaRefusal, ConnectionFailed):
            return False
        return True

    def abort(self, partitions: Mapping[str, Iterable[int]]) -> None:
        """Append an abort marker to each partition. KafkaRefusal, ConnectionFailed."""
        self._producer = None
        producer_id, epoch = self._begin()
        producer = {"transactional_id": TRANSACTIONAL_ID, "producer_id": producer_id, "producer_epoch": epoch}
        topics = [{"name": topic, "partitions": sorted(numbers)} for topic, numbers in partitions.items()]
        added = {f"v3_and_below_{name}": value for name, value in {**producer, "topics": topics}.items()}
        self._ask(ADD_PARTITIONS, added, _added_code)
        self._ask(END_TXN, {**producer, "committed": False}, lambda answer: answer["error_code"])

    def _begin(self) -> tuple[int, int]:
        if self._producer is None:
            fields = {
                "transactional_id": TRANSACTIONAL_ID,
                "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            answer = self._ask(INIT_PRODUCER_ID, fields, lambda answer: answer["error_code"])
            self._producer = answer["producer_id"], answer["producer_epoch"]
        return self._producer

    def _ask(self, api_key: int, fields: Mapping[str, object], code_of: Callable[[Fields], int]) -> Fields:
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            connection = self._client.broker(self._coordinator(deadline))
            answer = connection.ask(api_key, fields, most=_LAST_CLIENT_VERSIONS[api_key])
            code = code_of(answer)
            if not code:
                return answer
            self._pause(deadline, code)

    def _coordinator(self, deadline: float) -> int:
        fields = {"key": TRANSACTIONAL_ID, "key_type": TRANSACTION_KEY, "coordinator_keys": [TRANSACTIONAL_ID]}
        while True:
            answer = self._client.ask_any(FIND_COORDINATOR, fields)
            found = answer.get("coordinators", [answer])[0]
            if not found["error_code"]:
                return int(found["node_id"])
            self._pause(deadline, found["error_code"])

    def _pause(self, deadline: float, code: int) -> None:
        if code not in _IN_PROGRESS or time.monotonic() > deadline:
            raise KafkaRefusal(f"transactional id {TRANSACTIONAL_ID!r}", code)
        time.sleep(RETRY_S)


def _added_code(answer: Fields) -> int:
    topics = answer["results_by_topic_v3_and_below"]
    codes: list[int] = [one["partition_error_code"] for topic in topics for one in topic["results_by_partition"]]
    return next(filter(None, codes), 0)


class Roller:
    """Closes the active segments of partitions. `key` is that of the tombstones; without one, no record is written.

    `delays`: those of the topics, by name.
    """

    def __init__(
        self, client: KafkaClient, cluster: Cluster, key: bytes | None, delays: Mapping[str, CleaningDelays]
    ) -> None:
        self._client = client
        self._key = key
        self.delays = delays
        self._transaction = EmptyTransaction(client)
        self._has_transactions = cluster.has_transactions and self._transaction.is_allowed()
        self.lacks = "" if key is not None or self._has_transactions else _LACKS[cluster.has_transactions]
        """Why nothing can be appended, so that only other producers' records close segments; "" if something can."""
        self._offsets: dict[tuple[str, int], int] = {}
        """What has to leave the active segment."""
        self._times_ms: dict[tuple[str, int], int] = {}
        """The time of the last tombstone."""
        self._appended = 0.0
        self.refused_times: set[tuple[str, int]] = set()
        """Partitions whose records are so far in the future that the cluster refuses a later time: only size rolls them."""
        self.later: dict[Replica, str] = {}
        """Replicas whose active segment cannot be closed now, with the reason, and until when."""

    def write_tombstone(self, place: tuple[str, int], latest_ms: int) -> int:
        """Write a tombstone later than all records of the partition, up to `latest_ms`; as `write_tombstone`."""
        assert self._key is not None
        present_ms, roll_ms = now_ms(), round(self.delays[place[0]].roll_ms)
        time_ms = max(present_ms, latest_ms + roll_ms + 1 if latest_ms >= present_ms - roll_ms else -1)
        try:
            offset = write_tombstone(self._client, *place, self._key, time_ms)
        except KafkaRefusal as error:
            if error.code != ErrorCode.INVALID_TIMESTAMP:
                raise
            time_ms = present_ms
            self.refused_times.add(place)
            offset = write_tombstone(self._client, *place, self._key, time_ms)
        self._offsets.setdefault(place, offset)
        self._times_ms[place] = time_ms
        self._appended = time.monotonic()
        return offset

    def close_after(self, place: tuple[str, int], offset: int) -> None:
        """Have the segment closed that holds this offset."""
        self._offsets[place] = offset

    def close_segments(self, replicas: Iterable[Replica]) -> dict[Replica, str]:
        """Append once where an active segment is open; return the replicas where it still is, with the reason."""
        wanted = list(replicas)
        places = {one[:2] for one in not_rolled(self._client, wanted, self._offsets)}
        if not places:
            return {}
        time.sleep(max(0.0, self._appended + (SEGMENT_MS + ROLL_SLACK_MS) / 1000 - time.monotonic()))
        ahead = {place for place in places if self._times_ms.get(place, 0) > now_ms() - self.delays[place[0]].roll_ms}
        for place in sorted(ahead if self._has_transactions else places):
            if self._key is not None:
                self.write_tombstone(place, self._times_ms[place])
        if self._has_transactions and (plain := places - ahead):
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(plain):
                topics.setdefault(topic, []).append(partition)
            self._transaction.abort(topics)
        self._appended = time.monotonic()
        found = not_rolled(self._client, wanted, self._offsets)
        for one, reason in found.items():
            roll_ms = round(self.delays[one.topic].roll_ms)
            due_ms = self._times_ms.get(one[:2], now_ms()) + roll_ms
            if roll_ms > SEGMENT_MS and due_ms > now_ms():
                self.later[one] = (
                    f"{reason}, and {roll_ms} ms are the shortest segment.ms here: at the latest, a record from "
                )
                self.later[one] += f"{moment(due_ms)} on closes it"
        return found


def not_rolled(
    client: KafkaClient, replicas: Iterable[Replica], offsets: Mapping[tuple[str, int], int]
) -> dict[Replica, str]:
    """Return the replicas whose active segment does not begin after the partition's offset in `offsets`, with the reason."""
    wanted = list(replicas)
    ends: dict[tuple[str, int], int] = {}
    for topic in {one.topic for one in wanted}:
        numbers = {one.partition for one in wanted if one.topic == topic}
        ends.update({(topic, number): end for number, end in client.offsets(topic, numbers, -1).items()})
    stretches = {one: Stretch(one.topic, one.partition, one.broker, offsets[one[:2]], ends[one[:2]]) for one in wanted}
    read_stretches(client, stretches.values(), lambda _one, _data: None)
    found = {}
    for replica, one in stretches.items():
        if one.problem:
            found[replica] = one.problem
        elif not one.segments or one.segments[-1] <= offsets[replica[:2]]:
            found[replica] = "its active segment is still open"
    return found

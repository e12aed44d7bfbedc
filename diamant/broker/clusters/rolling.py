"""Closes a topic's active segments on every replica by appending to the topic, and checks from outside that they are closed.

A segment rolls when the timestamp of an appended record is more than `segment.ms` later than that of the segment's first batch.
The record is either the abort marker of an empty transaction, which no reader sees, or a tombstone for the erased key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from diamant.broker.client.kafka_client import LATEST, RETRIED, RETRY_S, KafkaClient, KafkaRefusal, Place
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.broker.client.producing import ALL_REPLICAS, LAST_VERSION_WITH_NAMES
from diamant.broker.clusters.cluster_look import TRANSACTION_TOPIC, Cluster, in_requests, now_ms
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.lowered_configs import SEGMENT_MS, CleaningDelays
from diamant.cleaner.evidence.certificates.cluster_claims import replica_name
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import PRODUCE
from diamant.words import moment

FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 10, 22, 24, 26
TRANSACTION_KEY = 1
TRANSACTION_TIMEOUT_MS = 60_000
FIRST_PAUSE_S = SEGMENT_MS / 1000 + 0.1
TRANSACTIONAL_ID = "diamant-roll"
"""A user with WRITE on this transactional id can roll segments without writing a record."""
_LAST_CLIENT_VERSIONS = {ADD_PARTITIONS: 3, END_TXN: 4, INIT_PRODUCER_ID: 4}
_RETRIED_AS = {
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.LEADER_NOT_AVAILABLE,
}
"""Errors retried for tombstones only: these may be written twice, and a broker that just started may not know the topic yet."""
_CLOSING = "; the segment is closed by the next record with a timestamp more than segment.ms after its first record's"
_LACKS = {
    True: f"this user lacks WRITE on the transactional id {TRANSACTIONAL_ID}{_CLOSING}",
    False: f"the topic {TRANSACTION_TOPIC} does not exist, as no producer has used a transaction yet, or this user lacks "
    f"DESCRIBE on it{_CLOSING}",
}
"""By `has_transactions`: why no transaction can be aborted."""
_IN_PROGRESS = {ErrorCode.CONCURRENT_TRANSACTIONS, *RETRIED}


class Replica(NamedTuple):
    """A replica of a partition."""

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return replica_name(*self)


def write_tombstones(client: KafkaClient, key: bytes, times_ms: Mapping[Place, int]) -> dict[Place, int | KafkaRefusal]:
    """Write a tombstone to each partition with acks=all, and return the offset or the refusal of each.

    Retries until the client's timeout; a retry may write a second tombstone, which does no harm. Raises ConnectionFailed, or
    KafkaRefusal if a partition has no leader.
    """
    batches = {place: bytes(build_batch([Record(0, at, key, None)], base_offset=0)) for place, at in times_ms.items()}
    found: dict[Place, int | KafkaRefusal] = {}
    deadline = time.monotonic() + client.timeout_s
    while left := batches.keys() - found.keys():
        waiting: dict[Place, int] = {}
        for leader, places in client.leaders_of(left).items():
            topics: dict[str, list[Fields]] = {}
            for name, number in places:
                topics.setdefault(name, []).append({"index": number, "records": batches[name, number]})
            fields = {
                "transactional_id": None,
                "acks": ALL_REPLICAS,
                "timeout_ms": round(client.timeout_s * 1000),
                "topic_data": [{"name": name, "partition_data": own} for name, own in topics.items()],
            }
            try:
                answer = client.broker(leader).ask(PRODUCE, fields, most=LAST_VERSION_WITH_NAMES)
            except ConnectionFailed:
                client.forget(leader)
                if time.monotonic() > deadline:
                    raise
                waiting.update(dict.fromkeys(places, ErrorCode.LEADER_NOT_AVAILABLE))
                continue
            for topic in answer["responses"]:
                for one in topic["partition_responses"]:
                    place, code = (topic["name"], one["index"]), one["error_code"]
                    code = _RETRIED_AS.get(code, code)
                    if not code:
                        found[place] = int(one["base_offset"])
                    elif code in RETRIED:
                        waiting[place] = code
                    else:
                        found[place] = _refusal(place, code)
        if waiting:
            place, code = next(iter(waiting.items()))
            try:
                client.pause(deadline, str(place), code)
            except KafkaRefusal:
                found.update({place: _refusal(place, code) for place, code in waiting.items()})
    return found


def _refusal(place: Place, code: int) -> KafkaRefusal:
    return KafkaRefusal(f"the tombstone in {place[0]}-{place[1]}", code)


class EmptyTransaction:
    """Aborts empty transactions. Each leaves one control batch in every partition that was added to it."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._producer: tuple[int, int] | None = None

    def is_allowed(self) -> bool:
        """Return True if this user may write with the transactional id. Creates `__transaction_state` if it is missing."""
        try:
            self._begin()
        except (KafkaRefusal, ConnectionFailed):
            return False
        return True

    def abort(self, partitions: Mapping[str, Iterable[int]]) -> None:
        """Append an abort marker to each partition. Raises KafkaRefusal, ConnectionFailed."""
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
    """Closes active segments. `key`: the key of the tombstones, None to write no records. `delays`: by topic name."""

    def __init__(
        self,
        client: KafkaClient,
        cluster: Cluster,
        key: bytes | None,
        delays: Mapping[str, CleaningDelays],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = key
        self.delays = delays
        self._transaction = EmptyTransaction(client)
        self._has_transactions = cluster.has_transactions and self._transaction.is_allowed()
        self.lacks = "" if key is not None or self._has_transactions else _LACKS[cluster.has_transactions]
        """Why this object cannot append anything, so that only other producers' records close segments; "" if it can."""
        self._offsets: dict[Place, int] = {}
        """The offset in each partition that must no longer be in the active segment."""
        self._times_ms: dict[Place, int] = {}
        """The timestamp of the last tombstone in each partition."""
        self._clock = clock
        self._appended = 0.0
        self._pause_s = FIRST_PAUSE_S
        """The pause between appends. It doubles each time, since segments that are still open need time, not more records."""
        self.refused_times: set[Place] = set()
        """Partitions with timestamps so far in the future that the cluster refuses later ones; they roll by size only."""
        self.later: dict[Replica, str] = {}
        """Replicas whose active segment cannot be closed yet, with the reason and the time from which it can be."""

    def write_tombstones(self, latest_ms: Mapping[Place, int]) -> dict[Place, int | KafkaRefusal]:
        """Write a tombstone to each partition, with a timestamp that closes the active segment unless the cluster refuses it.

        `latest_ms`: the latest timestamp in each partition. Returns the offset or the refusal of each tombstone.
        """
        assert self._key is not None
        present_ms, times_ms = now_ms(), dict[Place, int]()
        for place, latest in latest_ms.items():
            roll_ms = round(self.delays[place[0]].roll_ms)
            times_ms[place] = max(present_ms, latest + roll_ms + 1 if latest >= present_ms - roll_ms else -1)
        found = write_tombstones(self._client, self._key, times_ms)
        too_late = {
            place: present_ms
            for place, one in found.items()
            if isinstance(one, KafkaRefusal) and one.code == ErrorCode.INVALID_TIMESTAMP
        }
        self.refused_times |= too_late.keys()
        found.update(write_tombstones(self._client, self._key, too_late))
        for place, one in found.items():
            if not isinstance(one, KafkaRefusal):
                self._offsets.setdefault(place, one)
                self._times_ms[place] = too_late.get(place, times_ms[place])
        self._appended = self._clock()
        return found

    def close_after(self, place: Place, offset: int) -> None:
        """Request that the segment that contains this offset be closed."""
        self._offsets[place] = offset
        self._pause_s = FIRST_PAUSE_S

    def close_segments(self, replicas: Iterable[Replica]) -> dict[Replica, str]:
        """Append to the partitions whose active segment is still open, unless the last append was too recent.

        Returns the replicas whose active segment is still open afterwards, with the reason.
        """
        wanted = list(replicas)
        found = not_rolled(self._client, wanted, self._offsets)
        wait_s = self._appended + self._pause_s - self._clock()
        if not found or wait_s > FIRST_PAUSE_S:
            return found
        time.sleep(max(0.0, wait_s))
        places = {one[:2] for one in found}
        ahead = {place for place in places if self._times_ms.get(place, 0) > now_ms() - self.delays[place[0]].roll_ms}
        if self._key is not None:
            for some in in_requests(sorted(ahead if self._has_transactions else places)):
                written = self.write_tombstones({place: self._times_ms[place] for place in some})
                raise_first(written.values())
        if self._has_transactions and (plain := places - ahead):
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(plain):
                topics.setdefault(topic, []).append(partition)
            self._transaction.abort(topics)
        self._appended = self._clock()
        self._pause_s *= 2
        found = not_rolled(self._client, wanted, self._offsets)
        for one, reason in found.items():
            roll_ms = round(self.delays[one.topic].roll_ms)
            due_ms = self._times_ms.get(one[:2], now_ms()) + roll_ms
            if roll_ms > SEGMENT_MS and due_ms > now_ms():
                self.later[one] = (
                    f"{reason}, and the shortest segment.ms that the cluster accepts is {roll_ms} ms: at the latest, "
                )
                self.later[one] += f"a record with a timestamp of {moment(due_ms)} or later closes it"
        return found


def raise_first(written: Iterable[int | KafkaRefusal]) -> None:
    """Raise the first refusal among the results of `write_tombstones`, if any."""
    for one in written:
        if isinstance(one, KafkaRefusal):
            raise one


def not_rolled(client: KafkaClient, replicas: Iterable[Replica], offsets: Mapping[Place, int]) -> dict[Replica, str]:
    """Return the replicas whose active segment may still contain the partition's offset in `offsets`, with the reason."""
    wanted = list(replicas)
    ends = client.offsets_of({one[:2] for one in wanted}, LATEST)
    stretches = {one: Stretch(one.topic, one.partition, one.broker, offsets[one[:2]], ends[one[:2]]) for one in wanted}
    read_stretches(client, stretches.values(), lambda _one, _data: None)
    found = {}
    for replica, one in stretches.items():
        if one.problem:
            found[replica] = one.problem
        elif not one.segments or one.segments[-1] <= offsets[replica[:2]]:
            found[replica] = "its active segment is still open"
    return found

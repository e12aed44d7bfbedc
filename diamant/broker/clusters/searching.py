"""Searches brokers' responses for the records of a key, with the same needles and compiled search that certify files.

Batches are searched as they arrive, in the memory that receives them (`fetching.py`). The speed cannot exceed that of a loop
that fetches the same stretches, with as many requests in flight on one connection, and reads only the batch headers.

Each read also searches a copy of its first batches, with known records planted in front of them. A search that misses a planted
record may be faulty, so its read does not count as clean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.outcome import KeyRecord, ReplicaRead
from diamant.cleaner.evidence.search.findings import RAW, SAME_BYTES, VALUE
from diamant.cleaner.evidence.search.known_positives import make_known_positives
from diamant.cleaner.evidence.search.needles import KEY, Needle, Needles, Sample, is_telling, keyed_digest, make_needle
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.record_search import FileSearch, Subject
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.cleaner.segments.row_reader import BatchesInMemory
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import BatchHeader, Record

PLANTED_BYTES = 64 * 1024
"""The approximate size of the copy that gets planted records: whole batches from the start of the first response."""
SAMPLE_BYTES = 256 * 1024
"""How many bytes of the first response are sampled to find out which bytes of the key are rare."""
MAX_LISTED = 1000
"""The most records of the key, and the most other records with its bytes, that are listed for one replica."""


@dataclass(slots=True)
class _Finds:
    """The records found in one replica."""

    search: FileSearch
    began_ms: int
    records: list[KeyRecord] = field(default_factory=list)
    more: int = 0
    planted: int = 0
    planted_found: int = 0


class KeySearch:
    """Searches any number of replicas for one key. `secret` keys the digests."""

    def __init__(self, key: bytes, topics: Iterable[str], secret: bytes) -> None:
        self._engine = SearchEngine()
        self._sample = Sample()
        self._learned: dict[bytes, Needle] = {}
        self._known = make_known_positives(secret)
        self.key = key
        self.subject = Subject(key, frozenset(topics), Needles(secret))
        self.bytes = 0
        """The number of bytes received."""

    @property
    def values_searched_for(self) -> int:
        """The number of values whose copies later reads look for."""
        return sum(one.kind == VALUE_NEEDLE for one in self.subject.needles)

    def learn(self) -> None:
        """Make later reads look for copies of the values found so far."""
        for needle in self._learned.values():
            self.subject.needles.add_needle(needle)
        self._learned.clear()

    def read(
        self,
        client: KafkaClient,
        stretches: list[Stretch],
        *,
        has_planted: bool = True,
        check: Callable[[], object] = lambda: None,
    ) -> list[_Finds]:
        """Search stretches of replicas; return the finds in the order of the stretches. `check`: see `read_stretches`."""
        finds = {id(one): self._begin(one) for one in stretches}

        def take(one: Stretch, data: memoryview) -> None:
            if not self._sample.size and len(data):
                self._sample.add(data[:SAMPLE_BYTES])
                self.subject.needles.add(KEY, self.key, self._sample)
            self.bytes += len(data)
            found = finds[id(one)]
            self._engine.search(found.search, BatchesInMemory(one.name, data), len(data))
            if has_planted and not found.planted:
                self._plant(found, data)

        read_stretches(client, stretches, take, check)
        return [finds[id(one)] for one in stretches]

    def _begin(self, one: Stretch) -> _Finds:
        search = FileSearch(self.subject, one.topic, one.partition, one.name)
        found = _Finds(search, time.time_ns() // 1_000_000)

        def keep(_: FileSearch, record: Record, header: BatchHeader) -> None:
            if len(found.records) >= MAX_LISTED:
                found.more += 1
                return
            size = None if record.value is None else len(record.value)
            horizon_ms = header.base_timestamp if header.has_delete_horizon and size is None else None
            found.records.append(KeyRecord(record.offset, record.timestamp, size, horizon_ms))
            if record.value and is_telling(record.value):
                digest = keyed_digest(self.subject.needles.secret, record.value)
                self._learned[digest] = make_needle(VALUE_NEEDLE, record.value, digest, self._sample)

        search.on_record = keep
        return found

    def _plant(self, found: _Finds, data: memoryview) -> None:
        """Search a copy of the first batches with planted records, and count the planted records found."""
        known, end = self._known, 0
        for position, header in iter_headers(data):
            end = position + header.size
            if end >= PLANTED_BYTES:
                break
        file = next(file for file, what, _ in known.expected if what == VALUE and file.endswith(".log"))
        expected = {place for place in known.expected if place[0] == file}
        search = FileSearch(self.subject.with_known(known), known.topic, 0, file)
        copy = BatchesInMemory(file, memoryview(known.files[file] + bytes(data[:end])))
        self._engine.search(search, copy, copy.size())
        seen = {(one.file, one.what, one.digest) for one in search.found.findings}
        found.planted, found.planted_found = len(expected), len(expected & seen)


def replica_read(one: Stretch, found: _Finds, below_offset: int, *, is_leader: bool, is_in_sync: bool) -> ReplicaRead:
    """Return the result of a replica's read. `below_offset`: the end of the claims; values at or above it were written later."""
    others = sorted(
        {hit.offset for hit in found.search.found.findings if hit.what == SAME_BYTES and hit.offset is not None}
    )
    unreadable = [place.reason for place in found.search.found.unreadable]
    raw = sum(hit.what == RAW for hit in found.search.found.findings)
    problem = one.problem or (unreadable[0] if unreadable else "")
    if found.more:
        problem = problem or f"it has {found.more} more records of the key than are listed"
    if raw:
        problem = problem or "bytes of the key or of a value are outside of records"
    values = [record for record in found.records if record.value_bytes is not None]
    return ReplicaRead(
        topic=one.topic,
        partition=one.partition,
        broker=one.broker,
        is_leader=is_leader,
        is_in_sync=is_in_sync,
        from_offset=max(one.log_start, 0),
        to_offset=one.next_offset,
        began_ms=found.began_ms,
        ended_ms=time.time_ns() // 1_000_000,
        bytes=one.bytes,
        batches=found.search.counts.batches,
        records=found.search.counts.records,
        segments=tuple(one.segments),
        planted=found.planted,
        planted_found=found.planted_found,
        values=tuple(record for record in values if record.offset < below_offset),
        tombstones=tuple(record for record in found.records if record.value_bytes is None),
        written_since=tuple(record for record in values if record.offset >= below_offset),
        same_bytes=tuple(others[:MAX_LISTED]),
        same_bytes_not_listed=len(others) - len(others[:MAX_LISTED]) + found.search.found.unlisted[SAME_BYTES],
        problem=problem,
    )

"""Erases a key on any Kafka cluster: supersedes it with tombstones, waits for each replica's cleaner, reads each replica in full.

Configurations are saved and lowered first and put back at the end. An erasure is closed once full reads of all replicas find no
value of the key. Until then it is open: the register lists what is missing, and a resumed run lowers configurations and rolls
segments again, then reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from diamant.broker.acl import Operation
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, KafkaRefusal, LedPartition, Place
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.client.kafka_group import KafkaGroup, list_groups
from diamant.broker.clusters import lowered_configs
from diamant.broker.clusters.cluster_look import (
    Cluster,
    SeenTopic,
    check_cleanable,
    check_same,
    in_requests,
    look,
    now_ms,
)
from diamant.broker.clusters.cluster_waiting import CleanerWait, has_record, has_undecided
from diamant.broker.clusters.fetching import Stretch
from diamant.broker.clusters.lowered_configs import CleaningDelays, LoweringRun
from diamant.broker.clusters.outcome import ErasedPartition, ErasureOutcome, KeyRecord, ReplicaRead
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.rolling import Replica, Roller, raise_first
from diamant.broker.clusters.searching import KeySearch, replica_read
from diamant.broker.clusters.work_progress import TimeIsUp, WorkProgress
from diamant.broker.operation_errors import NotPossible
from diamant.cleaner.evidence.search.needles import Needles
from diamant.protocol.murmur2 import default_partitions

if TYPE_CHECKING:
    from diamant.json_types import JsonObject

Agree: TypeAlias = Callable[[Mapping[str, list[str]], list[str]], bool]
"""Takes the lagging groups by partition and the errors of unreadable groups; returns True if tombstones may be removed now."""
NOTE_S = 1.0
"""The interval for saving written tombstones to the register. If a run is killed, the next may write the unsaved ones again."""
NEEDED = (Operation.READ, Operation.WRITE, Operation.ALTER_CONFIGS)


@dataclass(slots=True)
class FoundPartition:
    """A partition, with the number of the key's values found in its replicas."""

    topic: SeenTopic
    led: LedPartition
    end_offset: int
    """The end of the certificate's claims: the offset after the first tombstone written, or the log end when the search began."""
    values: int = 0
    latest_ms: int = -1
    tombstone: int | None = None
    """The offset of the last tombstone written, or of one that was found and is now gone."""

    def replicas(self) -> list[Replica]:
        """Return the partition's replicas, the leader first."""
        brokers = sorted(self.led.replicas, key=lambda one: one != self.led.leader)
        return [Replica(self.topic.name, self.led.number, broker) for broker in brokers]


class ReplicaReads:
    """The last read of each replica, and the values that this read still found."""

    def __init__(self, client: KafkaClient, search: KeySearch, progress: WorkProgress) -> None:
        self._client = client
        self._search = search
        self._progress = progress
        self.parts: dict[Place, FoundPartition] = {}
        self.reads: dict[Replica, ReplicaRead] = {}
        """The last read of each replica."""
        self.remaining: dict[Replica, int] = {}
        """The offset of the youngest value in each replica that still has one."""
        self.problems: dict[str, str] = {}
        """Why replicas are unread or not clean, by replica name."""
        self._values_known: dict[Replica, int] = {}
        """The number of values known at each replica's last read, which looked for copies of them."""

    def read(self, replicas: list[Replica], stage: str) -> None:
        """Read replicas in full."""
        if not replicas:
            return
        places = {one[:2] for one in replicas}
        starts, ends = (self._client.offsets_of(places, which) for which in (EARLIEST, LATEST))
        stretches = [(one, Stretch(*one, starts[one[:2]], ends[one[:2]])) for one in replicas]
        self._progress.reading(stage, [stretch for _, stretch in stretches])
        begins = {one: stretch.next_offset for one, stretch in stretches}
        found = self._search.read(self._client, [stretch for _, stretch in stretches], check=self._progress.check)
        for (replica, stretch), finds in zip(stretches, found, strict=True):
            part = self.parts[replica[:2]]
            part.latest_ms = max(part.latest_ms, stretch.latest_ms)
            if not stretch.problem and 0 <= stretch.log_start < begins[replica]:
                stretch.problem = f"its log begins at {stretch.log_start}, before the leader's ({begins[replica]})"
            below = stretch.end_offset if part.tombstone is None else part.end_offset
            read = replica_read(
                stretch,
                finds,
                below,
                is_leader=replica.broker == part.led.leader,
                is_in_sync=replica.broker in part.led.in_sync,
            )
            self.reads[replica] = read
            self._values_known[replica] = self._search.values_searched_for
            self.remaining.pop(replica, None)
            if read.values:
                self.remaining[replica] = max(one.offset for one in read.values)
                if part.tombstone is None:
                    part.values = max(part.values, len(read.values))
            self.problems.pop(str(replica), None)
            if read.problem or read.values:
                self.problems[str(replica)] = read.problem or f"a value remains at offset {read.values[-1].offset}"

    def unread(self, *, for_copies: bool = False) -> list[Replica]:
        """Return unread replicas. `for_copies` adds a partition's only replica if it was read before all values were known."""
        values = self._search.values_searched_for if for_copies else 0
        return [
            one
            for part in self.parts.values()
            for one in part.replicas()
            if one not in self.reads or (len(part.led.replicas) == 1 and self._values_known.get(one, 0) < values)
        ]

    def read_others(self) -> None:
        """Read the unread replicas of partitions where no value was found: the leader may be the only clean replica."""
        dirty = {one[:2] for one in self.remaining}
        self.read([one for one in self.unread(for_copies=True) if one[:2] not in dirty], "reading the replicas")

    def tombstones(self) -> dict[Replica, tuple[KeyRecord, ...]]:
        """Return the tombstones of clean replicas."""
        return {one: read.tombstones for one, read in self.reads.items() if read.tombstones and read.is_clean}

    def read_tails(self) -> None:
        """Read the records that were appended since each leader's last read."""
        ends = self._client.offsets_of(self.parts, LATEST)
        stretches = []
        for place, part in self.parts.items():
            leader = part.replicas()[0]
            read = self.reads.get(leader)
            if read is not None and read.is_clean and read.to_offset < ends[place]:
                stretches.append(Stretch(*leader, read.to_offset, ends[place]))
        finds = self._search.read(self._client, stretches, has_planted=False, check=self._progress.check)
        for one, found in zip(stretches, finds, strict=True):
            leader = Replica(one.topic, one.partition, one.broker)
            late = tuple(record for record in found.records if record.value_bytes is not None)
            read = self.reads[leader]
            self.reads[leader] = replace(read, written_since=(*read.written_since, *late))


def likely_first(key: bytes, topics: Sequence[SeenTopic], replicas: Iterable[Replica]) -> Iterator[list[Replica]]:
    """Yield the replicas in three groups: those of the partitions that Java's default partitioner picks for the key, those of the
    partitions that librdkafka's picks, and the rest. Each group can then be searched for copies of the values found before.
    """
    left = set(replicas)
    for of_client in zip(*(default_partitions(key, len(one.partitions)) for one in topics), strict=True):
        likely = {(one.name, number) for one, number in zip(topics, of_client, strict=True)}
        own = {one for one in left if one[:2] in likely}
        left -= own
        yield sorted(own)
    yield sorted(left)


class ErasureRun(LoweringRun):
    """One run of an erasure of `work.key`, from the inspection of the cluster to the last reads. `secret` keys the digests."""

    def __init__(
        self, client: KafkaClient, register: Register, work: ClusterWork, secret: bytes, progress: WorkProgress
    ) -> None:
        assert work.key is not None
        assert work.outcome is not None
        super().__init__(client, register, work)
        self._key = work.key
        self._progress = progress
        self._search = KeySearch(work.key, work.topics, secret)
        self._replicas = ReplicaReads(client, self._search, progress)
        self._wait: CleanerWait | None = None
        self._is_resumed = self._is_saved = bool(work.outcome.partitions)
        """`_is_saved` becomes True when the job is saved to the register, just before anything on the cluster is changed."""
        self.outcome = work.outcome
        self.groups_behind: Mapping[str, list[str]] = {}
        self.groups_not_known: list[str] = []
        self.is_now_refused = False

    def look(self) -> list[SeenTopic]:
        """Inspect the topics, and raise an error unless the whole erasure is allowed and possible. Changes nothing."""
        self._progress.stage("looking at the cluster")
        self._cluster = look(self._client, self._work.topics, NEEDED)
        if self._work.cluster_id not in ("", self._cluster.cluster_id):
            raise NotPossible(
                f"erasure {self._work.id} belongs to cluster {self._work.cluster_id} at {self._work.bootstrap}, but this is "
                f"cluster {self._cluster.cluster_id}; nothing was changed"
            )
        self._work.cluster_id = self._cluster.cluster_id
        self._topics = list(self._cluster.topics.values())
        check_cleanable(self._topics)
        for one in self._topics:
            if self.outcome.topic_ids.get(one.name, one.topic_id) != one.topic_id:
                raise NotPossible(
                    f"topic {one.name!r} was deleted and created again since the erasure began; its old records are gone"
                )
        self._lowering = lowered_configs.lowering(
            self._client, self._topics, tombstones_now=self.outcome.tombstones_now
        )
        return self._topics

    def find(self) -> list[FoundPartition]:
        """Search each partition's leader; in a resumed run, search all replicas that are not clean yet. Changes nothing."""
        known = {(one.topic, one.partition): one for one in self.outcome.partitions}
        ends = self._client.offsets_of(
            [(topic.name, one.number) for topic in self._topics for one in topic.partitions], LATEST
        )
        for topic in self._topics:
            for led in topic.partitions:
                found = FoundPartition(topic, led, ends[topic.name, led.number])
                if before := known.get((topic.name, led.number)):
                    found.end_offset, found.values = before.below_offset, before.values
                    found.tombstone = before.tombstone_offset
                self._replicas.parts[topic.name, led.number] = found
        # Tombstones without a horizon are read again, since a cleaning may have set their horizon by now.
        clean = {
            Replica(one.topic, one.partition, one.broker): one
            for one in self.outcome.reads
            if one.is_clean and all(mark.horizon_ms is not None for mark in one.tombstones)
        }
        self._replicas.reads = dict(clean)
        wanted = [
            one
            for place, part in self._replicas.parts.items()
            for one in (part.replicas() if place in known else part.replicas()[:1])
            if one not in clean
        ]
        for replicas in likely_first(self._key, self._topics, wanted):
            self._replicas.read(replicas, "finding")
            for replica in (one for one in replicas if one[:2] not in known):
                self._check_found(replica)
            self._search.learn()
        return list(self._replicas.parts.values())

    @property
    def values_sought(self) -> Needles:
        """The needles of the values found so far."""
        return self._search.subject.needles

    def plan(self) -> JsonObject:
        """Read the remaining replicas and return what `erase` would do, for `--dry-run`. Changes nothing."""
        self._replicas.read(self._replicas.unread(), "reading the replicas")
        parts = [part for part in self._replicas.parts.values() if part.values]
        topics = {part.topic.name for part in parts}
        return {
            "cluster_id": self._cluster.cluster_id,
            "partitions": [
                {
                    "topic": part.topic.name,
                    "partition": part.led.number,
                    "values": part.values,
                    "replicas": list(part.led.replicas),
                    "in_sync": list(part.led.in_sync),
                }
                for part in self._replicas.parts.values()
            ],
            "lower": {name: values for name, values in self._lowering.items() if name in topics},
            "tombstones": len(parts),
            "tombstones_found": sum(map(len, self._replicas.tombstones().values())),
            "roll": "aborted transaction" if self._cluster.has_transactions else "second tombstone",
            "replicas_to_read": sum(len(part.led.replicas) for part in self._replicas.parts.values()),
            "missing": {str(one): read.problem for one, read in self._replicas.reads.items() if read.problem},
        }

    def _check_found(self, replica: Replica) -> None:
        """If a replica could not be read, try the other in-sync replicas. Raises NotPossible if none of them can be read."""
        part = self._replicas.parts[replica[:2]]
        others = [one for one in part.replicas() if one != replica and one.broker in part.led.in_sync]
        problem = self._replicas.reads[replica].problem
        while self._replicas.reads[replica].problem and others:
            replica = others.pop(0)
            self._replicas.read([replica], "finding")
        if self._replicas.reads[replica].problem:
            raise NotPossible(f"nothing was changed: {part.topic.name}-{part.led.number} cannot be searched: {problem}")

    def erase(self, agree: Agree | None = None) -> None:
        """Erase the key; call `find` first. Always puts the configurations back, and sets `outcome` to the result so far.

        `agree` decides whether tombstones may be removed now; None if an earlier run has asked already.
        """
        try:
            self._replicas.read_others()
            if agree is not None and self.outcome.tombstones_now:
                self._ask(agree)
            if self._replicas.remaining:
                self._supersede(self._replicas.remaining)
            self._read_what_is_new()
            self._remove_tombstones()
            self._note_gone()
        except TimeIsUp:
            if self._wait is not None:
                self._replicas.problems.update(self._wait.held())
            for name in self._build().missing:
                reason = self._replicas.problems.get(name, "not clean")
                self._replicas.problems[name] = f"{reason}, when the time was up"
        finally:
            if self._is_saved:
                self._note_outcome()
            self._put_back()
        self.outcome = self._work.outcome = self._build()

    def _ask(self, agree: Agree) -> None:
        """Ask `agree` before anything is written: groups that lag now may miss the tombstones if those are removed early."""
        found = [one[:2] for one, read in self._replicas.reads.items() if read.values or read.tombstones]
        ends = {place: self._replicas.parts[place].end_offset for place in found}
        if not ends:
            return
        self.groups_behind, self.groups_not_known = groups_behind(self._client, ends)
        self.is_now_refused = not agree(self.groups_behind, self.groups_not_known)
        if self.is_now_refused:
            self.outcome = replace(self.outcome, tombstones_now=False)
            for values, name in product(self._lowering.values(), lowered_configs.TOMBSTONES_NOW):
                values.pop(name, None)

    def _supersede(self, old: Mapping[Replica, int]) -> None:
        """Write tombstones, wait until each replica's cleaner has removed the superseded records, and read the replicas again."""
        dirty = {one[:2] for one in old}
        self._is_saved = True
        self._note_outcome()
        names = {name for name, _ in dirty}
        self._progress.stage("lowering configurations")
        self._lower([topic for topic in self._topics if topic.name in names], self._lowering)
        if not self._is_resumed:
            delays = {name: self._work.changes[name].get("file.delete.delay.ms") for name in names}
            delayed = {name for name, delay in delays.items() if delay is not None and not float(delay.lowered)}
            self.outcome = replace(
                self.outcome, file_delay_lowered=tuple(sorted(delayed.union(self.outcome.file_delay_lowered)))
            )
        roller = Roller(self._client, self._cluster, self._key, self._delays())
        self._write_tombstones(roller, dirty)
        # Replicas that are not in `old` may be unread: assume that they hold the youngest record found in the partition.
        targets = {}
        for place in dirty:
            youngest = max(offset for one, offset in old.items() if one[:2] == place)
            targets.update({one: old.get(one, youngest) for one in self._replicas.parts[place].replicas()})
        wait = CleanerWait(self._client, self._cluster, self._progress, dict(targets), roller)
        wait.log_bytes = sum(one.bytes for one in self._replicas.reads.values())
        self._wait = wait
        while True:
            self._replicas.problems.update(
                wait.until_clean(lambda: self._put_back(lowered_configs.ROLLING | lowered_configs.SMALL_SEGMENTS))
            )
            wanted = [one for one in targets if one not in wait.problems]
            self._replicas.read(wanted, "reading the replicas")
            wait.targets = {one: self._replicas.remaining[one] for one in wanted if one in self._replicas.remaining}
            if not wait.targets:
                break

    def _read_what_is_new(self) -> None:
        """Read the replicas and partitions added during this run, and the records appended since the leaders were read."""
        tails = []
        present = check_same(self._client, self._topics)
        for topic in self._topics:
            for led in present[topic.name]:
                part = self._replicas.parts.get((topic.name, led.number))
                if part is None:
                    part = self._replicas.parts[topic.name, led.number] = FoundPartition(topic, led, 0)
                else:
                    part.led = led
                tails.append(part)
        self._replicas.read(
            [
                one
                for part in tails
                for one in part.replicas()
                if one not in self._replicas.reads and str(one) not in self._replicas.problems
            ],
            "reading",
        )
        self._replicas.read_tails()

    def _remove_tombstones(self) -> None:
        """Remove the tombstones if their horizon has passed, or immediately with `tombstones_now`."""
        marks, present_ms = self._replicas.tombstones(), now_ms()
        horizons = {one: [mark.horizon_ms for mark in own] for one, own in marks.items()}
        is_due = all(at is not None and at <= present_ms for own in horizons.values() for at in own)
        if not marks or not (is_due or self.outcome.tombstones_now):
            return
        # A batch keeps the horizon of its first cleaning, so a tombstone is removed sooner only if a later one supersedes it.
        late = {one: own for one, own in horizons.items() if any(at is not None and at > present_ms for at in own)}
        if late:
            self._supersede({one: max(mark.offset for mark in marks[one]) for one in late})
            marks = self._replicas.tombstones()
        self._is_saved = True
        self._note_outcome()
        self._lower(self._topics, self._lowering)
        self._progress.stage("waiting for the cleaner to remove the tombstones")
        held = wait_for_removal(
            self._client,
            Roller(self._client, self._cluster, None, self._delays()),
            self._cluster,
            self._progress,
            marks,
            lambda: self._put_back(lowered_configs.ROLLING),
        )
        self.left += [f"the tombstone of {name} stays: {reason}" for name, reason in held.items()]
        self._replicas.read([one for one in marks if str(one) not in held], "reading the replicas")

    def _note_gone(self) -> None:
        """Note tombstones that this or an earlier run found but that are now gone, since they show that the key existed."""
        present = {one[:2] for one, read in self._replicas.reads.items() if read.tombstones}
        for read in self.outcome.reads:
            place = read.topic, read.partition
            if read.tombstones and place not in present and self._replicas.parts[place].tombstone is None:
                self._replicas.parts[place].tombstone = read.tombstones[-1].offset

    def _delays(self) -> dict[str, CleaningDelays]:
        return {one.name: lowered_configs.delays(one, self._work.changes.get(one.name, {})) for one in self._topics}

    def _write_tombstones(self, roller: Roller, dirty: Iterable[Place]) -> None:
        self._progress.stage("writing tombstones")
        noted = self._progress.clock()
        for places in in_requests(sorted(dirty)):
            self._progress.check()
            parts = {place: self._replicas.parts[place] for place in places}
            check_same(self._client, {part.topic.name: part.topic for part in parts.values()}.values())
            written = roller.write_tombstones({place: part.latest_ms for place, part in parts.items()})
            for place, offset in written.items():
                if not isinstance(offset, KafkaRefusal):
                    if parts[place].tombstone is None:
                        parts[place].end_offset = offset + 1
                    parts[place].tombstone = offset
            raise_first(written.values())
            small = lowered_configs.SMALL_SEGMENTS
            by_size = {part.topic.name: part.topic for place, part in parts.items() if place in roller.refused_times}
            larger = [one for one in by_size.values() if one.number("segment.bytes") > float(small["segment.bytes"])]
            self._lower(larger, dict.fromkeys(by_size, small))
            if self._progress.clock() - noted > NOTE_S:
                self._note_outcome()
                noted = self._progress.clock()
        self._note_outcome()

    def _build(self) -> ErasureOutcome:
        """Return the current outcome."""
        partitions = tuple(
            ErasedPartition(
                part.topic.name,
                part.led.number,
                part.values,
                part.tombstone,
                part.end_offset,
                tuple(sorted(part.led.replicas)),
            )
            for _, part in sorted(self._replicas.parts.items())
        )
        return replace(
            self.outcome,
            cluster_id=self._cluster.cluster_id,
            topic_ids={one.name: one.topic_id for one in self._topics},
            partitions=partitions,
            reads=tuple(self._replicas.reads[one] for one in sorted(self._replicas.reads)),
            values_searched_for=self._search.values_searched_for,
            problems=dict(self._replicas.problems),
        )

    def _note_outcome(self) -> None:
        self.outcome = self._work.outcome = self._build()
        self._register.save(self._work)


def groups_behind(client: KafkaClient, ends: Mapping[Place, int]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the groups that have not committed the end of a partition, by partition, and the errors of unreadable groups."""
    behind: dict[str, list[str]] = {}
    unknown: list[str] = []
    try:
        groups = list_groups(client)
    except (KafkaRefusal, ConnectionFailed) as error:
        return {}, [str(error)]
    for listed in groups:
        try:
            committed = KafkaGroup(client, listed.name).committed()
        except (KafkaRefusal, ConnectionFailed) as error:
            unknown.append(str(error))
            continue
        for (topic, partition), offset in committed.items():
            if offset < ends.get((topic, partition), 0):
                behind.setdefault(f"{topic}-{partition}", []).append(listed.name)
    return behind, unknown


def wait_for_removal(
    client: KafkaClient,
    roller: Roller,
    cluster: Cluster,
    progress: WorkProgress,
    tombstones: Mapping[Replica, tuple[KeyRecord, ...]],
    on_rolled: Callable[[], object],
) -> dict[str, str]:
    """Make the cleaners remove these tombstones, and wait. Returns why tombstones remain, by replica. Raises TimeIsUp.

    The first cleaning after its horizon removes a tombstone, but a partition is cleaned only if something, such as a marker, has
    been appended since its last cleaning. Without the right to append markers, tombstones remain until other producers write.
    A tombstone without a horizon, such as a second one that closed a segment, first needs another cleaning to set its horizon.
    """
    undecided = {one: [mark for mark in own if mark.horizon_ms is None] for one, own in tombstones.items()}
    held: dict[str, str] = {}
    for marks, is_there in (undecided, has_undecided), (tombstones, has_record):
        targets = {one: max(mark.offset for mark in own) for one, own in marks.items() if own}
        for place, end in client.offsets_of({one[:2] for one in targets}, LATEST).items():
            roller.close_after(place, end - 1)
        wait = CleanerWait(client, cluster, progress, targets, roller, is_there)
        if roller.lacks:
            return wait.held()
        held = wait.until_clean(on_rolled if marks is tombstones else lambda: None)
    return held

"""The table of the brokers of one process: which are up, and which lead and follow each partition.

The table's state is the image of the metadata log; a change only appends records to this log. All replicas of a partition share
one log, so a new leader has every record. A process with a single broker has no table.

Source: ClusterControlManager, ReplicationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from diamant.broker.brokers.lags import Lags
from diamant.broker.brokers.placement import placed
from diamant.broker.config.listeners import Listener
from diamant.broker.network.api import BrokerAddress, ConnectionInfo
from diamant.broker.operation_errors import NotFound, NotPossible, no_partition, no_topic
from diamant.protocol.kraft.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from diamant.storage.kraft.elections import partition_change
from diamant.storage.kraft.image import MetadataImage, PartitionImage
from diamant.storage.kraft.metadata_log import MAX_RECORDS_PER_BATCH, MetadataLog
from diamant.storage.kraft.start_records import isr_rules
from diamant.storage.log.log import Log


class LeaderMove(NamedTuple):
    """A partition whose leader or leader epoch has changed. -1 means no leader."""

    topic: str
    partition: int
    old_leader: int
    new_leader: int
    leader_epoch: int


class Changes(NamedTuple):
    """The report of a change: the partitions with a new leader or leader epoch, and the partitions whose ISR has changed."""

    moves: tuple[LeaderMove, ...] = ()
    changed_isr: frozenset[tuple[str, int]] = frozenset()


class PartitionCounts(NamedTuple):
    """How many partitions each broker leads, is in sync for, or is a replica of."""

    leads: Counter[int]
    in_sync: Counter[int]
    replicas: Counter[int]


class BrokerState(NamedTuple):
    """A broker's state for an operator: its listeners, and how many partitions it leads and follows in sync."""

    broker_id: int
    listeners: tuple[str, ...]
    rack: str | None
    is_up: bool
    leads: int
    follows: int


class BrokerTable:
    """The brokers of this process. Belongs to the loop thread.

    `on_change` is called after every change to the table, with the list of (topic, partition) that changed, which may be empty.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        listeners: Sequence[Listener],
        on_change: Callable[[list[tuple[str, int]]], None],
        lags: Lags,
        is_unclean: Callable[[str], bool],
    ) -> None:
        """`listeners`: the advertised listeners of all brokers. `is_unclean`: a topic's `unclean.leader.election.enable`."""
        self._metadata = metadata
        self.is_unclean = is_unclean
        self.lags = lags
        self._held_ends: WeakKeyDictionary[Log, int] = WeakKeyDictionary()
        self._on_change = on_change
        self.broker_ids = tuple(metadata.broker_ids)
        self.listeners: list[Callable[[Sequence[LeaderMove]], object]] = []
        """Callbacks that are called with the moves after each change in which leaders move."""
        self._addresses = {(metadata.node_id + one.broker, one.name): (one.host, one.port) for one in listeners}

    # -- brokers -------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        return self._metadata.image

    def is_up(self, broker_id: int) -> bool:
        """Return whether a broker is in the cluster: registered, and not fenced."""
        return not self._metadata.image.brokers[broker_id].fenced

    @property
    def live(self) -> list[int]:
        """The brokers that are up."""
        return [broker_id for broker_id in self.broker_ids if self.is_up(broker_id)]

    @property
    def controller_id(self) -> int:
        """The broker that is reported to clients as the controller: the first that is up."""
        return next(iter(self.live), self.broker_ids[0])

    def rack(self, broker_id: int) -> str | None:
        """Return a broker's rack."""
        return self.image.brokers[broker_id].rack

    def address(self, broker_id: int, listener_name: str, host: str) -> BrokerAddress:
        """Return a broker's address at one listener. `host`: the host to return if the listener advertises none."""
        advertised, port = self._addresses[broker_id, listener_name]
        return BrokerAddress(broker_id, advertised or host, port, self.rack(broker_id))

    def counts(self) -> PartitionCounts:
        """Count the partitions of each broker."""
        counts = PartitionCounts(Counter(), Counter(), Counter())
        for _, partition in self.partitions():
            counts.leads[partition.leader] += 1
            counts.in_sync.update(partition.isr)
            counts.replicas.update(partition.replicas)
        return counts

    def states(self) -> list[BrokerState]:
        """Return the state of each broker."""
        counts = self.counts()
        return [
            BrokerState(
                broker_id,
                tuple(f"{host}:{port}" for (owner, _), (host, port) in self._addresses.items() if owner == broker_id),
                self.rack(broker_id),
                self.is_up(broker_id),
                counts.leads[broker_id],
                counts.in_sync[broker_id] - counts.leads[broker_id],
            )
            for broker_id in self.broker_ids
        ]

    # -- partitions ----------------------------------------------------------------------------------------------

    def placed(self, partitions: range, factor: int) -> list[tuple[int, ...]]:
        """Return the replicas of new partitions."""
        racks = {broker_id: self.rack(broker_id) for broker_id in self.broker_ids}
        return placed(partitions, factor, racks, self.live)

    def partition(self, topic: str, partition: int) -> PartitionImage:
        """Return the state of a partition. Raises NotFound."""
        found = self.image.topics.get(topic)
        if found is None:
            raise NotFound(no_topic(topic))
        if partition not in found.partitions:
            raise NotFound(no_partition(topic, partition, len(found.partitions)))
        return found.partitions[partition]

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition that exists; -1 if none of its replicas is up and in sync."""
        return self._metadata.image.topics[topic].partitions[partition].leader

    def has_enough_in_sync(self, log: Log) -> bool:
        """Return whether at least `min.insync.replicas` replicas, or all if there are fewer, are in sync (effectiveMinIsr)."""
        partition = self.partition(log.topic, log.partition)
        return len(partition.isr) >= min(log.config.min_insync_replicas, len(partition.replicas))

    def hold_end(self, log: Log) -> bool:
        """Hold the high watermark of a partition while too few replicas are in sync, and release it afterwards.

        Returns True if this call released it, so that it rises to the end of the log. Source: Partition.maybeIncrementLeaderHW.
        """
        if not self.has_enough_in_sync(log):
            # While a flush is pending (`flush.messages`), readers and followers see only flushed records.
            self._held_ends.setdefault(log, log.recovery_point if log.is_flush_wanted else log.high_watermark)
            return False
        return self._held_ends.pop(log, None) is not None

    def end_at(self, broker_id: int, log: Log) -> int | None:
        """Return the high watermark of a partition at a broker; None for the end of the log."""
        end = self._held_ends.get(log)
        if end is not None:
            end = min(max(end, log.log_start_offset), log.high_watermark)
        if self.lags.of(broker_id) is None or self.leader(log.topic, log.partition) == broker_id:
            return end
        behind = self.lags.end(broker_id, log)
        return behind if end is None or behind is None else min(end, behind)

    def offline(self, partition: PartitionImage) -> tuple[int, ...]:
        """Return the replicas of a partition that are down."""
        return tuple(broker_id for broker_id in partition.replicas if not self.is_up(broker_id))

    def endpoints(self, leaders: Iterable[tuple[int, int] | None], connection: ConnectionInfo) -> list[BrokerAddress]:
        """Return the addresses of the leaders that are up, as advertised to the client of a connection."""
        broker_ids = {leader[0] for leader in leaders if leader is not None and leader[0] >= 0}
        host = connection.advertised_host
        return [self.address(one, connection.listener_name, host) for one in sorted(broker_ids) if self.is_up(one)]

    def preferred_replica(self, partition: PartitionImage, rack: str) -> int | None:
        """Return the in-sync replica from which a client in a rack should read; None: the leader (RackAwareReplicaSelector)."""
        near = [one for one in partition.isr if self.is_up(one) and self.rack(one) == rack]
        return None if not near or partition.leader in near else near[0]

    def partitions(self, name: str | None = None) -> Iterator[tuple[str, PartitionImage]]:
        """Yield (topic name, partition) for each partition of one topic, or of all topics."""
        for topic in self.image.topics.values() if name is None else (self.image.topics[name],):
            for partition in topic.partitions.values():
                yield topic.name, partition

    def present(self, names: Iterable[tuple[str, int]]) -> Iterator[tuple[str, PartitionImage]]:
        """Look up partitions by topic name and number. Yields (topic name, partition) for those that exist."""
        for name, index in names:
            topic = self.image.topics.get(name)
            if topic is not None and index in topic.partitions:
                yield name, topic.partitions[index]

    # -- changes -------------------------------------------------------------------------------------------------

    def elect_unclean(self, topic: str, partition: int) -> Changes:
        """Make a replica that is up the leader, even if it is not in sync; return the changes. Raises NotFound."""
        return self.apply([self.plan(topic, self.partition(topic, partition), is_unclean=True)])

    def set_isr(self, topic: str, partition: int, isr: Sequence[int]) -> Changes:
        """Set the in-sync replicas of a partition; if its leader is not among them, another replica becomes the leader.

        Returns the changes. Raises NotFound, or NotPossible if a broker is down or is not a replica.
        """
        now = self.partition(topic, partition)
        for broker_id in isr:
            if broker_id not in now.replicas or not self.is_up(broker_id):
                raise NotPossible(
                    f"broker {broker_id} cannot be in sync for {topic}-{partition}: "
                    f"it is down, or is not one of the replicas {list(now.replicas)}"
                )
        return self.apply([self.plan(topic, now, isr=tuple(isr))])

    def move_leader(self, topic: str, partition: int, broker_id: int) -> Changes:
        """Make a replica the leader; return the changes. Raises NotFound; NotPossible if it already leads, or is not in sync."""
        return self.move_leaders([(topic, partition, broker_id)])

    def move_leaders(self, moves: Iterable[tuple[str, int, int]]) -> Changes:
        """Like `move_leader`, for several (topic, partition, broker). If one of them is refused, no leader moves."""
        changes = []
        for topic, partition, broker_id in moves:
            now = self.partition(topic, partition)
            self.check_known(broker_id)
            if broker_id == now.leader:
                raise NotPossible(f"broker {broker_id} leads {topic}-{partition} already")
            if broker_id not in now.isr or not self.is_up(broker_id):
                raise NotPossible(
                    f"broker {broker_id} cannot lead {topic}-{partition}, because it is not in sync: of the replicas "
                    f"{list(now.replicas)}, {list(now.isr)} are in sync. `unclean` makes an out-of-sync replica the leader"
                )
            changes.append(self.plan(topic, now, leader=broker_id))
        return self.apply(changes)

    def set_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> Changes:
        """Replace the replicas of a partition. This completes immediately, since all replicas that are up are in sync. If the
        leader is not among them, another leads, in a new epoch. Returns the changes; none if the replicas are the same.

        Source: ReplicationControlManager.alterPartitionReassignments.
        """
        now = self.partition(topic, partition)
        if tuple(replicas) == now.replicas:
            return Changes()
        isr = tuple(filter(self.is_up, replicas))
        leader = now.leader if now.leader in isr else next(iter(isr), NO_LEADER)
        image = self.image
        record = PartitionChangeRecord(
            partition_id=partition,
            topic_id=image.topics[topic].topic_id,
            replicas=tuple(replicas),
            isr=isr,
            leader=NO_LEADER_CHANGE if leader == now.leader and set(now.replicas) <= set(replicas) else leader,
            directories=(self._metadata.directory_id,) * len(replicas) if now.directories else None,
        )
        return self.apply([(topic, record)])

    def change(self, topic: str, record: PartitionChangeRecord) -> Changes:
        """Apply one change to a partition, and return the changes."""
        return self.apply([(topic, record)])

    def plan(
        self,
        topic: str,
        partition: PartitionImage,
        *,
        isr: Sequence[int] | None = None,
        leader: int | None = None,
        gone: int = NO_LEADER,
        is_unclean: bool = False,
    ) -> tuple[str, PartitionChangeRecord | None]:
        """Return the topic and the change (or None) that sets `isr` and `leader`, electing a leader as if `gone` were down."""
        image = self.image
        min_isr, has_elr = isr_rules(image, topic)
        return topic, partition_change(
            image.topics[topic].topic_id,
            partition,
            lambda one: one != gone and self.is_up(one),
            isr=isr,
            leader=leader,
            min_isr=min_isr,
            has_elr=has_elr,
            is_unclean=is_unclean or self.is_unclean(topic),
        )

    def apply(
        self, changes: Sequence[tuple[str, PartitionChangeRecord | None]], *first: BrokerRegistrationChangeRecord
    ) -> Changes:
        """Append `first` and the changes, in one batch if Kafka's limit allows it; notify the listeners. Returns the changes."""
        image = self.image
        real = [(topic, change) for topic, change in changes if change is not None]
        before = [image.topics[topic].partitions[change.partition_id] for topic, change in real]
        records: list[MetadataRecord] = [*first, *(change for _, change in real)]
        for start in range(0, len(records), MAX_RECORDS_PER_BATCH):
            self._metadata.append(records[start : start + MAX_RECORDS_PER_BATCH])
        moves = []
        for (topic, change), old in zip(real, before, strict=True):
            if change.leader != NO_LEADER_CHANGE:
                new = image.topics[topic].partitions[change.partition_id]
                moves.append(LeaderMove(topic, change.partition_id, old.leader, new.leader, new.leader_epoch))
        self._on_change([(topic, change.partition_id) for topic, change in real])
        for listener in self.listeners if moves else ():
            listener(moves)
        changed_isr = frozenset((topic, change.partition_id) for topic, change in real if change.isr is not None)
        return Changes(tuple(moves), changed_isr)

    def fence(self, broker_id: int, fenced: int) -> BrokerRegistrationChangeRecord:
        """Return the record that fences a broker (`fenced` is 1) or unfences it (-1)."""
        epoch = self.image.brokers[broker_id].broker_epoch
        return BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)

    def check_known(self, broker_id: int) -> None:
        """Raise NotFound unless a broker of this process has this id."""
        if broker_id not in self.broker_ids:
            raise NotFound(f"there is no broker {broker_id}: expected one of {', '.join(map(str, self.broker_ids))}")

    def check_state(self, broker_id: int, *, is_up: bool) -> None:
        """Raise NotFound if a broker is unknown, or NotPossible if it is not in the expected state (`is_up`: up, else down)."""
        self.check_known(broker_id)
        if self.is_up(broker_id) != is_up:
            raise NotPossible(f"broker {broker_id} is {'down' if is_up else 'up'} already")

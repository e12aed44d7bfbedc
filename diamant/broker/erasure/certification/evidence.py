"""The data directory for erasures and redactions: searches, scans and digests of its files, and facts for certificates.

Blocking work runs in threads, everything else on the loop thread.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from diamant.broker.erasure.certification.kept_remains import IsMeant, KeptRemains
from diamant.broker.erasure.certification.record_holders import RecordHolder, record_holders
from diamant.broker.erasure.certification.signing_keys import SigningKeys
from diamant.broker.node.values import topic_values
from diamant.broker.operation_errors import NotFound, NotPossible, no_topic
from diamant.broker.operations.calls.blocking import in_thread
from diamant.broker.snapshots.snapshot_store import SnapshotFiles
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.cleaner.erasure_state.locate import filter_skip
from diamant.cleaner.evidence.certificates.broker_files import set_names_aside
from diamant.cleaner.evidence.certificates.certificate import file_digest
from diamant.cleaner.evidence.certificates.intent_parts import FileDigest
from diamant.cleaner.evidence.certificates.own_certificates import set_own_aside
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory, scan_partitions
from diamant.cleaner.evidence.search.file_census import Identity
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.cleaner.evidence.search.offset_order import WHOLE_FILE, LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.evidence.search.remains import values_of
from diamant.cleaner.rules.modes import followed_version
from diamant.cleaner.values.schemas import Schemas, Values
from diamant.progress import Progress
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.env.linux import removed_but_open
from diamant.storage.log.log import Log
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.topics.topic import Topic
    from diamant.broker.topics.topics import Topics
    from diamant.cleaner.evidence.certificates.signing_key import SigningKey
    from diamant.cleaner.evidence.scan.staging_files import StagingPlace

DIGEST_THREADS = 2
"""The number of threads that compute digests. On large files, each of them uses a whole processor."""
READERS_WAIT_S = 10.0
"""How long a scan waits for clients to stop reading removed files. If some still read one, the attempt certifies nothing."""
LOOK_AGAIN_S = 0.05
SNAPSHOT = "it is a snapshot of the data, or part of one, and the scan does not read it: delete it"
STILL_READ = "it was removed, but is still being read, and until that ends its bytes are on the disk"


class ScanRequest(NamedTuple):
    """A job's part in a certifying scan."""

    subject: Subject
    is_meant: IsMeant
    """Selects the earlier jobs whose remains the scan must look for as well."""


class Evidence:
    """The data directory, as used by erasures and redactions. Belongs to the loop thread unless a method says otherwise."""

    def __init__(
        self, node: Node, groups: Lazy[GroupCoordinator] | None = None, *, readers_wait_s: float = READERS_WAIT_S
    ) -> None:
        """`node`: the node that owns the directory. `groups`: has the share groups whose members may hold records."""
        self._node = node
        self._groups = groups
        self._readers_wait_s = readers_wait_s
        self.env: Env = node.env
        self.directory: str = node.config.data_dir
        self.topics: Topics = node.topics
        self.logs: Mapping[TopicPartition, Log] = node.directory.logs
        """The open logs, by partition."""
        self.keys = SigningKeys(node)
        self.remains = KeptRemains(self.env, self.directory)
        self._schemas: WeakValueDictionary[str, Schemas] = WeakValueDictionary()
        """The schemas, by registry, for as long as an attempt uses them."""

    # -- the disk --------------------------------------------------------------------------------------------------------

    def ends(self) -> dict[TopicPartition, LogEnd]:
        """Return the current end of each log, all as of the same turn of the loop.

        For a log that refuses writes, the end includes the whole active file, where a failed write may have left bytes.
        """
        return {
            partition: LogEnd(
                log.log_end_offset,
                log.active.base_offset,
                log.active.size if log.write_failure is None else WHOLE_FILE,
                partial(_segment_size, log),
                partial(_has_file, log),
            )
            for partition, log in self.logs.items()
        }

    def partitions_there(self, topic: str) -> Collection[int]:
        """Return the numbers of a topic's partitions; empty if there is no such topic. Callable from any thread."""
        image = self.topics.image.topics.get(topic)
        return () if image is None else image.partitions.keys()

    def values(self, topic: str, registry: str | None = None) -> Values:
        """Return the decoder of a topic's keys and values. Concurrent attempts share their schemas. Raises BadArgument."""
        found = self._schemas.get(registry or "")
        if found is None:
            found = self._schemas[registry or ""] = topic_values(self._node, topic, registry).schemas
        return Values(found, topic)

    def holders(self, partition: TopicPartition, has: Callable[[int], bool]) -> list[RecordHolder]:
        """Return the members of share groups that hold records of a partition (see `record_holders`)."""
        return record_holders(None if self._groups is None else self._groups.made, self.topics, partition, has)

    def user_topic(self, name: str) -> Topic:
        """Return a topic. Raises NotFound, or NotPossible if the topic is internal."""
        topic = self.topics.by_name.get(name)
        if topic is None:
            raise NotFound(no_topic(name))
        if name in INTERNAL_TOPICS:
            raise NotPossible(f"{name} is internal: its records belong to the broker")
        return topic

    def remove_doomed(self, topics: Iterable[str], partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Delete files of `partitions`, and partition directories of `topics`, that await deletion; return the file counts."""
        env, removed = self.env, {}
        wanted = set(topics)
        for name in env.list_dir(self.directory):
            is_doomed = name.endswith(names.DELETE_DIR_SUFFIX)
            # A shortened name can also match another topic. That is harmless: its directory awaits deletion as well.
            if is_doomed and any(names.may_be_set_aside_of(name, topic) for topic in wanted):
                env.remove_tree(f"{self.directory}/{name}")
        for partition in partitions:
            directory = f"{self.directory}/{names.partition_dir_name(*partition)}"
            if not env.is_dir(directory):
                continue
            doomed = [name for name in env.list_dir(directory) if name.endswith(names.DELETED_SUFFIX)]
            for name in doomed:
                env.remove(f"{directory}/{name}", missing_ok=True)
            removed[partition] = len(doomed)
            env.sync_dir(directory)
        return removed

    def digests(self, files: Sequence[str], ends: Mapping[TopicPartition, LogEnd]) -> tuple[FileDigest, ...]:
        """Return the digests of `files`, without those that do not exist. Blocking."""

        def digest(name: str) -> FileDigest | None:
            try:
                return FileDigest(name, *file_digest(self.env, f"{self.directory}/{name}", _limit(name, ends)))
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(DIGEST_THREADS, "digest") as pool:
            return tuple(one for one in pool.map(digest, files) if one is not None)

    async def look(self, subject: Subject, partitions: Iterable[TopicPartition]) -> ScanReport:
        """Find the records of a key, skipping segments that filters rule out. The certifying scan uses no filters."""
        ends = self.ends()

        def work(check: Callable[[], object]) -> ScanReport:
            skip = filter_skip(self.env, self.directory, subject.key)
            return scan_partitions(self.env, self.directory, subject, ends, partitions, skip=skip, check=check)

        return await in_thread(work)

    async def scan(self, asked: Sequence[ScanRequest], key: SigningKey, progress: Progress) -> list[ScanReport]:
        """Scan everything, and return the report about each subject. Before that, wait for clients that read removed files of the
        topics. `key`: the broker's signing key.
        """
        topics = frozenset().union(*(one.subject.topics for one in asked))
        still_read = await self._still_read(topics, progress)
        progress.begin("scanning everything", unit="bytes")
        ends = self.ends()

        def work(check: Callable[[], object]) -> list[ScanReport]:
            subjects, problems = [], []
            remains = self.remains.inherited([one.is_meant for one in asked], key)
            for one, (inherited, unknown) in zip(asked, remains, strict=True):
                widened = copy(one.subject)
                widened.needles = one.subject.needles.joined(inherited)
                subjects.append(widened)
                problems.append(unknown)
            reports = scan_directory(
                self.env,
                self.directory,
                subjects,
                ends,
                advance=progress.move_to,
                check=check,
                staging=self.staging(ends),
                partitions=self.partitions_there,
            )
            snapshots = SnapshotFiles(self.env, self.directory)
            for report, subject, unknown in zip(reports, subjects, problems, strict=True):
                report.unaccounted += [Unreadable(None, None, name, None, STILL_READ) for name in still_read]
                report.unaccounted += unknown
                report.snapshot_places = snapshots.places()
                report.unaccounted += [Unreadable(None, None, path, None, SNAPSHOT) for path in snapshots.there()]
                report.values = frozenset(one.digest for one in values_of(subject.needles))
                set_own_aside(report, self.env, self.directory, key.public_bytes)
                set_names_aside(report, self.env, self.directory, subject.needles)
            return reports

        return await in_thread(work)

    async def _still_read(self, topics: frozenset[str], progress: Progress) -> list[str]:
        """Wait until no client reads removed files of the topics. Returns the files that clients still read after the time limit.

        A file that is removed later does not matter: it exists when the scan begins, so the scan reads it.
        """
        progress.begin("waiting for readers of removed files")
        waited_s = 0.0
        while True:
            removed = await asyncio.to_thread(removed_but_open, self.directory)
            found = [name for name in removed if _is_of(name, topics)]
            if not found or waited_s >= self._readers_wait_s:
                return found
            if not waited_s:
                # Tracebacks of earlier failures may keep files open until they are garbage-collected.
                await asyncio.to_thread(gc.collect)
            await asyncio.sleep(LOOK_AGAIN_S)
            waited_s += LOOK_AGAIN_S

    def staging(self, partitions: Iterable[TopicPartition]) -> StagingPlace | None:
        """Return the location outside the data directory where Spark jobs may have left copies, or None. Thread-safe."""
        staging = self._node.config.diamant_cleaner_spark_staging
        # Earlier jobs may have used another location; their notes name it (`cleaner/spark/clean/staging.py`).
        if not staging and not any(one.startswith(names.STAGING_PREFIX) for one in self.env.list_dir(self.directory)):
            return None
        from diamant.cleaner.spark.runner.staging_view import staging_place

        return staging_place(self.env, self._node.directory.path, staging, partitions)

    # -- certificates ----------------------------------------------------------------------------------------------------

    def issuer_fields(self, requested_ms: int, *, is_manual_clock: bool) -> Mapping[str, object]:
        """Return the fields of a certificate that describe its issuer and the issuer's clock."""
        return {
            "is_evidence": not is_manual_clock,
            "clock": {
                "kind": "manual" if is_manual_clock else "system",
                "requested_ms": requested_ms,
                "issued_ms": self.env.clock.now_ms(),
                "note": "A manual clock was in use: this is not evidence." if is_manual_clock else "",
            },
            "issuer": {
                "software": f"Diamant {__version__}",
                "cluster_id": self._node.cluster_id,
                "node_id": self._node.config.node_id,
                **self._shared(),
            },
        }

    def _shared(self) -> Mapping[str, object]:
        """Return the IDs of the brokers if several share the storage: data that is gone from it is gone from all of them."""
        broker_ids = self._node.config.broker_ids
        if len(broker_ids) == 1:
            return {}
        note = f"The broker ids {broker_ids[0]} to {broker_ids[-1]} share one storage: no replica is a copy of its own."
        return {"broker_ids": [*broker_ids], "note": note}

    def configuration(self, name: str) -> Mapping[str, object]:
        """Return the part of a topic's configuration that goes into certificates; empty if there is no such topic."""
        topic = self.topics.by_name.get(name)
        log = next(iter(topic.logs.values()), None) if topic is not None else None
        if log is None:
            return {}
        config, broker = log.config, self._node.config
        version = followed_version(broker.diamant_cleaner_mode, broker.diamant_cleaner_kafka_version)
        return {
            "cleanup.policy": ",".join(sorted(config.cleanup_policy)),
            "delete.retention.ms": config.delete_retention_ms,
            "min.compaction.lag.ms": config.min_compaction_lag_ms,
            "max.compaction.lag.ms": config.max_compaction_lag_ms,
            "segment.bytes": config.segment_bytes,
            "segment.ms": config.segment_ms,
            "file.delete.delay.ms": config.file_delete_delay_ms,
            "diamant.cleaner.mode": broker.diamant_cleaner_mode,
            **({} if version is None else {"diamant.cleaner.kafka.version": version}),
        }


def _is_of(name: str, topics: Collection[str]) -> bool:
    """Return whether a file may belong to one of these topics. `name`: its path relative to the data directory."""
    directory = name.partition("/")[0]
    return any(names.may_be_set_aside_of(directory, topic) for topic in topics)


def _segment_size(log: Log, base_offset: int) -> int | None:
    """Return the current size of a segment; None if no segment has that base offset. Callable from any thread."""
    # Callers ask for the newest segments, so search from the end. Search a copy: the loop thread may change the list.
    return next((one.size for one in reversed(tuple(log.segments)) if one.base_offset == base_offset), None)


def _has_file(log: Log, base_offset: int, identity: Identity) -> bool:
    """Return whether the log's segment at `base_offset` is the file with this identity. Callable from any thread."""
    ids = (one.file_id for one in reversed(tuple(log.segments)) if one.base_offset == base_offset)
    return next(ids, None) == identity[:2]


def _limit(name: str, ends: Mapping[TopicPartition, LogEnd]) -> int | None:
    """Return how many bytes of a file to hash: for an active segment, only those before the end in `ends`; None: all."""
    directory, _, file = name.rpartition("/")
    try:
        end = ends.get(names.parse_partition_dir(directory))
    except ValueError:
        return None
    parsed = names.parse_segment_file(file)
    if end is None or parsed is None or parsed.stage or parsed.offset != end.active_base_offset:
        return None
    return end.active_size

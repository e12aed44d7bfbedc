"""All file and directory names of a log directory, as in Kafka (`LocalLog`, `LogFileUtils`, `LogManager`).

    <log dir>/
        .lock  .kafka_cleanshutdown  meta.properties  bootstrap.checkpoint
        recovery-point-offset-checkpoint  replication-offset-checkpoint
        log-start-offset-checkpoint       cleaner-offset-checkpoint
        <topic>-<partition>/
        <topic>-<partition>.<32 hex>-delete | -future | -stray/
            <base offset, 20 digits>.log .index .timeindex .txnindex
            <offset, 20 digits>.snapshot
            leader-epoch-checkpoint  partition.metadata  diamant-first-appends
            any of the above + .deleted | .cleaned | .swap | .tmp
        __cluster_metadata-0/
            <end offset, 20 digits>-<epoch, 10 digits>.checkpoint  quorum-state

This module does no I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import uuid4

from diamant.protocol.batches.header import MAX_OFFSET

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LAST_CLEANED_CHECKPOINT = "diamant-last-cleaned-checkpoint"
"""Not in Kafka: the end time of each partition's last cleaning round, in the format of an offset checkpoint."""
MANUAL_CLOCK = "diamant-clock"
"""Not in Kafka: see `manual_clock_file`."""

SNAPSHOTS_NOTE = "diamant-snapshots"
"""Not in Kafka: the path that the directory had when its last snapshot was made."""
HASH_KEY = "diamant-hash-key"
"""Not in Kafka: the key with which the cleaner hashes record keys."""
DIRECTORY_FILES = (
    LOCK,
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    BOOTSTRAP_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
    LAST_CLEANED_CHECKPOINT,
    MANUAL_CLOCK,
    SNAPSHOTS_NOTE,
    HASH_KEY,
)
"""The files with fixed names directly in a log directory."""

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
FIRST_APPENDS = "diamant-first-appends"
"""Not in Kafka: see `segments.first_appends`."""
QUORUM_STATE = "quorum-state"

METADATA_TOPIC = "__cluster_metadata"
GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
REQUESTS_TOPIC = "__diamant_requests"
"""The topic in which persons' requests are registered."""
REMOTE_LOG_INDEX_CACHE = "remote-log-index-cache"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
METADATA_SNAPSHOT_SUFFIX = ".checkpoint"
PART_SUFFIX = ".part"
"""Suffix of an unfinished metadata snapshot."""
TEMPORARY_SUFFIX = ".tmp"
FACTS_PREFIX = "diamant-"
FACTS_SUFFIX = ".facts"
"""Prefix and suffix of a file with the cleaner's facts about a segment; between them is the segment's base offset."""

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
ASIDE_SUFFIX = ".aside"
"""Suffix of files with data that recovery removed from a log but kept; the broker does not read them."""

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"

STAGING_PREFIX = "diamant-staging-"
"""Prefix of directories, inside a partition's directory, that hold a cleaning round's output until the log adopts it."""

NOTE_SUFFIX = ".note"
"""Suffix of a file that describes a staging location outside the log directory."""

ERASURE_PREFIX = "diamant-erasure-"
REDACTION_PREFIX = "diamant-redaction-"
PERSON_PREFIX = "diamant-person-"
JOB_PREFIXES = (ERASURE_PREFIX, REDACTION_PREFIX, PERSON_PREFIX)
"""Prefixes of the files of erasures, redactions and persons' requests; the job's id follows."""
JOB_ID_LENGTH = 32
"""Number of hexadecimal digits of a job's id."""
INTENT_SUFFIX = ".intent"
REMAINS_SUFFIX = ".remains"
CERTIFICATE_SUFFIX = ".json"
PENDING_SUFFIX = ".pending"

MAX_NAME_LENGTH = 255
"""Maximum length of a file name. To stay below it, Kafka shortens the topic in the name of a directory that it sets aside."""

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
STAGE_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ASIDE_SUFFIX)
_SET_ASIDE = re.compile(r"(\S+)-(\S+)\.(\S+)(-delete|-future|-stray)")
_METADATA_SNAPSHOT = re.compile(r"(\d{20,})-(\d{10,})\.checkpoint")


def log_file(directory: str, base_offset: int) -> str:
    """Return the path of the segment of record batches that begins at `base_offset`."""
    return f"{directory}/{base_offset:020d}.log"


def index_file(directory: str, base_offset: int) -> str:
    """Return the path of the offset index of the segment at `base_offset`."""
    return f"{directory}/{base_offset:020d}.index"


def time_index_file(directory: str, base_offset: int) -> str:
    """Return the path of the time index of the segment at `base_offset`."""
    return f"{directory}/{base_offset:020d}.timeindex"


def txn_index_file(directory: str, base_offset: int) -> str:
    """Return the path of the index of aborted transactions of the segment at `base_offset`."""
    return f"{directory}/{base_offset:020d}.txnindex"


class SegmentPaths(NamedTuple):
    """The paths of a segment's files, some of which may not exist."""

    log: str
    offset_index: str
    time_index: str
    txn_index: str


def segment_paths(directory: str, base_offset: int, suffix: str = "") -> SegmentPaths:
    """Return the paths of all files of the segment at `base_offset`; `suffix`: a stage such as `.cleaned`, or none."""
    stem = f"{directory}/{base_offset:020d}"
    return SegmentPaths(
        f"{stem}.log{suffix}", f"{stem}.index{suffix}", f"{stem}.timeindex{suffix}", f"{stem}.txnindex{suffix}"
    )


def snapshot_file(directory: str, offset: int) -> str:
    """Return the path of the producer snapshot that covers everything below `offset`."""
    return f"{directory}/{offset:020d}.snapshot"


def metadata_snapshot_file(directory: str, end_offset: int, epoch: int) -> str:
    """Return the path of the metadata snapshot that covers everything below `end_offset`."""
    return f"{directory}/{end_offset:020d}-{epoch:010d}.checkpoint"


def parse_metadata_snapshot(name: str) -> tuple[int, int] | None:
    """Return `(end_offset, epoch)` in the file name of a finished metadata snapshot; None for any other name."""
    match = _METADATA_SNAPSHOT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


class SegmentFileName(NamedTuple):
    """A parsed file name: `00000000000000000042.log.deleted` is `(42, ".log", ".deleted")`."""

    offset: int
    suffix: str
    """One of the five suffixes of segment files and producer snapshots."""
    stage: str
    """`""` for a file in use, else `.deleted`, `.cleaned`, `.swap` or `.aside`."""


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Parse the name of a segment's file or producer snapshot; None for other names.

    As in Kafka, the offset is the text before the first dot, at most 2^63-1, and need not have 20 digits.
    """
    stem, dot, rest = name.partition(".")
    if not dot or not (stem.isascii() and stem.isdigit()) or int(stem) > MAX_OFFSET:
        return None
    suffix = "." + rest
    if suffix in SEGMENT_SUFFIXES:
        return SegmentFileName(int(stem), suffix, "")
    head, dot, tail = suffix.rpartition(".")
    stage = dot + tail
    if stage in STAGE_SUFFIXES and head in SEGMENT_SUFFIXES:
        return SegmentFileName(int(stem), head, stage)
    return None


def offset_of(name: str) -> int:
    """Return the offset in the name of a segment's file or snapshot: the text before the first dot.

    Raises ValueError if that is not a number (`LocalLog.offsetFromFileName`).
    """
    return int(name.partition(".")[0])


def is_segment_file(name: str) -> bool:
    """Return whether this is the name of a segment file or producer snapshot in use (without `.deleted` or the like)."""
    parsed = parse_segment_file(name)
    return parsed is not None and not parsed.stage


def partition_dir_name(topic: str, partition: int) -> str:
    """Return the name of the directory of a partition in use."""
    return f"{topic}-{partition}"


def delete_dir_name(topic: str, partition: int) -> str:
    """Return a new directory name, of at most 255 characters, for a partition that awaits deletion."""
    return _set_aside_name(topic, partition, DELETE_DIR_SUFFIX)


def stray_dir_name(topic: str, partition: int) -> str:
    """Return a new directory name, of at most 255 characters, for a partition missing from the metadata."""
    return _set_aside_name(topic, partition, STRAY_DIR_SUFFIX)


def _set_aside_name(topic: str, partition: int, suffix: str) -> str:
    end = f"-{partition}.{uuid4().hex}{suffix}"
    return topic[: MAX_NAME_LENGTH - len(end)] + end


def may_be_set_aside_of(name: str, topic: str) -> bool:
    """Return whether a directory set aside may belong to a topic; if its name is shortened, only the start is compared."""
    try:
        its_topic, _ = parse_partition_dir(name)
    except ValueError:
        return False
    return its_topic == topic or (is_shortened(name) and topic.startswith(its_topic))


def is_shortened(name: str) -> bool:
    """Return whether the name of a directory set aside may hold only the start of the topic (`UnifiedLog.logDeleteDirName`)."""
    return len(name) == MAX_NAME_LENGTH and set_aside_suffix(name) in (DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)


def set_aside_suffix(name: str) -> str:
    """Return the suffix `-delete`, `-future` or `-stray` of a directory's name, else `""`."""
    for suffix in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX):
        if name.endswith(suffix):
            return suffix
    return ""


def parse_partition_dir(name: str) -> tuple[str, int]:
    """Return `(topic, partition)` of a partition's directory, in use or set aside (`LocalLog.parseTopicPartitionName`).

    Raises ValueError for any other name. Kafka refuses to start on such a directory, so we must not create one.
    """
    stem = name
    if set_aside_suffix(name):
        if _SET_ASIDE.fullmatch(name) is None:
            raise ValueError(f"directory {name!r}: expected topic-partition.uniqueId{set_aside_suffix(name)}")
        stem = name[: name.rindex(".")]
    topic, dash, partition = stem.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()):
        raise ValueError(f"directory {name!r}: expected topic-partition, such as my-topic-0")
    number = int(partition)
    if number > 0x7FFF_FFFF:
        raise ValueError(f"directory {name!r}: partition {number} does not fit in 32 bits")
    return topic, number

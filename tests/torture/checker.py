"""The check: what lies in a data directory against what was answered. It shares no code with the product."""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tests.torture.batches import Damaged, Record, bounds, records
from tests.torture.history import Finding, History, Partition, Sent, Transaction

BASE = re.compile(r"\d{20}")
TOP = re.compile(
    r"\.lock|\.kafka_cleanshutdown|meta\.properties|bootstrap\.checkpoint|[a-z-]+-checkpoint|diamant-(clock|hash-key|snapshots)|"
    r"diamant-(erasure|redaction)-[\w-]+(\.[a-z-]+)?\.json(\.pending)?|diamant-(erasure|redaction)-[\w-]+\.(intent|remains)"
)
IN_PARTITION = re.compile(
    r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|leader-epoch-checkpoint|partition\.metadata|diamant-(\d{20}\.facts|first-appends)"
)
INTERNAL = re.compile(r"__(cluster_metadata|consumer_offsets|transaction_state|share_group_state)-\d+")
WAITING = re.compile(r".*(\.deleted|\.cleaned|\.swap|-delete|\.part)|diamant-staging-.*")
"""Names of what is about to be removed or renamed; a round on Spark goes on when the request for it is cut."""
ATTEMPTS, PAUSE_S = 1000, 0.02
SMALL_BYTES = 1 << 20
"""Of files whose records are kept from check to check: most do not change, and large ones have few records."""
ABORTED = struct.Struct(">hqqqq")
GONE = {"values-gone": False, "key-gone": True, "records-gone": False}
"""States of certificates, and whether they say that the key is gone, too."""


def partitions_of(data: Path) -> dict[Partition, list[Record]]:
    """Decode every log that is no internal one."""
    found = {}
    for directory in sorted(data.iterdir()):
        topic, _, index = directory.name.rpartition("-")
        if directory.is_dir() and index.isdigit() and not INTERNAL.fullmatch(directory.name):
            found[topic, int(index)] = wait_for_log(directory)
    return found


def wait_for_log(directory: Path) -> list[Record]:
    """Decode the segments of a partition; offsets count up. If they are being replaced, read again."""
    for _ in range(ATTEMPTS):
        before = _state(directory)
        with suppress(FileNotFoundError):
            found = _log_of(directory)
            if _state(directory) == before and not _is_exchanging({name for name, _ in before}):
                return found
        time.sleep(PAUSE_S)
    raise Finding(f"{directory.name} never rests")


def _state(directory: Path) -> set[tuple[str, int]]:
    with suppress(FileNotFoundError):
        return {(entry.name, entry.inode()) for entry in os.scandir(directory)}
    return set()


def _is_exchanging(names: set[str]) -> bool:
    """True while a segment is renamed that replaces others which have been."""
    return any(
        name.endswith(("log.swap", "txnindex.swap")) and name.removesuffix(".swap") not in names for name in names
    )


def _log_of(directory: Path) -> list[Record]:
    found: list[Record] = []
    for path in sorted(directory.glob("*.log")):
        try:
            data = path.read_bytes()
            read = _records(data) if len(data) < SMALL_BYTES else tuple(records(data))
        except Damaged as error:
            raise Finding(f"{path.parent.name}/{path.name}: {error}") from error
        if read and read[0].offset < int(path.stem):
            raise Finding(f"{path}: begins with {read[0].offset}")
        found += read
    for one, two in itertools.pairwise(found):
        if two.offset <= one.offset:
            raise Finding(f"{directory.name}: {two.offset} comes after {one.offset}")
    check_indexes(directory, found)
    return found


@lru_cache(maxsize=500)
def _records(data: bytes) -> tuple[Record, ...]:
    return tuple(records(data))


def check(data: Path, history: History) -> dict[Partition, list[Record]]:
    """Finding, unless everything that was answered is kept; the logs. The broker takes no requests, or is stopped."""
    issued = certificates(data)  # first: a certificate says nothing of logs that were read before it was issued
    logs = partitions_of(data)
    if lacking := missing(data, history):
        raise Finding(f"partitions are missing: {lacking}")
    for name, topic in history.topics.items():
        there = {index for each, index in logs if each == name}
        if topic.is_deleted and there:
            raise Finding(f"{name} was deleted, and has partitions {there}")
    visible: dict[Partition, set[bytes]] = {}
    for partition, log in logs.items():
        if partition[0] not in history.topics:
            raise Finding(f"nobody asked for {partition}")
        topic = history.topics[partition[0]]
        sent = history.sent.get(partition, {})
        check_sent(partition, log, sent)
        visible[partition] = {record.value for record in committed(log) if record.value is not None}
        if topic.is_compacted:
            check_latest(partition, log, sent, set(history.forgotten.values()))
        elif topic.is_created:
            check_whole(partition, log, sent, set(history.forgotten.values()))
    for partition, sent in history.sent.items():
        topic = history.topics[partition[0]]
        if topic.is_deleted is False and partition not in logs and any(one.offset >= 0 for one in sent.values()):
            raise Finding(f"{partition} is gone")
    for transaction in history.transactions:
        check_transaction(transaction, visible, history)
    check_certificates(data, history, logs, issued)
    return logs


def missing(data: Path, history: History) -> list[str]:
    """Return the partitions of topics that were created which have no directory."""
    wanted = [
        f"{name}-{index}"
        for name, topic in history.topics.items()
        if topic.is_deleted is False and topic.is_created
        for index in range(topic.partitions)
    ]
    return [name for name in wanted if not (data / name).is_dir()]


def check_indexes(directory: Path, log: list[Record]) -> None:
    """Offset indexes point to batches; the index of aborted transactions has every transaction that was aborted."""
    for path in directory.glob("*.index"):
        batches = dict(bounds(path.with_suffix(".log").read_bytes()))
        index = path.read_bytes()
        for at in range(0, len(index) // 8 * 8, 8):
            offset, position = struct.unpack_from(">ii", index, at)
            first, last = batches.get(position, (-1, -1))
            if (offset or position or not at) and not first <= int(path.stem) + offset <= last:
                raise Finding(f"{path}: offset {offset} at {position}: there is {first} to {last}")
    known = set()
    for path in directory.glob("*.txnindex"):
        index = path.read_bytes()
        for at in range(0, len(index) // ABORTED.size * ABORTED.size, ABORTED.size):
            _, producer, _, last, _ = ABORTED.unpack_from(index, at)
            known.add((producer, last))
    has_data = set()
    for record in log:
        if record.commits is None and record.is_transactional:
            has_data.add(record.producer_id)
        elif (
            record.commits is False
            and record.producer_id in has_data
            and (record.producer_id, record.offset) not in known
        ):
            raise Finding(f"{directory.name}: the transaction that was aborted at {record.offset} is not in the index")
        elif record.commits is not None:
            has_data.discard(record.producer_id)


def check_sent(partition: Partition, log: list[Record], sent: dict[bytes, Sent]) -> None:
    """Every record is one that was sent, is there once, and where it was acknowledged; each producer's are in order."""
    seen: set[bytes] = set()
    last: dict[str, int] = defaultdict(lambda: -1)
    for record in log:
        if record.commits is not None or record.value is None:
            continue
        one = sent.get(record.value)
        if one is None or one.key != record.key:
            raise Finding(f"{partition}, offset {record.offset}: was not sent: {record.key!r} {record.value[:60]!r}")
        if record.value in seen:
            raise Finding(f"{partition}, offset {record.offset}: is there twice: {record.value[:60]!r}")
        if one.offset not in (-1, record.offset):
            raise Finding(
                f"{partition}, offset {record.offset}: was acknowledged at {one.offset}: {record.value[:60]!r}"
            )
        if one.number <= last[one.producer]:
            raise Finding(f"{partition}, offset {record.offset}: comes out of order: {record.value[:60]!r}")
        seen.add(record.value)
        last[one.producer] = one.number


def check_whole(partition: Partition, log: list[Record], sent: dict[bytes, Sent], forgotten: set[bytes]) -> None:
    """Without compaction everything acknowledged is there, and no offset is missing but of records that were redacted."""
    there = {record.value for record in log}
    for one in sent.values():
        if one.offset >= 0 and one.value not in there and one.key not in forgotten:
            raise Finding(f"{partition}: record {one.offset} was acknowledged and is gone: {one.value[:60]!r}")
    if not any(one.key in forgotten for one in sent.values()):
        for offset, record in enumerate(log):
            if record.offset != offset:
                raise Finding(f"{partition}: {record.offset} in place of offset {offset}")


def check_latest(partition: Partition, log: list[Record], sent: dict[bytes, Sent], forgotten: set[bytes]) -> None:
    """With compaction the last acknowledged record of each key is there, or a later one, whose answer was lost."""
    latest: dict[bytes | None, Sent] = {}
    for one in sorted(sent.values(), key=lambda one: one.offset):
        if one.offset >= 0:
            latest[one.key] = one
    last = {record.key: record.offset for record in log}
    for key, one in latest.items():
        if last.get(key, -1) < one.offset and key not in forgotten:
            raise Finding(f"{partition}: the last record of {key!r}, offset {one.offset}, is gone")


def committed(log: Iterable[Record]) -> list[Record]:
    """The records that a reader of committed ones gets."""
    found: list[Record] = []
    pending: dict[int, list[Record]] = defaultdict(list)
    for record in log:
        if record.commits is not None:
            ended = pending.pop(record.producer_id, [])
            found += ended if record.commits else []
        elif record.is_transactional:
            pending[record.producer_id].append(record)
        else:
            found.append(record)
    return found


def check_transaction(transaction: Transaction, visible: dict[Partition, set[bytes]], history: History) -> None:
    """All of it or nothing, and what was answered."""
    parts = {
        partition: [value in visible.get(partition, ()) for value in values]
        for partition, values in transaction.values.items()
        if history.topics[partition[0]].is_deleted is False
    }
    shown = [one for part in parts.values() for one in part]
    if any(shown) and not all(shown):
        raise Finding(f"a part of a transaction is committed: {parts}")
    if any(shown) and not transaction.wants_commit:
        raise Finding(f"a transaction is committed that never was: {transaction.values}")
    if transaction.is_answered and transaction.wants_commit and not all(shown):
        raise Finding(f"a committed transaction is not visible: {transaction.values}")


def unowned(data: Path, history: History) -> list[str]:
    """Return the names of files that are no partition's, no segment's, not the broker's own, and not `waiting`.

    As in Kafka a crash may leave the `.tmp` of a checkpoint, which the next one replaces. While a round renames files, a listing
    may have some of a segment's old names and some of its new ones.
    """
    found: list[str] = []
    for path in sorted(data.iterdir()):
        if WAITING.fullmatch(path.name):
            continue
        if not path.is_dir():
            if path.name not in history.planted and not TOP.fullmatch(path.name.removesuffix(".tmp")):
                found.append(path.name)
            continue
        if not INTERNAL.fullmatch(path.name) and path.name.rpartition("-")[0] not in history.topics:
            found.append(path.name)
        names = {each.name for each in path.iterdir()}
        if path.name.startswith("__cluster_metadata"):
            continue
        bases = {name[:20] for name in names if name.endswith(".log")}
        for name in names:
            base = BASE.search(name)
            if WAITING.fullmatch(name):
                continue
            has_segment = not base or base[0] in bases or name.endswith(".snapshot")
            if not has_segment or not IN_PARTITION.fullmatch(name.removesuffix(".tmp")):
                found.append(f"{path.name}/{name}")
    return found


def waiting(data: Path) -> list[Path]:
    """Return what waits to be removed or renamed: soon it is none."""
    return [
        Path(place, name)
        for place, below, files in os.walk(data)
        for name in (*below, *files)
        if WAITING.fullmatch(name)
    ]


def certificates(data: Path) -> list[dict[str, object]]:
    """Those of a directory."""
    return [json.loads(path.read_text()) for path in sorted(data.glob("diamant-*-*.json"))]


def check_certificates(
    data: Path, history: History, logs: dict[Partition, list[Record]], issued: list[dict[str, object]]
) -> None:
    """No value of a key that is certified to be gone is in any file; no answered certificate is lost."""
    states: dict[str, set[str]] = defaultdict(set)
    for certificate in issued:
        request = certificate["request"]
        assert isinstance(request, dict)
        states[request["reference"]].add(str(certificate["state"]))
    for reference, state in history.certified.items():
        if state not in states[reference]:
            raise Finding(f"the certificate of {reference}, {state}, is gone: {states[reference]}")
    for reference, found in states.items():
        key = history.forgotten.get(reference)  # none: of an earlier epoch of a soak
        if key is None or not found & GONE.keys():
            continue
        wanted = [one.value for sent in history.sent.values() for one in sent.values() if one.key == key]
        is_key_gone = any(GONE.get(state) for state in found)
        check_gone(data, logs, key, wanted, is_key_gone=is_key_gone)


def check_gone(
    data: Path, logs: dict[Partition, list[Record]], key: bytes, values: list[bytes], *, is_key_gone: bool
) -> None:
    """Search for the bytes in every file, and for the key in every record."""
    wanted = [key, *values] if is_key_gone else values
    for place, _, files in os.walk(data):
        for name in files:
            content = b""
            with suppress(FileNotFoundError):
                content = Path(place, name).read_bytes()
            for one in wanted:
                if one in content:
                    raise Finding(f"certified to be gone, and in {place}/{name}: {one[:60]!r}")
    for partition, log in logs.items():
        for record in log:
            if record.key == key and (is_key_gone or record.value is not None):
                raise Finding(f"certified to be gone, and at {partition}, {record.offset}: {key!r}")

"""Disk certificates: searches the log directories of a running Kafka broker for the key of an erasure, and certifies the result.

Read-only, at a limited rate. Uses the same scan as for a Diamant's own directory (`cleaner.evidence.scan`). The scan runs on the
machine with the disks, and needs the signing key and the secret of the erasure. `join` adds disk certificates to the certificate
of the cluster.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from struct import Struct
from tempfile import TemporaryDirectory

from diamant.broker.clusters.certificate import issued
from diamant.broker.operation_errors import BadArgument, NotGenuine, NotPossible
from diamant.cleaner.evidence.certificates import broker_files, cluster_claims
from diamant.cleaner.evidence.certificates.certificate import (
    CLUSTER_TYPE,
    DISK_TYPE,
    INVALID,
    TRUSTED,
    VERSION,
    canonical,
    check_signature,
    sign_certificate,
)
from diamant.cleaner.evidence.certificates.claim_checks import disown, doubt_about
from diamant.cleaner.evidence.certificates.cluster_claims import contradictions, disk_state, with_disks, without_disk
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.report import NOT_THERE, ScanReport, written_since_fields
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search.file_census import Identity, file_identity
from diamant.cleaner.evidence.search.findings import TOMBSTONE, Finding
from diamant.cleaner.evidence.search.needles import KEY, Needles, keyed_digest
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import READ_BYTES, Subject
from diamant.json_types import JsonObject
from diamant.protocol.batches.header import LAST_OFFSET_DELTA, LOG_OVERHEAD
from diamant.storage import names
from diamant.storage.certificate_states import KEY_GONE, VALUES_GONE
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.properties import parse_properties

NOT_COVERED = (
    "Other log directories of this broker, and copies of its disks: mirrors, backups, snapshots.",
    "Disk blocks below the file system, which may keep the bytes of removed files until they are overwritten.",
    "Copies of the values outside of records of the key: this search knows the key, not the values.",
    "Records that were written at or above the offsets where the claims end, and what the broker writes after this search.",
)


_PREFIX, _DELTA = Struct(">qi"), Struct(">i")
_HEAD_BYTES = LAST_OFFSET_DELTA + _DELTA.size


def log_ends(env: Env, directory: str) -> dict[TopicPartition, LogEnd]:
    """Return where the complete batches of each log end. Omits a log whose last segment cannot be read. Blocking."""
    found = {}
    for name in sorted(env.list_dir(directory)):
        path = f"{directory}/{name}"
        if names.set_aside_suffix(name) or not env.is_dir(path):
            continue
        try:
            partition = names.parse_partition_dir(name)
        except ValueError:
            continue
        files = map(names.parse_segment_file, env.list_dir(path))
        bases = [one.offset for one in files if one is not None and one.suffix == names.LOG_SUFFIX and not one.stage]
        if bases and (end := _end(env, path, max(bases))) is not None:
            found[partition] = end
    return found


def _end(env: Env, path: str, base_offset: int) -> LogEnd | None:
    try:
        file = env.open(names.log_file(path, base_offset), read_only=True)
    except OSError:
        return None
    try:
        size, position, next_offset = file.size(), 0, base_offset
        while position + _HEAD_BYTES <= size:
            head = file.pread(_HEAD_BYTES, position)
            if len(head) < _HEAD_BYTES:
                break
            offset, length = _PREFIX.unpack_from(head)
            if length <= 0 or position + LOG_OVERHEAD + length > size:
                break
            is_current = head[16] == 2
            next_offset = offset + 1 + (_DELTA.unpack_from(head, LAST_OFFSET_DELTA)[0] if is_current else 0)
            position += LOG_OVERHEAD + length
    except OSError:
        return None
    finally:
        file.close()
    return LogEnd(next_offset, base_offset, position, partial(_size, path), partial(_has_file, env, path))


def _size(path: str, base_offset: int) -> int | None:
    try:
        return os.stat(names.log_file(path, base_offset)).st_size
    except OSError:
        return None


def _has_file(env: Env, path: str, base_offset: int, identity: Identity) -> bool:
    try:
        return file_identity(env, names.log_file(path, base_offset))[0] == identity
    except OSError:
        return False


class ReadLimit:
    """A rate limit for a scan in one thread: `advance` counts the bytes read, `check` sleeps. A rate of 0 means no limit.

    `on_bytes` is called after each file, with the number of bytes read from it.
    """

    def __init__(
        self,
        bytes_per_second: int,
        on_bytes: Callable[[int], object] = lambda count: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._on_bytes = on_bytes
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock()
        self._bytes = self._done = 0
        self._checks = 0

    def advance(self, done: int, _total: int) -> None:
        """Record `done`, the number of bytes that the scan has read so far. Called at the end of each file."""
        count = done - self._done if done >= self._done else done
        self._bytes, self._done, self._checks = self._bytes + count, done, 0
        self._on_bytes(count)

    def check(self) -> None:
        """Sleep if more was read than the rate allows. Called at the start of a file, and then after at most `READ_BYTES`."""
        if self._rate:
            read = self._bytes + self._checks * READ_BYTES
            self._sleep(max(0.0, self._began_s + read / self._rate - self._clock()))
        self._checks += 1


def certify_disks(
    env: Env,
    directories: Sequence[str],
    erasure: Mapping[str, object],
    key: bytes,
    signing: SigningKey,
    limit: ReadLimit,
) -> JsonObject:
    """Search the log directories of one broker, and return its disk certificate. Blocking.

    `erasure` is the certificate of the cluster, which must be signed with the same key: otherwise, raises NotGenuine. Raises
    BadArgument for another key or other directories, and NotPossible if the certificate names no replica on this broker.
    """
    certificate = checked(erasure, signing, CLUSTER_TYPE)
    request = certificate["request"]
    if keyed_digest(signing.secret, key).hex() != request["key_hmac"]:
        raise BadArgument("the certificate is about another key, or the secret beside the signing key is the wrong one")
    began_ms = time.time_ns() // 1_000_000
    broker = _broker_of(env, directories, certificate["issuer"]["cluster_id"])
    mine = [
        one
        for one in (*certificate["claims"], *certificate["not_certified"])
        if any(row["broker"] == broker for row in one["replicas"])
    ]
    if not mine:
        raise NotPossible(f"the certificate names no replica on broker {broker}, which owns these directories")
    reports = {one: _scan(env, one, certificate, key, signing, limit) for one in directories}
    claims, refused = list[JsonObject](), list[JsonObject]()
    for one in mine:
        place = {name: one[name] for name in ("topic", "partition", "below_offset")}
        state, problems = _judge(env, reports, certificate, place)
        if problems:
            refused.append({**place, "state": state, "problems": problems})
        else:
            claims.append({**place, "state": state})
    since, unlisted = list[Finding](), 0
    for one, report in product(mine, reports.values()):
        partition, end = (one["topic"], one["partition"]), one["below_offset"]
        since += report.written_since(partition, end)
        unlisted += report.unlisted_since(partition, end)
    fields = {
        "type": DISK_TYPE,
        "version": VERSION,
        "id": f"{certificate['id']}-{broker}",
        **issued(certificate["issuer"]["cluster_id"], began_ms),
        "erasure": _named(certificate),
        "broker": broker,
        "request": request,
        "state": disk_state({one["state"] for one in claims}, is_complete=not refused),
        "claims": claims,
        "not_certified": refused,
        **written_since_fields(since, unlisted),
        "coverage": {
            "known_positives": {
                "planted": sum(report.planted for report in reports.values()),
                "seen": sum(report.seen for report in reports.values()),
            },
            "directories": [
                {"directory": one, **report.coverage(frozenset(request["topics"]))} for one, report in reports.items()
            ],
        },
        "not_covered": [
            *NOT_COVERED,
            *{text for report in reports.values() for text in broker_files.not_covered(report)},
        ],
    }
    return sign_certificate(fields, signing)


def join(erasure: Mapping[str, object], disks: Sequence[Mapping[str, object]], signing: SigningKey) -> JsonObject:
    """Add disk certificates, which `disk_of` has checked, to a cluster's certificate. Raises the errors of `checked`."""
    certificate = checked(erasure, signing, CLUSTER_TYPE)
    by_broker = {disk["broker"]: disk for disk in (*certificate.get("disks", ()), *disks)}
    fields = {
        **{name: value for name, value in certificate.items() if name != "signature"},
        **issued(certificate["issuer"]["cluster_id"], certificate["clock"]["requested_ms"]),
        "erasure": _named(certificate),
        "disks": [by_broker[broker] for broker in sorted(by_broker)],
    }
    fields["without_disk"] = without_disk(fields)
    if not fields["without_disk"]:
        rest = [text for text in certificate["not_covered"] if text != cluster_claims.NOT_COVERED[0]]
        fields["not_covered"] = list(dict.fromkeys([*NOT_COVERED, *rest]))
    fields["state"] = with_disks(fields)
    return sign_certificate(fields, signing)


def disk_of(certificate: JsonObject, disk: Mapping[str, object], signing: SigningKey) -> JsonObject:
    """Check a disk certificate, and return it. Raises BadArgument if it does not belong to `certificate`, or as `checked`."""
    found = checked(disk, signing, DISK_TYPE)
    if found["erasure"] != _named(certificate):
        raise BadArgument(
            f"the certificate of the disk of broker {found['broker']} belongs to erasure {found['erasure']['id']}, or to an "
            "earlier certificate of it: search the disk again with this certificate"
        )
    return found


def checked(certificate: Mapping[str, object], signing: SigningKey, kind: str) -> JsonObject:
    """Check a certificate and return it. Raises BadArgument for a wrong type, NotGenuine for a bad signature or content."""
    if certificate.get("type") != kind:
        raise BadArgument(f"expected a certificate of type {kind}, got {certificate.get('type')}")
    signature = check_signature(certificate, signing.public_bytes)
    if signature != TRUSTED:
        also = "" if signature == INVALID else ": use the signing key of the erasure"
        raise NotGenuine(f"{signature}{also}")
    try:
        problems = contradictions(certificate)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotGenuine(f"it is signed, but not in the expected form: {error!r}") from None
    if problems:
        raise NotGenuine(f"its statements do not add up: {problems[0]}")
    return dict(certificate)


def _named(certificate: JsonObject) -> JsonObject:
    """Return the id and digest by which disk certificates refer to an erasure's certificate. `join` does not change them."""
    if "erasure" in certificate:
        return dict(certificate["erasure"])
    return {"id": certificate["id"], "sha256": hashlib.sha256(canonical(certificate)).hexdigest()}


def _broker_of(env: Env, directories: Sequence[str], cluster_id: str) -> int:
    """Return the id of the broker that owns the directories. Raises BadArgument unless one broker of the cluster owns all."""
    owners = set()
    for directory in directories:
        path = f"{directory}/{names.META_PROPERTIES}"
        try:
            found = parse_properties(env.read_bytes(path).decode("latin-1"))
        except FileNotFoundError:
            raise BadArgument(
                f"{directory} has no {names.META_PROPERTIES}: expected a log directory of a broker"
            ) from None
        owner, known = found.get("node.id") or found.get("broker.id", ""), found.get("cluster.id")
        if known != cluster_id:
            raise BadArgument(f"{directory} belongs to cluster {known}, but the certificate is about {cluster_id}")
        if not owner.isascii() or not owner.isdigit():
            raise BadArgument(f"{path} names no broker: expected node.id or broker.id")
        owners.add(int(owner))
    if len(owners) != 1:
        raise BadArgument(f"expected the directories of one broker, but these belong to brokers {sorted(owners)}")
    return owners.pop()


def _scan(
    env: Env, directory: str, certificate: JsonObject, key: bytes, signing: SigningKey, limit: ReadLimit
) -> ScanReport:
    needles = Needles(signing.secret)
    needles.add(KEY, key)
    subject = Subject(key, frozenset(certificate["request"]["topics"]), needles)
    with TemporaryDirectory(prefix="diamant-certify-") as prove_in:
        [report] = scan_directory(
            env,
            directory,
            [subject],
            log_ends(env, directory),
            threads=1,
            advance=limit.advance,
            check=limit.check,
            prove_in=prove_in,
        )
    disown(certificate, report, subject, env, directory)
    broker_files.set_names_aside(report, env, directory, needles)
    return report


def _judge(
    env: Env, reports: Mapping[str, ScanReport], certificate: JsonObject, place: Mapping[str, object]
) -> tuple[str, list[JsonObject]]:
    """Return the state of a partition over all directories, and the problems that rule out a claim about it."""
    partition, end = (str(place["topic"]), int(str(place["partition"]))), int(str(place["below_offset"]))
    states, problems = set[str](), list[JsonObject]()
    doubts = {one: doubt_about(certificate, env, one, partition) for one in reports}
    for directory, report in reports.items():
        if partition not in report.partitions and not report.problems(partition) and not report.in_the_way:
            continue
        state = report.state(partition, end, certificate["request"]["key_hmac"])
        has_later = report.tombstones_since(partition, end) or report.unlisted_since(partition, end, (TOMBSTONE,))
        if state == KEY_GONE and has_later:
            state = (
                VALUES_GONE  # A tombstone above the claim's end, written by a resumed erasure, contains the key, too.
            )
        states.add(state)
        if doubts[directory] not in ("", NOT_THERE):
            problems.append(
                {"file": f"{directory}/{names.partition_dir_name(*partition)}", "reason": doubts[directory]}
            )
        if state not in (VALUES_GONE, KEY_GONE):
            reasons = report.reasons(partition, end, may_stay=TOMBSTONE)
            problems += [{**one, "file": f"{directory}/{one['file']}"} for one in reasons]
            problems = problems or [{"file": directory, "reason": state}]
    if all(doubt == NOT_THERE for doubt in doubts.values()):
        missing = names.partition_dir_name(*partition)
        problems.append(
            {"file": missing, "reason": "none of the directories has it: give all log directories of the broker"}
        )
        states.add(NOT_THERE)
    bad = states - {VALUES_GONE, KEY_GONE}
    return (min(bad) if bad else VALUES_GONE if VALUES_GONE in states else KEY_GONE), problems

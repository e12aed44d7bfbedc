"""Erase a key and certify that it is gone: `broker.erase(key, topics, reason=...)`.

    erasure = await broker.erase(b"customer-42", ["users"], reason="GDPR Art. 17")
    erasure.state, erasure.next_due_ms, erasure.certificate

What happens, and what a broker that is stopped in between goes on with at its next start (`intent`):

    writing     the key is located in every partition; tombstones are written where a value has none yet
    removing    the partitions are compacted, what waits to be deleted is deleted at once, everything is scanned:
                the certificate for `values-gone`
    waiting     for the tombstones' horizon; then another round, the intent goes, everything is scanned again:
                the certificate for `key-gone`

A claim ends behind the tombstone. What was written behind it is named, and not erased. A partition in which something cannot be
read, or in which a value is left, gets no claim. What cannot be finished in time goes on every `RETRY_MS`.

One erasure at a time; bounds: `MAX_WAITING` calls wait for their turn, `MAX_UNFINISHED` wait for a horizon.
No text of an error and no line of the log holds a key or a value.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from diamant import __version__
from diamant.broker.topics import INTERNAL_TOPICS
from diamant.broker.verbs.calling import on_loop
from diamant.broker.verbs.errors import BadArgument, NotFound, NotPossible, TimedOut, TooMany, VerbError
from diamant.broker.verbs.progress import Progress
from diamant.cleaner.evidence import certificate as certificates
from diamant.cleaner.evidence.intent import (
    PREFIX,
    REMOVING,
    WAITING,
    WRITING,
    Intent,
    intent_ids,
    read_intent,
    remove_intent,
    write_intent,
)
from diamant.cleaner.evidence.key_removal import write_without
from diamant.cleaner.evidence.locate import Located, locate_key
from diamant.cleaner.evidence.needles import MIN_BYTES, Needle, Needles
from diamant.cleaner.evidence.record_search import MAX_LISTED, Subject
from diamant.cleaner.evidence.scan import (
    KEY_GONE,
    VALUES_GONE,
    VALUES_PRESENT,
    LogEnd,
    ScanReport,
    scan_directory,
    scan_partitions,
)
from diamant.cleaner.evidence.signing_key import SigningKey, default_path
from diamant.cleaner.evidence.verification import Verification, verify_certificate
from diamant.cleaner.service_settings import HASH_KEY_FILE
from diamant.protocol.errors import KafkaError
from diamant.protocol.records import Record, build_batch
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition
from diamant.storage.clock import SystemClock
from diamant.storage.errors import StorageError
from diamant.storage.log import Log
from diamant.storage.replace import Replacement

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

logger = logging.getLogger(__name__)

NOT_CERTIFIED = "not-certified"
"""State of a certificate of which no partition, or not every one, has a claim."""

DEFAULT_TIMEOUT_MS = 600_000
RETRY_MS = 60_000
"""What could not be finished is tried again this much later, on the broker's clock."""
MAX_RETRY_DOUBLINGS = 10
"""How often that pause doubles for an erasure that cannot be certified: up to 17 hours."""
MAX_WAITING = 64
MAX_UNFINISHED = 10_000
MAX_TOPICS = 1_000
MAX_TEXT = 1_000
"""Letters of a reason or reference."""
MAX_KEY_BYTES = 64 * 1024
ROUNDS = 5
"""Compactions that are tried until the values are gone, unless something is waited for."""
LOOK_AGAIN_S = 0.05
TOMBSTONES_PER_TURN = 32
_ID_BYTES = 16

T = TypeVar("T")


class EraseFailed(VerbError):
    """The erasure could not go on; its intent stays, and it is tried again."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What came of a call."""

    id: str
    state: str
    """`values-gone`, `key-gone` or `not-certified`: that of the certificate."""
    certificate: dict[str, Any]
    certificate_path: str
    public_key: str
    """PEM, to be pinned by whoever verifies."""
    next_due_ms: int | None
    """When the certificate for `key-gone` is due; None if there is nothing to come."""
    groups_behind: dict[str, list[str]]
    """By partition, as in `users-0`: the groups whose committed offset is not past the tombstone."""

    @property
    def written_since(self) -> list[dict[str, Any]]:
        """Records of the key that were written behind its tombstone, before the scan."""
        found: list[dict[str, Any]] = self.certificate["written_since"]
        return found

    def to_fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "next_due_ms": self.next_due_ms,
            "groups_behind": self.groups_behind,
            "written_since": self.written_since,
            "certificate": self.certificate,
            "certificate_path": self.certificate_path,
            "public_key": self.public_key,
        }


class Erasures:
    """All erasures of one broker; made with the first one, or at a start that finds one unfinished."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._lock = asyncio.Lock()
        self._calls = 0
        self._signing_key: SigningKey | None = None
        self._due: dict[str, int] = {}
        """Unfinished erasures by id, and when they are to go on."""
        self._running: set[asyncio.Task[Any]] = set()
        self.done = 0
        self.failed = 0
        """Erasures with, and those that ended without, a certificate; since the start."""
        self._located: list[Located] = []
        """What the erasure that has the lock has found."""
        self._is_stopping = False

    # -- any loop --------------------------------------------------------------------------------------------------------

    async def erase(
        self,
        key: bytes,
        topics: Sequence[str],
        *,
        reason: str,
        reference: str = "",
        timeout_ms: int | None = None,
        is_now: bool = False,
        is_forced: bool = False,
        progress: Progress | None = None,
    ) -> Erasure:
        """Erase a key; see `Broker.erase`."""
        return await on_loop(
            self._loop,
            lambda: self._erase(
                key, list(topics), reason, reference, timeout_ms, is_now, is_forced, progress or Progress()
            ),
        )

    async def verify(
        self,
        certificate: Mapping[str, Any],
        *,
        public_key: bytes | None = None,
        key: bytes | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Check a certificate against what the broker holds now. Raises BadArgument for what is no certificate.

        `public_key`: the 32 bytes that are trusted; without them the signer is untrusted.
        """
        return await on_loop(self._loop, lambda: self._verify(certificate, public_key, key, progress or Progress()))

    # -- the loop thread -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take note of what a broker before has left unfinished, and go on with it as soon as it is due."""
        ids = await asyncio.to_thread(intent_ids, self._env, self._directory)
        for intent_id in ids[:MAX_UNFINISHED]:
            try:
                key = await self._key()
                intent = await asyncio.to_thread(read_intent, self._env, self._directory, intent_id, key)
            except (ValueError, StorageError, OSError) as error:
                logger.error("erasure %s is unfinished and cannot be gone on with: %s", intent_id, error)
                continue
            due_ms = self._env.clock.now_ms() if intent.due_ms is None else intent.due_ms
            logger.warning("erasure %s is unfinished (%s), it goes on", intent_id, intent.phase)
            self._schedule(intent_id, due_ms)

    async def stop(self) -> None:
        """End what is under way; its intent stays."""
        self._is_stopping = True
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def next_due_ms(self) -> int | None:
        """When an erasure is to go on; None: never."""
        return None if self._is_stopping else min(self._due.values(), default=None)

    async def go_on(self) -> None:
        """Go on with one erasure that is due."""
        now_ms = self._env.clock.now_ms()
        due = next((one for one, due_ms in self._due.items() if due_ms <= now_ms), None)
        if due is None:
            return
        self._due[due] = now_ms + RETRY_MS
        try:
            await self._tracked(self._resume(due))
        except (VerbError, StorageError, OSError, ValueError) as error:
            logger.warning("erasure %s: not finished, tried again in %d s: %s", due, RETRY_MS // 1000, error)

    def unfinished(self) -> list[dict[str, Any]]:
        """The erasures that are not over."""
        return [{"id": one, "due_ms": due_ms} for one, due_ms in sorted(self._due.items())]

    async def certificates(self) -> list[dict[str, Any]]:
        """The certificates in the data directory, in short."""

        def read() -> list[dict[str, Any]]:
            found = []
            for name in self._env.list_dir(self._directory):
                if not (name.startswith(PREFIX) and name.endswith(".json")):
                    continue
                erasure_id, _, state = name[len(PREFIX) : -len(".json")].partition(".")
                found.append({"id": erasure_id, "state": state, "path": f"{self._directory}/{name}"})
            return found

        return await asyncio.to_thread(read)

    async def certificate(self, erasure_id: str) -> dict[str, Any]:
        """The last certificate of an erasure. Raises NotFound."""
        if not erasure_id.isalnum():
            raise NotFound("there is no such certificate")
        for state in (KEY_GONE, VALUES_GONE, NOT_CERTIFIED):
            path = self._certificate_path(erasure_id, state)
            try:
                return certificates.parse(await asyncio.to_thread(self._env.read_bytes, path))
            except FileNotFoundError:
                continue
        raise NotFound("there is no such certificate")

    async def public_key(self) -> str:
        """The public key as PEM."""
        return (await self._key()).public_pem

    @property
    def _env(self) -> Any:
        return self._broker.env

    @property
    def _directory(self) -> str:
        return self._broker.config.data_dir

    async def _key(self) -> SigningKey:
        if self._signing_key is None:
            path = self._broker.config["diamant.certificate.key.file"]
            self._signing_key = await asyncio.to_thread(SigningKey.load, str(path) if path else default_path())
        return self._signing_key

    def _schedule(self, intent_id: str, due_ms: int) -> None:
        self._due[intent_id] = due_ms
        self._broker.scheduler.poke()

    async def _tracked(self, coroutine: Any) -> Any:
        task = self._loop.create_task(coroutine)
        self._running.add(task)
        try:
            return await task
        finally:
            self._running.discard(task)

    # -- a call ----------------------------------------------------------------------------------------------------------

    async def _erase(
        self,
        key: bytes,
        topics: list[str],
        reason: str,
        reference: str,
        timeout_ms: int | None,
        is_now: bool,
        is_forced: bool,
        progress: Progress,
    ) -> Erasure:
        self._check_texts(key, reason, reference)
        topics = sorted(set(topics))
        self._check_topics(topics)
        if self._calls >= MAX_WAITING or len(self._due) >= MAX_UNFINISHED:
            raise TooMany("too many erasures wait already, try again when some of them are over")
        self._calls += 1
        try:
            signing_key = await self._usable_key()
            intent = Intent(
                id=os.urandom(_ID_BYTES).hex(),
                phase=WRITING,
                key=key,
                topics=topics,
                reason=reason,
                reference=reference,
                requested_ms=self._env.clock.now_ms(),
                is_now=is_now,
                is_forced=is_forced,
                is_manual_clock=not isinstance(self._env.clock, SystemClock),
            )
            limit_ms = DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    found: Erasure = await self._tracked(self._run(intent, signing_key, progress))
                    return found
            except TimeoutError:
                self.failed += 1
                raise TimedOut(
                    f"erasure {intent.id} was not certified within {limit_ms} ms; "
                    + ("it goes on in the broker" if intent.id in self._due else "nothing was changed")
                ) from None
            except (StorageError, OSError) as error:
                self.failed += 1
                raise EraseFailed(f"erasure {intent.id} could not go on: {_reason(error)}") from None
            except VerbError:
                self.failed += 1
                raise
        finally:
            self._calls -= 1

    def _check_texts(self, key: bytes, reason: str, reference: str) -> None:
        if len(key) > MAX_KEY_BYTES:
            raise BadArgument(f"the key has {len(key)} bytes, at most {MAX_KEY_BYTES} are possible")
        if not reason.strip():
            raise BadArgument("reason is missing: it stands in the certificate, as in 'GDPR Art. 17'")
        if max(len(reason), len(reference)) > MAX_TEXT:
            raise BadArgument(f"reason and reference may have {MAX_TEXT} letters each")

    def _check_topics(self, topics: Sequence[str]) -> None:
        if not topics:
            raise BadArgument("topics is empty: name those in which the key is to be erased")
        if len(topics) > MAX_TOPICS:
            raise BadArgument(f"{len(topics)} topics are named, at most {MAX_TOPICS} are possible")
        for name in topics:
            topic = self._broker.topics.by_name.get(name)
            if topic is None:
                raise NotFound(f"there is no topic {name[:249]!r}")
            if name in INTERNAL_TOPICS:
                raise NotPossible(f"{name} is internal: its records belong to the broker")
            for log in topic.logs.values():
                if not log.config.is_compacted:
                    raise NotPossible(
                        f"{name} is not compacted, so a tombstone removes nothing from it: set cleanup.policy=compact, or "
                        "compact,delete, or wait for its retention"
                    )
                break

    async def _usable_key(self) -> SigningKey:
        try:
            return await self._key()
        except StorageError as error:
            raise NotPossible(f"there is no key to sign with, nothing was changed: {error}") from None
        except OSError as error:
            raise NotPossible(f"there is no key to sign with, nothing was changed: {_reason(error)}") from None

    async def _resume(self, intent_id: str) -> Erasure:
        key = await self._key()
        intent = await asyncio.to_thread(read_intent, self._env, self._directory, intent_id, key)
        for name in intent.topics:
            if name not in self._broker.topics.by_name:
                # Its partitions are set aside or gone; the scan tells what is left of them.
                logger.warning("erasure %s: topic %s was deleted meanwhile", intent_id, name)
        found: Erasure = await self._run(intent, key, Progress())
        return found

    # -- the phases ------------------------------------------------------------------------------------------------------

    async def _run(self, intent: Intent, key: SigningKey, progress: Progress) -> Erasure:
        async with self._lock:
            intent.is_manual_clock |= not isinstance(self._env.clock, SystemClock)
            subject = self._subject(intent, key)
            if intent.phase == WRITING:
                await self._locate(intent, subject, key, progress)
                await self._write_tombstones(intent, key)
            if intent.phase == REMOVING:
                await self._remove_values(intent, subject, progress)
                erasure = await self._certify_values(intent, subject, key, progress)
                if not intent.is_now or erasure.state != VALUES_GONE:
                    return erasure
            return await self._remove_key(intent, subject, key, progress)

    def _subject(self, intent: Intent, key: SigningKey) -> Subject:
        needles = Needles(key.secret)
        for fields in intent.needles:
            needles.add_needle(Needle.from_fields(fields))
        return Subject(intent.key, frozenset(intent.topics), needles)

    async def _save(self, intent: Intent, key: SigningKey) -> None:
        await asyncio.to_thread(write_intent, self._env, self._directory, intent, key)

    async def _locate(self, intent: Intent, subject: Subject, key: SigningKey, progress: Progress) -> None:
        progress.begin("locating the key", unit="bytes")
        ends = self._ends()
        located, _ = await asyncio.to_thread(
            locate_key,
            self._env,
            self._directory,
            subject,
            ends,
            self._partitions(intent),
            hash_key=await asyncio.to_thread(self._hash_key),
            advance=progress.move_to,
        )
        intent.needles = [needle.to_fields() for needle in subject.needles]
        if not intent.found:
            intent.found = [one.to_fields() for one in located]
            files = sorted({name for one in located for name in one.files})
            intent.before = await asyncio.to_thread(self._digests, files, ends)
        self._located = located
        await self._save(intent, key)
        self._schedule(intent.id, self._env.clock.now_ms() + RETRY_MS)

    def _hash_key(self) -> bytes | None:
        """The key of the filters; None if there are none."""
        try:
            found: bytes = self._env.read_bytes(f"{self._directory}/{HASH_KEY_FILE}")
            return found
        except OSError:
            return None

    async def _write_tombstones(self, intent: Intent, key: SigningKey) -> None:
        by_partition = {(one.topic, one.partition): one for one in self._located}
        claims, done = [], []
        for count, partition in enumerate(self._partitions(intent), start=1):
            log = self._log(partition)
            if log is None:
                continue
            one = by_partition.get(partition)
            offset = self._write_tombstone(log, intent.key) if one is not None and one.needs_tombstone else None
            # What lies behind the tombstone was written after it.
            claims.append({"topic": log.topic, "partition": log.partition, "below_offset": log.log_end_offset})
            if one is not None:
                done.append(self._step(one, offset))
            if count % TOMBSTONES_PER_TURN == 0:
                await asyncio.sleep(0)
        intent.claims, intent.done = claims, done
        intent.phase = REMOVING
        await self._save(intent, key)

    def _step(self, one: Located, offset: int | None) -> dict[str, Any]:
        step: dict[str, Any] = {"topic": one.topic, "partition": one.partition}
        if offset is None:
            step["tombstone"] = f"one was there already, at offset {one.last_tombstone_offset}"
        else:
            step["tombstone_offset"] = offset
        return step

    def _write_tombstone(self, log: Log, key: bytes) -> int:
        batch = build_batch([Record(0, self._env.clock.now_ms(), key, None)])
        try:
            appended = log.append_as_leader(memoryview(batch))
        except KafkaError as error:
            raise EraseFailed(f"{log.topic}-{log.partition}: the tombstone cannot be written: {error}") from None
        self._broker.log_changed(log)
        return appended.base_offset

    async def _remove_values(self, intent: Intent, subject: Subject, progress: Progress) -> None:
        """Compact until no value is left below the claims, or until that cannot be had."""
        affected = [(one["topic"], one["partition"]) for one in intent.found]
        rounds = 0
        while True:
            progress.begin("compacting", len(affected), "partitions")
            for partition in affected:
                if self._log(partition) is not None:
                    await self._compact(intent, partition)
                progress.advance()
            rounds += 1
            removed = await asyncio.to_thread(self._remove_doomed, intent.topics, affected)
            self._count_removed(intent, removed)
            left = await self._left(intent, subject, affected)
            if not left or (rounds >= ROUNDS and not any(self._is_held(intent, one) for one in left)):
                break
            await _wait_a_moment()
        for step in intent.done:
            step["compactions"] = rounds

    async def _compact(self, intent: Intent, partition: TopicPartition, until: str = "clean") -> None:
        try:
            await self._broker.compact(
                *partition, until=until, is_forced=intent.is_forced, return_at_horizon=until != "clean"
            )
        except (TimedOut, NotFound, NotPossible):
            raise
        except VerbError as error:
            # Quarantined, uncleanable: the scan says what is left there.
            logger.warning("erasure %s: %s-%d cannot be compacted: %s", intent.id, *partition, error)

    async def _left(
        self, intent: Intent, subject: Subject, partitions: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions that have a value below their claim's end still."""
        report = await asyncio.to_thread(scan_partitions, self._env, self._directory, subject, self._ends(), partitions)
        digest = subject.key_digest.hex()
        ends = _claim_ends(intent)
        return [one for one in partitions if report.state(one, ends.get(one, 0), digest) == VALUES_PRESENT]

    def _is_held(self, intent: Intent, partition: TopicPartition) -> bool:
        """Tell whether time may help: an open transaction, or `min.compaction.lag.ms`."""
        log = self._log(partition)
        if log is None:
            return False
        end = _claim_ends(intent).get(partition, 0)
        return log.last_stable_offset < end or (log.config.min_compaction_lag_ms > 0 and not intent.is_forced)

    async def _certify_values(self, intent: Intent, subject: Subject, key: SigningKey, progress: Progress) -> Erasure:
        report = await self._scan(subject, progress)
        horizons = [one.horizon_ms for claim in intent.claims for one in report.tombstones(*_claim(claim))]
        known = [one for one in horizons if one is not None]
        now_ms = self._env.clock.now_ms()
        state = self._state(intent, report, subject)
        if state == KEY_GONE:
            await self._finish(intent)
            return await self._issue(intent, subject, key, report, None)
        if state == VALUES_GONE:
            # A tombstone that no round has stamped yet gets its horizon from the next one.
            intent.due_ms = max([*known, *([now_ms + RETRY_MS] if None in horizons else [])], default=now_ms)
            intent.phase = WAITING
        else:
            # Each try scans everything, so what does not get better is tried less and less often.
            intent.due_ms = now_ms + (RETRY_MS << min(intent.retries, MAX_RETRY_DOUBLINGS))
            intent.retries += 1
        await self._save(intent, key)
        self._schedule(intent.id, intent.due_ms)
        return await self._issue(intent, subject, key, report, intent.due_ms)

    async def _remove_key(self, intent: Intent, subject: Subject, key: SigningKey, progress: Progress) -> Erasure:
        """After the horizon, or with `is_now` before: have the tombstones go, then the intent, and scan."""
        affected = [(one["topic"], one["partition"]) for one in intent.found]
        progress.begin("removing tombstones", len(affected), "partitions")
        for partition in affected:
            log = self._log(partition)
            if log is None:
                continue
            if intent.is_now:
                await self._remove_tombstones(intent, log)
            else:
                await self._compact(intent, partition, until="tombstones-gone")
            progress.advance()
        removed = await asyncio.to_thread(self._remove_doomed, intent.topics, affected)
        self._count_removed(intent, removed)
        report = await asyncio.to_thread(scan_partitions, self._env, self._directory, subject, self._ends(), affected)
        left = [one for claim in intent.claims for one in report.tombstones(*_claim(claim))]
        if left:
            now_ms = self._env.clock.now_ms()
            later = max((one.horizon_ms or 0 for one in left), default=0)
            intent.due_ms = later if later > now_ms else now_ms + RETRY_MS
            await self._save(intent, key)
            self._schedule(intent.id, intent.due_ms)
            raise EraseFailed(
                f"erasure {intent.id}: {len(left)} tombstones are still there, it goes on at {intent.due_ms} ms since the epoch"
            )
        await self._finish(intent)
        return await self._issue(intent, subject, key, await self._scan(subject, progress), None)

    async def _finish(self, intent: Intent) -> None:
        self._due.pop(intent.id, None)
        await asyncio.to_thread(remove_intent, self._env, self._directory, intent.id)

    async def _remove_tombstones(self, intent: Intent, log: Log) -> None:
        """Write the closed segments anew that have a tombstone of the key below the claim, without it."""
        from diamant.broker.verbs.explaining import groups_of

        end = _claim_ends(intent)[log.topic, log.partition]
        step = next(one for one in intent.done if (one["topic"], one["partition"]) == (log.topic, log.partition))
        behind = [group for committed, group in await groups_of(self._broker, log) if committed < end]
        intent.overrides.append(
            {
                "what": "delete.retention.ms was overridden: the tombstone went before its horizon",
                "topic": log.topic,
                "partition": log.partition,
                "groups_that_had_not_passed_it": sorted(behind)[:MAX_LISTED],
            }
        )
        step["removed_before_horizon"] = True
        service = await self._broker.cleaning.service()
        partition = (log.topic, log.partition)
        await service.abort_and_pause(partition)
        try:
            if log.active.base_offset < end:
                log.roll()
            for segment in list(log.segments[:-1]):
                if segment.is_deleted or segment.base_offset >= end:
                    continue
                aborted = await asyncio.to_thread(segment.txn_index.all)
                output = await asyncio.to_thread(
                    write_without,
                    self._env,
                    log.path,
                    segment.base_offset,
                    segment.size,
                    aborted,
                    lambda record: record.key == intent.key and record.value is None and record.offset < end,
                    index_interval_bytes=log.config.index_interval_bytes,
                    segment_index_bytes=log.config.segment_index_bytes,
                )
                if output is not None:
                    replacement = Replacement(
                        log, output.base_offset, (output.base_offset,), source_sizes=[segment.size], size=output.size
                    )
                    try:
                        await asyncio.to_thread(replacement.prepare)
                    except BaseException:
                        replacement.abandon()
                        raise
                    replacement.swap()
                    await asyncio.to_thread(replacement.finish)
        finally:
            service.resume(partition)

    # -- the disk --------------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[TopicPartition, LogEnd]:
        """Up to where each log is there now. In one turn of the loop."""
        return {
            partition: LogEnd(log.log_end_offset, log.active.base_offset, log.active.size)
            for partition, log in self._broker.directory.logs.items()
        }

    def _partitions(self, intent: Intent) -> list[TopicPartition]:
        image = self._broker.topics.image.topics
        return [(name, index) for name in intent.topics if name in image for index in sorted(image[name].partitions)]

    def _log(self, partition: TopicPartition) -> Log | None:
        found: Log | None = self._broker.directory.logs.get(partition)
        return found

    def _remove_doomed(self, topics: Iterable[str], partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Remove what waits to be deleted of some partitions, and whole partitions of these topics that wait; count files."""
        env, removed = self._env, {}
        wanted = set(topics)
        for name in env.list_dir(self._directory):
            if not name.endswith(names.DELETE_DIR_SUFFIX):
                continue
            try:
                topic, _ = names.parse_partition_dir(name)
            except ValueError:
                continue
            if topic in wanted:
                env.remove_tree(f"{self._directory}/{name}")
        for partition in partitions:
            directory = f"{self._directory}/{names.partition_dir_name(*partition)}"
            if not env.is_dir(directory):
                continue
            doomed = [name for name in env.list_dir(directory) if name.endswith(names.DELETED_SUFFIX)]
            for name in doomed:
                env.remove(f"{directory}/{name}", missing_ok=True)
            removed[partition] = len(doomed)
            env.sync_dir(directory)
        return removed

    def _count_removed(self, intent: Intent, removed: Mapping[TopicPartition, int]) -> None:
        for step in intent.done:
            count = removed.get((step["topic"], step["partition"]), 0)
            step["files_removed_at_once"] = step.get("files_removed_at_once", 0) + count

    def _digests(self, files: Sequence[str], ends: Mapping[TopicPartition, LogEnd]) -> list[dict[str, Any]]:
        """Return file, size and SHA-256 of segments, as far as they are there."""
        found = []
        for name in files:
            try:
                size = _limit(name, ends)
                count, digest = certificates.file_digest(self._env, f"{self._directory}/{name}", size)
            except FileNotFoundError:
                continue
            found.append({"file": name, "size": count, "sha256": digest})
        return found

    def _affected_files(self, intent: Intent) -> list[str]:
        """Return the segments that now hold the offsets of those in which the key was, and of its tombstones."""
        found = set()
        for one in intent.found:
            log = self._log((one["topic"], one["partition"]))
            if log is None:
                continue
            end = _claim_ends(intent).get((log.topic, log.partition), 0)
            directory = names.partition_dir_name(log.topic, log.partition)
            bases = [int(os.path.basename(name).partition(".")[0]) for name in one["files"]]
            for base in [*bases, end - 1]:
                segment = log.segments[max(0, log.floor_segment(base))]
                found.add(f"{directory}/{os.path.basename(segment.path)}")
        return sorted(found)

    # -- scan and certificate --------------------------------------------------------------------------------------------

    async def _scan(self, subject: Subject, progress: Progress) -> ScanReport:
        progress.begin("scanning everything", unit="bytes")
        return await asyncio.to_thread(
            scan_directory, self._env, self._directory, subject, self._ends(), advance=progress.move_to
        )

    def _states(self, intent: Intent, report: ScanReport, subject: Subject) -> list[tuple[dict[str, Any], str]]:
        digest = subject.key_digest.hex()
        return [(claim, report.state(*_claim(claim), digest)) for claim in intent.claims]

    def _state(self, intent: Intent, report: ScanReport, subject: Subject) -> str:
        states = {state for _, state in self._states(intent, report, subject)}
        missing = set(self._partitions(intent)) - {_claim(claim)[0] for claim in intent.claims}
        astray = [one for one in report.astray if one.digest != subject.key_digest.hex()]
        if not states or missing or astray or not states <= {KEY_GONE, VALUES_GONE}:
            return NOT_CERTIFIED
        return VALUES_GONE if VALUES_GONE in states or report.astray else KEY_GONE

    async def _issue(
        self, intent: Intent, subject: Subject, key: SigningKey, report: ScanReport, due_ms: int | None
    ) -> Erasure:
        """Sign what the scan has shown, and keep it."""
        ends = self._ends()
        after = await asyncio.to_thread(self._digests, self._affected_files(intent), ends)
        state = self._state(intent, report, subject)
        fields = self._certificate_fields(intent, subject, report, state, after, due_ms)
        signed = certificates.sign(fields, key)
        path = self._certificate_path(intent.id, state)
        text = json.dumps(signed, indent=1, sort_keys=True).encode()
        await asyncio.to_thread(self._env.write_atomically, path, text)
        if state == NOT_CERTIFIED:
            self.failed += 1
        else:
            self.done += 1
        logger.info("erasure %s: %s", intent.id, state)
        behind = await self._groups_behind(intent) if state == VALUES_GONE else {}
        return Erasure(intent.id, state, signed, path, key.public_pem, due_ms, behind)

    async def _groups_behind(self, intent: Intent) -> dict[str, list[str]]:
        from diamant.broker.verbs.explaining import groups_of

        found = {}
        for one in intent.found:
            log = self._log((one["topic"], one["partition"]))
            if log is None:
                continue
            end = _claim_ends(intent).get((log.topic, log.partition), 0)
            behind = sorted(group for committed, group in await groups_of(self._broker, log) if committed < end)
            if behind:
                found[names.partition_dir_name(log.topic, log.partition)] = behind[:MAX_LISTED]
        return found

    def _certificate_path(self, erasure_id: str, state: str) -> str:
        return f"{self._directory}/{PREFIX}{erasure_id}.{state}.json"

    def _certificate_fields(
        self,
        intent: Intent,
        subject: Subject,
        report: ScanReport,
        state: str,
        after: list[dict[str, Any]],
        due_ms: int | None,
    ) -> dict[str, Any]:
        claims, refused = [], []
        for claim, found in self._states(intent, report, subject):
            if found in (VALUES_GONE, KEY_GONE):
                claims.append({**claim, "state": found})
            else:
                problems = [one.to_fields() for one in report.problems(_claim(claim)[0])[:10]]
                refused.append({**claim, "state": found, "problems": problems})
        claimed = {_claim(claim)[0] for claim in intent.claims}
        for topic, index in self._partitions(intent):
            if (topic, index) not in claimed:
                refused.append({"topic": topic, "partition": index, "state": "not opened", "problems": []})
        since = [one.to_fields() for claim in intent.claims for one in report.written_since(*_claim(claim))]
        is_manual = intent.is_manual_clock or not isinstance(self._env.clock, SystemClock)
        return {
            "type": certificates.TYPE,
            "version": certificates.VERSION,
            "id": intent.id,
            "state": state,
            "is_evidence": not is_manual,
            "clock": {
                "kind": "manual" if is_manual else "system",
                "requested_ms": intent.requested_ms,
                "issued_ms": self._env.clock.now_ms(),
                "note": "A manual clock was in use: this is not evidence." if is_manual else "",
            },
            "issuer": {
                "software": f"Diamant {__version__}",
                "cluster_id": self._broker.cluster_id,
                "node_id": self._broker.config.node_id,
            },
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "topics": intent.topics,
                "key_hmac": subject.key_digest.hex(),
                "key_bytes": len(intent.key),
                "hmac": "HMAC-SHA-256 with a secret that is not in the data directory",
            },
            "found": intent.found,
            "done": intent.done,
            "overrides": intent.overrides,
            "claims": claims,
            "not_certified": refused,
            "written_since": since[:MAX_LISTED],
            "lost_tombstones": self._lost_tombstones(intent, report),
            "elsewhere": [one.to_fields() for one in [*report.elsewhere, *report.astray][:MAX_LISTED]],
            "elsewhere_not_listed": sum(report.unlisted.values()),
            "segments": {
                "before": intent.before,
                "before_root": certificates.merkle_root(intent.before),
                "after": after,
                "after_root": certificates.merkle_root(after),
            },
            "configuration": {name: self._configuration(name) for name in intent.topics},
            "coverage": {
                **report.coverage(),
                "values_searched_for": sum(1 for one in subject.needles if one.kind == "value"),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None if due_ms is None or state != VALUES_GONE else {"state": KEY_GONE, "due_ms": due_ms},
            "not_covered": list(certificates.NOT_COVERED),
        }

    def _lost_tombstones(self, intent: Intent, report: ScanReport) -> list[dict[str, Any]]:
        """Return where a tombstone went before its horizon without anybody having wanted that: consumers may have missed it."""
        ends, lost = _claim_ends(intent), []
        for step in intent.done:
            partition = (step["topic"], step["partition"])
            log = self._log(partition)
            if log is None or "tombstone_offset" not in step or "removed_before_horizon" in step:
                continue
            is_early = self._env.clock.now_ms() < intent.requested_ms + log.config.delete_retention_ms
            is_read = not report.problems(partition)
            end = ends.get(partition, 0)
            # A later write of the key supersedes the tombstone, which then goes as any old record does.
            is_superseded = bool(report.written_since(partition, end))
            if is_early and is_read and not is_superseded and not report.tombstones(partition, end):
                lost.append({"topic": partition[0], "partition": partition[1]})
        return lost

    def _configuration(self, name: str) -> dict[str, Any]:
        topic = self._broker.topics.by_name.get(name)
        log = next(iter(topic.logs.values()), None) if topic is not None else None
        if log is None:
            return {}
        config = log.config
        return {
            "cleanup.policy": ",".join(sorted(config.cleanup_policy)),
            "delete.retention.ms": config.delete_retention_ms,
            "min.compaction.lag.ms": config.min_compaction_lag_ms,
            "max.compaction.lag.ms": config.max_compaction_lag_ms,
            "segment.bytes": config.segment_bytes,
            "segment.ms": config.segment_ms,
            "file.delete.delay.ms": config.file_delete_delay_ms,
            "diamant.cleaner.mode": self._broker.config.diamant_cleaner_mode,
        }

    async def _verify(
        self, certificate: Mapping[str, Any], public_key: bytes | None, key: bytes | None, progress: Progress
    ) -> Verification:
        secret = (await self._usable_key()).secret
        progress.begin("scanning everything", unit="bytes")
        check: Callable[..., Verification] = verify_certificate
        try:
            return await asyncio.to_thread(
                check,
                certificate,
                public_key,
                self._env,
                self._directory,
                key=key,
                secret=secret,
                ends=self._ends(),
                advance=progress.move_to,
            )
        except certificates.CertificateError as error:
            raise BadArgument(str(error)) from None


def _claim(claim: Mapping[str, Any]) -> tuple[TopicPartition, int]:
    return (claim["topic"], claim["partition"]), claim["below_offset"]


def _claim_ends(intent: Intent) -> dict[TopicPartition, int]:
    return dict(_claim(claim) for claim in intent.claims)


def _limit(name: str, ends: Mapping[TopicPartition, LogEnd]) -> int | None:
    """Return how many bytes of a segment count: an active one takes appends."""
    directory, _, file = name.rpartition("/")
    try:
        end = ends.get(names.parse_partition_dir(directory))
    except ValueError:
        return None
    parsed = names.parse_segment_file(file)
    if end is None or parsed is None or parsed.stage or parsed.offset != end.active_base_offset:
        return None
    return end.active_size


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or type(error).__name__)
    return str(error)


async def _wait_a_moment() -> None:
    await asyncio.sleep(LOOK_AGAIN_S)

"""What erasures and redactions have in common: calls that change segments, are certified, and outlive a stop of the broker.

Each has an intent on disk (`cleaner/evidence/intent.py`) until it is over; what is not over goes on at the next start, or when
it is due. One at a time in a broker, of either kind. Bounds: `MAX_WAITING` calls wait for their turn, and `MAX_UNFINISHED` are
unfinished.

No text of an error and no line of the log holds a key, a value or what was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from diamant import __version__
from diamant.broker.topics import INTERNAL_TOPICS
from diamant.broker.verbs.errors import BadArgument, NotFound, NotPossible, TimedOut, TooMany, VerbError
from diamant.broker.verbs.progress import Progress
from diamant.cleaner.evidence import certificate as certificates
from diamant.cleaner.evidence.record_search import Subject
from diamant.cleaner.evidence.scan import LogEnd, ScanReport, scan_directory
from diamant.cleaner.evidence.signing_key import SigningKey, default_path
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition
from diamant.storage.clock import SystemClock
from diamant.storage.errors import StorageError
from diamant.storage.log import Log

if TYPE_CHECKING:
    from diamant.broker.broker import Broker
    from diamant.broker.topics import Topic

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 600_000
RETRY_MS = 60_000
"""What could not be finished is tried again this much later, on the broker's clock."""
MAX_RETRY_DOUBLINGS = 10
"""How often that pause doubles for what cannot be certified: up to 17 hours."""
MAX_WAITING = 64
MAX_UNFINISHED = 10_000
MAX_TEXT = 1_000
"""Letters of a reason or reference."""
ID_BYTES = 16

T = TypeVar("T")


class Stopped(Exception):
    """Ends what a thread does for a caller that is gone."""


class Undertakings:
    """All of one kind in one broker; made with the first one, or at a start that finds one unfinished.

    A kind says what it is called (`noun`), which error an attempt that goes on later ends with (`failure`), which of its intents
    are on disk (`_unfinished_ids`), when one is due (`_read_due_ms`), and how it goes on (`_resume`).
    """

    noun = "undertaking"
    failure: type[VerbError] = VerbError

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, lock: asyncio.Lock | None = None) -> None:
        """`lock`: that of the other kind, so that there is one at a time."""
        self.lock = asyncio.Lock() if lock is None else lock
        self._broker = broker
        self._loop = loop
        self._calls = 0
        self._signing_key: SigningKey | None = None
        self._due: dict[str, int] = {}
        """Unfinished ones by id, and when they are to go on."""
        self._under_way: set[str] = set()
        """Those that somebody is at."""
        self._resumed: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[Any]] = set()
        self.done = 0
        self.failed = 0
        """Those that ended with, and those that ended without, a certificate; since the start."""
        self._is_stopping = False

    def _unfinished_ids(self) -> list[str]:
        raise NotImplementedError

    def _read_due_ms(self, intent_id: str, key: SigningKey) -> tuple[int | None, str]:
        raise NotImplementedError

    async def _resume(self, intent_id: str) -> object:
        raise NotImplementedError

    # -- the loop thread -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take note of what a broker before has left unfinished, and go on with it as soon as it is due."""
        ids = await asyncio.to_thread(self._unfinished_ids)
        for intent_id in ids[:MAX_UNFINISHED]:
            try:
                due_ms, phase = await asyncio.to_thread(self._read_due_ms, intent_id, await self._key())
            except (ValueError, StorageError, OSError) as error:
                logger.error("%s %s is unfinished and cannot be gone on with: %s", self.noun, intent_id, error)
                continue
            logger.warning("%s %s is unfinished (%s), it goes on", self.noun, intent_id, phase)
            self._schedule(intent_id, self._env.clock.now_ms() if due_ms is None else due_ms)

    async def stop(self) -> None:
        """End what is under way; its intent stays."""
        self._is_stopping = True
        tasks = [*self._running, *self._resumed]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def next_due_ms(self) -> int | None:
        """When one is to go on; None: never."""
        waiting = (due_ms for one, due_ms in self._due.items() if one not in self._under_way)
        return None if self._is_stopping else min(waiting, default=None)

    @property
    def is_at_work(self) -> bool:
        """Whether one of them is under way, or waits for its turn."""
        return bool(self._under_way)

    async def go_on(self) -> None:
        """Begin to go on with one that is due. It may take long, or wait for its turn: `settled` waits for it."""
        now_ms = self._env.clock.now_ms()
        for one, due_ms in self._due.items():
            if due_ms <= now_ms and one not in self._under_way:
                self._under_way.add(one)
                task = self._loop.create_task(self._go_on(one))
                self._resumed.add(task)
                task.add_done_callback(self._resumed.discard)
                return

    async def settled(self) -> None:
        """Wait for those that have gone on by themselves, until they are over or due later; not while a call is before them."""
        while self._resumed and not self._calls:
            await asyncio.wait(set(self._resumed))

    async def _go_on(self, due: str) -> None:
        self._due[due] = self._env.clock.now_ms() + RETRY_MS
        try:
            await self._tracked(self._resume(due))
        except (VerbError, StorageError, OSError, ValueError) as error:
            logger.warning(
                "%s %s: not finished, tried again in %d s: %s", self.noun, due, RETRY_MS // 1000, reason_of(error)
            )
        finally:
            self._under_way.discard(due)
            self._broker.scheduler.poke()

    @asynccontextmanager
    async def _turn(self, intent_id: str) -> AsyncIterator[None]:
        """Have the lock; while it is had the intent does not go on by itself."""
        async with self.lock:
            self._under_way.add(intent_id)
            try:
                yield
            finally:
                self._under_way.discard(intent_id)

    def unfinished(self) -> list[dict[str, Any]]:
        """Those that are not over."""
        return [{"id": one, "due_ms": due_ms} for one, due_ms in sorted(self._due.items())]

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

    async def _usable_key(self) -> SigningKey:
        try:
            return await self._key()
        except StorageError as error:
            raise NotPossible(f"there is no key to sign with, nothing was changed: {error}") from None
        except OSError as error:
            raise NotPossible(f"there is no key to sign with, nothing was changed: {reason_of(error)}") from None

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

    async def _called(self, intent_id: str, timeout_ms: int | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out what somebody waits for, within its time; what fails is told as an error of a verb."""
        limit_ms = DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                found: T = await self._tracked(work())
                return found
        except TimeoutError:
            self.failed += 1
            raise TimedOut(
                f"{self.noun} {intent_id} was not certified within {limit_ms} ms; "
                + ("it goes on in the broker" if intent_id in self._due else "nothing was changed")
            ) from None
        except (StorageError, OSError) as error:
            self.failed += 1
            raise self.failure(f"{self.noun} {intent_id} could not go on: {reason_of(error)}") from None
        except VerbError:
            self.failed += 1
            raise

    def _check_room(self) -> None:
        if self._calls >= MAX_WAITING or len(self._due) >= MAX_UNFINISHED:
            raise TooMany(f"too many {self.noun}s wait already, try again when some of them are over")

    def _check_reason(self, reason: str, reference: str) -> None:
        if not reason.strip():
            raise BadArgument("reason is missing: it stands in the certificate, as in 'GDPR Art. 17'")
        if max(len(reason), len(reference)) > MAX_TEXT:
            raise BadArgument(f"reason and reference may have {MAX_TEXT} letters each")

    def _user_topic(self, name: str) -> Topic:
        """A topic that is the users'."""
        topic = self._broker.topics.by_name.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name[:249]!r}")
        if name in INTERNAL_TOPICS:
            raise NotPossible(f"{name} is internal: its records belong to the broker")
        return topic

    # -- the disk --------------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[TopicPartition, LogEnd]:
        """Up to where each log is there now. In one turn of the loop."""
        return {
            partition: LogEnd(log.log_end_offset, log.active.base_offset, log.active.size)
            for partition, log in self._broker.directory.logs.items()
        }

    def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        image = self._broker.topics.image.topics
        return [(name, index) for name in topics if name in image for index in sorted(image[name].partitions)]

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

    async def _scan(self, subject: Subject, progress: Progress) -> ScanReport:
        progress.begin("scanning everything", unit="bytes")
        ends = self._ends()
        return await self._in_thread(
            lambda check: scan_directory(
                self._env, self._directory, subject, ends, advance=progress.move_to, check=check
            )
        )

    async def _in_thread(self, work: Callable[[Callable[[], object]], T]) -> T:
        """Run `work` in a thread. It gets a function to call now and then, which raises when nobody waits for it any more."""
        is_over = threading.Event()

        def check() -> None:
            if is_over.is_set():
                raise Stopped("nobody waits for it any more")

        try:
            return await asyncio.to_thread(work, check)
        except asyncio.CancelledError:
            is_over.set()
            raise

    # -- what every certificate says -------------------------------------------------------------------------------------

    def _origin(self, requested_ms: int, *, is_manual_clock: bool) -> dict[str, Any]:
        """Who issues a certificate, and by which clock."""
        is_manual = is_manual_clock or not isinstance(self._env.clock, SystemClock)
        return {
            "is_evidence": not is_manual,
            "clock": {
                "kind": "manual" if is_manual else "system",
                "requested_ms": requested_ms,
                "issued_ms": self._env.clock.now_ms(),
                "note": "A manual clock was in use: this is not evidence." if is_manual else "",
            },
            "issuer": {
                "software": f"Diamant {__version__}",
                "cluster_id": self._broker.cluster_id,
                "node_id": self._broker.config.node_id,
            },
        }

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


def reason_of(error: Exception) -> str:
    """What went wrong, without the numbers of the operating system."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or type(error).__name__)
    return str(error)

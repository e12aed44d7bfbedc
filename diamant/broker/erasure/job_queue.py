"""What erasures and redactions have in common: calls that change segments, are certified, and outlive a stop of the broker.

Each has an intent on disk (`cleaner/erasure/intent.py`) until it is over; what is not over goes on at the next start, or when
it is due. One at a time in a broker, of either kind. Bounds: `MAX_WAITING` calls wait for their turn, and `MAX_UNFINISHED` are
unfinished.

What can never be certified goes on for ever, less and less often, unless somebody cancels it (`cancelling`).

No text of an error and no line of the log holds a key, a value or what was asked for.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import traceback
import unicodedata
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from diamant.broker.client.errors import BadArgument, NotFound, NotPossible, TimedOut, TooMany, VerbError
from diamant.broker.erasure.evidence import EvidenceWork
from diamant.broker.node.topics import INTERNAL_TOPICS
from diamant.broker.operations.progress import Progress
from diamant.cleaner.evidence.certificates.broker_files import set_names_aside
from diamant.cleaner.evidence.certificates.files import LAST_STATES, has_traces, name_pending
from diamant.cleaner.evidence.certificates.key_location import check_lasting, mount_table
from diamant.cleaner.evidence.certificates.own_certificates import set_own_aside
from diamant.cleaner.evidence.certificates.private_files import PREFIX
from diamant.cleaner.evidence.certificates.reason_check import holds_value, names_sought
from diamant.cleaner.evidence.certificates.signing_key import SigningKey, check_outside, check_there, default_path
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.runners.contract import wait_in_spite_of_cancelling
from diamant.storage import names
from diamant.storage.env.open_files import removed_but_open
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node
    from diamant.broker.node.topics import Topic

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 600_000
RETRY_MS = 60_000
"""What could not be finished is tried again this much later, on the broker's clock."""
MAX_RETRY_DOUBLINGS = 10
"""How often that pause doubles for what cannot be certified: up to 17 hours."""
MAX_FAILURE_DOUBLINGS = 6
"""How often it doubles for attempts that fail before they come to that, as on a full disk: up to an hour."""
MAX_WAITING = 64
MAX_UNFINISHED = 10_000
READERS_WAIT_S = 10.0
"""How long a scan waits for clients that read from files that were removed; after that nothing is certified for now."""
LOOK_AGAIN_S = 0.05
STILL_READ = "it was removed, but is still being read, and until that ends its bytes are on the disk"
MAX_TEXT = 1_000
"""Letters of a reason or reference."""
ID_BYTES = 16

MAX_REMEMBERED = 1_000
"""Ids of those that ended lately."""
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")
"""Control characters, halves of pairs of UTF-16, and ends of lines and paragraphs: categories of Unicode."""

T = TypeVar("T")


class Turn(asyncio.Lock):
    """Had by the one that is under way."""

    holder = ""
    """What that is, and its id."""


class Unfinished(Protocol):
    """What every intent says."""

    phase: str
    due_ms: int | None


class Undertakings(EvidenceWork):
    """All of one kind in one broker; made with the first one, or at a start that finds one unfinished.

    A kind says what it is called (`noun`), which error an attempt that goes on later ends with (`failure`), which of its intents
    are on disk (`_unfinished_ids`), what one says (`_read_unfinished`) and is about (`_sought`), how it goes on (`_resume`), and
    how it ends without having been carried out (`_give_up`).
    """

    noun = "undertaking"
    prefix = PREFIX
    """Of its files in the data directory."""
    failure: type[VerbError] = VerbError

    def __init__(self, node: Node, cleaning: NodeCleaner, lock: Turn | None = None) -> None:
        """`lock`: that of the other kind, so that there is one at a time."""
        super().__init__(node)
        self._cleaning = cleaning
        self.lock = Turn() if lock is None else lock
        self._loop = node.loop
        self._calls = 0
        self._signing_key: SigningKey | None = None
        self._due: dict[str, int] = {}
        """Unfinished ones by id, and when they are to go on."""
        self._unread: set[str] = set()
        """Those of them that are to be read first: at the start there was no key for that."""
        self._under_way: Counter[str] = Counter()  # how many are at it: an attempt, and the turn that it or a call has
        """Those that somebody is at."""
        self._waiting: set[str] = set()
        """Those whose turn has not come, or had not when somebody ceased to wait for it."""
        self._resumed: set[asyncio.Task[None]] = set()
        self._running: dict[asyncio.Task[Any], str] = {}
        """Attempts under way, and the id of what they are at."""
        self._over: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self._failures: dict[str, int] = {}
        """Attempts in a row, since the start, that failed; by id, of unfinished ones."""
        self._ending: dict[str, asyncio.Future[bool]] = {}
        """Those that are being cancelled: nobody goes on with them. It tells whether they were."""
        self._cancels: set[asyncio.Task[Any]] = set()
        self._cancel_turn = asyncio.Lock()
        self.done = 0
        self.failed = 0
        """Those that ended with everything certified, and those that ended without; each once, since the start."""
        self.held = 0
        """Attempts that certified nothing, at what goes on by itself."""
        self._is_stopping = False

    def _unfinished_ids(self) -> list[str]:
        raise NotImplementedError

    def _read_unfinished(self, intent_id: str, key: SigningKey) -> Unfinished:
        """Return an intent. Blocks; OSError, ValueError if it cannot be read."""
        raise NotImplementedError

    def _sought(self, intent: Any, key: SigningKey) -> tuple[Sequence[bytes], Needles]:
        """Return what an intent is about: a key or texts, and what of the values that were found is known."""
        raise NotImplementedError

    def _note(self, intent: Any, key: SigningKey) -> None:
        """Remember of an intent on disk what else the kind wants to know of it."""

    async def _resume(self, intent_id: str) -> object:
        raise NotImplementedError

    async def _give_up(self, intent_id: str, ended: dict[str, Any]) -> Any:
        """End one whose turn it is, without changing anything; FileNotFoundError if it has ended already.

        `ended` is for the certificate: what ended it, the reason that was given, and when.
        """
        raise NotImplementedError

    # -- the loop thread -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take note of what a broker before has left unfinished, and go on with it as soon as it is due."""
        ids = (await asyncio.to_thread(self._unfinished_ids))[:MAX_UNFINISHED]
        if not ids:
            return
        try:
            key = await self._key()
        except (StorageError, OSError) as error:
            logger.error("%d %ss are unfinished and cannot continue for now: %s", len(ids), self.noun, reason_of(error))
            self._unread.update(ids)
            for intent_id in ids:
                self._schedule(intent_id, self._env.clock.now_ms() + RETRY_MS)
            return
        for intent_id in ids:
            await self._take_note(intent_id, key)

    async def _take_note(self, intent_id: str, key: SigningKey) -> None:
        """Read an intent of a broker before, and go on with it when it is due; at no time if it cannot be read."""
        self._unread.discard(intent_id)
        try:
            intent = await asyncio.to_thread(self._read_unfinished, intent_id, key)
        except (ValueError, StorageError, OSError) as error:
            self._due.pop(intent_id, None)
            logger.error("%s %s is unfinished and cannot be continued: %s", self.noun, intent_id, error)
            return
        logger.warning("%s %s is unfinished (%s), it continues", self.noun, intent_id, intent.phase)
        self._note(intent, key)
        self._schedule(intent_id, self._env.clock.now_ms() if intent.due_ms is None else intent.due_ms)

    async def stop(self) -> None:
        """End what is under way; its intent stays. Cancellations that have begun come to their end before that."""
        self._is_stopping = True
        tasks = [*self._running, *self._resumed]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._cancels, return_exceptions=True)

    def next_due_ms(self) -> int | None:
        """When one is to go on; None: never."""
        waiting = (due_ms for one, due_ms in self._due.items() if self._is_free(one))
        return None if self._is_stopping else min(waiting, default=None)

    @property
    def is_at_work(self) -> bool:
        """Whether one of them is under way, or waits for its turn."""
        return bool(self._under_way)

    async def go_on(self) -> None:
        """Begin to go on with one that is due. It may take long, or wait for its turn: `settled` waits for it."""
        now_ms = self._env.clock.now_ms()
        for one, due_ms in self._due.items():
            if due_ms <= now_ms and self._is_free(one):
                self._under_way[one] += 1
                task = self._loop.create_task(self._go_on(one))
                self._resumed.add(task)
                task.add_done_callback(self._resumed.discard)
                return

    def _is_free(self, intent_id: str) -> bool:
        """Tell whether nobody is at it."""
        return intent_id not in self._under_way and intent_id not in self._ending

    async def settled(self) -> None:
        """Wait for those that have gone on by themselves, until they are over or due later; not while a call is before them."""
        while self._resumed and not self._calls:
            await asyncio.wait(set(self._resumed))

    async def _go_on(self, due: str) -> None:
        self._due[due] = self._env.clock.now_ms() + self._pause_ms(due)
        try:
            if due in self._unread:
                await self._take_note(due, await self._key())
            elif due not in self._ending:
                await self._tracked(due, self._resume(due))
            self._failures.pop(due, None)
        except (VerbError, StorageError, OSError, ValueError) as error:
            self._failed_for_now(due, logging.WARNING, reason_of(error))
        except Exception as error:
            # What it says may be of a record; where it comes from is not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}, {at.name}"
            what = f"unexpected {type(error).__name__} at {where}; please report this"
            self._failed_for_now(due, logging.ERROR, what)
        finally:
            self._leave(due)
            self._node.scheduler.poke()

    def _leave(self, intent_id: str) -> None:
        self._under_way[intent_id] -= 1
        if not self._under_way[intent_id]:
            del self._under_way[intent_id]

    def _failed_for_now(self, intent_id: str, level: int, reason: str) -> None:
        """Put down an attempt by itself that has failed."""
        if intent_id in self._due:
            self.held += 1
            self._failures[intent_id] = self._failures.get(intent_id, 0) + 1
            pause_s = max(0, self._due[intent_id] - self._env.clock.now_ms()) // 1000
            logger.log(level, "%s %s: not finished, tried again in %d s: %s", self.noun, intent_id, pause_s, reason)

    async def _ended_already(self, intent_id: str) -> None:
        """Forget one whose intent is gone: whoever had the lock has ended it, or an attempt has, but for its certificate's name.

        In its turn.
        """
        named = await self._to_its_end(
            asyncio.to_thread(name_pending, self._env, self._directory, intent_id, self.prefix)
        )
        self._finished(intent_id)
        if named is not None:
            is_done = named.endswith(tuple(f".{state}.json" for state in LAST_STATES))
            self.done, self.failed = self.done + is_done, self.failed + (not is_done)
            logger.warning("%s %s had ended, its certificate is %s", self.noun, intent_id, named)

    @asynccontextmanager
    async def _turn(self, intent_id: str) -> AsyncIterator[None]:
        """Have the lock; while it is had the intent does not go on by itself."""
        self._waiting.add(intent_id)
        async with self.lock:
            self._waiting.discard(intent_id)
            self._under_way[intent_id] += 1
            self.lock.holder = f"{self.noun} {intent_id}"
            try:
                yield
            finally:
                self.lock.holder = ""
                self._leave(intent_id)
                # What was due meanwhile was passed over.
                self._node.scheduler.poke()

    def unfinished(self) -> list[dict[str, Any]]:
        """Those that are not over and go on by themselves."""
        return [{"id": one, "kind": self.noun, "due_ms": due_ms} for one, due_ms in sorted(self._due.items())]

    async def unfinished_on_disk(self) -> list[dict[str, Any]]:
        """Those that are not over. `due_ms` is None of one that is not gone on with, as its intent cannot be read."""
        found = await asyncio.to_thread(self._unfinished_ids)
        ids = {one for one in found if one not in self._over} | set(self._due)
        return [{"id": one, "kind": self.noun, "due_ms": self._due.get(one)} for one in sorted(ids)]

    async def public_key(self) -> str | None:
        """The public key as PEM, None if there is no key yet. NotPossible if it cannot be used."""
        key = await self._key_there()
        return None if key is None else key.public_pem

    def _retry_later_ms(self, retries: int) -> int:
        """When that goes on what was scanned in vain so often before."""
        now_ms: int = self._env.clock.now_ms()
        return now_ms + (RETRY_MS << min(retries, MAX_RETRY_DOUBLINGS))

    async def _key(self) -> SigningKey:
        """Return the key, which is made if there is none. StorageError, OSError."""
        if self._signing_key is None:
            self._signing_key = await asyncio.to_thread(self._load_key)
        return self._signing_key

    async def _usable_key(self) -> SigningKey:
        """The same. NotPossible."""
        with self._no_key_told():
            return await self._key()

    async def _key_there(self) -> SigningKey | None:
        """Return the key to somebody who only looks: none is made. NotPossible."""
        with self._no_key_told():
            if self._signing_key is None and not await asyncio.to_thread(self._is_key_there):
                return None
            return await self._key()

    def _key_path(self) -> str:
        """Where the key is, or is to be. StorageError if it must not lie there, or is missing where no other may be made."""
        path = str(self._node.config["diamant.certificate.key.file"] or default_path())
        check_outside(path, self._directory)
        if has_traces(self._env, self._directory):
            check_there(path)
        return path

    def _is_key_there(self) -> bool:
        path = self._key_path()
        return os.path.exists(path) and os.path.exists(f"{path}.secret")

    def _load_key(self) -> SigningKey:
        path = self._key_path()
        if not self._node.config["diamant.certificate.key.ephemeral"]:
            check_lasting(path, self._directory, mount_table())
        return SigningKey.load(path)

    @contextmanager
    def _no_key_told(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            raise NotPossible(f"there is no key to sign with, nothing was changed: {error}") from None
        except OSError as error:
            raise NotPossible(
                f"there is no key to sign with, nothing was changed: {reason_of(error)}. Its user has to be able to write there, "
                "or let diamant.certificate.key.file say where else the key is to be"
            ) from None

    def _pause_ms(self, intent_id: str) -> int:
        """How long it takes to the next attempt, if nothing else says when: longer after each that has failed."""
        return RETRY_MS << min(self._failures.get(intent_id, 0), MAX_FAILURE_DOUBLINGS)

    def _schedule(self, intent_id: str, due_ms: int) -> None:
        self._due[intent_id] = due_ms
        self._node.scheduler.poke()

    def _finished(self, intent_id: str) -> None:
        """Forget one whose intent is gone."""
        self._due.pop(intent_id, None)
        self._unread.discard(intent_id)
        self._waiting.discard(intent_id)
        self._failures.pop(intent_id, None)
        self._over.append(intent_id)

    async def _tracked(self, intent_id: str, coroutine: Any) -> Any:
        task = self._loop.create_task(coroutine)
        self._running[task] = intent_id
        try:
            return await task
        finally:
            del self._running[task]

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what was begun, even if the caller is cancelled: what is on the disk and what is known of it stay the same,
        and nobody else takes up its files.
        """
        task = self._loop.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await wait_in_spite_of_cancelling(task)
            raise

    # -- a call ----------------------------------------------------------------------------------------------------------

    async def _called(self, intent_id: str, timeout_ms: int | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out what somebody waits for, within its time; what fails is told as an error of a verb."""
        limit_ms = DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                found: T = await self._tracked(intent_id, work())
                return found
        except TimeoutError:
            self._count_failure(intent_id)
            raise TimedOut(
                f"{self.noun} {intent_id} was not certified within {limit_ms} ms{self._behind_whom(intent_id)}; "
                f"{self._what_follows(intent_id)}"
            ) from None
        except asyncio.CancelledError:
            ending = self._ending.get(intent_id)
            if ending is None or self._is_cancelling():
                raise
            await asyncio.wait({ending})
            if not ending.result():
                self._count_failure(intent_id)
                raise self.failure(
                    f"{self.noun} {intent_id} is being cancelled, and this attempt has ended for that; "
                    f"{self._what_follows(intent_id)}"
                ) from None
            raise NotPossible(f"{self.noun} {intent_id} was cancelled, it is not certified") from None
        except (StorageError, OSError) as error:
            self._count_failure(intent_id)
            raise self.failure(f"{self.noun} {intent_id} could not continue: {reason_of(error)}") from None
        except VerbError:
            self._count_failure(intent_id)
            raise
        finally:
            self._waiting.discard(intent_id)

    def _behind_whom(self, intent_id: str) -> str:
        """Say whose turn it was, if that of this one has not come."""
        holder = self.lock.holder
        if intent_id not in self._waiting or not holder:
            return ""
        return f", as its turn has not come: {holder} is in progress (cancelling that ends it, if it hangs)"

    def _count_failure(self, intent_id: str) -> None:
        """Count an attempt that has failed: as held if it goes on, and not at all if it was counted when it ended."""
        if intent_id in self._due:
            self.held += 1
        elif intent_id not in self._over:
            self.failed += 1

    def _what_follows(self, intent_id: str) -> str:
        """Say what becomes of one that nobody waits for any more."""
        if intent_id in self._due:
            return "it continues in the broker"
        return "it has ended just now, see its certificate" if intent_id in self._over else "nothing was changed"

    def _is_cancelling(self) -> bool:
        """Tell whether it is the caller who is cancelled, and not only what it waits for."""
        task = asyncio.current_task()
        return self._is_stopping or (task is not None and task.cancelling() > 0)

    def _check_room(self, *, is_new: bool = True) -> None:
        if self._calls >= MAX_WAITING or (is_new and len(self._due) >= MAX_UNFINISHED):
            raise TooMany(f"too many {self.noun}s wait already, try again when some of them have ended")

    def _check_reason(self, reason: str, reference: str) -> None:
        if not reason.strip():
            raise BadArgument("reason is missing: it stands in the certificate, as in 'GDPR Art. 17'")
        if max(len(reason), len(reference)) > MAX_TEXT:
            raise BadArgument(f"reason and reference may have {MAX_TEXT} letters each")
        if any(unicodedata.category(letter) in _NOT_TEXT for letter in reason + reference):
            raise BadArgument(
                "reason and reference are one line each: they are shown on terminals, so they may have no line ends and no "
                "control characters"
            )

    def _check_unsaid(
        self, what: str, texts: Sequence[str], sought: Sequence[bytes], needles: Needles | None = None
    ) -> None:
        """Refuse texts for a certificate that name what is to be gone (`unsaid`). `sought`: keys and texts; `needles`: values."""
        for text in texts:
            if names_sought(text, sought) or (needles and holds_value(text, needles)):
                raise BadArgument(
                    f"{what} must not hold what is to be gone, neither a key nor a value, in no spelling: that stands in the "
                    "certificate, and stays in the data directory. Refer to the request by a case number, as in 'ticket 4711'"
                )

    async def _scan(self, subject: Subject, progress: Progress) -> ScanReport:
        still_read = await self._still_read(subject, progress)
        report = await super()._scan(subject, progress)
        report.unaccounted += [Unreadable(None, None, name, None, STILL_READ) for name in still_read]
        key = await self._key()
        await asyncio.to_thread(set_own_aside, report, self._env, self._directory, key.public_bytes)
        await asyncio.to_thread(set_names_aside, report, self._env, self._directory, subject.needles)
        return report

    async def _still_read(self, subject: Subject, progress: Progress) -> list[str]:
        """Wait until nobody reads from files of the topics that were removed; return those of which somebody does still.

        What is removed later is there when the scan begins, which reads it.
        """
        progress.begin("waiting for readers of removed files")
        waited_s = 0.0
        while True:
            removed = await asyncio.to_thread(removed_but_open, self._directory)
            found = [name for name in removed if _is_of(name, subject.topics)]
            if not found or waited_s >= READERS_WAIT_S:
                return found
            if not waited_s:
                # Tracebacks of what has failed have files, too, and are garbage for long before they are collected.
                await asyncio.to_thread(gc.collect)
            await asyncio.sleep(LOOK_AGAIN_S)
            waited_s += LOOK_AGAIN_S

    def _user_topic(self, name: str) -> Topic:
        """A topic that is the users'."""
        topic = self._node.topics.by_name.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name[:249]!r}")
        if name in INTERNAL_TOPICS:
            raise NotPossible(f"{name} is internal: its records belong to the broker")
        return topic


def _is_of(name: str, topics: Collection[str]) -> bool:
    """Tell whether a file, by its name below the data directory, is or may be of one of these topics."""
    directory = name.partition("/")[0]
    return any(names.may_be_set_aside_of(directory, topic) for topic in topics)


def reason_of(error: Exception) -> str:
    """What went wrong, without the numbers of the operating system."""
    if isinstance(error, OSError):
        return (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else (error.strerror or str(error) or type(error).__name__)
        )
    return str(error)

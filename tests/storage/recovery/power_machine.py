"""A log directory on a machine that may lose power at any moment, and a plain model of its contents.

`Machine` runs a life (open, append, flush, roll, retention, checkpoints, a cleaner's swap, stop and start) on a `MemoryEnv`. Its
model, the truth, is lists of batches: all appended ones, those covered by a flush, the range of possible log starts. Before every
change and sync the machine's files are copied together with the truth at that moment: a `Cut`.

`check` opens a copy that has lost power and compares it with that truth. With the code under test it shares only the parsing of
headers, checksums and records; it computes producers and aborted transactions by replaying plain tuples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from diamant.protocol.batches.batch import crc_is_valid, iter_headers, set_base_offset
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record, parse_header
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.directory.log_directory import LogDirectory, PartitionSource
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker
from tests.memory_env import Loss, MemoryEnv, tree_of
from tests.storage.cleaned import write_cleaned

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
EXPIRATION_MS = 24 * HOUR_MS
ROOT = "/data"
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=80, segment_ms=HOUR_MS, file_delete_delay_ms=0)
NOTHING_LOST = Loss(names=1, content=1)

TopicPartition = tuple[str, int]


class Written(NamedTuple):
    """A batch stored in a log."""

    base: int
    next: int
    data: bytes


@dataclass(slots=True)
class Truth:
    """The expected state of one partition."""

    history: list[Written] = field(default_factory=list)
    """All appended batches, including those compacted or deleted since."""
    batches: list[Written] = field(default_factory=list)
    """The batches after compaction."""
    cleaned: list[Written] | None = None
    """During a swap: the batches if it takes effect."""
    flushed: int = 0
    """A completed flush covers all offsets below this."""
    min_start: int = 0
    """The log start in a written checkpoint."""
    max_start: int = 0
    """Highest possible log start."""
    epochs_from: int = 0
    """The leader epochs of what lies before may be unknown: it was deleted, and came back since no checkpoint said so.

    As in Kafka, whose file of epochs is cut at the new log start before that is in its checkpoint.
    """

    def frozen(self) -> Truth:
        """Return a copy of the current truth."""
        cleaned = None if self.cleaned is None else list(self.cleaned)
        return replace(self, history=list(self.history), batches=list(self.batches), cleaned=cleaned)


class Cut(NamedTuple):
    """A copy of the machine before one of its changes or syncs."""

    env: MemoryEnv
    truths: dict[TopicPartition, Truth]
    sources: dict[TopicPartition, PartitionSource]
    leader_epoch: int


class Machine:
    """With `is_flushing`, due flushes run after each step, as in the broker's flusher."""

    def __init__(self, on_cut: Callable[[Cut], None], **config: Any) -> None:
        self.clock = SettableClock(START_MS)
        self.env = MemoryEnv(self.clock)
        self.config = replace(CONFIG, **config)
        self.is_flushing = True
        self.sources: dict[TopicPartition, PartitionSource] = {}
        self.truths: dict[TopicPartition, Truth] = {}
        self.sequences: dict[int, int] = {}
        self.leader_epoch = 0
        self._on_cut = on_cut
        self._due: list[Log] = []
        self.env.make_dirs(ROOT)
        self.env.sync_dir("/")
        self.env.before_change = self.cut
        self._topics = 0
        self.create("t")
        self.open()

    def cut(self) -> None:
        """Report a cut of the current moment."""
        truths = {key: truth.frozen() for key, truth in self.truths.items()}
        env = self.env.copy(SettableClock(self.clock.now_ms()))
        self._on_cut(Cut(env, truths, dict(self.sources), self.leader_epoch))

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the broker."""
        self.leader_epoch += 1
        self.directory = open_directory(self.env, self.sources, self.leader_epoch)
        self.directory.on_flush_due = self._due.append
        for log in self.directory.logs.values():
            log.on_flush_due = self._due.append

    def create(self, topic: str) -> None:
        """Add a topic to the metadata; the next `open` creates it."""
        self._topics += 1
        self.sources[topic, 0] = PartitionSource(UUID(int=self._topics), self.config)
        self.truths[topic, 0] = Truth()

    def create_now(self, topic: str) -> None:
        """Create a topic while the broker runs."""
        self.create(topic)
        source = self.sources[topic, 0]
        log = self.directory.create_log(topic, 0, source.topic_id, source.config)
        log.become_leader(self.leader_epoch)

    def delete(self, topic: str) -> None:
        """Delete a topic while the broker runs: the metadata first."""
        del self.sources[topic, 0], self.truths[topic, 0]
        self.directory.delete_log(self.directory.logs[topic, 0], 0)
        self.directory.take_away_left(self.directory.left, 0)
        self.directory.deletions.remove(self.directory.deletions.take_due())

    def lose_power(self, loss: Loss | random.Random) -> None:
        """Crash and start again; NOTHING_LOST means a killed process. The truth drops the lost batches."""
        self._due.clear()
        self.env.crash(loss)
        self.open()
        for key, truth in self.truths.items():
            log = self.directory.logs[key]
            stored = {batch.base: batch for _, _, batch in read_stored(log)}
            first = log.segments[0].base_offset
            truth.history = [batch for batch in truth.history if batch.base in stored or batch.next <= first]
            truth.batches = [batch for batch in truth.batches if batch.base in stored or batch.next <= first]
            truth.max_start = log.log_start_offset

    def stop(self) -> None:
        """Stop in order and start again."""
        self.directory.close()
        for truth in self.truths.values():
            truth.flushed = truth.history[-1].next if truth.history else truth.flushed
        self.open()

    # -- appends -------------------------------------------------------------------------------------------------

    def log(self, topic: str = "t") -> Log:
        """Return the topic's only partition."""
        return self.directory.logs[topic, 0]

    def append(self, count: int = 1, *, topic: str = "t", producer: int = -1, txn: bool = False) -> None:
        """Append a batch of `count` records."""
        fields: dict[str, Any] = {}
        if producer >= 0:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        end = self.log(topic).log_end_offset
        now_ms = self.clock.now_ms()
        records = [Record(number, now_ms + number, b"key", b"value-%d" % (end + number)) for number in range(count)]
        self._append(topic, build_batch(records, is_transactional=txn, **fields), is_client=True)

    def marker(self, producer: int, *, is_commit: bool, topic: str = "t") -> None:
        """Append the marker that ends a transaction."""
        batch = make_marker(producer, is_commit=is_commit, coordinator_epoch=3, timestamp=self.clock.now_ms())
        self._append(topic, batch, is_client=False)

    def _append(self, topic: str, batch: bytearray, *, is_client: bool) -> None:
        log = self.log(topic)
        expected = bytearray(batch)
        set_base_offset(expected, 0, log.log_end_offset, log.leader_epoch)
        header = parse_header(expected)
        written = Written(header.base_offset, header.next_offset, bytes(expected))
        truth = self.truths[topic, 0]
        truth.history.append(written)
        truth.batches.append(written)
        if truth.cleaned is not None:
            truth.cleaned.append(written)
        if is_client:
            log.append_as_leader(memoryview(batch))
        else:
            log.append_internal(batch)
        self._step()

    def _step(self) -> None:
        if not self.is_flushing:
            return
        due, self._due[:] = list(self._due), []
        for log in due:
            self._flush(log)

    # -- what goes on in the background --------------------------------------------------------------------------

    def flush(self, topic: str = "t") -> None:
        """Flush, as `flush.ms` asks for."""
        self._flush(self.log(topic))

    def _flush(self, log: Log) -> None:
        log.flush()
        truth = self.truths.get((log.topic, log.partition))
        if truth is not None:
            truth.flushed = log.recovery_point

    def roll(self) -> None:
        """Roll, as `segment.ms` asks for."""
        self.log().roll()
        self._step()

    def checkpoint(self) -> None:
        """Write the checkpoints."""
        starts = {key: log.log_start_offset for key, log in self.directory.logs.items()}
        self.directory.checkpoint_files.write(self.directory.checkpoint_state())
        for key, start in starts.items():
            self.truths[key].min_start = start

    def retain(self, count: int) -> None:
        """Delete the oldest segments; -1 for all of them."""
        log = self.log()
        count = len(log.segments) if count < 0 else count
        is_all = count == len(log.segments)
        start = log.log_end_offset if is_all else log.segments[count].base_offset
        self.truths["t", 0].max_start = max(start, log.log_start_offset)
        delete_oldest(log, count)
        self._step()

    def delete_records(self, before: int) -> None:
        """Move the log start up."""
        truth = self.truths["t", 0]
        truth.max_start = max(truth.max_start, before)
        truth.epochs_from = max(truth.epochs_from, before)
        self.log().delete_records(before)

    def clean(self, first: int, last: int, keep: Callable[[int], bool], between: Callable[[], None]) -> None:
        """Let the cleaner merge segments and drop batches without a producer that `keep` rejects.

        `between` is called between the steps of the swap, and between the turns in which its files are renamed.
        """
        log, truth = self.log(), self.truths["t", 0]
        sources = log.segments[first : last + 1]
        end = log.segments[last + 1].base_offset
        of_producers = {batch.base for batch in truth.batches if parse_header(batch.data).producer_id >= 0}
        bases = [segment.base_offset for segment in sources]
        write_cleaned(log, bases, lambda base: base in of_producers or keep(base))
        between()
        replacement = Replacement(log, bases[0], bases)
        replacement.open()
        if replacement.must_prepare:
            replacement.prepare()
        between()
        truth.cleaned = [
            batch
            for batch in truth.batches
            if not bases[0] <= batch.base < end or batch.base in of_producers or keep(batch.base)
        ]
        for _ in replacement.swap_in_turns(sources_per_turn=1):
            between()
        between()
        replacement.finish()
        truth.batches, truth.cleaned = truth.cleaned, None
        between()


def open_directory(
    env: MemoryEnv, sources: dict[TopicPartition, PartitionSource], leader_epoch: int | None = None
) -> LogDirectory:
    """Open the directory and all its partitions like a broker; become leader if an epoch is given."""
    directory = LogDirectory.open(env, ROOT, producer_expiration_ms=EXPIRATION_MS)
    directory.load_logs(sources, threads=1)
    if leader_epoch is not None:
        for log in directory.logs.values():
            log.become_leader(leader_epoch)
    return directory


# -- what is there ---------------------------------------------------------------------------------------------------


def read_stored(log: Log) -> list[tuple[int, int, Written]]:
    """Return segment base offset, position and bytes of every batch; check that each is whole and offsets ascend."""
    found = []
    next_offset = 0
    for segment in log.segments:
        assert segment.base_offset >= next_offset, f"{segment.path}: begins below {next_offset}"
        next_offset = segment.base_offset
        data = log.env.read_bytes(segment.path)
        assert len(data) == segment.size, segment.path
        size = 0
        for position, header in iter_headers(data):
            assert crc_is_valid(data, position, header.size), f"{segment.path} at {position}"
            assert header.base_offset >= next_offset, f"{segment.path}: {header.base_offset} after {next_offset}"
            next_offset = header.next_offset
            size = position + header.size
            batch = Written(header.base_offset, next_offset, data[position:size])
            found.append((segment.base_offset, position, batch))
        assert size == segment.size, f"{segment.path}: {segment.size - size} bytes too many"
    assert log.log_end_offset == next_offset
    return found


class Producer(NamedTuple):
    """A producer's state after a replay of plain batches."""

    epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class Replayed(NamedTuple):
    """What batches add up to."""

    producers: dict[int, Producer]
    last_offsets: dict[int, list[int]]
    """Of every batch of each producer."""
    aborted: dict[int, tuple[int, int, int]]
    """By the marker's offset: producer, first offset, last stable offset."""


def replay(batches: Iterable[Written]) -> Replayed:
    """Compute the state after some batches, in the simplest way."""
    result = Replayed({}, {}, {})
    for batch in batches:
        header = parse_header(batch.data)
        if header.producer_id < 0:
            continue
        old = result.producers.get(header.producer_id, Producer(-1, -1, -1, -1, -1, -1))
        if header.is_control:
            (marker,) = iter_records(batch.data)
            assert marker.key is not None
            assert marker.value is not None
            if old.txn_first_offset >= 0 and marker.key[2:4] == b"\0\0":
                others = [
                    one.txn_first_offset
                    for producer_id, one in result.producers.items()
                    if producer_id != header.producer_id and one.txn_first_offset >= 0
                ]
                result.aborted[batch.base] = (header.producer_id, old.txn_first_offset, min([*others, batch.next]))
            result.producers[header.producer_id] = old._replace(
                epoch=header.producer_epoch,
                last_timestamp=header.max_timestamp,
                coordinator_epoch=int.from_bytes(marker.value[2:6], "big"),
                txn_first_offset=-1,
            )
            continue
        is_first = header.is_transactional and old.txn_first_offset < 0
        result.last_offsets.setdefault(header.producer_id, []).append(batch.next - 1)
        result.producers[header.producer_id] = Producer(
            header.producer_epoch,
            header.base_sequence + header.last_offset_delta,
            batch.next - 1,
            header.max_timestamp,
            old.coordinator_epoch,
            batch.base if is_first else old.txn_first_offset,
        )
    return result


# -- comparing -------------------------------------------------------------------------------------------------------


def state_of(env: MemoryEnv, cut: Cut, truths: Mapping[TopicPartition, Truth]) -> tuple[object, ...]:
    """Return all inputs of opening the directory and comparing it with `truths`."""
    promised = tuple(
        (key, tuple(truth.history), tuple(truth.batches), truth.cleaned and tuple(truth.cleaned), truth.flushed,
         truth.min_start, truth.max_start, truth.epochs_from)
        for key, truth in truths.items()
    )  # fmt: skip
    return tree_of(env), promised, tuple(cut.sources.items()), cut.leader_epoch, env.clock.now_ms()


def check(cut: Cut, env: MemoryEnv, seen: set[int]) -> None:
    """Lose power at `cut`, open the directory twice, continue, and lose power once more; check the test's invariants.

    `seen` holds hashes of the states after first openings. The later steps depend on nothing else, and most states are equal.
    """
    recovery_points = read_offset_checkpoint(env, f"{ROOT}/{names.RECOVERY_POINT_CHECKPOINT}")
    starts = read_offset_checkpoint(env, f"{ROOT}/{names.LOG_START_OFFSET_CHECKPOINT}")
    directory = open_directory(env, cut.sources)
    assert not directory.failures
    survivors = {}
    for key, truth in cut.truths.items():
        log = directory.logs[key]
        survivors[key] = check_log(log, truth)
        assert recovery_points.get(key, 0) <= log.log_end_offset, "the recovery point lies behind the end"
        assert starts.get(key, 0) <= log.log_start_offset <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
    found = dump(directory)
    env.crash(NOTHING_LOST)
    opened = hash((state_of(env, cut, survivors), found))
    if opened in seen:
        return
    seen.add(opened)
    directory = open_directory(env, cut.sources)
    assert dump(directory) == found, "a second recovery has changed something"
    go_on(directory, survivors, cut.leader_epoch + 1)
    env.crash()
    directory = open_directory(env, cut.sources)
    assert not directory.failures
    for key, truth in survivors.items():
        check_log(directory.logs[key], truth)


def check_log(log: Log, truth: Truth) -> Truth:
    """Compare an opened log with the truth; return the truth about the surviving batches."""
    stored = read_stored(log)
    candidates = [truth.batches] if truth.cleaned is None else [truth.batches, truth.cleaned]
    problems = [problem_of(log, stored, candidate, truth) for candidate in candidates]
    assert None in problems, problems
    candidate = candidates[problems.index(None)]
    assert truth.min_start <= log.log_start_offset <= truth.max_start
    assert log.log_end_offset >= truth.flushed
    present = {batch.base for _, _, batch in stored}
    lost = {batch.base for batch in candidate if batch.base not in present and batch.next > log.log_start_offset}
    history = [batch for batch in truth.history if batch.base not in lost and batch.base < log.log_end_offset]
    check_producers(log, history)
    check_indexes(log, stored)
    for _, _, batch in stored:
        if batch.next > log.log_start_offset:
            offset = max(batch.base, log.log_start_offset)
            epoch = log.epoch_for_offset(offset)
            is_known = epoch == parse_header(batch.data).partition_leader_epoch
            assert is_known or (epoch == -1 and offset < truth.epochs_from), f"leader epoch of {batch.base}: {epoch}"
    start = log.log_start_offset
    batches = [batch for batch in candidate if batch.base not in lost]
    return Truth(history, batches, None, log.recovery_point, truth.min_start, start, truth.epochs_from)


def problem_of(
    log: Log, stored: Sequence[tuple[int, int, Written]], expected: Sequence[Written], truth: Truth
) -> str | None:
    """Return why the stored batches are not the expected ones, apart from batches that no flush covers; None if they are.

    What is missing is missing up to the end of a segment: of the end of a segment the bytes may be lost and the name of the
    next one not, in Kafka as here.
    """
    places = {batch: place for place, batch in enumerate(expected)}
    previous = -1
    segment = -1
    for base, _, batch in stored:
        place = places.get(batch)
        if place is None:
            return f"{batch.base} to {batch.next} is not what was written"
        for missing in expected[previous + 1 : place]:
            if missing.next > log.log_start_offset and (missing.base < truth.flushed or base == segment):
                return f"{missing.base} to {missing.next} is missing before {batch.base}, flushed was {truth.flushed}"
        previous, segment = place, base
    for missing in expected[previous + 1 :]:
        if missing.next > log.log_start_offset and missing.base < truth.flushed:
            return f"{missing.base} to {missing.next} is missing at the end, flushed was {truth.flushed}"
    return None


def check_producers(log: Log, history: Sequence[Written]) -> None:
    """Compare producers and aborted transactions with a replay of all batches, or of those in the segments."""
    first = log.segments[0].base_offset
    whole, rest = replay(history), replay(batch for batch in history if batch.base >= first)
    actual = {
        entry.producer_id: Producer(
            entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.timestamp, entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in log.producers.active_producers
    }  # fmt: skip
    assert rest.producers.keys() <= actual.keys() <= whole.producers.keys()
    for producer_id, found in actual.items():
        assert found in (whole.producers[producer_id], rest.producers.get(producer_id)), f"producer {producer_id}"
        state = log.producers.state_of(producer_id)
        assert state is not None
        known = [batch.last_offset for batch in state.batches]
        expected = whole.last_offsets.get(producer_id, [])
        assert known == expected[len(expected) - len(known) :]
    open_from = [one.txn_first_offset for one in actual.values() if one.txn_first_offset >= 0]
    stable = min([log.log_end_offset, *(max(offset, log.log_start_offset) for offset in open_from)])
    assert log.last_stable_offset == stable
    aborted = {
        entry.last_offset: (entry.producer_id, entry.first_offset, entry.last_stable_offset)
        for segment in log.segments
        for entry in segment.txn_index.all()
    }
    for marker, entry in aborted.items():
        assert entry in (whole.aborted.get(marker), rest.aborted.get(marker)), f"aborted with the marker at {marker}"
    assert rest.aborted.keys() <= aborted.keys()


def check_indexes(log: Log, stored: Sequence[tuple[int, int, Written]]) -> None:
    """Check that every index passes its own check and agrees with a scan."""
    for segment in log.segments:
        batches = [(position, batch) for base, position, batch in stored if base == segment.base_offset]
        starts = {position: batch.next - 1 for position, batch in batches}
        timestamps = [(parse_header(batch.data).max_timestamp, batch.next - 1) for _, batch in batches]
        for index in (segment.offset_index, segment.time_index, segment.txn_index):
            index.sanity_check()
        for number in range(segment.offset_index.file.entries):
            offset, position = segment.offset_index.entry(number)
            assert starts.get(position) == offset, f"{segment.offset_index.file.path}: {offset} at {position}"
        for number in range(segment.time_index.file.entries):
            timestamp, offset = segment.time_index.entry(number)
            assert timestamp == max(at for at, last in timestamps if last <= offset), segment.time_index.file.path
        assert segment.max_timestamp == max((at for at, _ in timestamps), default=-1), segment.path
        for _, batch in batches:
            located = segment.locate(batch.base)
            assert located is not None
            assert located[1].base_offset == batch.base
    for segment in log.segments:
        for entry in segment.txn_index.all():
            assert entry.last_offset >= segment.base_offset, segment.path


def dump(directory: LogDirectory) -> tuple[object, ...]:
    """Return all relevant state, for comparison."""
    return tuple(
        (
            key,
            log.log_start_offset,
            log.log_end_offset,
            tuple(segment.base_offset for segment in log.segments),
            tuple(_content(log.env, path) for segment in log.segments for path in segment.file_paths()),
            tuple(sorted(log.producers.active_producers)),
            log.last_stable_offset,
            tuple(log.epochs.entries),
        )
        for key, log in sorted(directory.logs.items())
    )


def _content(env: Any, path: str) -> bytes:
    # An index without entries may have no file yet.
    return bytes(env.read_bytes(path)) if env.exists(path) else b""


def go_on(directory: LogDirectory, truths: dict[TopicPartition, Truth], leader_epoch: int) -> None:
    """Append to every log, flush, write the checkpoints, and update the truth."""
    for key, truth in truths.items():
        log = directory.logs[key]
        log.become_leader(leader_epoch)
        known = log.producers.state_of(1)
        batches = [build_batch([Record(0, START_MS, b"k", b"after")])]
        if known is not None and known.producer_epoch == 0:
            is_open = known.current_txn_first_offset >= 0
            sequence = known.last_sequence + 1
            batches.append(
                build_batch(
                    [Record(0, START_MS, b"k", b"next")], producer_id=1, producer_epoch=0, base_sequence=sequence,
                    is_transactional=is_open,
                )
            )  # fmt: skip
        for batch in batches:
            base = log.append_as_leader(memoryview(batch)).base_offset
            written = Written(base, base + 1, bytes(batch))
            truth.history.append(written)
            truth.batches.append(written)
            assert log.read(base, 1 << 20, isolation_level=0, min_one_message=True).slices[0].read() == written.data
        log.flush()
        truth.flushed = log.log_end_offset
        truth.min_start = log.log_start_offset
    directory.checkpoint_files.write(directory.checkpoint_state())

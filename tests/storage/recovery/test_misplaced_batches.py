"""Whole batches at offsets where no broker of today writes them: no start cuts one off.

Kafka 4.3.1 divides a segment whose offsets exceed its indexes when it recovers or cleans it. Where offsets descend it serves the
batches as they are, removes the whole segment (if an index entry is due), or does not start, after an orderly stop and a crash
alike; here the partition is not served.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.recovery.segment_recovery import MisplacedBatch, SyncedDamage
from diamant.storage.segments.segment import MAX_RELATIVE_OFFSET
from tests.effort import some
from tests.injected_faults import Operation
from tests.memory_env import Loss, MemoryEnv, PowerOff
from tests.storage.conftest import START_MS
from tests.storage.directory.test_log_directory import COUNT, filled, source, start
from tests.storage.logs import batch
from tests.storage.one_log import PATH, load_one
from tests.storage.recovery.misplaced import BEYOND, CONTROLS, OVERFLOWING, TOP, UNSERVABLE, Segments, at, old, write

STARTS = {
    "orderly": {"is_clean": True},
    "crash": {"recovery_point": 0},
    "crash behind a checkpoint": {"recovery_point": 3},
    "crash without recovery points": {"recovery_point": None},
    "crash after a refusal": {"recovery_point": checkpoints.CUT_NOTHING},
}


def logs(env: MemoryEnv) -> dict[int, bytes]:
    """Return the `.log` files by base offset."""
    found = {}
    for name in env.list_dir(PATH):
        parsed = names.parse_segment_file(name)
        if parsed is not None and parsed.suffix == names.LOG_SUFFIX:
            assert not parsed.stage
            found[parsed.offset] = env.read_bytes(f"{PATH}/{name}")
    return dict(sorted(found.items()))


def joined(segments: Segments) -> bytes:
    return b"".join(b"".join(batches) for batches in segments.values())


def check_divided(env: MemoryEnv, segments: Segments) -> None:
    """Check that all batches are there in order, each in reach of its segment's indexes."""
    found = logs(env)
    assert b"".join(found.values()) == joined(segments)
    ends = [*list(found)[1:], TOP]
    for (base_offset, data), end in zip(found.items(), ends, strict=True):
        offsets = [header.last_offset for _, header in iter_headers(data)]
        assert all(base_offset <= offset <= base_offset + MAX_RELATIVE_OFFSET for offset in offsets)
        assert all(offset < end for offset in offsets)


def read_offsets(log: Log) -> list[int]:
    """Return the base offsets of all batches as fetched one after the other."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        [piece] = log.read(offset, 1, isolation_level=0, min_one_message=True).slices
        for _, header in iter_headers(piece.read()):
            found.append(header.base_offset)
            offset = header.next_offset
    return found


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("case", OVERFLOWING)
@pytest.mark.parametrize("with_indexes", [True, False], ids=["indexes", "no indexes"])
def test_a_segment_whose_offsets_exceed_its_indexes_is_divided(
    memory: MemoryEnv, case: str, kind: str, with_indexes: bool
) -> None:
    """Whatever the start, all records are kept and served, appends follow them, and later starts have nothing to do."""
    segments = OVERFLOWING[case]
    write(memory, PATH, segments, with_indexes=with_indexes)
    headers = [header for _, header in iter_headers(joined(segments))]
    messages: list[str] = []
    log = load_one(memory, messages=messages, **STARTS[kind])
    check_divided(memory, segments)
    assert log.log_end_offset == headers[-1].next_offset
    assert read_offsets(log) == [header.base_offset for header in headers]
    assert sum("exceed the 31 bits" in message for message in messages) >= 1
    assert log.append_as_leader(batch(b"next")).base_offset == headers[-1].next_offset
    log.close()
    before = logs(memory)
    for is_clean in (True, False, True):
        said: list[str] = []
        log = load_one(memory, is_clean=is_clean, recovery_point=0, messages=said)
        assert (read_offsets(log)[-1], said) == (headers[-1].next_offset, [])
        log.close()
        assert logs(memory) == before


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("case", UNSERVABLE)
def test_a_batch_that_cannot_be_served_is_not_cut_off(memory: MemoryEnv, case: str, kind: str) -> None:
    """A start that meets the batch names it and refuses the log; no start changes a byte of it. Kafka serves some of them."""
    segments, base_offset, number = UNSERVABLE[case]
    write(memory, PATH, segments)
    before = logs(memory)
    position = sum(map(len, segments[base_offset][:number]))
    refusals = []
    for _ in range(2):
        try:
            load_one(memory, **STARTS[kind]).close(is_clean=False)
        except MisplacedBatch as error:
            refusals.append((error.path, error.position, f"cut the file to {position} bytes" in str(error)))
        assert logs(memory) == before
    assert set(refusals) <= {(names.log_file(PATH, base_offset), position, True)}
    # An orderly start reads only the end of the log, as Kafka's does.
    assert len(refusals) == 2 or kind == "orderly"


@pytest.mark.parametrize(
    ("case", "is_served"),
    [
        ("descending at the end", False),
        ("below the base", False),
        ("up to the largest offset", False),
        ("beyond the largest offset", False),
        ("negative", False),
        ("ends before it begins", True),
        ("the same in the middle", True),
        ("in a closed segment", True),
    ],
)
def test_an_orderly_start_refuses_an_end_that_lies_below_other_offsets(
    memory: MemoryEnv, case: str, is_served: bool
) -> None:
    """Appends would take offsets that the log has. Kafka appends there; at negative or the largest offsets it empties the log."""
    segments, _, _ = UNSERVABLE[case]
    write(memory, PATH, segments)
    if is_served:
        assert load_one(memory, is_clean=True).log_end_offset == [*iter_headers(joined(segments))][-1][1].next_offset
    else:
        with pytest.raises(MisplacedBatch):
            load_one(memory, is_clean=True)
    assert b"".join(logs(memory).values()) == joined(segments)


def test_a_log_is_served_once_the_batch_is_cut_off_by_hand(memory: MemoryEnv) -> None:
    """The position and the offset in the message are right."""
    segments, _, _ = UNSERVABLE["descending in the middle"]
    write(memory, PATH, segments)
    with pytest.raises(MisplacedBatch, match="end at offset 6") as caught:
        load_one(memory)
    file = memory.open(caught.value.path)
    file.truncate(caught.value.position)
    file.close()
    assert read_offsets(load_one(memory, recovery_point=checkpoints.CUT_NOTHING)) == [0, 3]


def test_an_old_message_with_a_wrong_checksum_is_cut_off(memory: MemoryEnv) -> None:
    """The offset of such a message is no sign that it was ever whole."""
    write(memory, PATH, {0: [old(7), old(6)[:-1] + b"?"]})
    log = load_one(memory)
    assert (log.log_end_offset, logs(memory)) == (8, {0: old(7)})


def test_a_torn_end_behind_an_overflow_is_cut_off(memory: MemoryEnv) -> None:
    """After the division the end is judged as any other."""
    torn = at(BEYOND + 13)[:40]
    write(memory, PATH, {0: [at(0), at(BEYOND + 10), torn]})
    messages: list[str] = []
    log = load_one(memory, messages=messages)
    assert (log.log_end_offset, logs(memory)) == (BEYOND + 13, {0: at(0), BEYOND + 10: at(BEYOND + 10)})
    assert "cut off 40 bytes" in messages[-1]


@pytest.mark.parametrize("behind", [at(BEYOND + 10), at(1), at(TOP - 1), at(-7), at(9, last_offset_delta=-1)])
def test_a_whole_batch_of_any_offset_shows_that_an_end_is_not_torn(memory: MemoryEnv, behind: bytes) -> None:
    """Damage below the recovery point, with such a batch behind it, is refused and nothing is cut off."""
    write(memory, PATH, {0: [at(0), at(3)[:-9], behind]})
    before = logs(memory)
    with pytest.raises(SyncedDamage):
        load_one(memory, recovery_point=9)
    assert logs(memory) == before


LOSSES = {"kill": Loss(names=1, content=1), "strict": None, "seed 1": random.Random(1), "seed 2": random.Random(2)}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_clean", [True, False], ids=["orderly", "crash"])
@pytest.mark.parametrize("case", ["more than once", "at the start and later", "in two segments"])
def test_a_division_that_stops_at_any_point_loses_nothing(case: str, is_clean: bool, loss: str) -> None:
    """Strategy: the start is stopped at each change and sync, unsynced data are lost, and the next start is a recovery.

    Invariant: all batches are there, in order, and no temporary file is left.
    """
    segments = OVERFLOWING[case]

    def written() -> MemoryEnv:
        env = MemoryEnv(SettableClock(START_MS))
        env.make_dirs("/data")
        env.sync_dir("/")
        write(env, PATH, segments)
        env.sync_dir("/data")
        return env

    whole = written()
    changes, syncs = whole.change_count, whole.sync_count
    load_one(whole, is_clean=is_clean)
    for kind, total in (("changes", whole.change_count - changes), ("syncs", whole.sync_count - syncs)):
        for number in some(range(total + 1), every=3):
            env = written()
            env.power_off_after(**{kind: number})
            with suppress(PowerOff):
                load_one(env, is_clean=is_clean)
            env.crash(LOSSES[loss])
            log = load_one(env)
            check_divided(env, segments)
            assert len(read_offsets(log)) == sum(map(len, segments.values()))


@pytest.mark.parametrize("is_clean", [True, False], ids=["orderly", "crash"])
@pytest.mark.parametrize("case", ["more than once", "at the start and later", "in two segments", "indexed"])
def test_a_division_on_a_full_disk_loses_nothing(case: str, is_clean: bool) -> None:
    """Strategy: the disk is full after some bytes of the start. The partition is not opened, or has all of its batches.

    Invariant: all batches are there, then and in the next start, which has room; no part of a division is left before it.
    """
    segments = OVERFLOWING[case]
    outcomes: set[str] = set()
    room, step = 0, max(1, len(joined(segments)) // 12)
    while "opened" not in outcomes:
        env = MemoryEnv(SettableClock(START_MS))
        env.make_dirs("/data")
        write(env, PATH, segments)
        total, free = env.disk_usage("/")
        env.capacity_bytes = total - free + room
        try:
            load_one(env, is_clean=is_clean).close(is_clean=False)
            outcomes.add("opened")
        except OSError as error:
            outcomes.add(errno.errorcode[error.errno or 0])
        assert b"".join(logs(env).values()) == joined(segments)
        env.capacity_bytes = None
        log = load_one(env, is_clean=is_clean)
        check_divided(env, segments)
        assert len(read_offsets(log)) == sum(map(len, segments.values()))
        room += step
    assert outcomes == {"opened", "ENOSPC"}


def test_a_broker_serves_the_other_partitions() -> None:
    """The refused partition is listed with its file, and stays as it is over several starts; after a repair it is served."""
    env, expected = filled(a=source(1), b=source(2))
    path = names.log_file("/data/a-0", 0)
    whole = env.read_bytes(path)
    file = env.open(path)
    file.append(at(1, 2))
    for _ in range(3):
        directory = start(env, expected)
        [failure] = directory.failures
        assert (failure.topic, type(failure.error)) == ("a", MisplacedBatch)
        assert directory.logs["b", 0].log_end_offset == COUNT
        directory.close(is_clean=False)
        assert env.read_bytes(path) == whole + at(1, 2)
    file.truncate(len(whole))
    assert start(env, expected).logs["a", 0].log_end_offset == COUNT


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename"])
def test_a_broker_on_a_full_disk_serves_the_others_and_divides_later(operation: Operation) -> None:
    """The partition whose segment cannot be divided is listed with the reason; the next start divides it."""
    env, expected = filled(a=source(1), b=source(2))
    whole = env.read_bytes(path := names.log_file("/data/a-0", 0))
    file = env.open(path)
    file.append(beyond := at(BEYOND + 10))
    file.sync()
    fault = env.fail(operation, "/data/a-0/*.cleaned", errno.ENOSPC)
    directory = start(env, expected)
    [failure] = directory.failures
    assert (failure.topic, getattr(failure.error, "errno", None), fault.hits > 0) == ("a", errno.ENOSPC, True)
    assert directory.logs["b", 0].log_end_offset == COUNT
    directory.close(is_clean=True)
    assert [name for name in env.list_dir("/data/a-0") if name.endswith((".cleaned", ".swap"))] == []
    assert env.read_bytes(path) == whole + beyond
    fault.clear()
    directory = start(env, expected)
    assert directory.failures == []
    assert read_offsets(directory.logs["a", 0])[-1] == BEYOND + 10


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("case", CONTROLS)
def test_a_control_record_that_cannot_be_read_is_passed_over(
    memory: MemoryEnv, case: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is served with one warning, and the transaction that the record may end stays open. Kafka does not start."""
    opening = at(0, producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    segments = {0: [opening, CONTROLS[case], at(4)]}
    write(memory, PATH, segments)
    log = load_one(memory, **STARTS[kind])
    assert (log.log_end_offset, log.last_stable_offset) == (7, 0)
    assert logs(memory) == {0: joined(segments)}
    [warning] = caplog.records
    assert "the control record at offset 3 of producer 7 cannot be read" in warning.getMessage()

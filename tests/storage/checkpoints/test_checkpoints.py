"""Checkpoints, leader epochs, partition.metadata and the mark of a clean shutdown."""

from __future__ import annotations

import pytest

from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.errors import CorruptLog
from diamant.storage.uuid_text import uuid_from_text
from tests.memory_env import MemoryEnv

PATH = "/recovery-point-offset-checkpoint"


def write(env: MemoryEnv, path: str, text: str) -> None:
    env.write_atomically(path, text.encode())


def test_offset_checkpoint_round_trip(memory: MemoryEnv) -> None:
    """Offsets come back, even after a loss of power, and the text is Kafka's."""
    offsets = {("tt", 0): 11, ("__consumer_offsets", 0): 11, ("a.b-c", 12): 2**62}
    checkpoints.write_offset_checkpoint(memory, PATH, offsets)
    assert memory.read_bytes(PATH) == b"0\n3\n__consumer_offsets 0 11\na.b-c 12 4611686018427387904\ntt 0 11\n"
    assert checkpoints.read_offset_checkpoint(memory, PATH) == offsets
    checkpoints.write_offset_checkpoint(memory, PATH, {})
    memory.crash()
    assert memory.read_bytes(PATH) == b"0\n0\n"


@pytest.mark.parametrize("text", ["", "0\n", "0\n0\n"])
def test_empty_checkpoints_have_no_entries(memory: MemoryEnv, text: str) -> None:
    """An empty file, one with a version only, one with a count of 0, and no file at all have no entries."""
    assert checkpoints.read_offset_checkpoint(memory, PATH) == {}
    write(memory, PATH, text)
    assert checkpoints.read_offset_checkpoint(memory, PATH) == {}


def test_fields_may_be_any_whitespace_apart(memory: MemoryEnv) -> None:
    """Readers split at any run of white space, as Kafka's do."""
    write(memory, PATH, "0\n1\nt \t 3   7\n")
    assert checkpoints.read_offset_checkpoint(memory, PATH) == {("t", 3): 7}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1\n0\n", 1),
        ("x\n0\n", 1),
        ("0\nx\n", 2),
        ("0\n-1\n", 2),
        ("0\n2\nt 0 1\n", 2),
        ("0\n1\nt 0 1\nt 1 1\n", 2),
        ("0\n1\nt 0\n", 3),
        ("0\n1\nt 0 1 2\n", 3),
        ("0\n1\nt x 1\n", 3),
        ("0\n1\nt 0 1.5\n", 3),
    ],
)
def test_broken_checkpoints_say_where(memory: MemoryEnv, text: str, line: int) -> None:
    """Another version, a wrong count and a malformed line are errors that name the line."""
    write(memory, PATH, text)
    with pytest.raises(CorruptLog) as caught:
        checkpoints.read_offset_checkpoint(memory, PATH)
    assert (caught.value.path, caught.value.position) == (PATH, line)


def test_bytes_that_are_no_text_are_corrupt(memory: MemoryEnv) -> None:
    """A checkpoint overwritten with garbage is reported, not decoded somehow."""
    memory.write_atomically(PATH, b"\xff\xfe\x00")
    with pytest.raises(CorruptLog, match="UTF-8"):
        checkpoints.read_offset_checkpoint(memory, PATH)


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(MemoryEnv(), "/leader-epoch-checkpoint")
    for epoch, start_offset in entries:
        made.assign(epoch, start_offset)
    return made


def test_assign_and_sync_write_kafkas_file(memory: MemoryEnv) -> None:
    """A new epoch is in the file after a sync; the same one at a later offset changes nothing."""
    made = LeaderEpochs.load(memory, "")
    assert made.latest_epoch == -1
    assert made.assign(0, 0)
    assert not made.assign(0, 100)
    assert made.assign(3, 50)
    made.sync()
    assert memory.read_bytes("/leader-epoch-checkpoint") == b"0\n2\n0 0\n3 50\n"
    again = LeaderEpochs.load(memory, "")
    assert again.entries == [(0, 0), (3, 50)]
    assert again.latest_epoch == 3


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        ((2, 5), [(0, 0), (1, 4), (2, 5)]),
        ((2, 9), [(0, 0), (1, 4), (2, 9)]),
        ((2, 4), [(0, 0), (2, 4)]),
        ((2, 0), [(2, 0)]),
        ((1, 3), [(0, 0), (1, 3)]),
        ((1, 4), [(0, 0), (1, 4)]),
        ((0, 9), [(0, 9)]),
    ],
)
def test_assign_drops_what_contradicts(assigned: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    """Entries of the same or a later epoch, or at the same or a later offset, are dropped."""
    made = epochs((0, 0), (1, 4))
    made.assign(*assigned)
    assert made.entries == expected


def test_assign_refuses_negative_numbers() -> None:
    """Neither epoch nor offset may be negative."""
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="non-negative"):
            epochs().assign(epoch, offset)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, [(0, 0), (1, 7), (2, 10)]),
        (5, [(0, 5), (1, 7), (2, 10)]),
        (7, [(1, 7), (2, 10)]),
        (8, [(1, 8), (2, 10)]),
        (10, [(2, 10)]),
        (50, [(2, 50)]),
    ],
)
def test_truncate_from_start(offset: int, expected: list[tuple[int, int]]) -> None:
    """The epoch that contains the new log start begins there; earlier ones are dropped."""
    made = epochs((0, 0), (1, 7), (2, 10))
    made.truncate_from_start(offset)
    assert made.entries == expected


@pytest.mark.parametrize(("offset", "kept"), [(11, 3), (10, 2), (8, 2), (7, 1), (1, 1), (0, 0)])
def test_truncate_from_end(offset: int, kept: int) -> None:
    """Epochs that begin at or after the end of the log are dropped."""
    made = epochs((0, 0), (1, 7), (2, 10))
    made.truncate_from_end(offset)
    assert made.entries == [(0, 0), (1, 7), (2, 10)][:kept]
    assert made.latest_epoch == (kept - 1)
    made.clear()
    assert made.entries == []


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (1, (1, 5)), (2, (2, 8)), (3, (2, 8)), (4, (4, 20)), (5, (-1, -1))],
)
def test_end_offset_for(epoch: int, expected: tuple[int, int]) -> None:
    """An epoch ends where the next one begins, the latest at the log end; unknown ones are undefined (KIP-101)."""
    assert epochs((2, 5), (4, 8)).end_offset_for(epoch, 20) == expected
    assert epochs().end_offset_for(epoch, 20) == (-1, -1)


def test_epoch_for_offset() -> None:
    """The epoch of an offset is the last that begins at or before it."""
    made = epochs((2, 5), (4, 8))
    assert [made.epoch_for_offset(offset) for offset in (4, 5, 7, 8, 100)] == [-1, 2, 2, 4, 4]


def test_epochs_survive_a_crash_after_sync(memory: MemoryEnv) -> None:
    """Epochs are durable after `sync`; a failed sync leaves the old file, and the next one writes the changes."""
    made = LeaderEpochs.load(memory, "")
    made.sync()
    assert memory.read_bytes("/leader-epoch-checkpoint") == b"0\n0\n"
    made.assign(0, 0)
    made.sync()
    syncs = memory.sync_count
    made.sync()
    assert memory.sync_count == syncs
    made.assign(1, 10)
    fault = memory.fail("append", "*leader-epoch*", 28)
    with pytest.raises(OSError, match="No space"):
        made.sync()
    assert LeaderEpochs.load(memory, "").entries == [(0, 0)]
    fault.clear()
    made.sync()
    made.assign(2, 20)
    memory.crash()
    assert LeaderEpochs.load(memory, "").entries == [(0, 0), (1, 10)]


def test_epochs_of_a_removed_partition() -> None:
    """A sync after the directory was removed or renamed does nothing."""
    made = LeaderEpochs.load(MemoryEnv(), "/gone-0")
    made.assign(0, 0)
    made.sync()


def test_contradicting_epochs_in_a_file_are_dropped(memory: MemoryEnv) -> None:
    """As in Kafka a file's entries are assigned one after the other; a malformed one is an error."""
    write(memory, "/leader-epoch-checkpoint", "0\n3\n0 0\n5 9\n3 7\n")
    assert LeaderEpochs.load(memory, "").entries == [(0, 0), (3, 7)]
    write(memory, "/leader-epoch-checkpoint", "0\n1\n0 x\n")
    with pytest.raises(CorruptLog):
        LeaderEpochs.load(memory, "")


TOPIC_ID = uuid_from_text("l2nmKpPwQoOznXvtmR-QdQ")


def test_partition_metadata_is_kafkas_43_bytes(memory: MemoryEnv) -> None:
    """The file is as Kafka writes it, without a last line end, and durable at once."""
    memory.make_dirs("/t-0")
    memory.sync_dir("/")
    checkpoints.write_partition_metadata(memory, "/t-0", TOPIC_ID)
    memory.crash()
    data = memory.read_bytes("/t-0/partition.metadata")
    assert data == b"version: 0\ntopic_id: l2nmKpPwQoOznXvtmR-QdQ"
    assert len(data) == 43
    assert checkpoints.read_partition_metadata(memory, "/t-0") == TOPIC_ID


def test_partition_metadata_of_other_versions(memory: MemoryEnv) -> None:
    """A higher version and other white space are accepted; a missing file is no id."""
    assert checkpoints.read_partition_metadata(memory, "") is None
    write(memory, "/partition.metadata", "version:\t7\ntopic_id:   l2nmKpPwQoOznXvtmR-QdQ\n")
    assert checkpoints.read_partition_metadata(memory, "") == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0\n",
        "version: -1\ntopic_id: l2nmKpPwQoOznXvtmR-QdQ",
        "version:0\ntopic_id: l2nmKpPwQoOznXvtmR-QdQ",
        "topic_id: l2nmKpPwQoOznXvtmR-QdQ\nversion: 0",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "version: 0\ntopic_id: short",
    ],
)
def test_broken_partition_metadata(memory: MemoryEnv, text: str) -> None:
    """A file with a missing line, a negative version, a bad id or a zero id is corrupt."""
    write(memory, "/partition.metadata", text)
    with pytest.raises(CorruptLog):
        checkpoints.read_partition_metadata(memory, "")


def test_clean_shutdown(memory: MemoryEnv) -> None:
    """The mark carries the broker's epoch in Kafka's bytes and is durable at once."""
    assert checkpoints.read_clean_shutdown(memory, "") is None
    checkpoints.write_clean_shutdown(memory, "", 13)
    memory.crash()
    assert memory.read_bytes("/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":13}'
    assert checkpoints.read_clean_shutdown(memory, "") == 13


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"version":0,"brokerEpoch":"x"}'])
def test_any_clean_shutdown_file_counts(memory: MemoryEnv, text: str) -> None:
    """The existence of the mark means a clean shutdown; an unreadable one only loses the epoch."""
    write(memory, "/.kafka_cleanshutdown", text)
    assert checkpoints.read_clean_shutdown(memory, "") == -1

"""Partitions written batch by batch for the tests of the log tools, and what is true of every record in them.

history = History("t", 0).add("k=1 k=2 | t7: x=1 | abort 7 | roll")
history.write(env, "/data")
history.statuses()                       # {0: "superseded", 1: "live", 2: "aborted"}
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st

from diamant.protocol.batches.batch import iter_headers, update_crc
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import AbortedTxn
from tests.builder import Words, make_batch, make_marker, make_message, make_records
from tests.cleaner import timeline


@dataclass
class History:
    """One partition. `offset` is that of the next record."""

    topic: str = "t"
    partition: int = 0
    log_start_offset: int = 0
    offset: int = 0
    segments: dict[int, bytearray] = field(default_factory=lambda: {0: bytearray()})
    aborted: dict[int, list[AbortedTxn]] = field(default_factory=dict)
    records: list[tuple[Record, int | None]] = field(default_factory=list)
    """Each record with its producer, if it is in a transaction."""
    markers: list[tuple[int, int, bool]] = field(default_factory=list)
    """Offset, producer, whether it committed."""

    def add(self, text: str) -> History:
        """Have happen what a line says: see `timeline`."""
        timeline.write(self, text)
        return self

    def add_batch(self, words: list[str], producer: int | None, is_transactional: bool) -> None:
        """A part of `add`."""
        assert is_transactional == (producer is not None)
        self.batch(*words, producer_id=producer)

    def add_marker(self, producer: int, is_commit: bool) -> None:
        """A part of `add`."""
        self.marker(producer, is_commit=is_commit)

    def batch(self, *words: Words, producer_id: int | None = None, codec: int = 0) -> None:
        """Append a batch; with a producer in a transaction."""
        records = make_records(words, base_offset=self.offset)
        transaction = {} if producer_id is None else {
            "producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True
        }  # fmt: skip
        self._append(make_batch(*records, base_offset=self.offset, codec=codec, leader_epoch=0, **transaction))
        self._add(records, producer_id)

    def message(self, magic: int, key: bytes | None, value: bytes | None) -> None:
        """Append an entry of the formats before 0.11."""
        self._append(make_message(magic, self.offset, key, value, timestamp=-1 if magic == 0 else 5))
        self._add([Record(self.offset, -1 if magic == 0 else 5, key, value)], None)

    def marker(self, producer_id: int, *, is_commit: bool) -> None:
        """End a transaction."""
        self._append(
            make_marker(producer_id, is_commit=is_commit, coordinator_epoch=3, base_offset=self.offset, timestamp=1)
        )  # fmt: skip
        previous = max((offset for offset, producer, _ in self.markers if producer == producer_id), default=-1)
        of_producer = [
            record.offset for record, owner in self.records if owner == producer_id and record.offset > previous
        ]
        if not is_commit and of_producer:
            entry = AbortedTxn(producer_id, of_producer[0], self.offset, self.offset)
            self.aborted.setdefault(max(self.segments), []).append(entry)
        self.markers.append((self.offset, producer_id, is_commit))
        self.offset += 1

    def gap(self, size: int) -> None:
        """Leave offsets out, as compaction does."""
        self.offset += size

    def roll(self) -> None:
        """Begin a segment."""
        self.segments.setdefault(self.offset, bytearray())

    def write(self, env: Env, log_directory: str) -> str:
        """Write the files into a log directory; return the partition's directory."""
        directory = f"{log_directory}/{self.topic}-{self.partition}"
        env.make_dirs(directory)
        for base, data in self.segments.items():
            files = {"log": bytes(data), "index": b"", "timeindex": b""}
            if base in self.aborted:
                files["txnindex"] = b"".join(entry.to_bytes() for entry in self.aborted[base])
            for suffix, content in files.items():
                write_file(env, f"{directory}/{base:020d}.{suffix}", content)
        return directory

    def statuses(self) -> dict[int, str]:
        """What is true of each record, by the slowest way there is."""
        found: dict[int, str] = {}
        for record, producer_id in self.records:
            found[record.offset] = self._outcome(record, producer_id)
        for record, _ in self.records:
            if found[record.offset] != "committed":
                continue
            later = [
                other for other, _ in self.records
                if other.offset > record.offset and other.key == record.key
                and found[other.offset] in ("committed", "live", "tombstone", "superseded")
            ]  # fmt: skip
            if later:
                found[record.offset] = "superseded"
            else:
                found[record.offset] = "tombstone" if record.value is None else "live"
        return found

    def _outcome(self, record: Record, producer_id: int | None) -> str:
        if record.offset < self.log_start_offset:
            return "below log start"
        if producer_id is not None:
            ends = [commit for offset, owner, commit in self.markers if owner == producer_id and offset > record.offset]
            if not ends:
                return "undecided"
            if not ends[0]:
                return "aborted"
        return "keyless" if record.key is None else "committed"

    def _append(self, data: bytes | bytearray) -> None:
        self.segments[max(self.segments)] += data

    def _add(self, records: list[Record], producer_id: int | None) -> None:
        self.records += [(record, producer_id) for record in records]
        self.offset += len(records)


def write_file(env: Env, path: str, data: bytes) -> None:
    """Create a file with this content."""
    file = env.open(path, create=True)
    file.truncate(0)
    file.append(data)
    file.close()


def damage(env: Env, path: str, data: st.DataObject) -> None:
    """Overwrite bytes of a file and cut its end, with the checksums of its batches made right again or not."""
    content = bytearray(env.read_bytes(path))
    for _ in range(data.draw(st.integers(1, 4)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    if path.endswith(".log") and data.draw(st.booleans()):
        with suppress(CorruptBatch):
            for position, header in list(iter_headers(content)):
                if header.magic == 2:
                    update_crc(content, position)
    write_file(env, path, bytes(content[: data.draw(st.integers(0, len(content)))]))


_keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"key-1", b"key-2", b"\xff\x00"])
_values = st.sampled_from([None, b"", b"value", b"needle", b"\x00\x01"])
_words = st.lists(st.tuples(_keys, _values), min_size=1, max_size=4)
_operations = st.one_of(
    st.tuples(st.just("batch"), _words, st.sampled_from([None, None, 1, 2]), st.integers(0, 4)),
    st.tuples(st.just("marker"), st.sampled_from([1, 2]), st.booleans()),
    st.tuples(st.just("message"), st.integers(0, 1), _keys, _values),
    st.tuples(st.just("roll")),
    st.tuples(st.just("gap"), st.integers(1, 3)),
)


@st.composite
def histories(draw: st.DrawFn, partition: int = 0) -> History:
    """Any partition of a few batches: transactions, tombstones, old formats, codecs, gaps, segments, a log start."""
    history = History(partition=partition)
    for name, *arguments in draw(st.lists(_operations, min_size=1, max_size=14)):
        if name == "batch":
            words, producer_id, codec = arguments
            history.batch(*words, producer_id=producer_id, codec=codec)
        elif name == "marker":
            history.marker(arguments[0], is_commit=arguments[1])
        elif name == "message":
            history.message(*arguments)
        elif name == "gap":
            history.gap(arguments[0])
        else:
            history.roll()
    history.log_start_offset = draw(st.sampled_from([0, 0, history.offset // 3]))
    return history

"""Segments with whole batches at offsets where no broker of today writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.control import COMMIT, control_key
from diamant.protocol.batches.header import Record
from diamant.storage import names
from diamant.storage.env.env import Env
from tests.builder import TIMESTAMP, make_batch, make_message, with_header

BEYOND = 2**31
"""The first offset that the indexes of a segment at 0 cannot hold."""
TOP = 2**63 - 1

Segments = Mapping[int, Sequence[bytes]]
"""The batches of each segment by its base offset."""


def at(base_offset: int, count: int = 3, value: str = "v", **fields: int) -> bytes:
    """Return a whole batch of `count` records; `fields` replace those of its header."""
    batch = make_batch(*(f"k{number}={value}" for number in range(count)))
    return bytes(with_header(batch, base_offset=base_offset, **fields))


def old(offset: int) -> bytes:
    """Return a message of magic 1."""
    return make_message(1, offset, b"k%d" % offset, b"v")


LARGE = "x" * 3000
"""A value that gets each batch an entry in the index."""

OVERFLOWING: dict[str, Segments] = {
    "at the end": {0: [at(0), at(3), at(BEYOND + 10)]},
    "in the middle": {0: [at(0), at(3), at(BEYOND + 10), at(BEYOND + 13)]},
    "indexed": {
        0: [at(0, value=LARGE), at(3, value=LARGE), at(BEYOND + 10, value=LARGE), at(BEYOND + 13, value=LARGE)]
    },
    "at the start": {0: [at(BEYOND + 10), at(BEYOND + 13)]},
    "more than once": {0: [at(0), at(BEYOND + 10), at(2 * BEYOND + 30)]},
    "at the start and later": {0: [at(BEYOND + 10), at(3 * BEYOND)]},
    "within a batch": {0: [at(0), at(BEYOND - 2)]},
    "in a closed segment": {0: [at(0), at(BEYOND + 10)], BEYOND + 13: [at(BEYOND + 13)]},
    "in two segments": {0: [at(0), at(BEYOND)], BEYOND + 10: [at(BEYOND + 10), at(3 * BEYOND)]},
    "near the largest offset": {0: [at(0), at(TOP - 9)]},
    "old formats": {0: [old(0), old(BEYOND + 10)]},
}
"""Offsets more than 2^31 above the base of their segment, as brokers before Kafka 2.0 left them."""

UNSERVABLE: dict[str, tuple[Segments, int, int]] = {
    "descending at the end": ({0: [at(0), at(3), at(1, 2)]}, 0, 2),
    "descending in the middle": ({0: [at(0), at(3), at(1, 2), at(6)]}, 0, 2),
    "descending behind the index": (
        {0: [at(0, value=LARGE), at(3, value=LARGE), at(1, 2, LARGE), at(6, value=LARGE)]},
        0,
        2,
    ),
    "the same again": ({0: [at(0), at(3), at(3)]}, 0, 2),
    "the same in the middle": ({0: [at(0), at(3), at(3), at(6)]}, 0, 2),
    "in a closed segment": ({0: [at(0), at(3), at(1, 2)], 6: [at(6)]}, 0, 2),
    "below the base": ({0: [at(0)], 100: [at(100), at(50)]}, 100, 1),
    "first below the base": ({0: [at(0)], 100: [at(50), at(100)]}, 100, 0),
    "behind the range of the index": ({0: [at(0), at(BEYOND + 10), at(3)]}, 0, 2),
    "beyond the next segment": ({0: [at(0), at(BEYOND + 10)], 100: [at(100)]}, 0, 1),
    "up to the largest offset": ({0: [at(0), at(TOP - 2)]}, 0, 1),
    "beyond the largest offset": ({0: [at(0), at(TOP)]}, 0, 1),
    "beyond it in the middle": ({0: [at(0), at(TOP), at(3)]}, 0, 1),
    "negative": ({0: [at(0), at(-5)]}, 0, 1),
    "across zero": ({0: [at(-1)]}, 0, 0),
    "ends before it begins": ({0: [at(0), at(3, last_offset_delta=-1)]}, 0, 1),
    "ends far before it begins": ({0: [at(0), at(3, last_offset_delta=-(2**31)), at(6)]}, 0, 1),
    "old formats": ({0: [old(7), old(6)]}, 0, 1),
}
"""The segments, and base offset of the segment and number of the batch that cannot be served."""


def control(key: bytes | None, value: bytes | None = b"\0\0\0\0\0\0", **fields: int) -> bytes:
    """Return a control batch at offset 3 in the place of a marker of producer 7, with any key and value."""
    record = Record(3, TIMESTAMP, key, value)
    batch = build_batch(
        [record], base_offset=3, producer_id=7, producer_epoch=0, is_transactional=True, is_control=True
    )
    return bytes(with_header(batch, **fields))


CONTROLS = {
    "no key": control(None),
    "empty key": control(b""),
    "short key": control(b"\0\0\0"),
    "negative version": control(b"\xff\xff\0\1"),
    "negative count": control(control_key(COMMIT), record_count=-1),
}
"""Control records that cannot be read."""


def write(env: Env, directory: str, segments: Segments, *, with_indexes: bool = True) -> None:
    """Write the segments of a partition, with the empty indexes of segments smaller than an index interval."""
    env.make_dirs(directory)
    for base_offset, batches in segments.items():
        for path in names.segment_paths(directory, base_offset)[: 3 if with_indexes else 1]:
            file = env.open(path, create=True)
            if path.endswith(names.LOG_SUFFIX):
                file.append(*batches)
            file.sync()
            file.close()
    env.sync_dir(directory)

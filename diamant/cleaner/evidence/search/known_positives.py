"""Known positives: records that are planted before a certifying scan, must be found by it, and are removed before it ends.

    segment                     in each codec, and in formats before 0.11: a record of a key, and one with a needle in its value
    segment of another topic    only the records with a needle in the value
    file searched as bytes      a needle at each position modulo four
    batches in another file     the contents of the segment, after other bytes

The key, the values and the needles are random, generated for one scan, and contain no user data. The scan looks for them in the
same way as for its subjects. The files are in directories whose names end in `-delete`, so that files left by a crash are removed
when the broker, or Kafka, starts again. A local staging location of Spark jobs gets the same files, in directories that are named
like those of jobs; after a crash, they are removed like those of a killed job.

Memory and disk space: some KB.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import pack
from typing import NamedTuple
from zlib import crc32

from diamant.cleaner.evidence.search.findings import RAW, SAME_BYTES, VALUE, Finding
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.needles import Needle, Sample, keyed_digest, make_needle
from diamant.kernels.constants.search import STRIDE
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import CODEC_NAMES, GZIP, LZ4, NONE, compress
from diamant.protocol.batches.header import CURRENT_MAGIC, Record
from diamant.storage import names
from diamant.storage.env.env import Env, parent

TOPIC = "diamant-known-positives-"
"""Prefix of the topics' names; a random number follows."""

NEEDLE_BYTES = 64

_KINDS = {
    **{name: (CURRENT_MAGIC, codec) for codec, name in enumerate(CODEC_NAMES)},
    "none, magic 0": (0, NONE),
    "gzip, magic 0": (0, GZIP),
    "none, magic 1": (1, NONE),
    "lz4, magic 1": (1, LZ4),
}
"""Magic and codec of each kind of batch, by its description."""


@dataclass(frozen=True, slots=True)
class KnownPositives:
    """The known positives of one scan."""

    topic: str
    """A topic that the scan covers."""
    key: bytes
    """A key that is too short for a needle, so that it is only found by reading records."""
    needles: tuple[Needle, ...]
    files: Mapping[str, bytes]
    """File contents by path, which is absolute at the staging location, and otherwise relative to the `root` of `write`."""
    directories: tuple[str, ...]
    """Directories that hold only these files."""
    staged: str
    """The topic's directory at the staging location; "" if there is none."""
    expected: Mapping[tuple[str, str, str], str]
    """Human-readable descriptions of the expected findings, by file, kind and digest."""

    def write(self, env: Env, root: str) -> None:
        """Write the files. Raises OSError."""
        for name, data in self.files.items():
            path = os.path.join(root, name)
            env.make_dirs(parent(path))
            file = env.create_new(path)
            try:
                file.append(data)
            finally:
                file.close()

    def remove(self, env: Env, root: str) -> None:
        """Remove the files and directories that exist."""
        for directory in self.directories:
            with suppress(OSError):
                env.remove_tree(os.path.join(root, directory))

    def missed(self, found: Iterable[Finding]) -> set[str]:
        """Return the descriptions of the known positives that are not in `found`."""
        seen = {(one.file, one.what, one.digest) for one in found}
        return {label for place, label in self.expected.items() if place not in seen}


class _Layout(NamedTuple):
    """Where the files are in the data directory, or at the staging location."""

    where: str
    """The location in words, as part of descriptions."""
    own: str
    """The directory of the topic that the scan covers."""
    other: str
    segment: str
    elsewhere: str
    """A segment of the other topic."""


def make_known_positives(secret: bytes, staged: Callable[[str], str] | None = None) -> KnownPositives:
    """Generate known positives for a scan whose needles use this secret.

    `staged` takes the name of a partition's directory and returns the path of a new staging location for it; None if there is no
    staging location.
    """
    topic = TOPIC + secrets.token_hex(8)
    key, other_key = (secrets.token_urlsafe(8).encode() for _ in range(2))
    values = [secrets.token_bytes(NEEDLE_BYTES) for _ in range(len(_KINDS) + STRIDE)]
    in_records, in_bytes = values[: len(_KINDS)], values[len(_KINDS) :]
    own, other = (names.partition_dir_name(name, 0) for name in (topic, f"{topic}-other"))
    set_aside, set_aside_other = (names.delete_dir_name(name, 0) for name in (topic, f"{topic}-other"))
    layouts = [
        _Layout("", set_aside, set_aside_other, names.log_file(set_aside, 0), names.log_file(set_aside_other, 0))
    ]
    if staged is not None:
        place, place_other = staged(own), staged(other)
        output = f"{names.log_file(f'{place_other}/00000000-1', 0)}{names.CLEANED_SUFFIX}"
        segment = names.log_file(f"{place}/segments", 0)
        layouts.append(_Layout(" at the staging location of jobs on Spark", place, place_other, segment, output))
    with_key = [(key, b"v%d" % kind) for kind in range(len(_KINDS))]
    with_needle = [(other_key, b'{"id": "%s"}' % value) for value in in_records]
    both, needles_only = _batches([*with_key, *with_needle]), _batches(with_needle)
    files = {}
    expected = {}
    for where, directory, _, segment, elsewhere in layouts:
        raw, copy = f"{directory}/bytes", f"{directory}/batches"
        files[segment] = both
        files[elsewhere] = needles_only
        files[raw] = _as_bytes(in_bytes)
        files[copy] = b"other bytes, " * 7 + both
        for kind, name in enumerate(_KINDS):
            value, needle = (keyed_digest(secret, one).hex() for one in (with_key[kind][1], in_records[kind]))
            for file, place in ((segment, "a segment"), (copy, "a file of another name")):
                expected[file, VALUE, value] = f"a record of a key in {place}{where} ({name})"
                expected[file, SAME_BYTES, needle] = f"bytes in a record in {place}{where} ({name})"
            label = f"bytes in a record in a segment of another topic{where} ({name})"
            expected[elsewhere, SAME_BYTES, needle] = label
        for index, one in enumerate(in_bytes):
            expected[raw, RAW, keyed_digest(secret, one).hex()] = f"bytes in a file{where} ({index})"
    directories = tuple(directory for layout in layouts for directory in layout[1:3])
    sample = Sample()
    needles = tuple(make_needle(VALUE_NEEDLE, one, keyed_digest(secret, one), sample) for one in values)
    return KnownPositives(topic, key, needles, files, directories, layouts[1].own if staged else "", expected)


def _batches(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Return a batch of alternating kind for each pair of key and value. Each batch contains further records."""
    kinds = [*_KINDS.values()]
    found = bytearray()
    for index, (key, value) in enumerate(pairs):
        first, half = 3 * index, len(value) // 2
        records = [
            # Because of this record, compressed data refers to the value in two parts, and does not contain it in one piece.
            Record(first, 0, b"a", b"%s......%s......" % (value[half:], value[:half])),
            Record(first + 1, 0, key, value),
            Record(first + 2, 0, b"b", b"y" * 400),
        ]
        magic, codec = kinds[index % len(kinds)]
        is_old = magic < CURRENT_MAGIC
        found += _old_messages(magic, codec, records) if is_old else build_batch(records, codec=codec)
    return bytes(found)


def _old_messages(magic: int, codec: int, records: list[Record]) -> bytes:
    """Return records in the formats of brokers before 0.11: one message for each, or one compressed message for all."""
    base = records[0].offset if magic == 1 and codec != NONE else 0
    plain = b"".join(_old_message(magic, NONE, one.offset - base, one.key, one.value or b"") for one in records)
    return plain if codec == NONE else _old_message(magic, codec, records[-1].offset, None, compress(codec, plain))


def _old_message(magic: int, codec: int, offset: int, key: bytes | None, value: bytes) -> bytes:
    body = bytes((magic, codec)) + bytes(8 * magic)
    body += b"\xff" * 4 if key is None else len(key).to_bytes(4, "big") + key
    body += len(value).to_bytes(4, "big") + value
    return pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def _as_bytes(values: list[bytes]) -> bytes:
    """Return bytes that look like an index and contain the values, each at a different position modulo `STRIDE`."""
    found = bytearray()
    for index, value in enumerate(values):
        found += b"".join(number.to_bytes(8, "big") for number in range(8))
        found += bytes((index - len(found)) % STRIDE) + value
    return bytes(found)

"""Reading a segment past damage: every sound batch comes, with the damage between them in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.cleaner.queries.sound_batches import Damage, SegmentPart, sound_batches
from diamant.cleaner.segments.tolerant_reader import Batch, SegmentFile
from diamant.protocol.batches.batch import update_crc
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import BATCH_LENGTH, HEADER_SIZE, Record
from diamant.storage.env.env import RealEnv

BATCHES = 5
RECORDS = 10


def batches() -> list[bytearray]:
    """Return batches of ten records each, from offset 1000 on."""
    return [
        bytearray(
            build_batch(
                [Record(number, 5, b"k%d" % number, b"v" * 20, ()) for number in range(first, first + RECORDS)],
                base_offset=first,
            )
        )
        for first in range(1000, 1000 + BATCHES * RECORDS, RECORDS)
    ]


def read(path: Path, data: bytes) -> list[int | Damage]:
    """Return the base offsets of the sound batches of a segment, and the damage."""
    path.write_bytes(data)
    file = RealEnv().open(str(path), read_only=True)
    part = SegmentPart(file, SegmentFile(str(path), 1000, len(data)), 0, len(data), 1000, 1000 + BATCHES * RECORDS)
    try:
        found = list(sound_batches(part, lambda batch: list(Batch.records(batch))))
    finally:
        file.close()
    return [one if isinstance(one, Damage) else one[0].header.base_offset for one in found]


@pytest.mark.parametrize("damaged", range(BATCHES))
@pytest.mark.parametrize(
    ("at", "octets"),
    [
        (HEADER_SIZE + 30, b"\xff\xff"),  # a record: the checksum is wrong
        (BATCH_LENGTH, b"\xff\xff\xff\xff"),  # a negative length
        (BATCH_LENGTH, b"\x00\x00\x00\x02"),  # a length of nothing
        (BATCH_LENGTH, b"\x00\x00\x01\xff"),  # a length that reaches into the next batch
        (BATCH_LENGTH, b"\x7f\x00\x00\x00"),  # a length beyond the file
        (16, b"\x09"),  # an unknown magic
        (0, b"\x00" * 61),  # the header is lost
    ],
)
def test_one_damaged_batch_costs_one_batch(tmp_path: Path, damaged: int, at: int, octets: bytes) -> None:
    """Wherever its bytes are wrong, all other batches are read, and its offsets are named."""
    parts = batches()
    parts[damaged][at : at + len(octets)] = octets
    found = read(tmp_path / "00000000000000001000.log", b"".join(parts))
    first = 1000 + damaged * RECORDS
    damage = next(one for one in found if isinstance(one, Damage))
    assert (damage.first_offset, damage.next_offset, damage.position) == (
        first,
        first + RECORDS,
        damaged * len(parts[0]),
    )
    assert damage.text.startswith(f"offsets {first:,} to {first + 9:,} cannot be read, consumers stop here: ")
    assert [one for one in found if not isinstance(one, Damage)] == [
        1000 + one * RECORDS for one in range(BATCHES) if one != damaged
    ]


def test_records_that_cannot_be_read_under_a_right_checksum(tmp_path: Path) -> None:
    """Such records are damage as well; neighbouring damage is one item."""
    parts = batches()
    parts[1][HEADER_SIZE] ^= 0x7F
    update_crc(parts[1], 0)
    parts[2][HEADER_SIZE] ^= 0x7F
    found = read(tmp_path / "00000000000000001000.log", b"".join(parts))
    assert [one if isinstance(one, int) else (one.first_offset, one.next_offset) for one in found] == [
        1000, (1010, 1030), 1030, 1040,
    ]  # fmt: skip


def test_every_single_wrong_byte(tmp_path: Path) -> None:
    """No byte of a batch, if it is wrong, costs another batch or lets a wrong record through."""
    parts = batches()
    size = len(parts[2])
    for at in range(8, size, 3):  # the checksum does not cover the base offset
        parts[2][at] ^= 0x55
        found = read(tmp_path / "00000000000000001000.log", b"".join(parts))
        parts[2][at] ^= 0x55
        sound = [one for one in found if isinstance(one, int)]
        assert set(sound) >= {1000, 1010, 1030, 1040}, at
        assert (1020 in sound) == (12 <= at < 16), at  # nor the leader epoch

"""The walk over headers that skips batches without a producer."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.storage.env.env import File, RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.recovery.segment_recovery import scan_for_producers
from tests.builder import make_batch, make_message
from tests.effort import examples
from tests.memory_env import MemoryEnv

END_OFFSET = 5


def found(file: File, size: int) -> list[object]:
    """Return position and header of all batches with a producer below the end offset, and the damage found."""
    batches: list[object] = []
    try:
        for position, header in scan_for_producers(file, 0, size, END_OFFSET):
            if header.base_offset >= END_OFFSET:
                break
            if header.magic == 2 and header.producer_id >= 0:
                batches.append((position, header))
    except CorruptLog as error:
        batches.append((error.position, error.reason))
    finally:
        file.close()
    return batches


batches = st.builds(
    lambda size, **given: bytes(make_batch((b"key", bytes(size)), **given)),
    st.integers(0, 40) | st.integers(3900, 9000),
    base_offset=st.sampled_from([0, 0, 0, 5]),
    producer_id=st.sampled_from([-1, -1, -1, 0, 2**40]),
) | st.just(bytes(make_message(1, 3, b"k", b"v")))


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(batches, max_size=60),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=2),
    st.integers(0, 70),
)
def test_no_producer_is_passed_over(batches: list[bytes], damage: list[tuple[int, int]], cut: int) -> None:
    """No batch with a producer and no damaged or torn batch is skipped, with the kernel or (files in memory) without."""
    data = bytearray(b"".join(batches))
    del data[max(0, len(data) - cut) :]
    for place, byte in damage:
        if place < len(data):
            data[place] = byte
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/file"
        Path(path).write_bytes(data)
        memory = MemoryEnv()
        memory.write_atomically("/file", bytes(data))
        expected = found(memory.open("/file", read_only=True), len(data))
        assert found(RealEnv().open(path, read_only=True), len(data)) == expected

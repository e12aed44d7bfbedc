"""The compiled count of declared batches equals the plain one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.evidence.search.file_census import Amounts, declared
from diamant.kernels.census import count_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from tests.builder import make_message
from tests.effort import examples
from tests.memory_env import MemoryEnv

MAX_BATCH_BYTES = 6000


def counted(data: bytes, path: str, env: MemoryEnv | RealEnv) -> Amounts:
    """Return the declared amounts of a file of `env`; files in memory have no descriptor and use the plain count."""
    file = env.open(path, read_only=True)
    try:
        return declared(file, len(data), MAX_BATCH_BYTES)
    finally:
        file.close()


def batch(size: int, codec: int) -> bytes:
    """Return a batch with a value of `size` bytes; codecs from 5 on mean a message of an old format."""
    if codec > 4:
        return bytes(make_message(codec - 5, 0, b"key", bytes(size)))
    return bytes(build_batch([Record(0, 1, b"key", os.urandom(size))], codec=codec))


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.builds(batch, st.integers(0, 40) | st.integers(3900, 6100), st.integers(0, 6)), max_size=60),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=2),
    st.binary(max_size=70),
)
def test_declared_batches_are_counted_as_the_plain_count_does(
    batches: list[bytes], damage: list[tuple[int, int]], rest: bytes
) -> None:
    """Both counts agree for all formats, codecs and sizes, and with a damaged header anywhere."""
    data = bytearray(b"".join(batches) + rest)
    for place, byte in damage:
        if place < len(data):
            data[place] = byte
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(data)
        memory = MemoryEnv()
        memory.write_atomically("/file", bytes(data))
        assert counted(data, str(path), RealEnv()) == counted(data, "/file", memory)


def test_a_read_error_returns_its_errno() -> None:
    """A read error returns its errno."""
    assert count_headers(-1, 100, MAX_BATCH_BYTES, np.zeros((16, 3), np.int64))[1] > 0

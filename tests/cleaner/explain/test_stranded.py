"""The default partitions of keys."""

from __future__ import annotations

import pytest

from diamant.protocol.murmur2 import murmur2


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, signed: int) -> None:
    """The hashes equal the vectors of Kafka's UtilsTest.testMurmur2."""
    assert murmur2(key) == signed & 0x7FFFFFFF

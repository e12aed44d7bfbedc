"""Short runs of the fuzzer on fixed seeds; `make fuzz` runs it for as long as asked."""

from __future__ import annotations

import logging
import random
import struct
from itertools import pairwise

import pytest
from crc32c import crc32c

from tests.broker.wire import batch_of
from tests.fuzz.files import damaged_log
from tests.fuzz.files import fuzz as fuzz_files
from tests.fuzz.requests import Plaintext, Tls, fuzz
from tests.fuzz.watching import Finding, watched


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Plaintext, Tls])
async def test_frames_that_are_nearly_right(kind: type[Plaintext]) -> None:
    """Each is answered or closes its connection; the broker logs no failure and serves the next client."""
    assert await fuzz(1, 300, kind) >= 300


@pytest.mark.slow
async def test_data_directories_with_damaged_files() -> None:
    """A broker starts on each and serves, or refuses and says why."""
    assert await fuzz_files(1, 6) == 6


def test_a_failure_of_the_broker_is_found() -> None:
    """What the fuzzer cannot see, it cannot find: a traceback in the log and an exception are findings."""
    with pytest.raises(Finding, match="a failure"), watched("here"):
        logging.getLogger("diamant").error("failed", exc_info=ValueError("a failure"))
    with pytest.raises(Finding, match="here: KeyError"), watched("here"):
        raise KeyError("unforeseen")


def test_a_damaged_log_has_the_right_checksums() -> None:
    """So the damage reaches what is behind them."""
    data = batch_of([b"one"]) + batch_of([b"two", b"three"])
    for seed in range(20):
        damaged = damaged_log(random.Random(seed), data)
        assert damaged != data
        starts = [0, len(batch_of([b"one"]))]
        for start, end in pairwise([*starts, len(data)]):
            if damaged[:end] == data[:end]:
                continue
            (size,) = struct.unpack_from(">i", damaged, start + 8)
            (crc,) = struct.unpack_from(">I", damaged, start + 17)
            assert crc == crc32c(damaged[start + 21 : start + 12 + size])
            break

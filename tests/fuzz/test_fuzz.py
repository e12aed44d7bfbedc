"""Short runs of the fuzzer on fixed seeds; `make fuzz` runs it for as long as asked."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from diamant.broker.network.request_metrics import VersionCounts
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from tests.broker.groups.share.share_requests import SHARE_ACKNOWLEDGE, SHARE_FETCH
from tests.broker.wire import METADATA, batch_of
from tests.fuzz.__main__ import sums
from tests.fuzz.files import damaged_log
from tests.fuzz.files import fuzz as fuzz_files
from tests.fuzz.requests import Authenticated, Parsed, Plaintext, Quiet, Talk, Tls, fuzz, header, surprises
from tests.fuzz.watching import Finding, watched


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Plaintext, Authenticated, Tls])
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


def test_an_unknown_error_is_found_unless_it_is_kafkas() -> None:
    """UNKNOWN_SERVER_ERROR of any API is a finding, but of ShareFetch, which answers it where Kafka does."""
    rows = [VersionCounts(api_key, 1, reads_codes=False) for api_key in (METADATA, SHARE_FETCH, SHARE_ACKNOWLEDGE)]
    for row in rows[:2]:
        row.errors[-1] = 1
    assert surprises(rows) == {"Metadata"}


class NoServer:
    """What a conversation needs of a server."""

    limits = ServerLimits(1 << 20, 1, 1)
    scratch = bytearray(1 << 16)


async def test_an_answer_that_is_not_owed_is_found() -> None:
    """Answers come in the order of the requests, and only Produce may go without one."""
    for answered, message in (
        ([1, 2], None),
        ([2], None),
        ([1, 3], "3 is answered, 2 of Metadata"),
        ([1, 2, 3, 9], "nobody"),
    ):
        parsed = Parsed(cast(Server, NoServer()))
        talk = Talk(
            Quiet(asyncio.get_running_loop()), cast(Any, None), cast(Any, SimpleNamespace(frames=parsed)), parsed
        )
        parsed.receive(header(0, 3, 1, 0) + header(3, 1, 2, 0) + header(3, 1, 3, 0))
        answers = b"".join(struct.pack(">ii", 4, number) for number in answered)
        with pytest.raises(Finding, match=message) if message else nullcontext():
            talk.check(answers)


def test_totals_are_summed_over_runs() -> None:
    """Each run adds its lines; the sums of all are shown."""
    assert sums("tls 5 1.5\nsasl 7 0.5\ntls 3 0.5\n") == {"tls": (8, 2.0), "sasl": (7, 0.5)}


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

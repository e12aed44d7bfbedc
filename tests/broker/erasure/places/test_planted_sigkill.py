"""Random files beside erasures in a broker killed with SIGKILL, checked by a scanner that shares no code with the broker."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.client.admin import Admin, AdminError
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.erasure.places.planting import PLACES, plant
from tests.broker.erasure.places.test_planted_files import GONE, hidden_places
from tests.broker.redaction.test_redaction_sigkill import PATIENCE_S, running, wait_for
from tests.broker.wire import PRODUCE, WireClient, produce_fields
from tests.cleaner.evidence.scan.independent_scanner import search

KEY = b"customer-000000000042"
VALUE = json.dumps({"email": "ada000000000042@example.com", "n": 42}).encode()
MOMENTS: list[Callable[[Path], bool]] = [
    lambda data: any(data.glob("diamant-erasure-*.intent")),
    lambda data: any(data.glob("users-0/*.log.cleaned")) or any(data.glob("users-0/*.log.swap")),
    lambda data: any(data.glob("users-0/*.log.deleted")),
    lambda data: any(data.glob("diamant-erasure-*.json")),
]


async def fill(address: str, rng: random.Random) -> None:
    """Write values of the key among other records, in every codec."""
    async with WireClient(address) as client:
        for name, policy in (("users", "compact"), ("orders", "delete"), ("other", "delete")):
            created = await client.create(name, 2, cleanup_policy=policy, internal_segment_bytes="3000")
            assert created.error_code == 0
        for number in range(40):
            pairs = [
                (KEY, VALUE) if number % 5 == 0 and one == 0 else (b"%d" % one, b"%d" % number * 9) for one in range(9)
            ]
            records = [Record(offset, -1, key, value) for offset, (key, value) in enumerate(pairs)]
            batch = bytes(build_batch(records, base_offset=0, codec=rng.randrange(5)))
            answer = await client.call(PRODUCE, 9, produce_fields("users", number % 2, batch))
            assert answer.responses[0].partition_responses[0].error_code == 0


def is_partition(place: str) -> bool:
    """Whether a broker accepts such a directory: of a partition, or set aside."""
    return place == "" or ("-" in place and not place.endswith(".{id}"))


def certificates_of(data: Path) -> list[dict[str, Any]]:
    """Return the complete certificates, the last written one at the end."""
    paths = sorted(data.glob("diamant-erasure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in paths]


def one_case(path: Path, seed: int) -> str:
    """Kill a broker at a moment of an erasure, let another one continue, and check; return the last certificate's state."""
    rng = random.Random(seed)
    data, outside = path / "data", path / "outside"
    outside.mkdir(parents=True)
    with running(path, "first") as process:
        address = process.wait_for_address()
        asyncio.run(fill(address, rng))
        # No start takes a directory that is not one of a partition.
        planted = plant(rng, data, outside, "users", KEY, VALUE, [one for one in PLACES if is_partition(one)])
        admin, moment = Admin(address, timeout=PATIENCE_S), rng.choice(MOMENTS)
        assert admin.http_url

        def erase() -> None:
            try:
                admin.erase(KEY.decode(), "users", reason="GDPR Art. 17")
            except AdminError:
                pass  # Killed meanwhile, as is the point.

        caller = threading.Thread(target=erase)
        caller.start()
        wait_for(lambda: any(data.glob("diamant-erasure-*.intent")) or not caller.is_alive(), process)
        wait_for(lambda: moment(data) or not caller.is_alive(), process)
        process.kill()
        caller.join(PATIENCE_S)
    with running(path, "second") as process:
        process.wait_for_address()
        wait_for(lambda: any(data.glob("diamant-erasure-*.json")) or not any(data.glob("diamant-erasure-*")), process)
        found = certificates_of(data)
        assert found, f"seed {seed}: the erasure was forgotten"
        hidden = hidden_places(data, search(data, VALUE), found[-1], "users")
        if found[-1]["state"] in GONE:
            assert not hidden, f"seed {seed}: {found[-1]['state']}, planted {planted.told}, found {hidden[:5]}"
    return str(found[-1]["state"])


@pytest.mark.long
def test_nothing_that_is_called_gone_is_found_after_a_hundred_kills(tmp_path: Path) -> None:
    """Each broker is killed at another moment; both outcomes occur."""
    assert {one_case(tmp_path / str(seed), seed) for seed in range(1000, 1100)} >= {"values-gone", "not-certified"}

"""The digests of affected segments in certificates."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

from diamant.broker.broker import Broker
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.records import create_with_key, values_left
from tests.waiting import wait_until


def digests_of(directory: Path) -> dict[str, str]:
    """The digests of the segments of `users`."""
    return {
        f"{path.parent.name}/{path.name}": sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("users-*/*.log")
    }


async def test_no_segment_is_replaced_before_its_digest_is_on_the_disk(broker: Broker) -> None:
    """The round has written its outputs by then, so a certificate has the digests after any stop."""
    await create_with_key(broker, others=30)
    before = digests_of(data_of(broker))
    # That of the request comes first, then what was found.
    held = Held(broker.env, "rename", "*.intent.tmp", after=2)
    erasing = asyncio.create_task(erase(broker))
    await wait_until(held.begun.is_set)
    await wait_until(lambda: [*data_of(broker).glob("users-0/*.log.cleaned")] != [])
    assert digests_of(data_of(broker)).items() >= before.items() - {(max(before), before[max(before)])}
    assert PERSON in values_left(broker)
    held.go_on.set()
    erasure = await erasing
    assert erasure.state == "values-gone"
    assert values_left(broker) == [None]
    (found,), (digest,) = erasure.certificate["found"], erasure.certificate["segments"]["before"]
    assert [digest["file"]] == found["files"]
    assert digest["sha256"] == before[digest["file"]]


async def test_many_segments_are_hashed_before_anything_is_compacted(broker: Broker) -> None:
    """Hashing takes long, and a held round would delay those of other logs."""
    await create_with_key(broker, partitions=3, others=30)
    before = digests_of(data_of(broker))
    held = Held(broker.env, "rename", "*.intent.tmp", after=2)
    erasing = asyncio.create_task(erase(broker))
    await wait_until(held.begun.is_set)
    assert erasing.done() is False
    assert broker.services.erasures().queue.attempts.is_at_work
    assert [*data_of(broker).glob("users-*/*.cleaned")] == []
    held.go_on.set()
    erasure = await erasing
    after = {one["file"]: one["sha256"] for one in erasure.certificate["segments"]["before"]}
    assert len(after) == 3
    assert after.items() <= before.items()

"""Random histories: the tests' scanner finds no value that a certificate claims to be gone."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import TimedOut
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.certificate import parse_certificate
from diamant.protocol.batches.header import Header
from tests import effort
from tests.broker.erasure.brokers import clock_of, data_of, move_to
from tests.broker.erasure.constants import RETRY_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certificates_of, check_claims
from tests.broker.erasure.obstacles import erase_in_vain
from tests.broker.erasure.records import Producer, create, write
from tests.cleaner.evidence.scan.naive_scanner import records_of_key
from tests.waiting import wait_until


def some_pairs(rng: random.Random, keys: list[bytes], what: bytes) -> list[tuple[bytes, bytes | None]]:
    """Up to four records."""
    return [(rng.choice(keys), rng.choice([None, b"", b"v", what])) for _ in range(rng.randrange(1, 5))]


def some_headers(rng: random.Random, what: bytes) -> list[Header]:
    """Usually none; otherwise the bytes of values, empty ones, or null."""
    return [
        Header(rng.choice(["h", "who", ""]), rng.choice([None, b"", what])) for _ in range(rng.choice([0, 0, 1, 3]))
    ]


class History:
    """One topic with random records."""

    def __init__(self, broker: Broker, rng: random.Random, name: str) -> None:
        self.broker, self.rng, self.name = broker, rng, name
        self.partitions = rng.randrange(1, 4)
        self.keys = [b"k%d" % index for index in range(rng.randrange(1, 6))]
        self.open: dict[int, Producer] = {}
        """Transactions by partition."""

    async def write(self) -> None:
        """Write batches in every codec, with headers and in transactions, and rolls and rounds in between."""
        rng = self.rng
        size = rng.choice([600, 1500, 100_000])
        await create(self.broker, self.name, self.partitions, segment_bytes=size)
        for number in range(rng.randrange(1, 40)):
            what = b"personal data %d of %s" % (number, self.name.encode())
            pairs, headers = some_pairs(rng, self.keys, what), some_headers(rng, what)
            partition, codec = rng.randrange(self.partitions), rng.randrange(5)
            if partition in self.open or rng.random() < 0.2:
                producer = self.open.setdefault(
                    partition, Producer(self.broker, self.name, partition, rng.randrange(1, 1 << 40))
                )
                producer.write(*pairs, codec=codec, headers=headers)
                if rng.random() < 0.5:
                    self.open.pop(partition).end(is_commit=rng.random() < 0.5)
            else:
                write(self.broker, *pairs, topic=self.name, partition=partition, codec=codec, headers=headers)
            if rng.random() < 0.1:
                self.broker.node.topics.log(self.name, partition).roll()
            if rng.random() < 0.05 and not self.open:
                await self.broker.compact(self.name)
        if rng.random() < 0.9:
            self.end_all()

    def end_all(self) -> None:
        """Commit or abort the open transactions."""
        while self.open:
            self.open.popitem()[1].end(is_commit=self.rng.random() < 0.5)


async def one_history(broker: Broker, rng: random.Random, name: str) -> None:
    """Write at random, erase one key, and search for it independently."""
    history = History(broker, rng, name)
    await history.write()
    key = rng.choice([*history.keys, b"nobody"])
    is_now = rng.random() < 0.3
    certificate: dict[str, Any] | None = None
    if history.open:
        # Nothing behind an open transaction can be cleaned: there is a certificate at once only if there is nothing to clean.
        with contextlib.suppress(TimedOut), pytest.MonkeyPatch.context() as patched:
            certificate = (await erase_in_vain(broker, patched, key, [name], now=is_now)).certificate
        if certificate is not None:
            check_claims(data_of(broker), certificate, key)
        history.end_all()
        if certificate is None:
            move_to(broker, clock_of(broker).now_ms() + RETRY_MS)
            await wait_until(lambda: certificates_of(broker, "*") != [] and not broker.services.erasures().table.busy)
            certificate = parse_certificate(certificates_of(broker, "*")[-1].read_bytes())
    else:
        certificate = (await erase(broker, key, [name], now=is_now)).certificate
    assert certificate["state"] in ("values-gone", "key-gone", "nothing-matched"), certificate["not_certified"]
    assert len(certificate["claims"]) == history.partitions
    check_claims(data_of(broker), certificate, key)
    if certificate["state"] != "values-gone":
        below = {claim["partition"]: claim["below_offset"] for claim in certificate["claims"]}
        left = records_of_key(data_of(broker), name, key)
        assert [one for one in left if one.offset < below[int(one.path.parent.name.rpartition("-")[2])]] == []
    await delete_topics(broker.node.topics, [name])
    broker.node.directory.deletions.remove([str(path) for path in data_of(broker).glob("*-delete")])


async def histories(broker: Broker, count: int, seed: int) -> None:
    """Run each history in its own topic; remove the leftovers of the previous one."""
    for index in range(count):
        print(f"seed {seed}, history {index}")
        await one_history(broker, random.Random(f"{seed}-{index}"), f"h{index}")
        for path in data_of(broker).glob("diamant-erasure-*"):
            path.unlink()
        broker.services.erasures().table.due.clear()


@pytest.mark.slow
async def test_random_histories_hold_no_value_that_a_certificate_calls_gone(broker: Broker) -> None:
    """Thirty histories are erased from, in every codec, with headers, transactions (committed, aborted, open) and rounds in
    between.
    """
    await histories(broker, effort.examples(30), 6)


@pytest.mark.long
async def test_a_thousand_random_histories(broker: Broker) -> None:
    """The same, longer, from another seed each time."""
    await histories(broker, 1000, random.randrange(1 << 30))

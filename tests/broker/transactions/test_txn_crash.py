"""Transactions survive SIGKILL at every step: a broker starts on a copy of the disk made before each of its changes."""

from __future__ import annotations

import random

import pytest

from tests import effort
from tests.broker.running import running
from tests.broker.transactions.txn_wire import TxnProducer, read_committed, wait_for_committed_offset
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

TRANSACTIONAL_ID, TOPIC, GROUP = "id", "t", "g"


async def transact(
    txn: TxnProducer, *, commit: bool, value: bytes, offset: int, tv2: bool = True, sequence: int = 0
) -> None:
    """Run one transaction over two partitions and a group's offset; with TV2 each has its own sequences."""
    produce, end, offsets = (12, 5, 5) if tv2 else (9, 3, 3)
    if not tv2:
        assert await txn.add((TOPIC, 0), (TOPIC, 1)) == ["NONE", "NONE"]
        assert await txn.add_offsets(GROUP) == "NONE"
    for partition in (0, 1):
        assert await txn.produce(TOPIC, sequence, partition=partition, values=(value,), version=produce) == "NONE"
    assert await txn.commit_offset(GROUP, TOPIC, offset, version=offsets) == "NONE"
    assert await txn.end(commit=commit, version=end) == "NONE"


class Cut:
    """The disk as a SIGKILL leaves it, and the answers sent by then."""

    def __init__(self, env: MemoryEnv, answered: int) -> None:
        self.env = env
        self.answered = answered


async def cuts_of(*, tv2: bool) -> list[Cut]:
    """Commit, abort and commit, with a copy of the disk before every change."""
    env = MemoryEnv()
    cuts: list[Cut] = []
    answered = 0
    async with running(env) as (_, wire):
        txn = TxnProducer(wire, TRANSACTIONAL_ID)
        await txn.wait_for_coordinator(GROUP)
        await wire.create(TOPIC, 2)
        env.before_change = lambda: cuts.append(Cut(env.copy(), answered))
        await txn.wait_for_init()
        for number, commit in ((1, True), (2, False), (3, True)):
            value = str(number).encode()
            sequence = 0 if tv2 else number - 1
            await transact(txn, commit=commit, value=value, offset=number, tv2=tv2, sequence=sequence)
            answered = number
        cuts.append(Cut(env.copy(), answered))
        env.before_change = None
    return cuts


ALLOWED = {
    # transactions answered: what may be committed now (the next one may have been decided)
    0: ([], [b"1"]),
    1: ([b"1"],),
    2: ([b"1"], [b"1", b"3"]),
    3: ([b"1", b"3"],),
}


async def check(cut: Cut) -> None:
    """Check that transactions are atomic, answers are kept, nothing hangs, and the producer can continue."""
    async with running(cut.env) as (broker, wire):
        txn = TxnProducer(wire, TRANSACTIONAL_ID)
        await txn.wait_for_coordinator(GROUP)
        await txn.wait_for_init()
        values = await committed_values(wire)
        assert values in ALLOWED[cut.answered]
        code, offset = await wait_for_committed_offset(wire, GROUP, TOPIC)
        assert (code, offset) == ("NONE", int(values[-1]) if values else -1)
        assert broker.services.transactions().store.open_transactions == []
        for name, count in ((TOPIC, 2), ("__consumer_offsets", 1)):
            for partition in range(count):
                log = broker.node.topics.log(name, partition)
                assert log.last_stable_offset == log.log_end_offset
        await transact(txn, commit=True, value=b"9", offset=9)
        assert await committed_values(wire) == [*values, b"9"]
        assert await wait_for_committed_offset(wire, GROUP, TOPIC) == ("NONE", 9)


async def committed_values(wire: WireClient) -> list[bytes]:
    """Return the values of both partitions, which must be the same."""
    values = await read_committed(wire, TOPIC, 0)
    assert await read_committed(wire, TOPIC, 1) == values
    return values


@pytest.mark.parametrize("tv2", [pytest.param(False, marks=pytest.mark.slow), True], ids=["tv1", "tv2"])
async def test_killed_before_every_change(tv2: bool) -> None:
    """After any kill, a transaction exists with all its parts or with none."""
    cuts = await cuts_of(tv2=tv2)
    assert len(cuts) > 25
    for cut in effort.some(cuts, every=5):
        await check(cut)


@pytest.mark.slow
async def test_killed_again_while_it_finishes() -> None:
    """Killed while the markers of a decided transaction are written, and again while the next start writes them."""
    again: list[Cut] = []
    for cut in (await cuts_of(tv2=True))[:-1:3]:
        env = cut.env
        env.before_change = lambda env=env, cut=cut: again.append(Cut(env.copy(), cut.answered))
        async with running(env) as (_, wire):
            await TxnProducer(wire, TRANSACTIONAL_ID).wait_for_coordinator(GROUP)
            env.before_change = None
    # Most changes of a start are not about transactions: a few of them will do.
    for cut in random.Random(1).sample(again, min(len(again), 20)):
        await check(cut)

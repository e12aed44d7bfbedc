"""A request that is killed at any point: once its intent exists it ends with the last paper, before that nothing is done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.papers.person_intent import OPEN, PersonIntent
from tests import effort
from tests.broker.erasure.brokers import broker_at, config, data_of, move_to
from tests.broker.erasure.constants import DAY_MS, RETRY_MS, START_MS
from tests.broker.erasure.copying_env import CopyingEnv
from tests.broker.person.shop import ADA, BOB, MAP, fill
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.waiting import wait_until


async def steps_of_a_request(tmp_path: Path) -> list[str]:
    """Forget a person up to the last paper, with a copy at each step; return the steps."""
    env = CopyingEnv(tmp_path / "data")
    async with Broker(config(tmp_path), env=env) as broker:
        await fill(broker)
        env.copies = tmp_path / "copies"
        await broker.person.forget({"customer_id": ADA}, MAP, reason="GDPR Art. 17")
        move_to(broker, START_MS + DAY_MS)
        await wait_until(lambda: not [*data_of(broker).glob("*.intent")])
        env.copies = None
    return env.points


def is_idle(broker: Broker) -> bool:
    """No job is due or in progress."""
    tables = [queue.table for queue in broker.services.jobs]
    now_ms = broker.env.clock.now_ms()
    return not any(one.busy or any(due_ms <= now_ms for due_ms in one.due.values()) for one in tables)


async def state_after_a_start(tmp_path: Path, index: int) -> str:
    """Start a broker on a copy, let it do what is due, and return the state of the request."""
    directory = tmp_path / "copies" / str(index)
    shutil.copytree(tmp_path / "keys", directory / "keys")
    async with broker_at(directory, START_MS + 1) as broker:
        for now_ms in (START_MS + 1, START_MS + DAY_MS + RETRY_MS, START_MS + 2 * DAY_MS, START_MS + 3 * DAY_MS):
            move_to(broker, now_ms)
            await wait_until(lambda: is_idle(broker))
        found = (await broker.person.requests())["requests"]
        state = found[0]["state"] if found else "none"
        if state == "done":
            await wait_until(lambda: not [*data_of(broker).glob("*.intent")])
            assert files_with(data_of(broker), ADA.encode()) == []
        kept = {one.parent.name for one in data_of(broker).rglob("*.log") if BOB.encode() in one.read_bytes()}
        assert kept == {"customers-0", "carts-0", "orders-0"}
        return state


def test_the_intent_of_a_request_has_no_remains_itself() -> None:
    """Those of its values are in the intents of its jobs."""
    intent = PersonIntent("p1", OPEN, {"customer_id": (ADA,)}, "asked", "", START_MS, (), ())
    assert intent.remains(b"secret").needles == intent.needles == ()


@pytest.mark.slow
async def test_a_request_that_is_killed_at_any_point_ends_all_the_same(tmp_path: Path) -> None:
    """Before its intent exists it is received, or unknown; from then on it is done, with nothing of the person left."""
    steps = await steps_of_a_request(tmp_path)
    begun = next(index for index, what in enumerate(steps) if what.startswith("rename to diamant-person-"))
    chosen = [index for index, what in enumerate(steps) if "diamant-" in what and ".facts" not in what]
    states = {index: await state_after_a_start(tmp_path, index) for index in effort.some(chosen, every=6)}
    assert {state for index, state in states.items() if index <= begun} <= {"none", "received"}
    assert {state for index, state in states.items() if index > begun} == {"done"}, [
        (steps[i], s) for i, s in states.items()
    ]

"""Requests for explanations: over HTTP, on the command line, from other threads; tombstones and groups behind them."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.explain import explanation
from tests.broker import http_asking
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator, wait_until_loaded
from tests.broker.operations.explain.explained import DAY_MS, HOUR_MS, START_MS, Stage, gate, kinds, stage
from tests.broker.transactions.txn_wire import TxnProducer

HTTP = {"diamant_http_listen": "127.0.0.1:0"}


async def ask(at: Stage, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Send one HTTP request; return its status and its JSON."""
    answer = await http_asking.ask(at.broker, "GET" if body is None else "POST", path, body)
    return answer.status, answer.json


async def run(at: Stage, *arguments: str) -> Result:
    """Run `diamant explain` in a thread."""
    command = ["explain", *arguments, "-b", at.broker.bootstrap_servers]
    return await asyncio.to_thread(CliRunner(env={"COLUMNS": "200"}).invoke, main, command)


async def hanging(at: Stage) -> TxnProducer:
    """Return a producer whose transactions time out after a minute."""
    producer = TxnProducer(at.wire, "hanging")
    await producer.wait_for_coordinator()
    await producer.wait_for_init(timeout_ms=60_000)
    return producer


async def committed(at: Stage, group_id: str, offset: int) -> None:
    """Commit an offset of the topic for a group."""
    await find_coordinator(at.wire, group_id)
    await wait_until_loaded(at.broker)
    async with asyncio.timeout(60):
        while (await commit(at.wire, group_id, {("t", 0): offset}))[0]:
            await asyncio.sleep(0)


# -- tombstones ----------------------------------------------------------------------------------------------------------


async def test_tombstones_and_the_groups_that_have_not_passed_them(tmp_path: Path) -> None:
    """Every tombstone that is the latest of its key, its removal time, and the groups that would miss it."""
    async with stage(tmp_path, broker={"offsets_topic_num_partitions": "1"}, delete_retention_ms=str(DAY_MS)) as at:
        await at.play("a=1 b=1 c=1 | a= b= c= | c=2 z=1 | roll | settle")
        await committed(at, "late", 3)
        await committed(at, "between", 4)
        await committed(at, "done", 8)
        await at.put("z=")
        found = await at.partition(tombstones=True)
        assert [one.offset for one in found.records] == [3, 4, 8]
        assert [one.groups_behind for one in found.records] == [
            ("late",),
            ("late", "between"),
            ("late", "between", "done"),
        ]
        assert [one.goes_ms for one in found.records[:2]] == [START_MS + DAY_MS] * 2
        assert kinds(found.records[0]) == [explanation.HORIZON]
        await at.is_there_until(START_MS + DAY_MS, 3)
        assert [one.offset for one in (await at.partition(tombstones=True)).records] == [8]


async def test_deadlines_in_the_metrics_and_the_health(tmp_path: Path) -> None:
    """Ages grow with the clock; only past the deadline does /healthz?erasure fail. The other paths are not affected."""
    broker = HTTP | {"diamant_erasure_deadline_ms": str(2 * HOUR_MS), "offsets_topic_num_partitions": "1"}
    async with stage(tmp_path, broker=broker, delete_retention_ms=str(DAY_MS)) as at:
        await at.play(f"a=1 | a= z=1 | +{HOUR_MS}")
        shown = await scrape(at)
        assert shown['diamant_oldest_superseded_age_seconds{topic="t"}'] == 3600
        assert shown['diamant_oldest_tombstone_age_seconds{topic="t"}'] == 0
        assert abs(shown['diamant_erasure_deadline_days_left{topic="t"}'] - 1 / 24) < 1e-6
        assert not any("consumers_behind" in name for name in shown)
        await at.roll()
        await at.settle()
        await committed(at, "late", 1)
        await committed(at, "done", 3)
        at.clock.advance_ms(2 * HOUR_MS)
        shown = await scrape(at)
        assert shown['diamant_oldest_superseded_age_seconds{topic="t"}'] == 0
        assert shown['diamant_oldest_tombstone_age_seconds{topic="t"}'] == 7200
        assert shown['diamant_tombstone_consumers_behind{partition="0",topic="t"}'] == 1
        assert (await ask(at, "/healthz?erasure"))[0] == 200
        at.clock.advance_ms(1)
        status, fields = await ask(at, "/healthz?erasure")
        assert (status, fields["status"], [one["topic"] for one in fields["topics"]]) == (503, "late", ["t"])
        assert await ask(at, "/healthz") == (200, {"status": "ok"})
        assert await ask(at, "/readyz") == (200, {"status": "ok", "partitions_offline": 0})
        at.broker.node.is_stopping = True
        assert (await ask(at, "/readyz"))[0] == 503
        assert (await ask(at, "/healthz"))[0] == 200
        at.broker.node.is_stopping = False


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
async def test_records_held_by_an_open_transaction_are_removed_after_its_abort(tmp_path: Path, mode: str) -> None:
    """Superseded records before it and its own records, both in closed segments, and not earlier."""
    broker = {"transaction_state_log_num_partitions": "1", "diamant_cleaner_mode": mode}
    async with stage(tmp_path, broker=broker) as at:
        producer = await hanging(at)
        await at.put("k=1")
        assert await producer.add(("t", 0)) == ["NONE"]
        undecided = at.put_transactional("other", producer.producer_id)
        await at.play("k=2 | roll")
        opened = gate(await at.record(0), explanation.OPEN_TRANSACTION)
        assert (opened.detail["producer_id"], opened.detail["since_ms"]) == (producer.producer_id, START_MS)
        assert opened.until_ms == START_MS + 60_001
        told_before = await at.partition(key="k")
        assert told_before.next_round_ms == START_MS + 60_001
        assert [(await at.record(0)).goes_ms, (await at.record(undecided, "other")).goes_ms] == [START_MS + 60_001] * 2
        await at.broker.clock.advance(60_000)
        assert {0, undecided} <= set(await at.offsets())
        await at.broker.clock.advance(1)
        assert not {0, undecided} & set(await at.offsets())


async def test_the_marker_of_an_abort_closes_an_old_segment(tmp_path: Path) -> None:
    """In mode kafka, where only appends close segments, the abort also removes records held in the active one."""
    broker = {"transaction_state_log_num_partitions": "1", "diamant_cleaner_mode": "kafka"}
    async with stage(tmp_path, broker=broker, segment_ms="50000") as at:
        producer = await hanging(at)
        await at.put("k=1", "k=2")
        assert await producer.add(("t", 0)) == ["NONE"]
        at.put_transactional("other", producer.producer_id)
        assert kinds(await at.record(0)) == [explanation.ACTIVE_SEGMENT, explanation.OPEN_TRANSACTION]
        assert (await at.record(0)).goes_ms == START_MS + 60_001
        await at.broker.clock.advance(60_000)
        assert 0 in await at.offsets()
        await at.broker.clock.advance(1)
        assert 0 not in await at.offsets()


async def scrape(at: Stage) -> dict[str, float]:
    """Return samples by name and labels."""
    from diamant.broker.metrics import prometheus as metrics

    text = metrics.render(await metrics.take(at.broker.services)).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


# -- ways to ask ---------------------------------------------------------------------------------------------------------


async def test_over_http(tmp_path: Path) -> None:
    """HTTP gives the same as Python, as JSON; invalid questions get their status."""
    async with stage(tmp_path, broker=HTTP, segment_ms=str(HOUR_MS)) as at:
        await at.play("k=1 | k=2")
        status, fields = await ask(at, "/v1/explain", {"topic": "t", "key": {"hex": "6b"}})
        assert status == 200
        assert fields["key"] == {"text": "k"}
        record = fields["partitions"][0]["records"][0]
        assert (record["offset"], record["status"], record["superseded_by"]) == (0, "superseded", 1)
        assert record["goes_ms"] == START_MS + HOUR_MS + 1
        assert record["gates"][0]["kind"] == explanation.ACTIVE_SEGMENT
        assert fields == json.loads(json.dumps((await at.broker.explain("t", key="k")).to_fields()))
        assert (await ask(at, "/v1/explain", {"topic": "t", "partition": 0, "offset": 9}))[0] == 404
        assert (await ask(at, "/v1/explain", {"topic": "nope"}))[0] == 404
        assert (await ask(at, "/v1/explain", {"topic": "t", "offset": 9}))[0] == 400
        assert (await ask(at, "/v1/explain", {"topic": "t", "key": {"hex": "6"}}))[0] == 400


async def test_on_the_command_line(tmp_path: Path) -> None:
    """The command prints a table or JSON, and its exit codes tell the answer."""
    async with stage(tmp_path, broker=HTTP, segment_ms=str(HOUR_MS)) as at:
        await at.play("k=1 | k=2 | d=")
        shown = (
            "2 records of the key",
            "superseded",
            "by 1",
            "active segment",
            "latest value",
            "compact t --partition 0",
        )
        for arguments, code, words in (
            (("--key", "k"), 0, shown),
            ((), 0, ("next round 2023-11-14 23:13:20.001Z (in 1h 1ms)",)),
            (("--key-hex", "6b", "--json"), 0, (f'"goes_ms": {START_MS + HOUR_MS + 1}',)),
            (("--key", "k", "--key-hex", "6b"), 2, ()),
            (("--key", "absent"), 3, ()),
            (("--tombstones",), 0, ("groups behind",)),
        ):
            result = await run(at, "t", *arguments)
            assert result.exit_code == code, result.output
            for word in words:
                assert word in " ".join(result.output.split())


async def test_no_key_and_no_value_in_logs_and_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Found or not, no key or value is in the log, in errors or in texts of gates."""
    caplog.set_level(logging.DEBUG)
    async with stage(tmp_path, broker=HTTP) as at:
        await at.play("secret-key=secret-value | secret-key=")
        answers = [
            await ask(at, "/v1/explain", {"topic": "t", "key": "secret-key", "offset": 1, "partition": 0}),
            await ask(at, "/v1/explain", {"topic": "nope", "key": "secret-key"}),
            await ask(at, "/v1/explain", {"topic": "t", "key": {"hex": "secret-key"}}),
        ]
        assert [status for status, _ in answers] == [400, 404, 400]
        assert "secret" not in json.dumps(answers)
        status, fields = await ask(at, "/v1/explain", {"topic": "t", "key": "secret-key"})
        assert (status, fields.pop("key")) == (200, {"text": "secret-key"})
        assert "secret" not in json.dumps(fields)
        assert "secret" not in json.dumps((await ask(at, "/v1/jobs"))[1])
        for body in ({"topic": "t", "key": "secret-key"}, {"topic": "t", "offset": 1, "partition": 0}):
            status, job = await ask(at, "/v1/explain?wait_ms=0", body)
            assert status == 202
            async with asyncio.timeout(60):
                while job["state"] == "running":
                    _, job = await ask(at, f"{job['href']}?wait_ms=20000")
            assert (job["state"], job["result"]["key"], job["is_result_kept"]) == ("done", None, True)
            assert len(job["result"]["partitions"][0]["records"]) == 2
            assert "secret" not in json.dumps(job)
    assert "secret" not in caplog.text


def test_from_a_thread(tmp_path: Path) -> None:
    """A broker in its own loop answers requests from another one."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, num_partitions=3)) as broker:

        async def make() -> None:
            await broker.services.creation.ensure(["t"])

        assert broker.loop is not None
        asyncio.run_coroutine_threadsafe(make(), broker.loop).result(60)
        found = asyncio.run(broker.awaited.explain("t", key="k"))
        assert [one.partition for one in found.partitions] == [0, 1, 2]
        assert found.records == 0

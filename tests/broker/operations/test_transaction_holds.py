"""Open transactions that keep partitions from being cleaned: in `status`, on the page, and in explanations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.cleaner.rules.open_transaction import OpenTransaction
from tests.broker import http_asking
from tests.broker.operations.explain.explained import START_MS, Stage, stage
from tests.broker.operations.explain.test_explain_asking import HTTP, hanging

KNOWN = OpenTransaction(5, 12, 1_700_000_000_000, 1_700_000_060_001, "import's 7")
HANGING = OpenTransaction(5, 12)


def test_the_command_that_aborts_a_transaction_depends_on_its_coordinator() -> None:
    """A marker alone would let the coordinator of a known one commit the rest, so that one is fenced by its id."""
    assert KNOWN.text == 'transaction "import\'s 7" of producer 5, open since 2023-11-14 22:13:20 UTC, offset 12'
    assert KNOWN.end_text == "it is aborted at 2023-11-14 22:14:20 UTC at the latest"
    tool = "kafka-transactions.sh --bootstrap-server HOST:PORT"
    assert KNOWN.abort_command("t", 3) == f"{tool} forceTerminateTransaction --transactionalId 'import'\"'\"'s 7'"
    assert HANGING.text == "a transaction of producer 5, open since offset 12"
    assert HANGING.abort_command("t", 3) == f"{tool} abort --topic t --partition 3 --start-offset 12"


async def texts(at: Stage) -> tuple[str, str]:
    """What `diamant status` prints, and the overview page."""
    command = ["status", "-b", at.broker.bootstrap_servers]
    shown = await asyncio.to_thread(CliRunner(env={"COLUMNS": "300"}).invoke, main, command)
    page = await http_asking.ask(at.broker, "GET", "/")
    return shown.stdout, page.body.decode()


@pytest.mark.parametrize("is_known", [True, False])
async def test_overdue_partitions_name_the_transaction_that_holds_them(tmp_path: Path, is_known: bool) -> None:
    """The transaction is named with the command that aborts it, unless it holds only the active segment, or has ended."""
    broker = HTTP | {"transaction_state_log_num_partitions": "1"}
    async with stage(tmp_path, broker=broker, max_compaction_lag_ms="1000", segment_ms="1000000") as at:
        producer_id, extra, expected = 5, None, "abort --topic t --partition 0 --start-offset 1"
        if is_known:
            producer = await hanging(at)
            await at.put("k=1")
            assert await producer.add(("t", 0)) == ["NONE"]
            producer_id, extra = producer.producer_id, producer.transactional_id
            expected = "forceTerminateTransaction --transactionalId hanging"
        else:
            await at.put("k=1")
        at.put_transactional("other", producer_id)
        status = (await http_asking.ask(at.broker, "GET", "/v1/status")).json
        assert status["transaction_holds"] == []
        await at.play("k=2 | roll | k=3 | +5000 | settle")
        (held,) = (await http_asking.ask(at.broker, "GET", "/v1/status")).json["transaction_holds"]
        assert (held["topic"], held["partition"], held["first_offset"]) == ("t", 0, 1)
        assert (held["producer_id"], held["transactional_id"]) == (producer_id, extra)
        assert (held["since_ms"], held["aborts_ms"]) == (START_MS, START_MS + 60_001 if is_known else None)
        assert held["abort_command"].endswith(expected)
        for text in await texts(at):
            assert f"producer {producer_id}, open since 2023-11-14 22:13:20 UTC, offset 1" in text
            assert expected in text
        partition = await at.partition()
        assert partition.change is not None
        assert expected in partition.change.text
        at.end_transaction(is_commit=True, producer_id=producer_id)
        await at.settle()
        assert (await http_asking.ask(at.broker, "GET", "/v1/status")).json["transaction_holds"] == []
        assert not any(expected in text for text in await texts(at))

"""Cancellation of erasures and redactions: over HTTP, with the client and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin
from diamant.broker.commands.admin.cancel import cancel
from diamant.broker.metrics import prometheus as metrics
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.certifying_broker import certifying_broker

WHERE = 'key == "customer-42"'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with HTTP in its own thread, and a topic with an open transaction in one half."""
    with certifying_broker(tmp_path, prepare) as running:
        yield running


async def prepare(broker: Broker) -> None:
    await broker.awaited.create_topic("orders", 1)
    log = broker.node.topics.log("orders", 0)
    batches: tuple[tuple[bytes, dict[str, Any]], ...] = (
        (b"another", {}),
        (b"customer-42", {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}),
    )
    for key, fields in batches:
        log.append_as_leader(memoryview(build_batch([Record(0, 1000, key, b"a value")], **fields)))


def run(broker: Broker, *arguments: str) -> Result:
    return CliRunner().invoke(cancel, [*arguments, "--bootstrap-server", broker.bootstrap_servers])


def held(broker: Broker) -> str:
    """Return the id of a redaction that waits for a transaction."""
    found = Admin(broker.bootstrap_servers).redact("orders", WHERE, reason="GDPR Art. 17")
    assert found["state"] == "not-certified"
    return str(found["id"])


def test_the_command_lists_and_cancels(broker: Broker) -> None:
    """Without an ID the command lists pending jobs; with one it requires a reason, which must not name what is removed."""
    assert "No erasure or redaction is in progress" in run(broker).output
    undertaking = held(broker)
    listed = run(broker)
    assert (listed.exit_code, undertaking in listed.output, "redaction" in listed.output) == (0, True, True)
    assert json.loads(run(broker, "--json").output)["unfinished"][0]["id"] == undertaking
    (Path(broker.config.data_dir) / f"diamant-redaction-{'abcd' * 8}.intent").write_bytes(b"x" * 50)
    assert ("abc" in run(broker).output, "it cannot be read" in run(broker).output) == (True, True)
    refused = run(broker, undertaking)
    assert (refused.exit_code, "--reason" in refused.output) == (2, True)
    refused = run(broker, undertaking, "--reason", "customer-42 does not mind")
    assert (refused.exit_code, "customer-42" in refused.output, refused.output.count("\n")) == (2, False, 1)
    done = run(broker, undertaking, "--reason", "asked in vain")
    assert (done.exit_code, "cancelled: not-certified" in done.output) == (0, True), done.output
    again = run(broker, undertaking, "--reason", "r")
    assert (again.exit_code, again.output.count("\n")) == (2, 1)
    for words in (
        f"no erasure or redaction '{undertaking}' in progress",
        f"shows the unfinished ones: diamant certificates -b {broker.bootstrap_servers}",
    ):
        assert words in again.output


def test_redactions_are_counted_by_how_they_ended(broker: Broker) -> None:
    """Outcomes are counted as certified, failed or held; a held attempt retries without a call."""

    def counts() -> dict[str, float]:
        async def take() -> Any:
            return await metrics.take(broker.services)

        return {labels[0]: value for labels, value in broker.call(take()).now["diamant_redactions_total"]}

    assert counts() == {"done": 0, "failed": 0, "held": 0}
    admin = Admin(broker.bootstrap_servers)
    admin.cancel(held(broker), reason="asked in vain")
    admin.redact("orders", 'key == "nobody"', reason="r")
    assert counts() == {"done": 1, "failed": 1, "held": 1}

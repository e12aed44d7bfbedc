"""Every way to request an erasure, a redaction or a cancellation refuses texts that contain the data to be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.commands.admin.cancel import cancel
from diamant.broker.commands.admin.erase import erase
from diamant.broker.commands.admin.redact import redact
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from tests.broker.certifying_broker import certifying_broker

MAIL = "ada@example.com"
WHERE = f'value.email == "{MAIL}"'
TEXT = f"mail of {MAIL}, 3 May"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with HTTP, in its own thread, with the mail address as a key in one topic and in a value of the other."""
    with certifying_broker(tmp_path, prepare) as running:
        yield running


async def prepare(broker: Broker) -> None:
    for name, policy, key in (("users", "compact", MAIL), ("orders", "delete", "k")):
        await broker.awaited.create_topic(name, 1, cleanup_policy=policy)
        values = [b'{"email": "%s"}' % mail.encode() for mail in (MAIL, "bob@example.com")]
        records = [Record(at, 1000, key.encode(), value) for at, value in enumerate(values)]
        broker.node.topics.log(name, 0).append_as_leader(memoryview(build_batch(records)))


CALLS: dict[str, Callable[[Admin], Any]] = {
    "erase": lambda admin: admin.erase(MAIL, ["users"], reason="GDPR Art. 17", reference=TEXT),
    "redact": lambda admin: admin.redact("orders", WHERE, reason=TEXT),
    "cancel": lambda admin: admin.cancel(admin.erase(MAIL, ["users"], reason="r")["id"], reason=TEXT),
}


@pytest.mark.parametrize("name", CALLS)
def test_over_http_it_is_a_bad_request(broker: Broker, name: str) -> None:
    """400; the error says what to write instead, and does not quote the text."""
    with pytest.raises(AdminError, match=r"must not contain the data to be removed.*case number") as error:
        CALLS[name](Admin(broker.bootstrap_servers))
    assert (error.value.status, error.value.code) == (400, "bad-argument")
    assert MAIL not in str(error.value)


@pytest.mark.parametrize("name", ["erase", "redact", "cancel"])
def test_on_the_command_line_it_is_one_line(broker: Broker, name: str) -> None:
    """Exit code 2, as for other mistakes of the caller."""
    commands: dict[str, tuple[Any, list[str]]] = {
        "erase": (erase, ["users", "--key", MAIL, "--reason", "r", "--reference", TEXT]),
        "redact": (redact, ["orders", "--where", WHERE, "--reason", TEXT]),
        "cancel": (cancel, ["ID", "--reason", TEXT]),
    }
    command, arguments = commands[name]
    if name == "cancel":
        arguments[0] = Admin(broker.bootstrap_servers).erase(MAIL, ["users"], reason="r")["id"]
    result = CliRunner().invoke(command, [*arguments, "--bootstrap-server", broker.bootstrap_servers])
    assert (result.exit_code, "case number" in result.output, MAIL in result.output) == (2, True, False), result.output
    assert result.output.count("\n") == 1

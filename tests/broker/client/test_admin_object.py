"""`diamant.Admin`: discovery of a broker's HTTP address, errors, and operations."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diamant
from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.admin import Admin, AdminError
from tests.broker.one_answer import one_answer
from tests.broker.settling import run_when_settling
from tests.ports import ReservedPort
from tests.waiting import PATIENCE_S

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BlockingBroker]:
    """A broker in its own thread, with HTTP and a manual clock."""
    with Broker(diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as running:
        yield running


@pytest.fixture
def admin(broker: BlockingBroker) -> Admin:
    """A client that knows only the Kafka address."""
    return Admin(broker.bootstrap_servers, timeout=PATIENCE_S)


def test_admin_finds_the_http_address(broker: BlockingBroker, admin: Admin) -> None:
    """The address comes from DescribeConfigs of the Kafka listener; the class is `diamant.Admin`."""
    assert diamant.Admin is Admin
    assert admin.http_url == broker.http_url


def test_admin_takes_the_first_broker_that_answers(broker: BlockingBroker) -> None:
    """`bootstrap` may be a list, as for Kafka's clients."""
    with ReservedPort() as closed:
        assert Admin(f"{closed.address}, {broker.bootstrap_servers}").http_url == broker.http_url


def test_kafkas_own_client_sees_the_address(broker: BlockingBroker) -> None:
    """confluent-kafka shows it as a read-only configuration of the broker."""
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    found = client.describe_configs([resource])[resource].result(timeout=PATIENCE_S)["diamant.http.address"]
    assert broker.http_url == f"http://{found.value}"
    assert found.is_read_only


def test_every_interface_means_the_address_that_was_asked(tmp_path: Path) -> None:
    """With HTTP on all interfaces the broker reports only the port."""
    with Broker(data_dir=tmp_path, diamant_http_listen=":0") as broker:
        assert broker.addresses.http is not None
        assert Admin(broker.bootstrap_servers).http_url == f"http://127.0.0.1:{broker.addresses.http.port}"
        assert Admin(broker.bootstrap_servers).clock.get()["kind"] == "system"


def test_a_broker_without_http_is_said_to_have_none(tmp_path: Path) -> None:
    """The error names the configuration that enables HTTP."""
    with Broker(data_dir=tmp_path) as broker:
        with pytest.raises(AdminError, match=r"diamant\.http\.listen") as caught:
            Admin(broker.bootstrap_servers).status()
        assert caught.value.code == "no-http"


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:x", "localhost:70000", ""])
def test_an_invalid_address_is_refused(address: str) -> None:
    """An invalid address is refused before any connection."""
    with pytest.raises(AdminError, match="expected host:port"):
        Admin(address).status()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x04\0\0\0\x01",
        b"\0\0\0\x0c\0\0\0\x01\0\0\0\0\0\0\0\0",
        b"\xff" * 64,
    ],
    ids=["closes", "http", "empty", "no broker", "noise"],
)
def test_something_else_answers(answer: bytes) -> None:
    """Any reply outside Kafka's protocol gives one clear error."""
    with one_answer(answer) as address, pytest.raises(AdminError, match="no broker answers"):
        Admin(address, timeout=60).status()


def test_http_that_does_not_answer(broker: BlockingBroker) -> None:
    """The error has the address, and a likely reason."""
    with ReservedPort() as closed:
        with pytest.raises(AdminError, match=r"does not answer.*diamant\.http\.listen"):
            Admin(broker.bootstrap_servers, http_url=f"http://{closed.address}").status()


@pytest.mark.parametrize("said", [b"", b'{"state": "running", "href": "/v1/jobs/1", "progress": {"stage": ""}}'])
def test_a_broker_that_goes_away_was_there(broker: BlockingBroker, said: bytes) -> None:
    """A broker that stops during a request or a job is reported as gone, not as unreachable."""
    head = f"HTTP/1.1 202 Accepted\r\nContent-Length: {len(said)}\r\n\r\n".encode()
    with one_answer(head + said if said else b"") as address:
        admin = Admin(broker.bootstrap_servers, http_url=f"http://{address}", timeout=PATIENCE_S)
        with pytest.raises(AdminError, match=r"the broker at http://127.0.0.1:\d+ went away: [^.]+$") as caught:
            admin.call("POST", "/v1/erase", {})
        assert caught.value.code == "went-away"


def test_a_refusal_is_an_error_with_its_status(admin: Admin) -> None:
    """The error has the broker's sentence, status and code."""
    with pytest.raises(AdminError, match="goes forward only") as caught:
        admin.clock.set(5)
    assert (caught.value.status, caught.value.code) == (400, "bad-argument")
    with pytest.raises(ValueError, match="not a duration"):
        admin.clock.advance("8 parsecs")
    with pytest.raises(AdminError, match="nothing is at") as caught:
        admin.call("GET", "/v1/nothing")
    assert (caught.value.status, caught.value.code) == (404, "not-found")


def test_a_long_call_is_waited_for(broker: BlockingBroker, admin: Admin) -> None:
    """The call runs as a job with progress; the caller gets only the result."""
    opened = threading.Event()
    hold(broker, opened)
    seen: list[dict[str, Any]] = []

    def on_progress(progress: dict[str, Any]) -> None:
        seen.append(progress)
        if progress["job"] and progress["stage"]:
            opened.set()

    moved = admin.clock.advance("1d", on_progress=on_progress)
    assert moved["to_ms"] == moved["from_ms"] + DAY_MS
    last = {"stage": "moving the clock", "done": DAY_MS, "total": DAY_MS, "unit": "ms"}
    assert {**last, "job": seen[1]["job"], "undertaking": None}.items() <= seen[-1].items()
    assert (seen[0]["stage"], seen[0]["job"]) == ("asking the broker", None)


def test_a_call_that_takes_too_long_names_its_job(broker: BlockingBroker, admin: Admin) -> None:
    """After a timeout the job continues; a job's failure is raised while the caller waits."""
    opened = threading.Event()
    admin.status()  # the first request of all has the web server loaded, and that takes its time
    hold(broker, opened)
    with pytest.raises(AdminError, match=r"still in progress.*/v1/jobs/\d+") as caught:
        admin.call("POST", "/v1/clock/advance", {"by": "1d"}, query={"wait_ms": 0}, timeout=0.05)
    assert caught.value.code == "timed-out"
    job = admin.call("GET", "/v1/jobs")["jobs"][0]
    assert job["state"] == "running"
    opened.set()
    assert admin.call("GET", job["href"], query={"wait_ms": 10_000})["state"] == "done"


def hold(broker: BlockingBroker, opened: threading.Event) -> None:
    """Make moves of the clock wait for the event."""
    import asyncio

    def wait() -> Awaitable[object]:
        return asyncio.to_thread(opened.wait, 20)

    broker.loop.call_soon_threadsafe(run_when_settling, broker.node.scheduler, "held", wait)


def test_the_token_is_sent(tmp_path: Path) -> None:
    """The token is given as text or as a file."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    settings: Any = {"diamant_http_listen": "127.0.0.1:0", "diamant_http_token_file": str(file)}
    with Broker(data_dir=tmp_path / "data", diamant_clock="manual", **settings) as broker:
        for token in ({"token": "0123456789abcdef"}, {"token_file": str(file)}):
            assert Admin(broker.bootstrap_servers, **token).clock.advance(1)["stops"] == 1

"""Certificates in the data directory that were edited, damaged, or left by incomplete attempts."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.commands.admin.certificates import certificates
from diamant.broker.operation_errors import NotGenuine, NotPossible
from diamant.cleaner.evidence.certificates.files import CertificateList, tidy
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.certifying_broker import on
from tests.broker.commands.test_erase_commands import broker as running_broker
from tests.broker.erasure.brokers import broker_at, data_of, env_of, move_to
from tests.broker.erasure.constants import KEY
from tests.broker.erasure.erasing import erase, traces_of, wait_idle
from tests.broker.erasure.issued import certificates_of, key_of, signed
from tests.broker.erasure.records import create_with_key

__all__ = ["running_broker"]


def reference_changed(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "request": {**fields["request"], "reference": "another"}}


def signed_by_another(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    return signed(fields, SigningKey.load(str(data_of(broker).parent / "keys" / "another.key")))


def of_another_id(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    return signed(fields, key_of(broker), id="f" * 32)


def account_with_a_hole(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    coverage = {**fields["coverage"], "files": fields["coverage"]["files"] + 1}
    return signed(fields, key_of(broker), coverage=coverage)


def other_roots(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    return signed(fields, key_of(broker), segments={**fields["segments"], "after_root": "0" * 64})


def no_segments(broker: Broker, fields: dict[str, Any]) -> dict[str, Any]:
    return signed(fields, key_of(broker), segments={})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (reference_changed, "changed since it was signed"),
        (signed_by_another, "another key"),
        (of_another_id, "its file has the name of another certificate"),
        (account_with_a_hole, "do not add up"),
        (other_roots, "do not add up"),
        (no_segments, "not in the expected form"),
    ],
)
async def test_a_changed_certificate_is_refused_and_the_list_says_why(
    broker: Broker, change: Callable[[Broker, dict[str, Any]], dict[str, Any]], words: str
) -> None:
    """A change is refused with its reason; the unchecked certificate is still available."""
    await create_with_key(broker)
    erasure = await erase(broker)
    issued = broker.services.certificates()
    assert await issued.last(erasure.id) == erasure.certificate
    (path,) = certificates_of(broker, "values-gone")
    changed = change(broker, erasure.certificate)
    path.write_text(json.dumps(changed))
    with pytest.raises(NotGenuine, match=words) as raised:
        await issued.last(erasure.id)
    assert str(path) in str(raised.value)
    (listed,) = await issued.list_all()
    assert words in listed["check"]
    kept = await issued.kept(erasure.id)
    assert kept.certificate == changed
    assert words in kept.problem
    path.write_text(json.dumps(erasure.certificate))
    assert (await issued.list_all())[0]["check"] == "signed"


def test_the_command_the_page_and_http_say_so(running_broker: Broker, tmp_path: Path) -> None:
    """A changed certificate gives exit code 3 and one line; --as-it-is or as_it_is returns it all the same, and the page shows
    a warning.
    """
    admin, runner = Admin(running_broker.bootstrap_servers), CliRunner()
    found = admin.erase(KEY.decode(), "users", reason="r")
    path = Path(found["certificate_path"])
    changed = reference_changed(running_broker, found["certificate"])
    path.write_text(json.dumps(changed))
    for ending in ("", "/page"):
        with pytest.raises(AdminError, match="proves nothing") as raised:
            admin.call("GET", f"/v1/certificates/{found['id']}{ending}")
        assert (raised.value.status, raised.value.code) == (409, "not-genuine")
    assert admin.call("GET", f"/v1/certificates/{found['id']}?as_it_is=true") == changed
    page, file = tmp_path / "page.html", tmp_path / "c.json"
    arguments = [found["id"], "--page", str(page), "--certificate", str(file), *on(running_broker)]
    result = runner.invoke(certificates, arguments)
    assert (result.exit_code, page.exists(), file.exists()) == (3, False, False), result.output
    assert "changed since it was signed" in result.stderr
    shown = f"as_it_is returns it anyway: diamant certificates {found['id']} --as-it-is -b {running_broker.bootstrap_servers}"
    assert shown in result.stderr
    result = runner.invoke(certificates, ["--as-it-is", *arguments])
    assert (result.exit_code, "changed since it was signed" in result.stderr) == (3, True), result.output
    assert json.loads(file.read_text()) == changed
    assert "This is not what was signed: it proves nothing" in page.read_text()
    result = runner.invoke(certificates, [*on(running_broker)])
    assert (result.exit_code, "NOT AS IT WAS SIGNED: it was changed" in result.stdout) == (3, True), result.output


async def test_a_damaged_certificate_hides_no_other(broker: Broker) -> None:
    """Others of its id are served, unless the damaged one may be the last: then the error names the file. The list shows all."""
    await create_with_key(broker)
    erasure = await erase(broker)
    damaged = data_of(broker) / f"diamant-erasure-{erasure.id}.not-certified.json"
    damaged.write_bytes(b"{")
    os.utime(damaged, (1, 1))
    assert (await broker.services.certificates().last(erasure.id))["state"] == "values-gone"
    listed = await broker.services.certificates().list_all()
    assert sorted((one["state"], one["topics"]) for one in listed if one["topics"]) == [("values-gone", ["users"])]
    assert len(listed) == 2
    damaged.write_bytes(b"{")
    with pytest.raises(NotPossible, match=damaged.name):
        await broker.services.certificates().last(erasure.id)


@pytest.mark.parametrize("clock", ["yesterday", {"issued_ms": "yesterday"}, None])
async def test_a_certificate_that_does_not_say_when_it_was_issued(broker: Broker, clock: object) -> None:
    """A certificate without an issue time counts as altered; certificates with one count as later."""
    await create_with_key(broker)
    erasure = await erase(broker)
    (path,) = certificates_of(broker, "values-gone")
    odd = json.loads(path.read_bytes()) | {"clock": clock}
    (data_of(broker) / f"diamant-erasure-{erasure.id}.not-certified.json").write_text(json.dumps(odd))
    assert (await broker.services.certificates().last(erasure.id))["clock"] != clock


async def test_one_whose_intent_could_not_be_removed_gets_no_name_after_another_end(tmp_path: Path) -> None:
    """The scan of a certificate whose intent stayed may be outdated: the last certificate is that of the cancellation, also after
    a start.
    """
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
        assert erasure.next_due_ms is not None
        env_of(broker).fail("remove", "*.intent", errno.EIO)
        move_to(broker, erasure.next_due_ms)
        await wait_idle(broker)
        assert [path.suffix for path in traces_of(broker) if "key-gone" in path.name] == [".pending"]
        env_of(broker).faults = ()
        await broker.cancel(erasure.id, reason="no more")
        assert [path.name for path in traces_of(broker) if "key-gone" in path.name] == []
    tidy(broker.env, str(data_of(broker)))
    assert certificates_of(broker, "key-gone") == []


async def test_a_certificate_is_looked_into_once_for_lists(broker: Broker) -> None:
    """A certificate is parsed once, until its bytes change, even with the same size and time; unreadable ones are listed by file
    name.
    """
    await create_with_key(broker)
    erasure = await erase(broker)
    checked: list[str] = []

    def check(_fields: object, job_id: str, _state: str) -> str:
        checked.append(job_id)
        return ""

    listed = partial(CertificateList().describe, broker.env, str(data_of(broker)), check)
    first = listed()
    assert listed() == first
    assert [one["topics"] for one in first] == [["users"]]
    assert checked == [erasure.id]
    (path,) = certificates_of(broker, "values-gone")
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'["users"]', b'["other"]').replace(b'"users"', b'"other"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert [one["topics"] for one in listed()] == [["other"]]
    assert checked == [erasure.id] * 2
    path.write_bytes(path.read_bytes().replace(b'"topics": [', b'"topics": 5, "more": ['))
    (odd,) = listed()
    assert (odd["id"], odd["topics"], odd["issued_ms"]) == (erasure.id, None, None)

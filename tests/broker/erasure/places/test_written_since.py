"""Writes of the key after the claims: all are counted everywhere, however few are listed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.commands.admin import erase as command
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.topics.growth import add_partitions
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import pinned, verify
from tests.broker.erasure.obstacles import SCANNING, at_stage
from tests.broker.erasure.records import create, create_with_key, write, write_often


@pytest.mark.parametrize("writes", [12, MAX_LISTED + 12])
async def test_records_beyond_the_limits_are_counted(broker: Broker, writes: int) -> None:
    """Records beyond the limits of the scan and of the certificate are counted without being listed."""
    await create(broker, segment_bytes=100_000)
    write(broker, (KEY, PERSON))
    erasure = await erase(broker, progress=at_stage(SCANNING, lambda: write_often(broker, writes)))
    listed = min(writes, MAX_LISTED)
    assert erasure.state == "values-gone"
    assert (len(erasure.written_since), erasure.written_since_not_listed) == (listed, writes - listed)
    assert erasure.to_fields()["written_since_not_listed"] == writes - listed
    assert f"{writes:,} new records with this key" in certificate_page(erasure.certificate)
    found = await verify(broker, erasure.certificate, None)
    assert (found.is_valid, found.claims[0]["written_since"]) == (True, writes)
    said = [note for note in found.notes if "not listed in it" in note]
    assert len(said) == (writes > listed)
    assert all(f"{writes} records" in note and f"; {writes - listed} of them" in note for note in said)


async def test_the_command_tells_some_and_counts_the_others(broker: Broker) -> None:
    """One line for each of the first, then one for those omitted and those not listed."""
    writes = MAX_LISTED + 12
    await create_with_key(broker)
    erasure = await erase(broker, progress=at_stage(SCANNING, lambda: write_often(broker, writes)))
    said = io.StringIO()
    asked = Asked(broker.bootstrap_servers, None, timeout_ms=1, as_json=False)
    command._print(Console(file=said, width=200), asked, erasure.to_fields())
    assert said.getvalue().count("The key was written again") == command.MAX_SHOWN
    assert f"... and {writes - command.MAX_SHOWN} more times." in said.getvalue()


async def test_remaining_values_make_later_writes_uncertain(broker: Broker) -> None:
    """If a partition has values below the claim's end, the unlisted records may be earlier or later."""
    await create(broker, segment_bytes=100_000)
    write(broker, (KEY, PERSON))

    def write_instead() -> None:
        log = broker.node.topics.log("users", 0)
        log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))
        write_often(broker, MAX_LISTED + 10)

    erasure = await erase(broker, progress=at_stage("compacting", write_instead))
    assert erasure.state == "not-certified"
    assert erasure.written_since
    assert erasure.written_since_not_listed == 0


async def test_certificates_from_before_there_was_a_count(broker: Broker, tmp_path: Path) -> None:
    """Certificates without the count stay valid, and the page counts the listed records."""
    await create_with_key(broker)
    issued = (await erase(broker)).certificate
    later = ("written_since_not_listed", "tombstones_since", "tombstones_since_not_listed", "signature")
    fields = {name: value for name, value in issued.items() if name not in later}
    old = sign_certificate(fields, SigningKey.load(str(tmp_path / "keys" / "certificate.key")))
    assert "written_since_not_listed" not in json.dumps(old)
    assert (await verify(broker, old, None)).is_valid
    assert "new record" not in certificate_page(old)
    since = {"topic": "users", "partition": 0, "offset": 9}
    assert "1 new record with this key" in certificate_page({**old, "written_since": [since]})


# -- tombstones ----------------------------------------------------------------------------------------------------------


async def test_a_later_tombstone_of_the_application_is_reported(broker: Broker) -> None:
    """A later tombstone has no value and is not part of the claim, but names the key: every view of the erasure reports it."""
    await create_with_key(broker, others=3)
    first = await erase(broker)
    assert (first.certificate["tombstones_since"], first.certificate["tombstones_since_not_listed"]) == ([], 0)
    offset = write(broker, (KEY, None))
    erasure = await broker.erase_now(first.id, confirm_groups_behind=True)
    certificate = erasure.certificate
    assert (erasure.state, certificate["written_since"], certificate["lost_tombstones"]) == ("key-gone", [], [])
    assert [(one["what"], one["offset"]) for one in certificate["tombstones_since"]] == [("tombstone", offset)]
    page = certificate_page(certificate)
    assert "1 new deletion mark of the key arrived in users-0" in page
    assert "Deletion marks since" in page
    found = await verify(broker, certificate)
    assert (found.outcome, found.claims[0]["written_since"]) == ("valid", 0)
    assert "Tombstones of the key since, above the offsets that the claims cover: 1." in found.notes
    before = await check_certificate(broker, first.certificate, public_key=pinned(certificate), key=KEY)
    assert before.notes.count("Tombstones of the key since, above the offsets that the claims cover: 1.") == 1


async def test_very_many_later_tombstones_are_counted(broker: Broker) -> None:
    """Tombstones beyond the limits of the scan or the certificate are counted."""
    await create(broker, segment_bytes=100_000)
    write(broker, (KEY, PERSON))
    first = await erase(broker)
    write_often(broker, MAX_LISTED + 5, None)
    certificate = (await broker.erase_now(first.id, confirm_groups_behind=True)).certificate
    assert certificate["state"] == "key-gone"
    assert (len(certificate["tombstones_since"]), certificate["tombstones_since_not_listed"]) == (
        MAX_LISTED,
        5,
    )
    assert f"{MAX_LISTED + 5:,} new deletion marks" in certificate_page(certificate)


async def test_a_tombstone_in_a_partition_that_was_added_is_reported(broker: Broker) -> None:
    """The added partition gets no claim."""
    await create_with_key(broker, others=3)
    first = await erase(broker)
    await add_partitions(broker.node.topics, "users", 2)
    write(broker, (KEY, None), partition=1)
    certificate = (await broker.erase_now(first.id, confirm_groups_behind=True)).certificate
    assert [(one["partition"], one["offset"]) for one in certificate["tombstones_since"]] == [(1, 0)]

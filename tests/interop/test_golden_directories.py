"""Directories of earlier versions, stopped and killed: they open, and nothing in them is lost.

tests/golden/directories/README.md says what is in them, and how they were made.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diamant import Admin, BlockingBroker, Broker
from tests.interop.golden_directory import AFTER_SNAPSHOT, COMPACTED, REDACTIONS, Running, look
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ARCHIVES = sorted((Path(__file__).parents[1] / "golden" / "directories").glob("*.tar.xz"))
WITH_ERASURES = [archive for archive in ARCHIVES if "snapshot" not in archive.name]
AUTHORIZER = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:ANONYMOUS"}


def name(archive: Path) -> str:
    """Return the id of a test."""
    return archive.name.removesuffix(".tar.xz")


class Golden:
    """A copy of a directory of an earlier version."""

    def __init__(self, archive: Path, place: Path) -> None:
        with tarfile.open(archive) as members:
            members.extraction_filter = getattr(tarfile, "data_filter", None)  # none in 3.11.2
            members.extractall(place)
        self.place = place
        self.seen: dict[str, Any] = json.loads((place / "seen.json").read_text())

    @contextmanager
    def opened(self, **settings: Any) -> Iterator[BlockingBroker]:
        """This version's broker on it, with the clock where it stood."""
        settings |= AUTHORIZER if self.seen["acls"] else {}
        with Broker(
            data_dir=self.place / "data",
            diamant_clock="manual",
            diamant_http_listen="127.0.0.1:0",
            diamant_certificate_key_file=str(self.place / "keys" / "certificate.key"),
            diamant_certificate_key_ephemeral=True,
            **settings,
        ) as broker:
            yield broker

    def certificates(self, state: str) -> list[dict[str, Any]]:
        """Return the certificates with a state."""
        return [json.loads(path.read_bytes()) for path in (self.place / "data").glob(f"*.{state}.json")]


def outcome(admin: Admin, certificate: dict[str, Any], **subject: str) -> str:
    """Return the answer to a verification with the right public key."""
    answer = admin.verify(certificate, public_key=certificate["signature"]["public_key"], **subject)
    return str(answer["outcome"])


def running(broker: BlockingBroker) -> Running:
    """Return the addresses for `look`."""
    assert broker.http_url
    return Running(broker.bootstrap_servers, broker.http_url)


@pytest.mark.parametrize("archive", ARCHIVES, ids=name)
def test_everything_in_an_earlier_versions_directory_is_there(archive: Path, tmp_path: Path) -> None:
    """Records, groups, users, ACLs, quotas, configurations and transactions are what clients saw when it was left."""
    golden = Golden(archive, tmp_path)
    with golden.opened(log_cleaner_enable=False) as broker:
        assert look(running(broker)) == golden.seen


@pytest.mark.parametrize("archive", WITH_ERASURES, ids=name)
def test_an_earlier_versions_erasures_end_here(archive: Path, tmp_path: Path) -> None:
    """Certificates of an earlier version verify; erasures in progress continue, also after a compaction; a second start finds the
    same. A redaction in progress is known, and can be cancelled: it waits for minutes of real time before it looks again.
    """
    golden = Golden(archive, tmp_path)
    is_redacting = "redaction" in archive.name
    with golden.opened() as broker:
        admin = Admin(broker.bootstrap_servers)
        (first,), (redaction,) = golden.certificates("key-gone"), golden.certificates("records-gone")
        assert outcome(admin, first, key="customer-42") == "valid"
        assert outcome(admin, redaction, where=REDACTIONS["mails"]) == "valid"
        if is_redacting:
            (held,) = {
                one["id"] for one in admin.call("GET", "/v1/certificates")["unfinished"] if one["kind"] == "redaction"
            }
            admin.cancel(held, reason="its transaction never ends")
        for topic in COMPACTED:
            broker.compact(topic)
        broker.clock.advance("1h")  # the open transactions end
        last = 2 if is_redacting else 3
        asyncio.run(wait_until(lambda: len(golden.certificates("values-gone")) == last))
        broker.clock.advance("8d")
        asyncio.run(wait_until(lambda: len(golden.certificates("key-gone")) == last))
        erased = golden.certificates("key-gone")
        assert [outcome(admin, certificate) for certificate in erased] == ["valid"] * last
        assert admin.call("GET", "/v1/certificates")["unfinished"] == []
        left = look(running(broker))
    with golden.opened() as broker:
        assert look(running(broker)) == left
    keys = {(part.partition("-")[0], row[2]) for part, rows in left["uncommitted"].items() for row in rows}
    assert not keys & {("users", "customer-7"), ("users", "customer-42")}
    assert (("payments", "customer-9") in keys) is is_redacting
    assert {
        ("users", "customer-1"),
        ("payments", "customer-1"),
        ("orders", "committer-1"),
        ("codecs", "zstd-1"),
    } <= keys


@pytest.mark.parametrize("archive", [one for one in ARCHIVES if one not in WITH_ERASURES], ids=name)
def test_a_snapshot_of_an_earlier_version_is_restored(archive: Path, tmp_path: Path) -> None:
    """What was written later is gone after the reset, and all else is as it was."""
    golden = Golden(archive, tmp_path)
    with golden.opened(log_cleaner_enable=False) as broker:
        admin = Admin(broker.bootstrap_servers)
        (snapshot,) = admin.snapshots()["snapshots"]
        admin.reset(snapshot["id"])
        (*before, after) = golden.seen["committed"]["mails-0"]
        assert after[3] == AFTER_SNAPSHOT
        golden.seen["committed"]["mails-0"] = golden.seen["uncommitted"]["mails-0"] = before
        assert look(running(broker)) == golden.seen

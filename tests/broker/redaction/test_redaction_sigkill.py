"""A broker process is killed with SIGKILL at several moments of a redaction, and completes it after the restart."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.client.admin import Admin, AdminError
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import CheckedFiles
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.cleaner.redaction.where import parse_where
from diamant.storage.env.env import RealEnv
from tests.broker.broker_process import BrokerProcess
from tests.broker.wire import PRODUCE, WireClient, batch_of, produce_fields
from tests.cleaner.evidence.scan.naive_scanner import files_with, records_in

pytestmark = pytest.mark.slow

EMAIL = "ada@example.com"
WHERE = f'value.email == "{EMAIL}"'
BATCHES, RECORDS, EVERY = 120, 40, 7
PRODUCE_VERSION = 9
ATTEMPTS = 10
PATIENCE_S = 300.0


class Directory:
    """A data directory and a redaction's files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partition = path / "orders-0"
        self.most_deleted = 0

    def has(self, pattern: str) -> bool:
        return next(iter(self.path.glob(pattern)), None) is not None

    @property
    def deleted(self) -> int:
        """Replaced segments that await deletion."""
        found = len(list(self.partition.glob("*.log.deleted")))
        self.most_deleted = max(self.most_deleted, found)
        return found

    @property
    def is_scanned(self) -> bool:
        """All segments are replaced, the old ones deleted, and the certificate does not exist yet."""
        return not self.deleted and self.most_deleted > 5


MOMENTS: dict[str, Callable[[Directory], bool]] = {
    "when its intent is there": lambda one: one.has("diamant-redaction-*.intent"),
    "when some segments are replaced": lambda one: one.deleted > 10,
    "while everything is scanned": lambda one: one.is_scanned,
    "when its certificate is there": lambda one: one.has("diamant-redaction-*.json"),
}
LATE = ("while everything is scanned", "when its certificate is there")
"""So near the end that the redaction may be over when the broker is killed."""


def wait_for(condition: Callable[[], bool], process: BrokerProcess, timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as a condition holds, without a pause: it may last only briefly."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.is_running, process.log
        assert time.monotonic() < deadline, process.log
        time.sleep(0.0002)


@contextmanager
def running(tmp_path: Path, name: str) -> Iterator[BrokerProcess]:
    """A broker process with HTTP; killed at the end."""
    settings = (f"diamant.certificate.key.file={tmp_path / 'certificate.key'}", "diamant.http.listen=127.0.0.1:0")
    process = BrokerProcess(tmp_path / "data", tmp_path / name, settings=settings)
    try:
        yield process
    finally:
        process.kill()


async def fill(address: str) -> dict[int, bytes]:
    """Write orders, every seventh of them Ada's, some by an idempotent producer; return them by offset."""
    written: dict[int, bytes] = {}
    async with WireClient(address) as client:
        created = await client.create("orders", internal_segment_bytes="3000")
        assert created.error_code == 0
        for batch in range(BATCHES):
            first = batch * RECORDS
            values = [
                json.dumps({"order": first + one, "email": EMAIL if (first + one) % EVERY == 0 else "bob@example.com"})
                for one in range(RECORDS)
            ]
            fields: dict[str, Any] = {"codec": (0, 3, 4)[batch % 3]}
            if batch % 2:
                fields |= {"producer_id": 5, "producer_epoch": 0, "base_sequence": batch // 2 * RECORDS}
            records = batch_of([value.encode() for value in values], **fields)
            answer = await client.call(PRODUCE, PRODUCE_VERSION, produce_fields("orders", 0, records))
            assert answer.responses[0].partition_responses[0].error_code == 0
            written.update({first + one: value.encode() for one, value in enumerate(values)})
    return written


def killed_at(moment: str, path: Path, blank: list[str]) -> dict[int, bytes] | None:
    """Redact, and kill the broker at a moment; return the written records, or None if the redaction had passed the moment."""
    directory = Directory(path / "data")
    with running(path, "first") as process:
        address = process.wait_for_address()
        written = asyncio.run(fill(address))
        admin = Admin(address, timeout=PATIENCE_S)
        assert admin.http_url

        def redact() -> None:
            try:
                admin.redact("orders", WHERE, reason="GDPR Art. 17", blank=blank)
            except AdminError:
                pass  # Killed meanwhile, as is the point.

        caller = threading.Thread(target=redact)
        caller.start()
        is_seen = False

        def is_over() -> bool:
            nonlocal is_seen
            is_seen = MOMENTS[moment](directory)
            return is_seen or not caller.is_alive()

        wait_for(is_over, process)
        process.kill()
        caller.join(PATIENCE_S)
    is_met = is_seen and (moment in LATE or directory.has("diamant-redaction-*.intent"))
    return written if is_met else None


@pytest.mark.parametrize("blank", [[], ["value.email"]], ids=["removed", "blanked"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_redaction_that_is_killed_is_finished_by_the_next_broker(
    tmp_path: Path, moment: str, blank: list[str]
) -> None:
    """Matching records are gone, or their fields blank; all exist once at their offsets; the next run's certificate verifies."""
    state = "fields-blanked" if blank else "records-gone"
    # Some moments are short, and a busy machine may have others run for as long.
    for attempt in range(ATTEMPTS):
        path = tmp_path / str(attempt)
        path.mkdir()
        if (written := killed_at(moment, path, blank)) is not None:
            break
    else:
        pytest.fail(f"{moment}: missed {ATTEMPTS} times")
    directory = Directory(path / "data")
    was_under_way = directory.has("diamant-redaction-*.intent")
    with running(path, "second") as process:
        process.wait_for_address()
        wait_for(
            lambda: (
                directory.has(f"diamant-redaction-*.{state}.json") and not directory.has("diamant-redaction-*.intent")
            ),
            process,
        )
        assert "Traceback" not in process.log
        assert EMAIL not in process.log
    found = [(one.offset, one.value) for log in sorted(directory.partition.glob("*.log")) for one in records_in(log)]
    blanked = {
        offset: value if offset % EVERY else value.replace(f'"{EMAIL}"'.encode(), b"null")
        for offset, value in written.items()
    }
    assert found == [(offset, value) for offset, value in blanked.items() if blank or offset % EVERY]
    assert files_with(directory.path, EMAIL.encode()) == []
    (file,) = directory.path.glob(f"diamant-redaction-*.{state}.json")
    certificate = json.loads(file.read_text())
    key = SigningKey.load(str(path / "certificate.key"))
    verified = verify_certificate(
        certificate,
        key.public_bytes,
        CheckedFiles(RealEnv(), str(directory.path)),
        where=parse_where(WHERE),
        secret=key.secret,
    )
    assert verified.is_valid, verified.notes
    assert {one["verdict"] for one in verified.claims} == {"holds"}
    # Killed between its certificate and the end of its intent it is carried out once more, and finds nothing left.
    assert certificate["runs"] == 1 + was_under_way

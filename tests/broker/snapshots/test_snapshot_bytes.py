"""The bytes of a snapshot: files shared with the broker are never written in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.operation_errors import NotPossible
from tests.broker.broker_process import broker_process
from tests.broker.snapshots.copied import config, digest

RECORDS = 60


def fill(broker: BlockingBroker) -> None:
    """Topics with small segments, compacted and not."""
    for topic, compact in (("keyed", True), ("plain", False)):
        settings = {"internal_segment_bytes": 1000, "index_interval_bytes": 100, "min_cleanable_dirty_ratio": 1}
        broker.create_topic(topic, compact=compact, **settings)
        for number in range(RECORDS):
            broker.produce(topic, "v" * 100 + str(number), key=str(number % 5))


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Return the digest of every file below a directory."""
    return {str(path.relative_to(directory)): digest(path) for path in directory.rglob("*") if path.is_file()}


async def retain(broker: Broker, log_start: int) -> None:
    """Delete records below an offset and their files, as retention does."""
    broker.node.topics.log("plain", 0).delete_records(log_start)
    await broker.services.housekeeping.retain()
    await broker.node.scheduler.settled()


def test_no_work_of_the_broker_changes_a_snapshot(tmp_path: Path) -> None:
    """Appends, compaction, retention, index repair, resets and restarts do not change any file of it."""
    with Broker(config(tmp_path)) as broker:
        fill(broker)
        snapshot = broker.snapshot()
        kept = tmp_path / "data.snapshots" / snapshot.id
        before = bytes_of(kept)
        for _ in range(2):
            broker.compact("keyed")
            assert len(list(broker.records("keyed"))) < RECORDS
            broker.produce("plain", "later" * 100)
            broker.call(retain(broker.awaited, 30))
            for index in (tmp_path / "data" / "plain-0").glob("*index"):
                index.write_bytes(b"damaged")
            assert len(list(broker.records("plain"))) == RECORDS - 30 + 1
            assert bytes_of(kept) == before
            broker.reset(snapshot)
            assert len(list(broker.records("keyed"))) == RECORDS
        broker.compact("keyed")
    with Broker(config(tmp_path)):
        assert bytes_of(kept) == before


@pytest.mark.slow
def test_a_killed_broker(tmp_path: Path) -> None:
    """Neither repairs after SIGKILL, nor a redaction after the snapshot was moved, change any file of the snapshot."""
    with Broker(config(tmp_path)) as broker:
        fill(broker)
        snapshot = broker.snapshot()
        broker.reset(snapshot)
    place = tmp_path / "data.snapshots" / snapshot.id
    before = bytes_of(place)
    with broker_process(tmp_path / "data", tmp_path / "log") as process:
        process.wait_for_address()
        process.kill()
    for index in (tmp_path / "data").glob("*/*index"):
        index.unlink()
    last = max((tmp_path / "data" / "plain-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-10])
    with Broker(config(tmp_path)) as broker:
        assert len(list(broker.records("plain"))) == RECORDS - 1
        assert bytes_of(place) == before
        with pytest.raises(NotPossible, match=snapshot.id):
            broker.redact("plain", where='key == "1"', reason="test")
        place = place.parent.rename(tmp_path / "elsewhere") / snapshot.id
        broker.redact("plain", where='key == "1"', reason="test")
        assert bytes_of(place) == before

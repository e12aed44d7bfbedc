"""A partition of some MB as a broker writes it: rolled segments with their indexes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.log.append_checks import Validation
from diamant.storage.recovery.open_log import create_log
from diamant.storage.segments.log_config import LogConfig
from tests.builder import TIMESTAMP, make_batch

SEGMENTS = 4
BATCHES = 40
"""In a segment."""
RECORDS = 50
"""In a batch, of about 1 KiB each, 1 ms apart."""
KEYS = 500


def write_big_log(directory: Path) -> None:
    """Write the partition: record n has the key `key-<n modulo KEYS>` and n for its offset and time."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    log = create_log(
        RealEnv(SettableClock(TIMESTAMP)),
        str(directory),
        *_name(directory),
        UUID(int=7),
        LogConfig(),
        Validation(),
        producer_expiration_ms=86_400_000,
    )
    offset = 0
    for segment in range(SEGMENTS):
        if segment:
            log.roll()
        for _ in range(BATCHES):
            records = [
                Record(n - offset, TIMESTAMP + n, f"key-{n % KEYS}".encode(), bytes([n % 251]) * 1024)
                for n in range(offset, offset + RECORDS)
            ]
            log.append_as_leader(memoryview(make_batch(*records, base_offset=0)))
            offset += RECORDS
    log.close()


def _name(directory: Path) -> tuple[str, int]:
    topic, _, partition = directory.name.rpartition("-")
    return topic, int(partition)

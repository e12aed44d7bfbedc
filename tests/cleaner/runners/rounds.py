"""A log for a round, its plan, and what runners leave of its files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha512
from pathlib import Path
from uuid import UUID

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan
from diamant.cleaner.rules.result import OutputSegment
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.recovery.open_log import create_log, load_log
from diamant.storage.segments.log_config import LogConfig

START_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
CONFIG = LogConfig(
    segment_bytes=20_000, index_interval_bytes=500, cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=60_000
)
KEYS = 100


def make_log(directory: Path, batches: int = 150, segment_bytes: int = CONFIG.segment_bytes) -> Log:
    """Return a log of eleven segments. Each batch has one unique key, and nine of a hundred keys that recur."""
    env, config = RealEnv(SettableClock(START_MS)), replace(CONFIG, segment_bytes=segment_bytes)
    log = create_log(env, f"{directory}/t-0", "t", 0, TOPIC_ID, config, Validation(), producer_expiration_ms=86_400_000)
    log.on_files_removed = lambda paths, delay_ms: None
    for number in range(batches):
        value = sha512(b"%d" % number).digest() * 2
        keys = [b"only-%d" % number, *(b"key-%d" % ((number * 7 + at) % KEYS) for at in range(9))]
        records = [Record(at, START_MS + number, key, value) for at, key in enumerate(keys)]
        log.append_as_leader(memoryview(build_batch(records, codec=number % 10 // 9)))
    log.flush()
    return log


def load(log: Log) -> Log:
    return load_log(
        log.env, log.path, "t", 0, TOPIC_ID, CONFIG, Validation(), recovery_point=log.recovery_point,
        log_start_offset=0, is_clean=False, producer_expiration_ms=86_400_000,
    )  # fmt: skip


def plan_of(log: Log, **fields: object) -> CleanPlan:
    """Return a round over all segments but the active one; outputs are small, so that there are several."""
    plan = make_plan(log, 0, log.active.base_offset, START_MS, CleanerSettings(io_buffer_bytes=4096))
    return replace(plan, **({"segment_bytes": 45_000} | fields))  # type: ignore[arg-type]


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    """Return the newest value of each key, which cleaning must not change."""
    found: dict[bytes | None, bytes | None] = {}
    for segment in log.segments:
        data = log.env.read_bytes(segment.path)
        for position, _ in iter_headers(data):
            found.update((record.key, record.value) for record in iter_records(data, position))
    return found


def segment_files(log: Log) -> dict[str, bytes]:
    """Every file of the segments in use."""
    return {
        path.name: path.read_bytes()
        for path in Path(log.path).iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


def damage(log: Log, number: int) -> Path:
    """Flip one bit of a segment; a second call restores it."""
    path = Path(log.segments[number].path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return path


def leftovers(log: Log) -> list[str]:
    """Files of unfinished rounds."""
    return [path.name for path in Path(log.path).iterdir() if path.suffix in (".cleaned", ".swap")]


class Swapper:
    """Swaps outputs in, as the broker does, and notes them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.outputs: list[OutputSegment] = []

    async def __call__(self, output: OutputSegment) -> None:
        replacement = Replacement(self.log, output.base_offset, output.source_base_offsets, size=output.size)
        await asyncio.to_thread(replacement.prepare)
        replacement.swap()
        self.outputs.append(output)
        await asyncio.to_thread(replacement.finish)

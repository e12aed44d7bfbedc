"""Logs, the batches that tests append to them, and what is read from them."""

from __future__ import annotations

from pathlib import Path

from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record, parse_header
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log, ReadResult
from diamant.storage.segments.log_config import LogConfig
from tests.storage.conftest import START_MS
from tests.storage.one_log import create_one, load_one


def make_log(env: RealEnv, tmp_path: Path, **config: object) -> Log:
    return create_one(env, LogConfig(**config), path=str(tmp_path / "t-0"))


def reopen(log: Log, *, is_clean: bool = True, recovery_point: int = 0, log_start: int = 0) -> Log:
    log.close(is_clean=is_clean)
    return load_one(
        log.env, log.config, path=log.path, recovery_point=recovery_point, log_start_offset=log_start, is_clean=is_clean
    )


def batch(*values: bytes | None, key: bytes | None = b"k", timestamp: int = START_MS, **options: object) -> memoryview:
    records = [Record(index, timestamp, key, value) for index, value in enumerate(values)]
    return memoryview(build_batch(records, **options))  # type: ignore[arg-type]


def values(result: ReadResult) -> list[bytes | None]:
    found = []
    for piece in result.slices:
        data = piece.read()
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            found += [record.value for record in iter_records(data[position : position + header.size])]
            position += header.size
    return found


def read_all(log: Log, offset: int = 0, isolation_level: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20, isolation_level=isolation_level, min_one_message=True)
        if not result.slices:
            break
        data = result.slices[-1].read()
        found += values(result)
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            offset = header.next_offset
            position += header.size
    return found

"""Every golden pass of Kafka's cleaner, carried out by the plain engine in mode kafka: same files, byte for byte.

See tests/golden/cleaner/README.md for what the archives hold.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.commands.log_clean import parse_settings
from diamant.cleaner.offline import OfflineReport, clean_partition
from diamant.cleaner.plan import KAFKA
from diamant.protocol.batch import iter_headers
from diamant.protocol.compression import CODEC_NAMES
from diamant.protocol.control import parse_control_type
from diamant.protocol.records import iter_records
from diamant.storage.clock import SettableClock
from diamant.storage.memory_env import MemoryEnv
from diamant.storage.txn_index import ENTRY_SIZE, AbortedTxn

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "cleaner"

PASSES = {
    "basic_dups": 1,
    "codecs": 2,
    "compact_delete": 2,
    "compaction_lag": 5,
    "grouping": 2,
    "idempotent_producers": 4,
    "index_limits": 1,
    "keyless_and_policy": 3,
    "large_batches": 1,
    "legacy_formats": 2,
    "legacy_tombstones": 1,
    "log_append_time": 2,
    "map_full": 5,
    "replicated_gaps": 3,
    "stale_abort_entry": 2,
    "tombstone_horizon": 4,
    "txn_epoch_bump": 4,
    "txn_markers": 5,
}

RECOMPRESSED = ("codecs", "legacy_formats")
"""Cases with rebuilt compressed batches. With the compressors of requirements.txt and an ordinary zlib even these have
Kafka's bytes, in all of their passes; another zlib may well write others."""

HAS_ORDINARY_ZLIB = "ng" not in zlib.ZLIB_RUNTIME_VERSION

CLEANER_CONFIGS = {
    "io_buffer": "log.cleaner.io.buffer.size",
    "dedupe_buffer": "log.cleaner.dedupe.buffer.size",
    "load_factor": "log.cleaner.io.buffer.load.factor",
    "message_max_bytes": "message.max.bytes",
}

STEPS = [(name, number) for name, count in PASSES.items() for number in range(1, count + 1)]


class StoredFile(bytes):
    """A file in an archive, with its time."""

    mtime_ms: int


@cache
def archive(name: str) -> dict[str, StoredFile]:
    """Every file of a case by its path."""
    files = {}
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        for member in tar:
            opened = tar.extractfile(member)
            if opened is not None:
                file = StoredFile(opened.read())
                file.mtime_ms = round(member.mtime * 1000)
                files[member.name.removeprefix(f"{name}/")] = file
    return files


def step_of(name: str, number: int) -> dict[str, Any]:
    """What case.json says of a pass."""
    step: dict[str, Any] = json.loads(archive(name)["case.json"])["steps"][number - 1]
    return step


def directory(name: str, top: str) -> dict[str, StoredFile]:
    """The files of one log directory by their paths in it."""
    return {path.removeprefix(f"{top}/"): file for path, file in archive(name).items() if path.startswith(f"{top}/")}


@cache
def run(name: str, number: int) -> tuple[OfflineReport, dict[str, StoredFile]]:
    """Carry out a pass; the report and the log directory's files afterwards."""
    step = step_of(name, number)
    env = MemoryEnv(SettableClock(step["now"]))
    env.make_dirs("/logs/cases-0")
    for path, content in directory(name, step["input"]).items():
        file = env.create_new(f"/logs/{path}")
        file.append(content)
        file.close()
        env.set_mtime_ms(f"/logs/{path}", content.mtime_ms)
    cleaner = {CLEANER_CONFIGS[key]: value for key, value in step.get("cleaner", {}).items()}
    settings = parse_settings([f"{key}={value}" for key, value in (step["config"] | cleaner).items()], KAFKA)
    flags = step.get("flags", [])
    report = clean_partition(
        env,
        "/logs/cases-0",
        settings.config,
        settings.cleaner,
        producer_expiration_ms=settings.producer_expiration_ms,
        first_dirty_offset=step.get("first_dirty"),
        is_forced="force" in flags,
        with_retention="retention" in flags,
    )
    files = {}
    for top in ("", "cases-0/"):
        for entry in env.list_dir(f"/logs/{top}"):
            path = f"/logs/{top}{entry}"
            if not env.is_dir(path):
                file_after = StoredFile(env.read_bytes(path))
                file_after.mtime_ms = env.mtime_ms(path)
                files[top + entry] = file_after
    return report, files


def segment_files(files: dict[str, StoredFile]) -> dict[str, bytes]:
    """What must be equal: no index of the active segment, no empty index of aborted transactions."""
    bases = sorted(path[8:28] for path in files if path.endswith(".log"))
    return {
        path: bytes(content)
        for path, content in files.items()
        if path.endswith((".log", ".index", ".timeindex", ".txnindex"))
        and not (path[8:28] == bases[-1] and path.endswith((".index", ".timeindex")))
        and (content or not path.endswith(".txnindex"))
    }


def offsets(files: dict[str, StoredFile], name: str) -> list[bytes]:
    """The lines of a checkpoint file, none if it is missing."""
    return sorted(files.get(name, StoredFile()).splitlines()[2:])


def test_there_are_all_cases() -> None:
    """Each archive is run, each pass of it."""
    assert {path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz")} == set(PASSES)
    for name, count in PASSES.items():
        assert len(json.loads(archive(name)["case.json"])["steps"]) == count


@pytest.mark.parametrize(("name", "number"), STEPS)
def test_a_pass_writes_the_bytes_of_kafka(name: str, number: int) -> None:
    """All files of all inactive segments, and the active log file."""
    if name in RECOMPRESSED and not HAS_ORDINARY_ZLIB:
        pytest.skip("this zlib compresses differently")
    want = segment_files(directory(name, step_of(name, number)["output"]))
    got = segment_files(run(name, number)[1])
    assert sorted(got) == sorted(want)
    assert [path for path in want if got[path] != want[path]] == []


@pytest.mark.parametrize(("name", "number"), STEPS)
def test_a_pass_leaves_the_files_of_kafka(name: str, number: int) -> None:
    """Checkpoints, names of producer snapshots, and the times of cleaned segments."""
    step = step_of(name, number)
    want, got = directory(name, step["output"]), run(name, number)[1]
    for checkpoint in ("cleaner-offset-checkpoint", "log-start-offset-checkpoint"):
        assert offsets(got, checkpoint) == offsets(want, checkpoint)
    assert [path for path in sorted(got) if path.endswith(".snapshot")] == [
        path for path in sorted(want) if path.endswith(".snapshot")
    ]
    for segment in step["report"]["segments_after"][:-1]:
        assert got[f"cases-0/{segment['base']:020d}.log"].mtime_ms == segment["mtime_ms"]
    assert [path for path in got if path.endswith((".deleted", ".cleaned", ".swap"))] == []


@pytest.mark.parametrize(("name", "number"), STEPS)
def test_a_pass_has_the_figures_of_kafka(name: str, number: int) -> None:
    """Range, groups and statistics; the sizes of what was written may differ with the compressor."""
    want = step_of(name, number)["report"]
    report, _ = run(name, number)
    found, expected = report.range, want["range"]
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (
        expected["first_dirty"],
        expected["first_uncleanable"],
    )
    assert (found.clean_bytes, found.cleanable_bytes, found.delay_ms) == (
        expected["clean_bytes"],
        expected["cleanable_bytes"],
        expected["max_lag_delay_ms"],
    )
    assert found.is_checkpoint_reset == expected["force_update_checkpoint"]
    assert report.is_cleaned == want["cleaned"]
    if report.result is None:
        return
    stats = {key: value for key, value in want["stats"].items() if key != "messages_discarded"}
    if name in RECOMPRESSED:
        del stats["bytes_written"]
    assert {key: getattr(report.result.stats, key) for key in stats} == stats
    assert report.result.end_offset == want["end_offset"]
    assert [list(output.source_base_offsets) for output in report.result.outputs] == want["groups"]


@pytest.mark.parametrize(("name", "number"), [step for step in STEPS if step[0] in RECOMPRESSED])
def test_a_pass_that_recompresses_writes_the_records_of_kafka(name: str, number: int) -> None:
    """Every field of every batch and record but sizes and checksums."""
    want = [
        line
        for line in map(json.loads, archive(name)[f"after-{number}.logical.jsonl"].splitlines())
        if line["t"] in ("segment", "batch", "record", "txnindex")
    ]
    assert list(logical(run(name, number)[1])) == want


def logical(files: dict[str, StoredFile]) -> Iterator[dict[str, Any]]:
    """What is stored, in the words of the archives."""
    for path in sorted(path for path in files if path.endswith(".log")):
        content, base = files[path], int(path[8:28])
        yield {"t": "segment", "seg": base}
        for position, header in iter_headers(content):
            yield {
                "t": "batch",
                "seg": base,
                "magic": header.magic,
                "base": header.base_offset,
                "last": header.last_offset,
                "count": header.record_count,
                "codec": CODEC_NAMES[header.codec],
                "ts_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
                "max_ts": header.max_timestamp,
                "base_ts": header.base_timestamp,
                "horizon": header.base_timestamp if header.has_delete_horizon else None,
                "pid": header.producer_id,
                "epoch": header.producer_epoch,
                "seq": header.base_sequence,
                "last_seq": header.last_sequence,
                "txn": header.is_transactional,
                "control": header.is_control,
                "leader_epoch": header.partition_leader_epoch,
            }
            for record in iter_records(content, position):
                line: dict[str, Any] = {
                    "t": "record",
                    "offset": record.offset,
                    "ts": record.timestamp,
                    "seq": record.sequence,
                    "key": None if record.key is None else record.key.hex(),
                    "value_size": None if record.value is None else len(record.value),
                }
                if header.is_control:
                    line["control_type"] = parse_control_type(record.key).name
                    line["coord_epoch"] = int.from_bytes((record.value or b"")[2:6], "big")
                if record.value is not None:
                    line["value_sha256"] = hashlib.sha256(record.value).hexdigest()
                if record.headers:
                    line["headers"] = [[key, None if value is None else value.hex()] for key, value in record.headers]
                yield line
    for path in sorted(path for path in files if path.endswith(".txnindex")):
        content = files[path]
        entries = [AbortedTxn.from_bytes(content, position) for position in range(0, len(content), ENTRY_SIZE)]
        yield {
            "t": "txnindex",
            "seg": int(path[8:28]),
            "entries": [dict(zip(("pid", "first", "last", "lso"), entry, strict=True)) for entry in entries],
        }

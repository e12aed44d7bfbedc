"""Passes of Kafka's cleaner as the archives in tests/golden/cleaner hold them, and how one is carried out here.

A case is a partition and a few passes over it, one after the other; each names the directory before and after. See
tests/golden/cleaner/README.md.
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

from diamant.broker.commands.settings.clean_settings import parse_settings
from diamant.cleaner.offline.offline_clean import Engine, OfflineReport, clean_partition, inline_engine
from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_3
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.control import parse_control_type
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import ENTRY_SIZE, AbortedTxn
from tests.memory_env import MemoryEnv

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "cleaner"
DIFFERS_IN_4_4 = GOLDEN / "differs_in_4.4.0.tar.xz"
"""The passes, of all cases, that end otherwise in Kafka 4.4."""

HAS_ORDINARY_ZLIB = "ng" not in zlib.ZLIB_RUNTIME_VERSION

CLEANER_CONFIGS = {
    "io_buffer": "log.cleaner.io.buffer.size",
    "dedupe_buffer": "log.cleaner.dedupe.buffer.size",
    "load_factor": "log.cleaner.io.buffer.load.factor",
    "message_max_bytes": "message.max.bytes",
}


class StoredFile(bytes):
    """A file's content, with its time."""

    mtime_ms: int


class Case:
    """One case: `steps` is what case.json says of its passes, `files` holds every other file by its path.

    `version`: of the Kafka that made its outputs.
    """

    def __init__(self, name: str, files: dict[str, StoredFile], version: str = KAFKA_4_3) -> None:
        self.name = name
        self.files = files
        self.version = version
        self.fields: dict[str, Any] = json.loads(files["case.json"])
        self.steps: list[dict[str, Any]] = self.fields["steps"]

    def directory(self, top: str) -> dict[str, StoredFile]:
        """Return the files of one log directory by their paths in it."""
        return {path.removeprefix(f"{top}/"): file for path, file in self.files.items() if path.startswith(f"{top}/")}


@cache
def read_cases(archive: Path) -> dict[str, Case]:
    """Every case in an archive by its name."""
    files: dict[str, dict[str, StoredFile]] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            opened = tar.extractfile(member)
            if opened is not None:
                file = StoredFile(opened.read())
                file.mtime_ms = round(member.mtime * 1000)
                name, _, path = member.name.partition("/")
                files.setdefault(name, {})[path] = file
    return {name: Case(name, found) for name, found in files.items()}


def as_in(version: str, case: Case) -> Case:
    """Return a case of Kafka 4.3 as `version` has it: the same inputs, and its own outputs and figures where they differ."""
    if version == KAFKA_4_3:
        return case
    newer = read_cases(DIFFERS_IN_4_4).get(case.name)
    found = Case(case.name, ({} if newer is None else newer.files) | case.files, version)
    reports = {} if newer is None else {step["pass"]: step for step in newer.steps}
    found.steps = [step | reports.get(number, {}) for number, step in enumerate(case.steps, 1)]
    return found


def write_before(env: Env, case: Case, step: dict[str, Any], root: str) -> None:
    """Write the log directory that a pass finds to `root`."""
    env.make_dirs(f"{root}/cases-0")
    for path, content in case.directory(step["input"]).items():
        file = env.create_new(f"{root}/{path}")
        file.append(content)
        file.close()
        env.set_mtime_ms(f"{root}/{path}", content.mtime_ms)


def run(
    case: Case, step: dict[str, Any], engine: Engine = inline_engine, env: Env | None = None, root: str = "/logs"
) -> tuple[OfflineReport, dict[str, StoredFile]]:
    """Carry out a pass; the report and the log directory's files afterwards. In memory, unless an `env` is given."""
    if env is None:
        env = MemoryEnv(SettableClock(step["now"]))
    write_before(env, case, step, root)
    cleaner = {CLEANER_CONFIGS[key]: value for key, value in step.get("cleaner", {}).items()}
    configs = step["config"] | cleaner | {"diamant.cleaner.kafka.version": case.version}
    if "producer_expiry" in step:
        configs["producer.id.expiration.ms"] = step["producer_expiry"]
    settings = parse_settings([f"{key}={value}" for key, value in configs.items()], KAFKA)
    flags = step.get("flags", [])
    report = clean_partition(
        env,
        f"{root}/cases-0",
        settings,
        first_dirty_offset=step.get("first_dirty"),
        force="force" in flags,
        with_retention="retention" in flags,
        is_clean="unclean" not in flags,
        engine=engine,
    )
    files = {}
    for top in ("", "cases-0/"):
        for entry in env.list_dir(f"{root}/{top}"):
            path = f"{root}/{top}{entry}"
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
    """Return the lines of a checkpoint file, none if it is missing."""
    return sorted(files.get(name, StoredFile()).splitlines()[2:])


def check_pass(
    step: dict[str, Any],
    want: dict[str, StoredFile],
    got: dict[str, StoredFile],
    report: OfflineReport,
    *,
    has_equal_bytes: bool,
    has_equal_sizes: bool,
) -> None:
    """All that must be equal of inactive segments and the active log file, what else is left, and the figures.

    With other compressors than Kafka's the records alone are equal, not their bytes; or not the figures that tell of sizes.
    """
    if has_equal_bytes:
        want_files, got_files = segment_files(want), segment_files(got)
        assert sorted(got_files) == sorted(want_files)
        assert [path for path in want_files if got_files[path] != want_files[path]] == []
        check_times(step, got)
    else:
        assert list(logical(got)) == list(logical(want))
    log_start_offset = report.log_start_offset_after
    check_files_left(above_log_start(want, log_start_offset), above_log_start(got, log_start_offset))
    check_figures(step, report, has_equal_sizes=has_equal_sizes)


def above_log_start(files: dict[str, StoredFile], log_start_offset: int) -> dict[str, StoredFile]:
    """Return all but the producer snapshots up to the log start: nobody reads them, and Kafka removes them a bit sooner."""
    return {
        path: content
        for path, content in files.items()
        if not path.endswith(".snapshot") or int(path[8:28]) > log_start_offset
    }


def check_files_left(want: dict[str, StoredFile], got: dict[str, StoredFile]) -> None:
    """Checkpoints and the names of producer snapshots are those of Kafka, and nothing half done is left."""
    for checkpoint in ("cleaner-offset-checkpoint", "log-start-offset-checkpoint"):
        assert offsets(got, checkpoint) == offsets(want, checkpoint)
    assert [path for path in sorted(got) if path.endswith(".snapshot")] == [
        path for path in sorted(want) if path.endswith(".snapshot")
    ]
    assert [path for path in got if path.endswith((".deleted", ".cleaned", ".swap"))] == []


def check_times(step: dict[str, Any], got: dict[str, StoredFile]) -> None:
    """A cleaned segment has the time of its last source."""
    for segment in step["report"]["segments_after"][:-1]:
        assert got[f"cases-0/{segment['base']:020d}.log"].mtime_ms == segment["mtime_ms"]


def check_figures(step: dict[str, Any], report: OfflineReport, *, has_equal_sizes: bool) -> None:
    """Range, groups and statistics are those of Kafka; what was written may have other sizes if it was compressed."""
    want = step["report"]
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
    if not has_equal_sizes:
        del stats["bytes_written"]
    assert {key: getattr(report.result.stats, key) for key in stats} == stats
    assert report.result.end_offset == want["end_offset"]
    assert [list(output.source_base_offsets) for output in report.result.outputs] == want["groups"]


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

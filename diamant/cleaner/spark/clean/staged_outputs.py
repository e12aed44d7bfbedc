"""Takes over the outputs of a Spark job: verifies every file, and moves it next to the segments as a durable `.cleaned` file.

The output of another machine is not trusted. The manifest must match the plan: the round must end at a possible offset, and the
outputs must contain each segment to rewrite exactly once, in order. Each file must have the size and CRC-32C that the manifest
states. The batches of a log must be adjacent, have ascending offsets within the range of the log's sources, and contain as many
records as the task has counted. If the staging location is on the partition's file system, files are moved; otherwise they are
copied, at the throttled rate.

`take_over` blocks on disk I/O. Memory: `CHUNK_BYTES`, and that of a `ChunkReader`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING

from crc32c import crc32c

from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, OutputSegment
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.segments.row_reader import ChunkReader
from diamant.cleaner.spark.clean.manifest import Manifest, StagedOutput
from diamant.cleaner.spark.clean.task_files import StagedFile
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.kernels.batches import are_in_order, last_offset_in
from diamant.kernels.constants.fields import LEGACY, RECORD_COUNT
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_headers

if TYPE_CHECKING:
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Env, File

CHUNK_BYTES = 4 * 1024 * 1024
_DIRECTORY = re.compile(r"[0-9]{8}-[0-9]+")


class StagedFileWrong(SparkError):
    """The manifest of a job does not match the plan, or a staged file does not match the manifest."""


def check_manifest(plan: CleanPlan, manifest: Manifest) -> None:
    """Compare a job's manifest with the plan. Raises StagedFileWrong.

    Call this before the first swap: if an output were missing, or had the wrong sources, swapping would lose records.
    """
    what = f"{plan.topic}-{plan.partition}: the job"
    end_offset = plan.segments[-1].next_base_offset if plan.segments else plan.first_dirty_offset
    if not plan.has_dirty_range:
        least = end_offset = plan.first_dirty_offset
    else:
        # In Kafka mode a full map may end the round before that offset.
        least = plan.first_dirty_offset if plan.is_kafka else end_offset
    if not least <= manifest.end_offset <= end_offset:
        raise StagedFileWrong(f"{what} reports end offset {manifest.end_offset}, expected {least} to {end_offset}")
    groups = group_segments(plan, segments_to_clean(plan, manifest.end_offset))
    group_of = {segment.base_offset: number for number, group in enumerate(groups) for segment in group}
    modified_ms = {segment.base_offset: segment.modified_ms for segment in plan.segments}
    covered = [base for staged in manifest.outputs for base in staged.output.source_base_offsets]
    if covered != list(group_of):
        got, expected = next(pair for pair in zip_longest(covered, group_of) if pair[0] != pair[1])
        raise StagedFileWrong(
            f"{what} has outputs for {len(covered)} segments, expected {len(group_of)}; first difference: got {got}, expected "
            f"{expected}"
        )
    for staged in manifest.outputs:
        output = staged.output
        sources = output.source_base_offsets
        if not _DIRECTORY.fullmatch(staged.directory):
            raise StagedFileWrong(
                f"{what} reports the output of {list(sources)} in {staged.directory!r}, expected the directory of an attempt"
            )
        if not sources or len({group_of[base] for base in sources}) > 1:
            raise StagedFileWrong(f"{what} has made one output of segments from different groups: {list(sources)}")
        if output.base_offset != sources[0] or output.modified_ms != modified_ms[sources[-1]]:
            raise StagedFileWrong(
                f"{what} reports the wrong name or time for the output of {list(sources)}, named {output.base_offset}"
            )
    written = sum(staged.records for staged in manifest.outputs)
    if (
        min((staged.records for staged in manifest.outputs), default=0) < 0
        or manifest.stats.messages_written != written
    ):
        raise StagedFileWrong(
            f"{what} reports {written} records in its outputs, but {manifest.stats.messages_written} in total"
        )


def take_over(
    env: Env,
    plan: CleanPlan,
    staged: StagedOutput,
    place: Location,
    check_done: CheckDone,
    throttle: Throttle | None = None,
) -> OutputSegment:
    """Verify the files of an output, put them next to the segments, and return the output. `place` is the job's directory.

    Raises OSError, and StagedFileWrong if a file does not match the manifest. The files already put next to the segments are then
    removed at the end of the round (`contract.remove_cleaned_files`).
    """
    output = staged.output
    expected = _names_of(output)
    if sorted(staged.files) != sorted(expected):
        raise StagedFileWrong(
            f"the job reports the files {', '.join(sorted(staged.files))} for the output at {output.base_offset}, expected "
            f"{', '.join(sorted(expected))}"
        )
    log = staged.files[expected[0]]
    if (log.size, log.crc32c) != (output.size, output.crc32c):
        raise StagedFileWrong(f"{expected[0]}: the job reports two different sizes or CRCs for this file")
    directory = place.child(staged.directory)
    for name in expected:
        path = f"{plan.directory}/{name}"
        env.remove(path, missing_ok=True)
        _bring(env, directory.child(name), path, staged.files[name], check_done, throttle or Throttle())
    _check_batches(env, plan, staged, f"{plan.directory}/{expected[0]}")
    for name in expected:
        path = f"{plan.directory}/{name}"
        if not name.endswith(names.TXN_INDEX_SUFFIX + names.CLEANED_SUFFIX):
            env.set_mtime_ms(path, output.modified_ms)
        env.sync_file(path)
    return output


def _names_of(output: OutputSegment) -> list[str]:
    files: list[Callable[[str, int], str]] = [names.log_file, names.index_file, names.time_index_file]
    if output.has_txn_index:
        files.append(names.txn_index_file)
    return [file("", output.base_offset).lstrip("/") + names.CLEANED_SUFFIX for file in files]


def _bring(
    env: Env, source: Location, path: str, expected: StagedFile, check_done: CheckDone, throttle: Throttle
) -> None:
    """Move or copy a file to `path`, and compare size and CRC with `expected`."""
    if source.is_local:
        try:
            env.rename(source.path, path)
        except FileNotFoundError:
            raise StagedFileWrong(f"{source}: the file that the job has written is gone") from None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            _compare(path, expected, _read(env, path, check_done, throttle))
            return
    try:
        _compare(str(source), expected, _copy(env, source, path, check_done, throttle))
    except FileNotFoundError:
        raise StagedFileWrong(f"{source}: the file that the job has written is gone") from None


def _read(env: Env, path: str, check_done: CheckDone, throttle: Throttle) -> StagedFile:
    file = env.open(path, read_only=True)
    try:
        size = crc = 0
        while data := file.pread(CHUNK_BYTES, size):
            check_done()
            throttle(len(data), check_done)
            size += len(data)
            crc = crc32c(data, crc)
        return StagedFile(size, crc)
    finally:
        file.close()


def _copy(env: Env, source: Location, path: str, check_done: CheckDone, throttle: Throttle) -> StagedFile:
    target = env.create_new(path)
    try:
        with closing(source.open()) as file:
            size = crc = 0
            while data := file.pread(CHUNK_BYTES, size):
                check_done()
                target.append(data)
                throttle(2 * len(data), check_done)  # bytes read and bytes written
                size += len(data)
                crc = crc32c(data, crc)
            return StagedFile(size, crc)
    finally:
        target.close()


def _compare(what: str, expected: StagedFile, got: StagedFile) -> None:
    if got != expected:
        raise StagedFileWrong(
            f"{what}: expected {expected.size} bytes with CRC-32C {expected.crc32c:08x}, got {got.size} bytes with "
            f"{got.crc32c:08x}"
        )


def _check_batches(env: Env, plan: CleanPlan, staged: StagedOutput, path: str) -> None:
    """Check the batch headers of an output's log against its sources and its record count. Raises StagedFileWrong."""
    output = staged.output
    sources = set(output.source_base_offsets)
    ends = [segment.next_base_offset for segment in plan.segments if segment.base_offset in sources]
    if len(ends) != len(sources) or not ends or output.base_offset != min(sources):
        raise StagedFileWrong(f"{path}: the job reports sources that are not in the plan: {sorted(sources)}")
    file = env.open(path, read_only=True)
    try:
        if _are_sound(file, staged, max(ends)):
            return
        at = records = 0
        last_offset = output.base_offset - 1
        for position, header in scan_headers(file, 0, output.size):
            if header.base_offset <= last_offset or header.last_offset >= max(ends):
                raise StagedFileWrong(
                    f"{path}: the batch at {position} has offsets {header.base_offset} to {header.last_offset}, expected offsets "
                    f"above {last_offset} and below {max(ends)}"
                )
            at = position + header.size
            last_offset = header.last_offset
            records += header.record_count
    except CorruptLog as error:
        raise StagedFileWrong(f"{path}: there is no batch at {error.position}: {error.reason}") from None
    finally:
        file.close()
    if at != output.size or records != staged.records:
        raise StagedFileWrong(
            f"{path}: expected {output.size} bytes of batches with {staged.records} records, got {at} bytes with {records}"
        )


def _are_sound(file: File, staged: StagedOutput, end_offset: int) -> bool:
    """Return whether kernels find the batches sound. Also False if batches have old formats, which kernels do not check."""
    last_offset, records = staged.output.base_offset - 1, 0
    try:
        for chunk in ChunkReader().chunks(file, 0, staged.output.size):
            if chunk.together & LEGACY or not are_in_order(chunk.rows, chunk.count, last_offset):
                return False
            last_offset = last_offset_in(chunk.rows, chunk.count - 1, chunk.count)
            records += sum(chunk.column(RECORD_COUNT))
    except CorruptLog:
        return False
    return last_offset < end_offset and records == staged.records

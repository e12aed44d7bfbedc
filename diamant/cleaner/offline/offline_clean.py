"""Cleans one partition directory without a broker: opens it, cleans it if due, and closes it as an orderly shutdown does.

The partition is opened as after an orderly shutdown, except that stale segments are set aside if the marker file of an orderly
shutdown is missing. If `is_clean` is False, it is opened as after a crash: the part above the recovery point in the log
directory's checkpoint is scanned, a torn tail is cut off, and indexes are rebuilt before the cleaner starts. If that checkpoint
is missing, no whole batch is cut off. The directory must not be in use: the caller must hold the lock of its log directory. The
`Env`'s clock determines which producers have expired, and applies to lags, horizons and retention.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diamant.cleaner.engines import plain_round
from diamant.cleaner.engines.output_sync import SYNC_THREADS
from diamant.cleaner.rules.eligibility import Ages, CleanableRange, cleanable_range, is_candidate, limits
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan
from diamant.cleaner.rules.result import CleanResult, OnOutput, OutputSegment
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.rules.time_based_roll import ages_in
from diamant.cleaner.runners.best_engine import best_engine
from diamant.kernels import require_kernels
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env, parent
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import replace_segments
from diamant.storage.recovery.open_log import load_log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.txn_index import TransactionIndex
from diamant.storage.uuid_text import ZERO_ID

if TYPE_CHECKING:
    from diamant.cleaner.runners.contract import Runner
    from diamant.cleaner.spark.environment.spark_settings import SparkSettings

Engine: TypeAlias = Callable[[Env, CleanPlan, OnOutput], CleanResult]
"""A function that runs a plan, and passes each output to a callback."""

_CHECKPOINTS = threading.Lock()
"""Held while a checkpoint file is read and rewritten, because all threads that clean partitions of a directory share it."""


class PartitionSettings(NamedTuple):
    """The settings for a partition."""

    config: LogConfig
    cleaner: CleanerSettings
    producer_expiration_ms: int


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """The result of cleaning one partition: the state before, the round and the state after."""

    partition: str
    now_ms: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int | None
    """End of the last round, from the checkpoint file or the caller."""
    range: CleanableRange
    why_nothing: str | None
    """Reason why nothing is cleanable; None if something is."""
    result: CleanResult | None
    """None if there was no round."""
    recovery: tuple[str, ...]
    """Parts that were cut off or removed when the log was opened, one sentence for each file."""
    bytes_before: int
    """Size of all `.log` files before the log was opened, including the parts in `recovery`."""
    bytes_after: int
    """Size of all `.log` files after cleaning and retention."""
    deleted_segments: int
    """Segments that retention removed after the round."""
    log_start_offset_after: int

    @property
    def is_cleaned(self) -> bool:
        """True if there was a round."""
        return self.result is not None

    def to_fields(self) -> dict[str, object]:
        """Return the report as fields for JSON."""
        found = self.range
        fields = {**asdict(self), "is_cleaned": self.is_cleaned}
        fields["range"] |= {
            "total_bytes": found.total_bytes,
            "dirty_ratio": found.dirty_ratio,
            "is_overdue": found.is_overdue,
            "is_eligible": found.is_eligible,
        }
        return fields


def inline_engine(env: Env, plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
    """Clean in this thread with the plain engine, and return the result."""
    return plain_round.clean(env, plan, on_output=on_output, throttle=Throttle(plan.io_max_bytes_per_second))


def compiled_engine(env: Env, plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
    """Clean in this thread with the compiled engine. Raises KernelsMissing if kernels are not compiled."""
    require_kernels("the compiled engine")
    return best_engine()(
        env,
        plan,
        on_output=on_output,
        throttle=Throttle(plan.io_max_bytes_per_second),
        sync_threads=SYNC_THREADS,
    )


def process_engine(env: Env, plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
    """Clean in a worker process, as a broker does, within its memory limit.

    Requires real files, and a thread that runs no event loop.
    """
    from diamant.cleaner.runners.process import ProcessRunner

    return _run(lambda: ProcessRunner(env, niceness=0), plan, on_output)


def spark_engine(env: Env, plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
    """Clean with Spark in `local[*]`, in a driver process. Requires real files, and a thread that runs no event loop."""
    from diamant.cleaner.spark.environment.spark_settings import SparkSettings

    return spark_engine_of(SparkSettings())(env, plan, on_output)


def spark_engine_of(settings: SparkSettings) -> Engine:
    """Return an engine that cleans on Spark with these settings. It raises SparkError on failure, and has no fallback."""

    def engine(env: Env, plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
        from diamant.cleaner.spark.runner.runner import SparkRunner

        return _run(lambda: SparkRunner(env, settings, niceness=0), plan, on_output)

    return engine


def _run(make: Callable[[], Runner], plan: CleanPlan, on_output: Callable[[OutputSegment], None]) -> CleanResult:
    """Run a plan in a new event loop, in which the runner is created and closed."""
    import asyncio

    async def swap(output: OutputSegment) -> None:
        on_output(output)

    async def work() -> CleanResult:
        runner = make()
        try:
            return await runner.run(plan, on_output=swap)
        finally:
            await runner.close()

    return asyncio.run(work())


ENGINES: Mapping[str, Engine] = {
    "inline": inline_engine,
    "compiled": compiled_engine,
    "process": process_engine,
    "spark": spark_engine,
}
"""Engines by their names on the command line."""


def clean_partition(
    env: Env,
    directory: str,
    settings: PartitionSettings,
    *,
    first_dirty_offset: int | None = None,
    force: bool = False,
    with_retention: bool = False,
    is_clean: bool = True,
    engine: Engine = inline_engine,
) -> OfflineReport:
    """Clean the partition in `directory` if it is due or, with `force`, if anything is cleanable. Blocking.

    `first_dirty_offset` replaces the checkpoint. `is_clean`: True if the last shutdown was orderly. Files that a broker would
    remove after a delay are removed immediately. If CorruptLog or a similar error is raised, the outputs of earlier groups stay
    in place, and the checkpoint is unchanged.
    """
    topic, partition = names.parse_partition_dir(os.path.basename(directory))
    if not any(name.endswith(names.LOG_SUFFIX) for name in env.list_dir(directory)):
        raise StorageError(f"{directory} contains no {names.LOG_SUFFIX} file")
    key = (topic, partition)
    log_directory = parent(directory)
    bytes_before, messages = _log_bytes(env, directory), list[str]()
    log = _opened(env, directory, key, settings.config, settings.producer_expiration_ms, is_clean, messages)
    try:
        checkpoint = first_dirty_offset
        if checkpoint is None:
            checkpoint = _read_offsets(env, log_directory, names.CLEANER_CHECKPOINT).get(key)
        now_ms = env.clock.now_ms()
        ages = ages_in(settings.cleaner.mode)
        found = cleanable_range(log, checkpoint, now_ms, ages=ages)
        if found.is_checkpoint_reset:
            _write_offset(env, log_directory, names.CLEANER_CHECKPOINT, key, found.first_dirty_offset)
        is_due = found.is_eligible and is_candidate(log, found)
        log_start_offset = log.log_start_offset
        why_nothing = None if found.cleanable_bytes else _why_nothing(log, found, now_ms, ages)
        result = None
        if found.cleanable_bytes > 0 and (is_due or force):
            result = _clean(env, log, found, now_ms, settings.cleaner, engine)
            _write_offset(env, log_directory, names.CLEANER_CHECKPOINT, key, result.end_offset)
        segment_count = len(log.segments)
        if with_retention:
            delete_oldest(log, deletable_segments(log, now_ms))
        deleted = max(0, segment_count - len(log.segments))
        if log.log_start_offset > log.segments[0].base_offset:
            _write_offset(env, log_directory, names.LOG_START_OFFSET_CHECKPOINT, key, log.log_start_offset)
        return OfflineReport(
            partition=os.path.basename(directory),
            now_ms=now_ms,
            log_start_offset=log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            checkpoint=checkpoint,
            range=found,
            why_nothing=why_nothing,
            result=result,
            recovery=tuple(messages),
            bytes_before=bytes_before,
            bytes_after=log.size,
            deleted_segments=deleted,
            log_start_offset_after=log.log_start_offset,
        )
    finally:
        log.close()


def _opened(
    env: Env,
    directory: str,
    key: tuple[str, int],
    config: LogConfig,
    producer_expiration_ms: int,
    is_clean: bool,
    messages: list[str],
) -> Log:
    log_directory = parent(directory)
    return load_log(
        env,
        directory,
        *key,
        checkpoints.read_partition_metadata(env, directory) or ZERO_ID,
        config,
        Validation(),
        recovery_point=0 if is_clean else checkpoints.read_recovery_point(env, log_directory, key),
        log_start_offset=_read_offsets(env, log_directory, names.LOG_START_OFFSET_CHECKPOINT).get(key, 0),
        is_clean=is_clean,
        producer_expiration_ms=producer_expiration_ms,
        messages=messages,
        is_of_one_moment=is_clean and env.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}"),
    )


def _log_bytes(env: Env, directory: str) -> int:
    logs = [name for name in env.list_dir(directory) if name.endswith(names.LOG_SUFFIX)]
    return sum(env.file_size(f"{directory}/{name}") for name in logs)


def _why_nothing(log: Log, found: CleanableRange, now_ms: int, ages: Ages[Log]) -> str:
    if log.log_end_offset == log.log_start_offset:
        return "the log is empty"
    first_dirty = found.first_dirty_offset
    if first_dirty >= log.log_end_offset:
        return "the whole log is clean"
    bounds = limits(log, first_dirty, now_ms, ages)
    rest = "the whole log" if first_dirty == log.log_start_offset else f"everything from offset {first_dirty} on"
    if first_dirty >= bounds.active_segment:
        return f"{rest} is in the active segment, which is never cleaned"
    if bounds.last_stable_offset < log.log_end_offset and bounds.last_stable_offset == bounds.offset:
        return f"a transaction is open from offset {bounds.last_stable_offset} on"
    if bounds.young_segment is not None:
        young = bounds.young_segment
        return f"{rest} waits for the segment at offset {young:,}, which is younger than min.compaction.lag.ms"
    return f"the segments from offset {first_dirty} on are empty"


def preview_partition(
    env: Env, directory: str, *, clean: Callable[[str], OfflineReport], is_clean: bool = True
) -> OfflineReport:
    """Run `clean` on a copy of `directory` with the same name and checkpoints, and return its report.

    Only `.log` files that may be written are copied: the active segment's file, and files that will be recovered. Cleaning only
    reads the other files, so the copy has links to them. The copy is in the system's directory for temporary files, which must
    have room for the cleaned log. Requires real files.
    """
    with tempfile.TemporaryDirectory(prefix="diamant-clean-") as temporary:
        copy = Path(temporary, os.path.basename(directory))
        copy.mkdir()
        listed = [name for name in env.list_dir(directory) if not env.is_dir(f"{directory}/{name}")]
        logs = [name for name in listed if name.endswith(names.LOG_SUFFIX)]
        only_read = {name for name in logs[:-1] if is_clean and not _needs_recovery(env, directory, name)}
        for name in listed:
            if name in only_read:
                (copy / name).symlink_to(os.path.realpath(f"{directory}/{name}"))
            else:
                shutil.copy2(f"{directory}/{name}", copy / name)
        if env.exists(f"{parent(directory)}/{names.CLEAN_SHUTDOWN}"):
            Path(temporary, names.CLEAN_SHUTDOWN).touch()
        for name in (names.CLEANER_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
            if env.exists(f"{parent(directory)}/{name}"):
                shutil.copy2(f"{parent(directory)}/{name}", Path(temporary, name))
        try:
            report = clean(str(copy))
        except StorageError as error:
            # The error must name the original files.
            raise StorageError(str(error).replace(str(copy), directory)) from error
        return replace(report, recovery=tuple(one.replace(str(copy), directory) for one in report.recovery))


def _needs_recovery(env: Env, directory: str, log_name: str) -> bool:
    """Tell whether a segment is recovered even after an orderly shutdown, because its indexes are missing or damaged."""
    base_offset = names.offset_of(log_name)
    if not env.exists(names.index_file(directory, base_offset)):
        return True
    try:
        TransactionIndex(env, names.txn_index_file(directory, base_offset), base_offset).sanity_check()
    except CorruptLog:
        return True
    return False


def _clean(
    env: Env, log: Log, found: CleanableRange, now_ms: int, settings: CleanerSettings, engine: Engine
) -> CleanResult:
    plan = make_plan(log, found.first_dirty_offset, found.first_uncleanable_offset, now_ms, settings)
    return engine(env, plan, swap_into(log, plan))


def swap_into(log: Log, plan: CleanPlan) -> OnOutput:
    """Return a function that replaces the sources of an output of `plan` in `log`. Nothing else may use `log`."""
    sizes = {segment.base_offset: segment.size for segment in plan.segments}

    def swap(output: OutputSegment) -> None:
        replace_segments(
            log,
            output.base_offset,
            output.source_base_offsets,
            source_sizes=[sizes[base_offset] for base_offset in output.source_base_offsets],
            size=output.size,
        )

    return swap


def _read_offsets(env: Env, log_directory: str, name: str) -> dict[TopicPartition, int]:
    return checkpoints.read_offset_checkpoint(env, f"{log_directory}/{name}")


def _write_offset(env: Env, log_directory: str, name: str, key: TopicPartition, offset: int) -> None:
    with _CHECKPOINTS:
        offsets = _read_offsets(env, log_directory, name)
        offsets[key] = offset
        checkpoints.write_offset_checkpoint(env, f"{log_directory}/{name}", offsets)

"""The result of a cleaning job on Spark: the files left in the job's staging location, their contents, and what was removed.

    {"end_offset": 4711, "stats": {...CleanStats...}, "keys": 3, "outputs": [{
        "output": {...OutputSegment...},                            the same as from any engine
        "directory": "00000000-17",                                 subdirectory that the successful attempt has written
        "files": {"00000000000000000000.log.cleaned": [size, CRC-32C], ...},
        "records": 3}]}

A manifest is not trusted until `staged_outputs` has verified the files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from diamant.cleaner.rules.result import CleanResult, CleanStats, OutputSegment, output_from_fields
from diamant.cleaner.runners.worker_messages import error_fields, error_from
from diamant.cleaner.segments.strict_reader import RecordsOutOfOrder
from diamant.cleaner.spark.clean.task_files import StagedFile
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged, SparkError
from diamant.json_types import JsonObject

NAME = "spark"
"""The runner's name in results."""


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """One output segment in the job's staging location."""

    output: OutputSegment
    directory: str
    """Name of the subdirectory with its files."""
    files: dict[str, StagedFile]
    """Files by name, with the suffix `.cleaned`."""
    records: int
    """Number of records in its batches."""

    @classmethod
    def from_fields(cls, fields: JsonObject) -> StagedOutput:
        """Convert the result of `asdict` back into an output. Raises ValueError, KeyError or TypeError for other fields."""
        return cls(
            output_from_fields(fields["output"]),
            fields["directory"],
            {name: StagedFile(*file) for name, file in fields["files"].items()},
            fields["records"],
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The result of a finished job."""

    end_offset: int
    outputs: tuple[StagedOutput, ...]
    stats: CleanStats
    keys: int = 0
    """Number of keys in the dirty range."""
    shuffled_tuples: int = 0
    """Number of tuples (hash and offset) that went through Spark's shuffle."""

    def result(self) -> CleanResult:
        """Return the result of the round."""
        return CleanResult(self.end_offset, tuple(output.output for output in self.outputs), self.stats, NAME)

    def to_fields(self) -> dict[str, object]:
        """Return the manifest as values that JSON can represent."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: JsonObject) -> Manifest:
        """Convert the result of `to_fields` back into a manifest. Raises ValueError, KeyError or TypeError for other fields."""
        return cls(
            end_offset=fields["end_offset"],
            outputs=tuple(map(StagedOutput.from_fields, fields["outputs"])),
            stats=CleanStats(**fields["stats"]),
            keys=fields["keys"],
            shuffled_tuples=fields["shuffled_tuples"],
        )


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A task's report about its group."""

    group: int
    outputs: tuple[StagedOutput, ...] = ()
    stats: CleanStats = field(default_factory=CleanStats)
    keys: int = 0
    error: JsonObject | None = None
    """The error that ended the task, if another attempt would fail in the same way; None if the task succeeded."""


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would fail the same way, because the log or the plan is at fault."""
    from diamant.storage.errors import StorageError

    return isinstance(error, StorageError | FileNotFoundError)


def fields_of(error: BaseException) -> JsonObject:
    """Return the fields that report an error to another process."""
    if isinstance(error, SegmentChanged):
        return {"kind": "changed", "reason": str(error)}
    if isinstance(error, SparkError):
        return {"kind": "spark", "reason": str(error)}
    if isinstance(error, RecordsOutOfOrder):
        return {"kind": "disorder", "path": error.path, "position": error.position}
    if isinstance(error, MemoryError):
        return {"kind": "spark", "reason": f"a process of the job is out of memory: {error}"}
    return error_fields(error, 0)


def error_of(fields: JsonObject, what: str) -> Exception:
    """Convert the result of `fields_of` back into an error; `what` names the partition."""
    match fields["kind"]:
        case "changed":
            return SegmentChanged(fields["reason"])
        case "spark":
            return SparkError(fields["reason"])
        case "disorder":
            return RecordsOutOfOrder(fields["path"], fields["position"])
        case _:
            return error_from(fields, what)


def add_stats(total: CleanStats, part: CleanStats) -> None:
    """Add the statistics of a group's rewrite to those of the round."""
    total.bytes_read += part.bytes_read
    total.messages_read += part.messages_read
    total.invalid_messages_read += part.invalid_messages_read
    total.bytes_written += part.bytes_written
    total.messages_written += part.messages_written
    for reason, count in part.removed.items():
        total.remove(reason, count, part.removed_bytes[reason])

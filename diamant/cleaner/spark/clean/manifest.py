"""The result of a cleaning job on Spark: the files left at the staging place, their contents, and the records removed.

    {"end_offset": 4711, "stats": {...CleanStats...}, "keys": 3, "outputs": [{
        "output": {...OutputSegment...},                            as from any engine
        "directory": "00000000-17",                                 at the job's place; of the one attempt that counts
        "files": {"00000000000000000000.log.cleaned": [size, CRC-32C], ...},
        "records": 3}]}

Nothing of a manifest is believed before `staged_outputs` has looked at the files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from diamant.cleaner.rules.result import CleanResult, CleanStats, OutputSegment, output_from_fields
from diamant.cleaner.runners.worker_messages import error_fields, error_from
from diamant.cleaner.spark.clean.task_files import StagedFile
from diamant.cleaner.spark.environment.errors import SegmentChanged, SparkError

NAME = "spark"
"""The runner named in results."""

ErrorFields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """One output segment at the staging place."""

    output: OutputSegment
    directory: str
    """Its name at the job's place."""
    files: dict[str, StagedFile]
    """By name, with the suffix `.cleaned`."""
    records: int
    """Records in its batches."""

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> StagedOutput:
        """Return what `asdict` took apart. ValueError, KeyError or TypeError for anything else."""
        return cls(
            output_from_fields(fields["output"]),
            fields["directory"],
            {name: StagedFile(*file) for name, file in fields["files"].items()},
            fields["records"],
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished job."""

    end_offset: int
    outputs: tuple[StagedOutput, ...]
    stats: CleanStats
    keys: int = 0
    """Of the dirty range."""
    shuffled_tuples: int = 0
    """Tuples of hash and offset that went through Spark's shuffle."""

    def result(self) -> CleanResult:
        """Return it as a round's result."""
        return CleanResult(self.end_offset, tuple(one.output for one in self.outputs), self.stats, NAME)

    def to_fields(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Manifest:
        """Return the manifest that `to_fields` took apart. ValueError, KeyError or TypeError for anything else."""
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
    error: ErrorFields | None = None
    """The error that ended it, and would end it again."""


def is_final(error: BaseException) -> bool:
    """Tell whether another attempt would end the same way: what is wrong is the log, or the plan."""
    from diamant.storage.errors import StorageError

    return isinstance(error, StorageError | FileNotFoundError)


def fields_of(error: BaseException) -> ErrorFields:
    """Return what tells of an error in another process."""
    if isinstance(error, SegmentChanged):
        return {"kind": "changed", "reason": str(error)}
    if isinstance(error, SparkError):
        return {"kind": "spark", "reason": str(error)}
    if isinstance(error, MemoryError):
        return {"kind": "spark", "reason": f"a process of the job has no memory left: {error}"}
    return error_fields(error, 0)


def error_of(fields: ErrorFields, what: str) -> Exception:
    """Return the error that `fields_of` took apart; `what` says whose round it was."""
    match fields["kind"]:
        case "changed":
            return SegmentChanged(fields["reason"])
        case "spark":
            return SparkError(fields["reason"])
        case _:
            return error_from(fields, what)


def add_stats(total: CleanStats, part: CleanStats) -> None:
    """Add the figures of a group's rewrite to those of the round."""
    total.bytes_read += part.bytes_read
    total.messages_read += part.messages_read
    total.invalid_messages_read += part.invalid_messages_read
    total.bytes_written += part.bytes_written
    total.messages_written += part.messages_written
    for reason, count in part.removed.items():
        total.remove(reason, count, part.removed_bytes[reason])

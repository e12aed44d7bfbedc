"""The directories to which executors write the outputs of jobs, and the notes that record these directories in the log directory.

    <partition's directory, or diamant.cleaner.spark.staging>/diamant-staging-<owner>-<partition>-<run><8 hex>/
        <group>-<attempt>/<base offset>.log.cleaned ...
        segments/<base offset>.log              copies of the segments, if executors do not see the broker's disk
        progress                                bytes processed so far, for a job with a single task

`owner` and `partition` are digests of the log directory and the partition; `run` identifies the process. A job removes its
directory when it ends. If the process is killed, the directory is left behind, and removed later:

    by the next job for the partition                               `remove_leftovers`
    when a broker next starts on the log directory                  `sweep`, even for deleted topics
    when the log is opened, if it is in the partition's directory   `storage.recovery`

If other brokers may use the staging location, directories of other runs are removed only after `YOUNG_S` without a change: a
copy of the log directory has the same owner, and may be in use elsewhere. A failed removal is logged, but does not fail a round.

A job's directory outside the log directory is recorded in a note. The note is written before the directory is made, and removed
after it:

    <log directory>/<name of the job's directory>.note          {"root": "/mnt/shared/staging", "identity": [1234, 1790000000000]}

The note is needed because a staging location looks empty while it is not mounted, and is no longer examined once another one is
configured. While the note exists, the job's directory may exist, too. A scan that certifies the absence of records must have seen
that it is gone (`is_seen_at`). A log directory that has never used Spark has no notes.

`identity` tells the staging location from others with the same path: it has the inode number and the birth time, which do not
change when the disk is mounted again. It is null for remote locations (s3:), where the path is enough. A note has no credentials,
because a location written as a string omits them. It is durable before the job's directory is made.

Functions that access files block on disk I/O.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.cleaner.spark.clean.staged_outputs import CHUNK_BYTES
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.storage import names
from diamant.storage.env.env import parent
from diamant.storage.env.linux import birth_ms
from diamant.storage.errors import StorageError
from diamant.storage.properties import parse_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import CheckDone
    from diamant.cleaner.rules.throttle import Throttle
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class Note:
    """The note of a job's directory, which may still exist."""

    path: str
    """Path of the note."""
    name: str
    """Name of the job's directory."""
    root: str = ""
    """The staging location that contains it; empty if the note is damaged."""
    identity: Any = None

    def is_seen_at(self, root: Location) -> bool:
        """Return whether a listing of `root` would show the job's directory if it still existed."""
        try:
            return self.root == str(root) and self.identity == _identity(root)
        except OSError:
            return False


def write_note(env: Env, log_directory: str, place: Location) -> None:
    """Write the note of `place`, a job's directory, before it is made. Its parent must exist. Raises OSError."""
    root = place.parent
    fields = {"root": str(root), "identity": _identity(root)}
    env.write_atomically(_path(log_directory, place.name), json.dumps(fields).encode())


def read_notes(env: Env, log_directory: str) -> list[Note]:
    """Return all notes. Raises OSError if the log directory or a note cannot be read."""
    found = []
    for file in env.list_dir(log_directory):
        if file.startswith(names.STAGING_PREFIX) and file.endswith(names.NOTE_SUFFIX):
            with suppress(FileNotFoundError):
                found.append(_read(env, log_directory, file.removesuffix(names.NOTE_SUFFIX)))
    return found


def forget(env: Env, log_directory: str, place: Location) -> None:
    """After the removal of `place`, remove its note, unless another disk is mounted there now. Raises OSError."""
    with suppress(FileNotFoundError):
        note = _read(env, log_directory, place.name)
        if note.is_seen_at(place.parent):
            env.remove(note.path, missing_ok=True)


def forget_gone(env: Env, log_directory: str, root: Location, is_over: Callable[[str], bool]) -> None:
    """Remove the notes of job directories that were in `root` and are gone. Raises OSError or StorageError.

    `is_over` returns whether the job with a directory of this name has ended, so that the directory cannot appear later.
    """
    notes = [note for note in read_notes(env, log_directory) if is_over(note.name) and note.is_seen_at(root)]
    if not notes:
        return
    there: set[str] = set()
    with suppress(FileNotFoundError):  # an empty object store has no `root`
        there = {entry.name for entry in root.entries()}
    for note in notes:
        if note.name not in there and note.is_seen_at(root):
            env.remove(note.path, missing_ok=True)


def _read(env: Env, log_directory: str, name: str) -> Note:
    path = _path(log_directory, name)
    data = env.read_bytes(path)
    try:
        fields = json.loads(data)
        return Note(path, name, str(fields["root"]), fields["identity"])
    except (ValueError, KeyError, TypeError):
        return Note(path, name)


def _path(log_directory: str, name: str) -> str:
    return f"{log_directory}/{name}{names.NOTE_SUFFIX}"


def _identity(root: Location) -> list[int | None] | None:
    return [os.stat(root.path).st_ino, birth_ms(root.path)] if root.is_local else None


logger = logging.getLogger(__name__)

RUN = os.urandom(4).hex()
"""Identifies this process in the names of its jobs' directories."""
YOUNG_S = 3600.0
"""A directory that has changed within this time may belong to a job in progress."""


class Swept(NamedTuple):
    """The result of a sweep for leftovers."""

    removed: int = 0
    """Number of directories removed."""
    young: int = 0
    """Number of directories not old enough to remove yet."""
    stuck: int = 0
    """Number of directories that cannot be removed."""
    reason: str = ""
    """Why the first of these cannot be removed."""


def staging_root(staging: str) -> Location:
    """Parse `diamant.cleaner.spark.staging`. Raises SparkError if it is invalid; the message omits secrets of the URI."""
    try:
        return Location.parse(staging)
    except StorageError as error:
        raise SparkError(f"the staging location cannot be used: {error}") from None


def new_place(env: Env, plan: CleanPlan, staging: str, *, run: str = RUN) -> Location:
    """Choose a directory for a job, and write its note unless it is in the partition's directory. The job makes the directory.

    Creates a missing local staging location if its parent exists. Raises OSError, and SparkError if `staging` is invalid.
    """
    name = new_name(owner_of(env, parent(plan.directory)), os.path.basename(plan.directory), run)
    if not staging:
        return Location(plan.directory).child(name)
    root = staging_root(staging)
    root.make_directory()
    place = root.child(name)
    write_note(env, parent(plan.directory), place)
    return place


def remove_leftovers(env: Env, plan: CleanPlan, place: Location) -> None:
    """Remove the directories that killed processes have left behind for this partition. Log those that cannot be removed.

    Raises OSError or SparkError if the staging location cannot be listed.
    """
    root, prefix = place.parent, _prefix(env, plan)

    def is_over(name: str) -> bool:
        return name.startswith(prefix) and name != place.name

    def is_safe(name: str) -> bool:
        # Only this broker uses a partition's directory, and a process runs one job at a time for a partition.
        return root == Location(plan.directory) or _run_of(name) == RUN

    swept = _remove_all(root, is_over, is_safe, YOUNG_S)
    if swept.stuck:
        logger.warning("%d directories of earlier jobs in %s cannot be removed: %s", swept.stuck, root, swept.reason)
    forget_gone(env, parent(plan.directory), root, is_over)


def sweep(
    env: Env,
    log_directory: str,
    staging: str,
    run: str,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    young_s: float = YOUNG_S,
) -> Swept:
    """Remove the directories that earlier runs of a broker on this log directory have left in the staging location.

    These are the directories with the owner's prefix or a note, except those of `run` (the broker's `RUN`). `is_stopped` is
    polled before each removal. Blocks on I/O. Raises OSError or SparkError if the staging location cannot be listed.
    """
    owner = owner_of(env, log_directory)
    root = staging_root(staging)
    # If the log directory was moved, the directories recorded in its notes have names with another owner.
    noted = {note.name for note in read_notes(env, log_directory) if note.is_seen_at(root)}

    def is_over(name: str) -> bool:
        return (name.startswith(owner) or name in noted) and _run_of(name) != run and not is_stopped()

    swept = _remove_all(root, is_over, lambda _: False, young_s)
    forget_gone(env, log_directory, root, is_over)
    return swept


def source_for(env: Env, plan: CleanPlan, place: Location, check_done: CheckDone, throttle: Throttle) -> Location:
    """Return the directory from which executors read segments: the partition's own, or one with copies if `place` is remote."""
    if place.is_local:
        return Location(plan.directory)
    source = place.child("segments")
    for segment in plan.segments:
        if segment.base_offset in plan.quarantined or segment.base_offset in plan.untouched:
            continue  # no task reads this segment
        path = names.log_file(plan.directory, segment.base_offset)
        file = env.open(path, read_only=True)
        try:
            with source.child(os.path.basename(path)).open_output() as target:
                for position in range(0, segment.size, CHUNK_BYTES):
                    check_done()
                    data = file.pread(min(CHUNK_BYTES, segment.size - position), position)
                    target.write(data)
                    throttle(len(data), check_done)
        finally:
            file.close()
    return source


def remove_place(env: Env, plan: CleanPlan, place: Location) -> None:
    """Remove a job's directory and then its note. Logs failures instead of raising them."""
    try:
        place.remove()
        forget(env, parent(plan.directory), place)
    except (OSError, StorageError) as error:
        logger.warning(
            "%s cannot be removed; the partition's next round or the next start will retry: %s", place, error
        )


def _remove_all(
    root: Location, is_over: Callable[[str], bool], is_safe: Callable[[str], bool], young_s: float
) -> Swept:
    """Remove the directories in `root` whose jobs are over, if `is_safe` returns True or they have not changed for `young_s`."""
    try:
        entries = root.entries()
    except FileNotFoundError:
        return Swept()
    # File times come from the system clock, so compare them with it, not with the broker's clock, which can be set.
    young_ms = int((time.time() - young_s) * 1000)
    removed = young = 0
    stuck: list[str] = []
    for entry in entries:
        if not (entry.is_dir and is_over(entry.name)):
            continue
        place = root.child(entry.name)
        try:
            if not is_safe(entry.name) and place.has_changed_since(young_ms):
                young += 1
                continue
            place.remove()
            removed += 1
        except FileNotFoundError:
            pass
        except (OSError, StorageError) as error:
            stuck.append(str(error))
    return Swept(removed, young, len(stuck), *stuck[:1])


def _run_of(name: str) -> str:
    return name[_RUN_AT : _RUN_AT + len(RUN)]


def owner_of(env: Env, log_directory: str) -> str:
    """Return the prefix with which the names of a log directory's job directories begin.

    A restart does not change it, nor does a move to another host if meta.properties has a directory.id.
    """
    try:
        properties = parse_properties(env.read_bytes(f"{log_directory}/{names.META_PROPERTIES}").decode("latin-1"))
    except OSError:
        properties = {}
    who = properties.get("directory.id") or platform.node()
    return f"{names.STAGING_PREFIX}{_digest(f'{who}:{os.path.realpath(log_directory)}')}-"


def _prefix(env: Env, plan: CleanPlan) -> str:
    return f"{owner_of(env, parent(plan.directory))}{partition_part(os.path.basename(plan.directory))}-"


def new_name(owner: str, partition_directory: str, run: str = RUN) -> str:
    """Return a new name for a job's directory, from an owner (`owner_of`), a partition's directory, and the process `run`."""
    return f"{owner}{partition_part(partition_directory)}-{run}{os.urandom(4).hex()}"


def partition_part(partition_directory: str) -> str:
    """Return the part of job directories' names that identifies a partition, from the name of the partition's directory."""
    return _digest(partition_directory)


def partition_part_of(name: str) -> str:
    """Return the part of a job directory's name that identifies its partition (`partition_part`)."""
    return name[_RUN_AT - len(_digest("")) - 1 : _RUN_AT - 1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_RUN_AT = len(f"{names.STAGING_PREFIX}{_digest('')}-{_digest('')}-")

"""A log directory's notes of copies outside of it: one for each place of a job, made first and removed last.

    <log directory>/<name of the place>.note          {"root": "/mnt/shared/staging", "identity": [1234, 1790000000000]}

A staging place whose disk is not mounted looks like one with nothing in it, and no one looks at one that is configured
no more. As long as there is a note, a place may still be where it was: a scan that certifies what is gone has to have
seen that it is not (`is_seen_at`). As a rule the note goes with the place, and a log directory that never used Spark
has none.

`identity` tells the directory that the place was in from another one of its name: number and time of birth of the inode, the same
whenever its disk is mounted. It is null elsewhere (s3:), where the name is enough. A note has no credentials, which the text of
a location leaves out, and is durable before its place is made. Blocks for the disk.

The place of a job's own at which executors leave outputs: where it is, what lies there before, and that nothing stays.

    <partition's directory, or what diamant.cleaner.spark.staging names>/diamant-staging-<owner>-<whose>-<run><8 hex>/
        <group>-<attempt>/<base offset>.log.cleaned ...
        segments/<base offset>.log              copies of what is to be cleaned, where executors do not see the broker's disk

`owner` is a digest of the log directory, `whose` one of the partition, `run` tells this process from those before it. However a
job ends, it removes its place. What a process that was killed has left goes

    with the next job at the partition                              `remove_leftovers`
    with the next start of a broker on the same log directory       `sweep`, which knows no partitions: also of deleted topics
    when the log is opened, if it lies in the partition's directory `storage.recovery`

Where others than this broker may work, of other runs only what has lain there untouched for `YOUNG_S`: a copy of a log
directory has the same owner, and may be in use elsewhere. What cannot be removed is reported, and fails no round. Of a
place outside of the log directory a note is kept in there until it is gone (see above).
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
from diamant.cleaner.spark.environment.errors import SparkError
from diamant.cleaner.spark.environment.locations import Location
from diamant.storage import names
from diamant.storage.env.birth_time import birth_ms
from diamant.storage.env.env import parent
from diamant.storage.errors import StorageError
from diamant.storage.properties import parse_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import CheckDone
    from diamant.cleaner.rules.throttle import Throttle
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Env

SUFFIX = ".note"


@dataclass(frozen=True, slots=True)
class Note:
    """Of a place that may be there."""

    path: str
    """Of the note."""
    name: str
    """Of the place."""
    root: str = ""
    """The staging directory it was made in; empty if the note is damaged."""
    identity: Any = None

    def is_seen_at(self, root: Location) -> bool:
        """Tell whether a listing of `root` shows the place, if it is still there."""
        try:
            return self.root == str(root) and self.identity == _identity(root)
        except OSError:
            return False


def write_note(env: Env, log_directory: str, place: Location) -> None:
    """Note that `place`, which lies in a directory that is there, is about to be made. OSError."""
    root = place.parent
    fields = {"root": str(root), "identity": _identity(root)}
    env.write_atomically(_path(log_directory, place.name), json.dumps(fields).encode())


def read_notes(env: Env, log_directory: str) -> list[Note]:
    """Return all notes. OSError if the log directory cannot be listed, or one of them read."""
    found = []
    for file in env.list_dir(log_directory):
        if file.startswith(names.STAGING_PREFIX) and file.endswith(SUFFIX):
            with suppress(FileNotFoundError):
                found.append(_read(env, log_directory, file.removesuffix(SUFFIX)))
    return found


def forget(env: Env, log_directory: str, place: Location) -> None:
    """Remove the note of a place that was removed, unless that was done on another disk than it had been made on. OSError."""
    with suppress(FileNotFoundError):
        note = _read(env, log_directory, place.name)
        if note.is_seen_at(place.parent):
            env.remove(note.path, missing_ok=True)


def forget_gone(env: Env, log_directory: str, root: Location, is_over: Callable[[str], bool]) -> None:
    """Remove the notes of places that were in `root` and are gone. OSError or StorageError.

    `is_over`: whether a place of this name will no longer be made by the job that has noted it.
    """
    notes = [note for note in read_notes(env, log_directory) if is_over(note.name) and note.is_seen_at(root)]
    if not notes:
        return
    there: set[str] = set()
    with suppress(FileNotFoundError):  # as an object store has it when it is empty
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
    return f"{log_directory}/{name}{SUFFIX}"


def _identity(root: Location) -> list[int | None] | None:
    return [os.stat(root.path).st_ino, birth_ms(root.path)] if root.is_local else None


logger = logging.getLogger(__name__)

RUN = os.urandom(4).hex()
"""Of all places that this process makes."""
YOUNG_S = 3600.0
"""Age below which a file may belong to a job in progress."""


class Swept(NamedTuple):
    """The result of looking for leftovers."""

    removed: int = 0
    """Places."""
    young: int = 0
    """Left alone so far."""
    stuck: int = 0
    """That cannot be removed."""
    reason: str = ""
    """Why the first of these cannot."""


def staging_root(staging: str) -> Location:
    """Return what `diamant.cleaner.spark.staging` names. SparkError, without its secrets, for a URI that means nothing."""
    try:
        return Location.parse(staging)
    except StorageError as error:
        raise SparkError(f"the staging place cannot be used: {error}") from None


def new_place(env: Env, plan: CleanPlan, staging: str, *, run: str = RUN) -> Location:
    """Return a place for a job, which is noted and not made yet (`CleanJob` does); SparkError for a URI that means nothing.

    A staging place that is local and not there is made if the directory above it is. OSError.
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
    """Remove what earlier jobs at this partition have left because a process was killed; what cannot be removed is
    reported.

    OSError or SparkError if the staging place cannot be listed.
    """
    root, prefix = place.parent, _prefix(env, plan)

    def is_over(name: str) -> bool:
        return name.startswith(prefix) and name != place.name

    def is_safe(name: str) -> bool:
        # A partition's directory is the broker's own, and a run has one job at a partition at a time.
        return root == Location(plan.directory) or _run_of(name) == RUN

    swept = _remove_all(root, is_over, is_safe, YOUNG_S)
    if swept.stuck:
        logger.warning("%d places of earlier jobs at %s cannot be removed: %s", swept.stuck, root, swept.reason)
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
    """Remove what earlier runs of a broker on this log directory have left at the staging place.

    That is what the owner's name or a note tells of. Places of `run` (`RUN` of the broker) stay. `is_stopped` is asked before
    each place. OSError or SparkError if the staging place cannot be listed. Blocks.
    """
    owner = owner_of(env, log_directory)
    root = staging_root(staging)
    # Of another owner if the log directory was moved.
    noted = {note.name for note in read_notes(env, log_directory) if note.is_seen_at(root)}

    def is_over(name: str) -> bool:
        return (name.startswith(owner) or name in noted) and _run_of(name) != run and not is_stopped()

    swept = _remove_all(root, is_over, lambda _: False, young_s)
    forget_gone(env, log_directory, root, is_over)
    return swept


def source_for(env: Env, plan: CleanPlan, place: Location, check_done: CheckDone, throttle: Throttle) -> Location:
    """Return where executors find the segments: where they lie, or copied to a place on another file system."""
    if place.is_local:
        return Location(plan.directory)
    source = place.child("segments")
    for segment in plan.segments:
        if segment.base_offset in plan.quarantined or segment.base_offset in plan.untouched:
            continue  # no task reads it
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
    """Remove a place with everything in it; what cannot be removed is reported."""
    try:
        place.remove()
        forget(env, parent(plan.directory), place)
    except (OSError, StorageError) as error:
        logger.warning(
            "%s cannot be removed, the next round at the partition and the next start try again: %s", place, error
        )


def _remove_all(
    root: Location, is_over: Callable[[str], bool], is_safe: Callable[[str], bool], young_s: float
) -> Swept:
    """Remove the directories in `root` that are over; those that are not safe to be so once they are not young."""
    try:
        found = root.entries()
    except FileNotFoundError:
        return Swept()
    # The files' own clock, not the broker's, which can be set.
    young_ms = int((time.time() - young_s) * 1000)
    removed = young = 0
    stuck: list[str] = []
    for entry in found:
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
    """Begins the names of all places of brokers on a log directory: the same after a restart, on another host, too."""
    try:
        properties = parse_properties(env.read_bytes(f"{log_directory}/{names.META_PROPERTIES}").decode("latin-1"))
    except OSError:
        properties = {}
    who = properties.get("directory.id") or platform.node()
    return f"{names.STAGING_PREFIX}{_digest(f'{who}:{log_directory}')}-"


def _prefix(env: Env, plan: CleanPlan) -> str:
    return f"{owner_of(env, parent(plan.directory))}{whose(os.path.basename(plan.directory))}-"


def new_name(owner: str, partition_directory: str, run: str = RUN) -> str:
    """Return the name of a new place of a process, this one or another, for an owner (`owner_of`) and a partition's directory."""
    return f"{owner}{whose(partition_directory)}-{run}{os.urandom(4).hex()}"


def whose(partition_directory: str) -> str:
    """Return what the names of places have for a partition's directory, of which this is the name."""
    return _digest(partition_directory)


def whose_of(name: str) -> str:
    """Return that part of a place's name."""
    return name[_RUN_AT - len(_digest("")) - 1 : _RUN_AT - 1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_RUN_AT = len(f"{names.STAGING_PREFIX}{_digest('')}-{_digest('')}-")

"""The place of a job's own at which executors leave outputs: where it is, what lies there before, and that nothing stays.

    <partition's directory, or what diamant.cleaner.spark.staging names>/diamant-staging-<owner>-<whose>-<run><8 hex>/
        <group>-<attempt>/<base offset>.log.cleaned ...
        segments/<base offset>.log              copies of what is to be cleaned, where executors do not see the broker's disk

`owner` is a digest of the log directory, `whose` one of the partition, `run` tells this process from those before it. However a
job ends, it removes its place. What a process that was killed has left goes

    with the next job at the partition                              `remove_leftovers`
    with the next start of a broker on the same log directory       `sweep`, which knows no partitions: also of deleted topics
    when the log is opened, if it lies in the partition's directory `storage.loader`
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from contextlib import suppress
from typing import TYPE_CHECKING

from diamant.cleaner.spark.errors import SparkError
from diamant.cleaner.spark.locations import Location
from diamant.cleaner.spark.staged_outputs import CHUNK_BYTES
from diamant.storage import names
from diamant.storage.env import parent
from diamant.storage.errors import StorageError
from diamant.storage.meta_properties import parse_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.cleaner.plan import CleanPlan
    from diamant.cleaner.result import CheckDone
    from diamant.cleaner.throttle import Throttle
    from diamant.storage.env import Env

logger = logging.getLogger(__name__)

_RUN = os.urandom(4).hex()
"""Of all places that this process makes."""


def staging_root(staging: str) -> Location:
    """Return what `diamant.cleaner.spark.staging` names. SparkError, without its secrets, for a URI that means nothing."""
    try:
        return Location.parse(staging)
    except StorageError as error:
        raise SparkError(f"the staging place cannot be used: {error}") from None


def new_place(env: Env, plan: CleanPlan, staging: str) -> Location:
    """Return a place for a job, which is not made yet (`CleanJob` does); SparkError for a URI that means nothing.

    A staging place that is local and not there is made if the directory above it is. OSError.
    """
    if not staging:
        root = Location(plan.directory)
    else:
        root = staging_root(staging)
        root.make_directory()
    return root.child(f"{_prefix(env, plan)}{_RUN}{os.urandom(4).hex()}")


def remove_leftovers(env: Env, plan: CleanPlan, place: Location) -> None:
    """Remove what earlier jobs at this partition have left because somebody was killed. OSError, SparkError."""
    _remove_all(place.parent, _prefix(env, plan), lambda name: name != place.name)


def sweep(env: Env, log_directory: str, staging: str) -> int:
    """Remove what earlier runs of a broker on this log directory have left at the staging place; how many places.

    Places of this run stay. OSError, SparkError. Blocks.
    """
    return _remove_all(
        staging_root(staging), _owner(env, log_directory), lambda name: name[_RUN_AT : _RUN_AT + len(_RUN)] != _RUN
    )


def source_for(env: Env, plan: CleanPlan, place: Location, check_done: CheckDone, throttle: Throttle) -> Location:
    """Return where executors find the segments: where they lie, or copied to a place on another file system."""
    if place.is_local:
        return Location(plan.directory)
    source = place.child("segments")
    for segment in plan.segments:
        if segment.base_offset in plan.quarantined:
            continue
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


def remove_place(place: Location) -> None:
    """Remove a place with everything in it; what cannot be removed is told of."""
    try:
        place.remove()
    except (OSError, StorageError) as error:
        logger.warning(
            "%s cannot be removed, the next round at the partition and the next start try again: %s", place, error
        )


def _remove_all(root: Location, prefix: str, is_over: Callable[[str], bool]) -> int:
    try:
        found = root.entries()
    except FileNotFoundError:
        return 0
    count = 0
    for entry in found:
        if entry.is_dir and entry.name.startswith(prefix) and is_over(entry.name):
            with suppress(FileNotFoundError):
                root.child(entry.name).remove()
                count += 1
    return count


def _owner(env: Env, log_directory: str) -> str:
    """Begins the names of all places of brokers on a log directory: the same after a restart, on another host, too."""
    try:
        properties = parse_properties(env.read_bytes(f"{log_directory}/{names.META_PROPERTIES}").decode("latin-1"))
    except OSError:
        properties = {}
    who = properties.get("directory.id") or platform.node()
    return f"{names.STAGING_PREFIX}{_digest(f'{who}:{log_directory}')}-"


def _prefix(env: Env, plan: CleanPlan) -> str:
    return f"{_owner(env, parent(plan.directory))}{_digest(os.path.basename(plan.directory))}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_RUN_AT = len(f"{names.STAGING_PREFIX}{_digest('')}-{_digest('')}-")

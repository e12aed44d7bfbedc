"""The place of a job's own at which executors leave outputs: where it is, what lies there before, and that nothing stays.

    <partition's directory, or what diamant.cleaner.spark.staging names>/diamant-staging-<whose>-<8 hex>/
        <group>-<attempt>/<base offset>.log.cleaned ...
        segments/<base offset>.log              copies of what is to be cleaned, where executors do not see the broker's disk

`whose` is a digest of the machine and the partition's directory: what a broker that was killed has left is known by it, and goes
with the next job at the partition. In a partition's directory it goes when the log is opened, too (`storage.loader`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from typing import TYPE_CHECKING

from diamant.cleaner.spark.errors import SparkError
from diamant.cleaner.spark.locations import Location
from diamant.cleaner.spark.staged_outputs import CHUNK_BYTES
from diamant.storage import names
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.plan import CleanPlan
    from diamant.cleaner.result import CheckDone
    from diamant.storage.env import Env

logger = logging.getLogger(__name__)


def new_place(plan: CleanPlan, staging: str) -> Location:
    """Return a place for a job, which is not made yet. SparkError for a URI that means nothing."""
    try:
        parent = Location.parse(staging) if staging else Location(plan.directory)
    except StorageError as error:
        raise SparkError(f"the staging place cannot be used: {error}") from None
    return parent.child(f"{_prefix(plan)}{os.urandom(4).hex()}")


def remove_leftovers(plan: CleanPlan, place: Location) -> None:
    """Remove what earlier jobs at this partition have left because somebody was killed. OSError, SparkError."""
    try:
        found = place.parent.entries()
    except FileNotFoundError:
        return
    for entry in found:
        if entry.is_dir and entry.name.startswith(_prefix(plan)):
            place.parent.child(entry.name).remove()


def source_for(env: Env, plan: CleanPlan, place: Location, check_done: CheckDone) -> Location:
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
                    target.write(file.pread(min(CHUNK_BYTES, segment.size - position), position))
        finally:
            file.close()
    return source


def remove_place(place: Location) -> None:
    """Remove a place with everything in it; what cannot be removed is told of."""
    try:
        place.remove()
    except (OSError, StorageError) as error:
        logger.warning("%s cannot be removed, the next round at the partition tries again: %s", place, error)


def _prefix(plan: CleanPlan) -> str:
    whose = hashlib.sha256(f"{platform.node()}:{plan.directory}".encode()).hexdigest()[:16]
    return f"{names.STAGING_PREFIX}{whose}-"

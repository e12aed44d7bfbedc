"""Describes the staging location to a certifying scan: the owners of the job directories, and the files in them.

A local staging location is listed directly, a remote one (s3:) by a child process (`staging_sweep`), so that the broker does not
load pyarrow. Job directories that are known from notes (`staging`), but cannot be read or listed, are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from diamant.cleaner.evidence.scan.staging_files import StagingPlace, Unseen
from diamant.cleaner.spark.clean.staging import (
    new_name,
    owner_of,
    partition_part,
    partition_part_of,
    read_notes,
    staging_root,
)
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.checkpoints.checkpoints import TopicPartition
    from diamant.storage.env.env import Env

_NOT_CONFIGURED = "of earlier jobs"
"""Name of the staging location if none is configured."""


def staging_place(env: Env, log_directory: str, staging: str, partitions: Iterable[TopicPartition]) -> StagingPlace:
    """Describe the staging location of a log directory's jobs. `partitions` are the existing ones. Blocks on disk I/O.

    If `staging` is an invalid URI, listing the result fails. If it is empty, job directories are known only from notes.
    """
    known = {partition_part(names.partition_dir_name(*partition)): partition for partition in partitions}
    owner = owner_of(env, log_directory)

    def partition_of(name: str) -> TopicPartition | None:
        return known.get(partition_part_of(name))

    def unseen(there: Collection[str]) -> list[Unseen]:
        return [
            (note.name, note.root, note.path)
            for note in read_notes(env, log_directory)
            if root is None or not note.is_seen_at(root) or (note.name in there and not note.name.startswith(owner))
        ]

    root: Location | None = None
    if not staging:
        return StagingPlace(_NOT_CONFIGURED, None, owner, partition_of, lambda _: [], unseen)
    try:
        root = staging_root(staging)
    except SparkError as error:
        return StagingPlace("diamant.cleaner.spark.staging", None, owner, partition_of, _refuse(error))
    if root.is_local:
        name_for = partial(new_name, owner)
        return StagingPlace(
            root.path, root.path, owner, partition_of, lambda _: env.list_dir(root.path), unseen, name_for
        )

    def list_elsewhere(check: Callable[[], object]) -> list[str]:
        from diamant.cleaner.spark.runner.staging_sweep import list_elsewhere

        return list_elsewhere(staging, check)

    return StagingPlace(str(root), None, owner, partition_of, list_elsewhere, unseen)


def _refuse(error: SparkError) -> Callable[[Callable[[], object]], list[str]]:
    def fail(_: Callable[[], object]) -> list[str]:
        raise error

    return fail

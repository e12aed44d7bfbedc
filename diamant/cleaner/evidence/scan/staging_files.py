"""The staging location of Spark jobs in a certifying scan: another directory to read, or a reason to claim nothing.

Each job has a staging location there. Its name contains its owner, which is a log directory, and a partition.

local        every file in this owner's staging locations is read like the data directory, and is in the ledger by its absolute
             path. A staging location belongs to the partition in its name, or to no partition if the topic was deleted
elsewhere    (s3:) names are listed, but nothing is read. While a staging location exists, its partition gets no claim; if the
             partition is unknown, no partition gets a claim

If the staging location cannot be listed, nothing can be claimed. If it does not exist, it counts as empty, because the first job
creates it. But the log directory may have a note about a staging location that cannot be seen now, because its disk is not
mounted or another staging location is configured; then the partition gets no claim. Directories of other owners are only counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.evidence.scan.file_listing import Place, list_below
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.evidence.scan.report import ScanReport
    from diamant.storage.checkpoints.checkpoints import TopicPartition

Unseen: TypeAlias = tuple[str, str, str]
"""The name of a staging location, its staging location, and the path of the note about it."""

_LEFT = (
    "a job on Spark left this copy of records, or is using it, and a scan does not read it: it is removed when the job ends; if "
    "the job was killed, an hour after its last use, or when you remove it"
)


def _no_unseen(_: Collection[str]) -> list[Unseen]:
    return []


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """The staging location (`diamant.cleaner.spark.staging`), as one log directory uses it."""

    shown: str
    """The location as shown to people, without credentials."""
    root: str | None
    """The path of the location; None if it is not on a local file system."""
    owner: str
    """Prefix of the names of this owner's staging locations."""
    partition_of: Callable[[str], TopicPartition | None]
    """Takes the name of a staging location; returns its partition, or None if that does not exist now."""
    list_names: Callable[[Callable[[], object]], list[str]]
    """Returns the names at the location; keeps calling its argument. Does blocking I/O; raises OSError or StorageError."""
    unseen: Callable[[Collection[str]], list[Unseen]] = _no_unseen
    """Takes the listed names; returns unlisted staging locations that may still exist. Does blocking I/O; raises OSError."""
    name_for: Callable[[str], str] = str
    """Takes the name of a partition's directory; returns one for a new staging location. Required if the location is local."""

    def is_apart(self, env: Env, directory: str) -> bool:
        """Tell whether the location is local, exists, and is outside the data directory (inside, it is read anyway)."""
        if self.root is None or not env.is_dir(self.root):
            return False
        return not f"{os.path.realpath(self.root)}/".startswith(f"{os.path.realpath(directory)}/")

    def path_for(self, partition_directory: str) -> str:
        """Return the path of a new staging location for a partition's directory."""
        return f"{self.root}/{self.name_for(partition_directory)}"

    def with_known(self, path: str, partition: TopicPartition) -> StagingPlace:
        """Return a copy in which the staging location with this path belongs to the partition of the known positives."""
        known = path.rpartition("/")[2]
        return replace(self, partition_of=lambda name: partition if name == known else self.partition_of(name))

    def files(self, env: Env) -> Iterator[Place]:
        """Yield the files in this owner's staging locations, if they are local.

        Skips directories that cannot be listed; the census reports them.
        """
        if self.root is None:
            return
        found: list[str] = []
        with suppress(OSError):
            found = env.list_dir(self.root)
        for name in found:
            if not name.startswith(self.owner):
                continue
            partition = self.partition_of(name)
            owner = None if partition is None else (*partition, True)
            with suppress(OSError):
                yield from list_below(env, f"{self.root}/{name}", owner)

    def account(self, report: ScanReport, problem: str, check: Callable[[], object]) -> None:
        """Add the staging locations at the end of a scan, and problems that prevent claims, to a report.

        `problem`: why the census could not list the location; "" if it could.
        """
        found: list[str] = []
        unseen: list[Unseen] = []
        try:
            with suppress(FileNotFoundError):
                found = self.list_names(check)
            unseen = self.unseen(found)
        except (OSError, StorageError) as error:
            problem = problem or _text(error)
        found = [name for name in found if name.startswith(names.STAGING_PREFIX)]
        own = [name for name in found if name.startswith(self.owner)]
        if problem:
            reason = (
                f"the staging location of jobs on Spark cannot be listed, and may hold copies of records: {problem}"
            )
            report.add_unreadable(Unreadable(None, None, self.shown, None, reason))
        if self.root is None:
            for name in own:
                topic, index = self.partition_of(name) or (None, None)
                report.add_unreadable(Unreadable(topic, index, f"{self.shown}/{name}", None, _LEFT))
        for name, root, note in unseen:
            topic, index = self.partition_of(name) or (None, None)
            report.add_unreadable(Unreadable(topic, index, f"{root}/{name}", None, _not_seen(note)))
        report.staging = self._fields(len(own), len(found) - len(own), is_listed=not problem)

    def _fields(self, own: int, others: int, *, is_listed: bool) -> dict[str, object]:
        return {
            "place": self.shown,
            "is_listed": is_listed,
            "is_read": self.root is not None and is_listed,
            "places": own,
            "places_of_others": others,
        }


def _not_seen(note: str) -> str:
    return (
        "a job on Spark was about to leave copies of records here, and it is unknown whether they are gone: the disk may not be "
        "mounted, diamant.cleaner.spark.staging may name another place now, or the data directory was moved. Mount it, or "
        "configure it, and start the broker, which removes them. If you know that they are gone, remove the note, "
        f"{note}"
    )


def _text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:500]

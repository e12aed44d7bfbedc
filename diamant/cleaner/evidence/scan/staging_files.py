"""The staging place of jobs on Spark in a certifying scan, which is another directory to read, or a reason to claim nothing.

local        every file in this owner's places is read like those of the data directory, and is in the ledger by its absolute
             path. A place belongs to the partition in its name; a place of a deleted topic belongs to none
elsewhere    (s3:) names are listed, but nothing is read. While a place exists, its partition gets no claim; if its partition is
             unknown, no partition gets one

If a staging place cannot be listed, nothing can be claimed. A missing one counts as empty, because the first job makes it. But
the log directory may have a note of a place that cannot be seen now, because its disk is not mounted or another staging place is
configured; then its partition gets no claim. Places of other owners (other log directories) are counted and left alone.
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
"""Name of a place, its staging place, and the path of the note about it."""

_LEFT = (
    "a job on Spark left this copy of records, or is using it, and a scan does not read it: it is removed when the job ends; if "
    "the job was killed, an hour after its last use, or when you remove it"
)


def _no_unseen(_: Collection[str]) -> list[Unseen]:
    return []


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """The value of `diamant.cleaner.spark.staging`, for the owner of one log directory."""

    shown: str
    """The place as shown to people, without credentials."""
    root: str | None
    """The directory; None if it is not on a local file system."""
    owner: str
    """Prefix of the names of this owner's places."""
    partition_of: Callable[[str], TopicPartition | None]
    """Returns the partition of a place, by its name; None if no such partition exists now."""
    list_names: Callable[[Callable[[], object]], list[str]]
    """Returns the names at the staging place; calls its argument now and then. Blocking; raises OSError or StorageError."""
    unseen: Callable[[Collection[str]], list[Unseen]] = _no_unseen
    """Takes the names listed; returns places that may exist but are neither read nor listed. Blocking; raises OSError."""
    name_for: Callable[[str], str] = str
    """Returns the name of a new place for a partition's directory. Required for a local staging place."""

    def is_apart(self, env: Env, directory: str) -> bool:
        """Tell whether the place is local, exists, and is outside a data directory, inside of which it is read anyway."""
        if self.root is None or not env.is_dir(self.root):
            return False
        return not f"{os.path.realpath(self.root)}/".startswith(f"{os.path.realpath(directory)}/")

    def path_for(self, partition_directory: str) -> str:
        """Return the path of a new place for a partition's directory."""
        return f"{self.root}/{self.name_for(partition_directory)}"

    def with_known(self, path: str, partition: TopicPartition) -> StagingPlace:
        """Return a copy in which the place with this path belongs to the partition of known positives."""
        known = path.rpartition("/")[2]
        return replace(self, partition_of=lambda name: partition if name == known else self.partition_of(name))

    def files(self, env: Env) -> Iterator[Place]:
        """Yield the files of this owner's places on a local file system. Skips unlistable ones; the census reports them."""
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
        """Report the places that exist at the end of a scan, and problems that prevent claims. `problem`: a listing error."""
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
            reason = f"the staging place of jobs on Spark cannot be listed, and may hold copies of records: {problem}"
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

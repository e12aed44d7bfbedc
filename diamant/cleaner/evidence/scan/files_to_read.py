"""The files that a scan still has to read, according to repeated listings of the directory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from diamant.cleaner.evidence.scan.coverage_account import CoverageAccount
from diamant.cleaner.evidence.scan.file_listing import BATCHES, NOTHING, OTHER, Place, list_places, place_named
from diamant.cleaner.evidence.scan.file_names import shown_name
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search.file_census import FileKey, Identity, file_identity, name_identity
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

Partitions = Callable[[str], Collection[int]]
"""Takes a topic; returns its current partitions, or an empty collection if it does not exist. May be called in any thread."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a directory that a scan covers."""

    only: frozenset[TopicPartition] | None = None
    """Partitions to read; None to read everything, as required for certifying."""
    skip: Callable[[Place], bool] | None = None
    is_locating: bool = False
    """True if records of the key are passed to a callback instead of being reported as findings."""

    @property
    def is_certifying(self) -> bool:
        """True if nothing may be left out."""
        return self.only is None

    def holds(self, place: Place) -> bool:
        """Tell whether the scan reads a file."""
        if self.only is not None and (place.topic, place.partition) not in self.only:
            return False
        # A scan that locates the key also reads unknown files, because it must find values that exist only there.
        is_content = place.content == BATCHES or self.only is None or (self.is_locating and place.sort == OTHER)
        return is_content and (self.skip is None or not self.skip(place))


class FoundFile(NamedTuple):
    """A file to be read."""

    place: Place
    size: int
    identity: Identity
    is_of_later: bool
    """True if the file may belong to a segment that its log began after the recorded end."""

    @property
    def key(self) -> FileKey:
        """Name and identity, because a file with several names counts once for each."""
        return self.place.name, self.identity


def _identity(env: Env, place: Place) -> tuple[Identity, int]:
    return (name_identity(place.path), 0) if place.content == NOTHING else file_identity(env, place.path)


class FilesToRead:
    """The listed files that have not been read yet. Not thread-safe."""

    def __init__(
        self,
        env: Env,
        directory: str,
        subject: Subject,
        ends: Mapping[TopicPartition, LogEnd],
        account: CoverageAccount,
        scope: Scope,
        *,
        partitions: Partitions | None = None,
        staging: StagingPlace | None = None,
        prove_in: str | None = None,
        known_names: Collection[str] = (),
    ) -> None:
        """`prove_in` and `known_names`: directory and names of the known positives, which `new` lists but does not hand out."""
        self._env = env
        self._directory = directory
        self._subject = subject
        self._ends = ends
        self._account = account
        self._scope = scope
        self._partitions = partitions
        self._staging = staging
        self._prove_in = directory if prove_in is None else prove_in
        self._known_names = known_names
        self.known: dict[str, FoundFile] = {}
        """The listed files of known positives, by name."""
        self.bytes = 0
        """Size of all files handed out."""
        self.later: set[str] = set()
        """Names of segments that logs began after the recorded ends."""
        self.links: set[str] = set()
        """Links that were not followed, in the form that reports show."""
        self._owned: set[str] = set()
        """Directories whose partition exists, or existed when they were listed."""
        self._seen: set[FileKey] = set()
        """The files handed out. A file counts once under each of its names, because the name decides how it is read."""
        self._passed_over: set[Identity] = set()
        """Segments that logs began after the recorded ends."""

    def forget(self, key: FileKey) -> None:
        """Hand out a file again if it is in the next listing."""
        self._seen.discard(key)

    def new(self) -> list[FoundFile]:
        """List everything, and return the files not handed out before, largest first. Does blocking I/O; raises OSError."""
        found = []
        # Jobs copy from the data directory to the staging location, so listing them in this order misses no copy.
        staged = () if self._staging is None else self._staging.files(self._env)
        proving = () if self._prove_in == self._directory else list_places(self._env, self._prove_in)
        own = map(self._owned_place, list_places(self._env, self._directory))
        for place in chain(own, staged, proving):
            if place.is_link:
                self.links.add(shown_name(place, self._subject.needles))
            if not self._scope.holds(place):
                continue
            try:
                identity, size = _identity(self._env, place)
            except FileNotFoundError:
                continue
            is_of_later = self._is_of_later(place, identity)
            if is_of_later and self._is_passed_over(place, identity):
                continue
            one = FoundFile(place, size, identity, is_of_later)
            if place.name in self._known_names:
                self.known[place.name] = one
                continue
            if one.key not in self._seen:
                self._seen.add(one.key)
                found.append(one)
        self.bytes += sum(one.size for one in found)
        return sorted(found, key=lambda one: -one.size)

    def shown(self, name: str) -> str:
        """Return the name of a file as reports show it, with findings masked."""
        return shown_name(self._owned_place(place_named(name)), self._subject.needles)

    def _owned_place(self, place: Place) -> Place:
        """Return a place, but without topic and partition if its directory is named after a partition that does not exist.

        A directory that was set aside belongs to its topic while the topic exists. For topics of the request, this is left to
        `ScanReport.disown`.
        """
        directory = place.name.partition("/")[0]
        if place.topic is None or self._partitions is None or directory in self._owned:
            return place
        is_ours = place.topic in self._subject.topics
        if not is_ours and names.set_aside_suffix(directory) != names.DELETE_DIR_SUFFIX:
            there = (0,) if place.topic == names.METADATA_TOPIC else self._partitions(place.topic)
            if not there or not (place.is_set_aside or place.partition in there):
                return replace(place, topic=None, partition=None, base_offset=None, named_offset=None)
        self._owned.add(directory)
        return place

    def _is_of_later(self, place: Place, identity: Identity) -> bool:
        """Tell whether a file may belong to a segment that its log began after the recorded end.

        The log must have such a segment, and the file must not have existed when the scan began. Output of the cleaner is never
        mistaken for one: its base offset may exceed those of all its sources, but not their last offset, which is below the end.
        """
        if place.topic is None or place.partition is None or place.named_offset is None:
            return False
        end = self._ends.get((place.topic, place.partition))
        if end is None or not end.is_before(place.named_offset) or identity in self._account.oldest:
            return False
        return end.size_of(place.named_offset) is not None or identity in self._passed_over

    def _is_passed_over(self, place: Place, identity: Identity) -> bool:
        """Tell whether a file of a later segment may be skipped. A certifying scan asks the log which file it has open."""
        if not self._scope.is_certifying:
            return True
        if place.base_offset is not None and self._end_has(place, identity):
            self._passed_over.add(identity)
            self.later.add(place.name)
        return identity in self._passed_over

    def _end_has(self, place: Place, identity: Identity) -> bool:
        end = self._end(place)
        return end is not None and place.base_offset is not None and end.has_file(place.base_offset, identity)

    def _end(self, place: Place) -> LogEnd | None:
        if place.topic is None or place.partition is None or place.base_offset is None:
            return None
        return self._ends.get((place.topic, place.partition))

    def end_of_order(self, found: FoundFile) -> LogEnd | None:
        """Return the log end below which all offsets of a segment must be; None if it is unknown."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or found.identity not in self._account.oldest:
            return None
        # The log began such a segment after its end was recorded, but before the first look.
        return None if end.is_before(base_offset) and end.size_of(base_offset) is not None else end

    def limit(self, found: FoundFile, size: int) -> int | None:
        """Return how many of the file's `size` bytes to read; None for all of them."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or base_offset != end.active_base_offset or size <= end.active_size:
            return None
        if self._scope.is_certifying and found.identity not in self._account.oldest:
            return None  # The file was replaced.
        written = end.size_of(base_offset)
        # Bytes after the recorded end are read as well if the log did not write them.
        return None if written is None or written < size else end.active_size

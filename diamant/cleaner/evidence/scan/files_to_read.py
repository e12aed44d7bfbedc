"""The files that a scan still has to read, listing by listing."""

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
"""Returns the current partitions of a topic; none if there is no such topic. Callable from any thread."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a directory that a scan covers."""

    only: frozenset[TopicPartition] | None = None
    """Partitions to read; None for everything, in order to certify."""
    skip: Callable[[Place], bool] | None = None
    is_locating: bool = False
    """True if a callback takes every record; the report then has no findings."""

    @property
    def is_certifying(self) -> bool:
        """True if nothing may be left out."""
        return self.only is None

    def holds(self, place: Place) -> bool:
        """Tell whether the scan reads a file."""
        if self.only is not None and (place.topic, place.partition) not in self.only:
            return False
        # Locating reads unknown files, too, because values that exist only there must be known.
        is_content = place.content == BATCHES or self.only is None or (self.is_locating and place.sort == OTHER)
        return is_content and (self.skip is None or not self.skip(place))


class FoundFile(NamedTuple):
    """A file to be read."""

    place: Place
    size: int
    identity: Identity
    is_of_later: bool
    """True if the file's name belongs to a segment that was begun after the recorded end."""

    @property
    def key(self) -> FileKey:
        """Name and identity, because a file counts once under each name."""
        return self.place.name, self.identity


def _identity(env: Env, place: Place) -> tuple[Identity, int]:
    return (name_identity(place.path), 0) if place.content == NOTHING else file_identity(env, place.path)


class FilesToRead:
    """The listed files that were not read yet. For one thread."""

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
        """`prove_in` and `known_names`: directory and names of the known positives, which are listed, but not handed out."""
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
        """The files of known positives, as listed."""
        self.bytes = 0
        """Size of all files handed out."""
        self.later: set[str] = set()
        """Names of segments begun after the recorded ends."""
        self.links: set[str] = set()
        """Links that were not followed, in the form that reports show."""
        self._owned: set[str] = set()
        """Directories whose partition exists, or existed when they were listed."""
        self._seen: set[FileKey] = set()
        """The files handed out. A file counts once under each of its names, because the name decides how it is read."""
        self._passed_over: set[Identity] = set()
        """Segments begun after the recorded ends."""

    def forget(self, key: FileKey) -> None:
        """Hand a file out again if the next listing has it."""
        self._seen.discard(key)

    def new(self) -> list[FoundFile]:
        """List everything, and return the files not handed out yet, large ones first. Blocking; raises OSError."""
        found = []
        # Jobs copy from the data directory to the staging place, so this order misses no copy.
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
        """Return a place, without an owner if its directory has a partition's name, but there is no such partition.

        A directory set aside belongs to its topic as long as the topic exists. For the topics of the request see
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
        """Tell whether a file may have come with a segment that was begun after the recorded end of its log.

        The log must have such a segment, and the file must not have existed at the beginning. An output of the cleaner may
        have a higher base than all its sources; but its records come from them, so they are below that end, even the first.
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
        """Return the end that bounds the offsets of a segment; None if none is known."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or found.identity not in self._account.oldest:
            return None
        # Such a segment was rolled between recording the end and the first look.
        return None if end.is_before(base_offset) and end.size_of(base_offset) is not None else end

    def limit(self, found: FoundFile, size: int) -> int | None:
        """Return how many of the file's `size` bytes to read; None for all of them."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or base_offset != end.active_base_offset or size <= end.active_size:
            return None
        if self._scope.is_certifying and found.identity not in self._account.oldest:
            return None  # The file was replaced.
        written = end.size_of(base_offset)
        # Bytes after the recorded end are read, too, if the log did not write them.
        return None if written is None or written < size else end.active_size

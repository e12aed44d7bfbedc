"""The intent of a person's request: everything that a broker needs to continue the request if it stops in the middle.

It holds the identifiers and the conditions, and is encrypted like the other intents (`private_files.py`). It is written before
the first job begins, and removed with the last paper. It also fixes the ids of its jobs, so after a stop at any point the
broker can tell for each job whether it has not begun, has begun or has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, RemovalIntent, TopicScope
from diamant.cleaner.evidence.certificates.private_files import IntentFiles
from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.evidence.search.remains import Remains
from diamant.cleaner.person.keeping import Keep
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

OPEN = "open"
"""The only phase. How far a job has got is in the files of that job."""


@dataclass(frozen=True, slots=True)
class PersonJob:
    """One erasure or redaction of a request."""

    id: str
    do: str
    """An action of the map that needs a job, that is, not `keep`."""
    topics: tuple[str, ...]
    """For an erasure, all topics from which the key is erased; for a redaction, one topic."""
    key: str = ""
    """Key of an erasure, in hexadecimal."""
    where: str = ""
    """Condition of a redaction."""
    fields: tuple[str, ...] = ()
    replacement: str = ""
    """Replacement of blanked fields."""


@dataclass(frozen=True, slots=True)
class TopicFate:
    """What happens to the person's records in a topic, as the paper and the register state it. Contains no identifier."""

    topic: str
    do: str
    records: int
    """Number of the person's records when the request was planned."""
    jobs: tuple[str, ...] = ()
    """Ids of the jobs about the topic."""
    fields: tuple[str, ...] = ()
    """The fields to blank."""
    keep: Keep | None = None
    identity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The places by which the map recognises the person, for each identifier. Empty in intents of earlier versions."""


@dataclass(frozen=True, slots=True)
class PersonIntent(RemovalIntent):
    """One request in progress."""

    id: str
    phase: str
    identifiers: Mapping[str, tuple[str, ...]]
    reason: str
    reference: str
    requested_ms: int
    rows: tuple[TopicFate, ...]
    jobs: tuple[PersonJob, ...]
    not_searched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The topics that were not fully searched, each with the identifiers of which no value of the person is known."""
    is_now: bool = False
    """True if tombstones are to be removed before their delete horizon."""
    is_confirmed: bool = False
    """True if the requester accepts that, with `is_now`, consumer groups may miss the tombstones."""
    registry: str | None = None
    """The schema registry to use instead of the configured one."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    due_ms: int | None = None
    found: Mapping[TopicPartition, Keep] = field(default_factory=dict)
    done: Mapping[TopicPartition, Keep] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    needles: tuple[Needle, ...] = ()
    """Always empty, like `found`, `done`, `before` and `remains`: these belong to the jobs."""
    is_manual_clock: bool = False
    retries: int = 0

    def topic_names(self) -> tuple[str, ...]:
        return tuple(one.topic for one in self.rows)

    def remains(self, secret: bytes) -> Remains:
        return Remains(self.id, (), (), ())

    def to_bytes(self) -> bytes:
        return self.to_json(rows=[asdict(one) for one in self.rows], jobs=[asdict(one) for one in self.jobs])

    @classmethod
    def from_bytes(cls, data: bytes) -> PersonIntent:
        """Undo `to_bytes`. Raises ValueError for any other input."""

        def own(plain: Mapping[str, Any]) -> Mapping[str, Any]:
            return {
                "identifiers": {name: tuple(values) for name, values in plain["identifiers"].items()},
                "not_searched": {topic: tuple(found) for topic, found in plain["not_searched"].items()},
                "rows": tuple(map(_row, plain["rows"])),
                "jobs": tuple(_job(one) for one in plain["jobs"]),
            }

        return cls.parsed(data, Keep, Keep, own)


def _row(plain: Mapping[str, Any]) -> TopicFate:
    keep = plain["keep"]
    lists = {"jobs": tuple(plain["jobs"]), "fields": tuple(plain["fields"])}
    identity = {name: tuple(places) for name, places in plain.get("identity", {}).items()}
    return TopicFate(**{**plain, **lists, "identity": identity, "keep": None if keep is None else Keep(**keep)})


def _job(plain: Mapping[str, Any]) -> PersonJob:
    return PersonJob(**{**plain, "topics": tuple(plain["topics"]), "fields": tuple(plain["fields"])})


def person_files(env: Env, directory: str) -> IntentFiles[PersonIntent]:
    """Return the intent files of the requests in a data directory."""
    return IntentFiles(env, directory, names.PERSON_PREFIX, PersonIntent.from_bytes)

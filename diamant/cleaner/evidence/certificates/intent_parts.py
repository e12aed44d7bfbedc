"""The fields that the intents of all removals have in common, and their JSON form, parts of which appear in certificates.

Facts about partitions are a mapping from partitions to frozen dataclasses in memory, and a list of objects with `topic` and
`partition` in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.evidence.search.remains import Remains
from diamant.json_types import JsonObject
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class TopicScope:
    """A topic of a job, as it was when the job was requested."""

    topic_id: str
    """The topic's id as a string. A topic that is deleted and recreated gets another id."""
    partitions: int
    """Number of partitions; the job does not cover those added later."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and digest of a segment's file at one point in time."""

    file: str
    size: int
    sha256: str
    """The digest in hexadecimal."""


class RemovalIntent:
    """The intent of a removal: everything that a broker needs to resume the removal after an interruption.

    The dataclasses of the two kinds of intent repeat these fields, because they define the order of the JSON on disk.
    """

    __slots__ = ()

    id: str
    phase: str
    reason: str
    reference: str
    requested_ms: int
    scope: Mapping[str, TopicScope]
    """The scopes by topic name; empty if an earlier version wrote the intent."""
    due_ms: int | None
    """Time of the next attempt."""
    found: Mapping[TopicPartition, Any]
    done: Mapping[TopicPartition, Any]
    before: tuple[FileDigest, ...]
    """The affected segments before the removal."""
    needles: tuple[Needle, ...]
    is_manual_clock: bool
    """True if a manual clock was in use at any time during the job."""
    retries: int
    """Number of scans that failed to certify."""

    def topic_names(self) -> tuple[str, ...]:
        """Return the topics of the request."""
        raise NotImplementedError

    def remains(self, secret: bytes) -> Remains:
        """Return the removed values that may remain somewhere. `secret` is the secret beside the broker's key."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """Return the content of the intent's file."""
        raise NotImplementedError

    def changed(self, **changes: Any) -> Self:
        """Return a copy of the intent with changed fields."""
        return replace(self, **changes)  # type: ignore[type-var]

    def to_json(self, **own: Any) -> bytes:
        """Return the intent as JSON. `own`: the converted values of fields that only this kind has and that need conversion."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        parts = {
            "scope": {name: asdict(one) for name, one in self.scope.items()},
            "found": rows(self.found),
            "done": rows(self.done),
            "before": [asdict(one) for one in self.before],
            "needles": [one.to_fields() for one in self.needles],
        }
        return json.dumps({**plain, **parts, **own}).encode()

    @classmethod
    def parsed(
        cls,
        data: bytes,
        found: type[DataclassInstance],
        done: type[DataclassInstance],
        own: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> Self:
        """Parse the output of `to_json`; `own` converts this kind's own fields. Raises ValueError for any other input."""
        try:
            plain = json.loads(data)
            parts = {
                "scope": {name: TopicScope(**one) for name, one in plain.get("scope", {}).items()},
                "found": from_rows(found, plain.get("found", ())),
                "done": from_rows(done, plain.get("done", ())),
                "before": tuple(FileDigest(**one) for one in plain.get("before", ())),
                "needles": tuple(Needle.from_fields(one) for one in plain.get("needles", ())),
            }
            return cls(**{**plain, **parts, **own(plain)})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is not an intent that this version can read: {error}") from None


def rows(found: Mapping[TopicPartition, DataclassInstance]) -> list[JsonObject]:
    """Convert facts about partitions to JSON objects with fields in the order of the dataclass, without those that are None."""
    made = []
    for (topic, index), one in found.items():
        values = {field.name: _listed(getattr(one, field.name)) for field in fields(one)}
        known = {name: value for name, value in values.items() if value is not None}
        made.append({"topic": topic, "partition": index, **known})
    return made


def from_rows(kind: type[T], found: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, T]:
    """Convert the output of `rows` back into a mapping. Raises KeyError or TypeError for any other input."""
    made = {}
    for one in found:
        values = {name: _fixed(value) for name, value in one.items()}
        place = values.pop("topic"), values.pop("partition")
        made[place] = kind(**values)
    return made


def _listed(value: Any) -> Any:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def _fixed(value: Any) -> Any:
    return tuple(_fixed(one) for one in value) if isinstance(value, list) else value

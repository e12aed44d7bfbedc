"""The parts of intents, and their form as JSON, which is the same in certificates.

In memory, facts about partitions are a mapping to frozen dataclasses; as JSON, a list of objects with `topic` and
`partition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class TopicScope:
    """The topic of a job, as it was at the time of the request."""

    topic_id: str
    """As text. A topic that is created again under the same name has another id."""
    partitions: int
    """Number of partitions; the job does not cover those added later."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A segment's file at one moment."""

    file: str
    size: int
    sha256: str
    """In hexadecimal."""


def rows(found: Mapping[TopicPartition, DataclassInstance]) -> list[dict[str, Any]]:
    """Return facts about partitions as JSON: fields in the order of the class, without those that are None."""
    made = []
    for (topic, index), one in found.items():
        values = {field.name: _listed(getattr(one, field.name)) for field in fields(one)}
        known = {name: value for name, value in values.items() if value is not None}
        made.append({"topic": topic, "partition": index, **known})
    return made


def from_rows(kind: type[T], found: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, T]:
    """Return the mapping that `rows` was given. KeyError or TypeError for any other input."""
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

"""Message versions that kio lacks, derived from its newest ones. Remove this module once kio has them.

    ApiVersions 5       the cluster and node that the client expects (KIP-1242)
    TxnOffsetCommit 6   topic ids in place of topic names (KIP-1319)
    DeleteGroups 3      an error message for each group (KIP-1331)

Source: the message definitions of Kafka 4.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, NamedTuple, get_args
from uuid import UUID

NEWEST_OF_KIO: Mapping[int, int] = {18: 4, 28: 5, 42: 2}
"""kio's newest version by API key; this module adds the version after it."""


class _NewField(NamedTuple):
    """A field of a new version: its type, kio's name for its wire type, its default, and the field that it replaces."""

    name: str
    type: Any
    wire_type: str
    default: Any = MISSING
    replaces: str | None = None


_TOPIC_ID = _NewField("topic_id", UUID | None, "uuid", replaces="name")
_CHANGES: Mapping[str, tuple[_NewField, ...]] = {
    "ApiVersionsRequest": (
        _NewField("cluster_id", str | None, "string", None),
        _NewField("node_id", int, "int32", -1),
    ),
    "TxnOffsetCommitRequest": (_NewField("generation_id_or_member_epoch", int, "int32", -1, replaces="generation_id"),),
    "TxnOffsetCommitRequestTopic": (_TOPIC_ID,),
    "TxnOffsetCommitResponseTopic": (_TOPIC_ID,),
    "DeletableGroupResult": (_NewField("error_message", str | None, "string", None),),
}
"""The new fields of messages and structures, by the name of kio's class."""

_CLASS_VARIABLES = ("__type__", "__flexible__", "__api_key__", "__header_schema__")


@cache
def newer_version(message: type) -> type:
    """Return the dataclass of the version after kio's `message`, in kio's form."""
    return _newer(message, message.__version__ + 1)  # type: ignore[attr-defined]


def _newer(struct: type, version: int) -> type:
    changes = _CHANGES.get(struct.__name__, ())
    replaced = {change.replaces: change for change in changes if change.replaces is not None}
    described = [_of(replaced[one.name]) if one.name in replaced else _kept(one, version) for one in fields(struct)]
    described += [_of(change) for change in changes if change.replaces is None]
    namespace = {name: getattr(struct, name) for name in _CLASS_VARIABLES if hasattr(struct, name)}
    return make_dataclass(
        struct.__name__,
        described,
        namespace={**namespace, "__version__": version},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _of(new: _NewField) -> tuple[str, Any, Any]:
    return new.name, new.type, field(metadata={"kafka_type": new.wire_type}, default=new.default)


def _kept(one: Field[Any], version: int) -> tuple[str, Any, Any]:
    """Return a field unchanged, except that its elements have the new version of their structure."""
    (element, *_) = get_args(one.type) or (None,)
    kind = one.type
    if isinstance(element, type) and is_dataclass(element):
        kind = tuple[_newer(element, version), ...]  # type: ignore[misc]
    return one.name, kind, field(metadata=one.metadata, default=one.default)

"""Writes that clients make too, for people without one: a record (`POST /v1/produce`), the offsets of a group.

{"topic": "users", "key": {"text": "a"}, "value": {"text": "1"}, "headers": {"trace": "7"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.errors import BadArgument, NotFound, NotPossible, no_group, refused_by_kafka
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.operations.records.reset_offsets import ResetOffsets, reset_offsets
from diamant.broker.record_json import parse_key
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from diamant.protocol.errors import KafkaError


async def produce(call: Call) -> Mapping[str, Any]:
    """Write one record. BadArgument, NotFound, NotPossible."""
    fields = call.fields
    topic, value = fields["topic"], fields["value"]
    call.services.explain().logs(topic, fields["partition"])
    if topic in INTERNAL_TOPICS:
        raise NotPossible(f"{topic} is written by the broker alone")
    if fields["tombstone"] and value is not None:
        raise BadArgument("expected a value or tombstone, not both")
    headers = [
        (name, None if one is None else parse_key(one, f"headers: {name[:100]}"))
        for name, one in fields["headers"].items()
    ]
    value = None if fields["tombstone"] else value or b""
    try:
        found = await call.services.produce().produce(topic, value, fields["key"], fields["partition"], headers, None)
    except KafkaError as error:
        raise refused_by_kafka(error) from None
    return found._asdict()


async def offsets(call: Call) -> ResetOffsets:
    """Reset the offsets of a group in a topic. BadArgument, NotFound, NotPossible."""
    services, fields, group = call.services, call.fields, call.path["group"]
    logs = services.explain().logs(fields["topic"], fields["partition"])
    if GROUP_OFFSETS_TOPIC not in services.node.topics.by_name:
        raise NotFound(no_group(group))
    return await reset_offsets(services.groups(), group, logs, fields["to"], is_tried=fields["validate_only"])


ROUTES = (
    Route(
        "POST",
        "/v1/produce",
        produce,
        "Write one record.",
        changes_data=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("key", "key", "The key. Default: null."),
            Param("value", "key", "The value, in the form of a key. Default: empty."),
            Param("tombstone", "boolean", "Write null as the value.", default=False),
            Param("headers", "object", "Values by name, in the form of a key, or null.", {}),
            Param(
                "partition", "integer", "The partition. Default: by the key, as Kafka's producer.", most=(1 << 31) - 1
            ),
        ),
        answer="`topic`, `partition` and `offset` of the record.",
    ),
    Route(
        "POST",
        "/v1/groups/{group}/offsets",
        offsets,
        "Reset the committed offsets of a group without members, in a topic.",
        changes_data=True,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param(
                "to",
                "string",
                "start, end, an offset, -N (before the end), +N (after the old one) or @TIME.",
                is_required=True,
            ),
            Param("validate_only", "boolean", "Determine the offsets without committing them.", default=False),
        ),
        answer="`offsets`: `partition`, `before` and `after`; `is_changed`.",
    ),
)
